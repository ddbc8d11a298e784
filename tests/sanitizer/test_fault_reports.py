"""What is written down about fences and faults, and read back after a death."""

from __future__ import annotations

import errno
import os
import signal
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sanitizer.faults import Fenced, note, read_fault
from sanitizer.fences import PAGE, Fence, fenced_pages, forbidden

X = Fenced("x", 1000, 2000, 2020, 3000, 4)
OUT = Fenced("out", 3000, 4000, 4006, 5000, 2, "torch.empty [3] at kernel.py:7")


@pytest.fixture(name="report")
def _report(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A report's file, which this process notes into."""
    with tempfile.TemporaryFile() as file:
        monkeypatch.setattr("sanitizer.faults._table.descriptor", file.fileno())
        monkeypatch.setattr("sanitizer.faults._table.position", 256)
        yield file.fileno()


def _die(report: int, address: int, *, number: int = signal.SIGSEGV, code: int = 1, error: int = 4) -> None:
    """Write what the signal handler writes."""
    os.pwrite(report, struct.pack("=iii4xQ", number, 0, code, address).ljust(128, b"\0"), 0)
    os.pwrite(report, struct.pack("=Q", error), 128)


@pytest.mark.parametrize(
    ("address", "error", "tensor", "elements", "words"),
    [
        (2020, 4, "x", 1, "read 4 bytes past the end of x (1 element)"),
        (2023, 6, "x", 1, "wrote 4 bytes past the end of x (1 element)"),
        (2024, 4, "x", 2, "read 8 bytes past the end of x (2 elements)"),
        (2999, 4, "x", 245, "read 980 bytes past the end of x (245 elements)"),
        (1999, 4, "x", 1, "read 4 bytes before the beginning of x (1 element)"),
        (1000, 4, "x", 250, "read 1000 bytes before the beginning of x (250 elements)"),
        (4999, 4, "out", 497, "read 994 bytes past the end of out (torch.empty [3] at kernel.py:7) (497 elements)"),
        (3001, 7, "out", 500, "wrote 1000 bytes before the beginning of out (torch.empty [3] at kernel.py:7)"),
    ],
)
def test_a_fault_is_told_by_tensor_side_and_distance(
    report: int, address: int, error: int, tensor: str, elements: int, words: str
) -> None:
    """Whichever note named the tensor: the first one, or one that was added."""
    note([X], afresh=True)
    note([OUT])
    _die(report, address, error=error)
    fault = read_fault(report)
    assert fault is not None
    assert (fault.tensor, fault.elements) == (tensor, elements)
    assert fault.words.startswith(words)


@pytest.mark.parametrize("address", [999, 2000, 2019, 5000])
def test_a_fault_inside_a_tensor_or_far_from_all_is_no_fences(report: int, address: int) -> None:
    """Only pages that were forbidden are blamed on a step outside."""
    note([X, OUT], afresh=True)
    _die(report, address)
    assert read_fault(report) is None


def test_a_page_between_two_neighbours_is_the_nearer_ones(report: int) -> None:
    """Of equals, the one that was noted last: memory may have been handed out again."""
    left, right = Fenced("left", 0, 100, 200, 400, 1), Fenced("right", 200, 400, 500, 600, 1)
    note([left, right], afresh=True)
    for address, tensor in ((200, "left"), (298, "left"), (300, "right"), (399, "right")):
        _die(report, address)
        fault = read_fault(report)
        assert fault is not None
        assert fault.tensor == tensor
    note([Fenced("again", 0, 100, 200, 400, 1)])
    _die(report, 200)
    fault = read_fault(report)
    assert fault is not None
    assert fault.tensor == "again"


def test_a_new_problem_forgets_the_last_ones_tensors(report: int) -> None:
    """Notes are added to, or begun afresh."""
    note([X, OUT], afresh=True)
    note([OUT], afresh=True)
    _die(report, 2020)
    assert read_fault(report) is None


def test_a_signal_that_somebody_sent_is_no_access(report: int) -> None:
    """Neither is a fault that has not happened, nor one of another kind."""
    note([X], afresh=True)
    assert read_fault(report) is None
    for code, number in ((0, signal.SIGSEGV), (-6, signal.SIGSEGV), (1, signal.SIGFPE)):
        _die(report, 2020, number=number, code=code)
        assert read_fault(report) is None
    _die(report, 2020, number=signal.SIGBUS, code=2)
    assert read_fault(report) is not None


def test_an_access_without_a_valid_address_says_what_it_may_mean(report: int) -> None:
    """An instruction that needs an aligned address is the likeliest reason that a declaration can mend."""
    note([X], afresh=True)
    _die(report, 0, code=128)
    fault = read_fault(report)
    assert fault is not None
    assert (fault.tensor, fault.elements) == ("", 0)
    assert "wild pointer" in fault.words
    assert "aligned_16" in fault.words


def test_a_table_that_is_full_keeps_what_it_has(report: int) -> None:
    """A kernel that asks for scratch without end costs no memory, and old notes stay readable."""
    note([X], afresh=True)
    note([Fenced("n" * (1 << 20), 1, 2, 3, 4, 1)])
    note([OUT])
    for address, tensor in ((2020, "x"), (4006, "out")):
        _die(report, address)
        fault = read_fault(report)
        assert fault is not None
        assert fault.tensor == tensor
    assert os.fstat(report).st_size < 1 << 20


def _access(address: int) -> str:
    """What this process may do at an address, as /proc writes it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, access = line.split()[:2]
        low, high = (int(end, 16) for end in bounds.split("-"))
        if low <= address < high:
            return access[:3]
    return "not mapped"


@pytest.mark.parametrize("side", ["after", "before"])
@pytest.mark.parametrize("size", [1, 5, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE])
def test_fenced_memory_lies_between_two_pages_without_access(side: str, size: int) -> None:
    """Both ends, whatever the size; inside everything may be read and written."""
    fenced = fenced_pages(size, Fence("before" if side == "before" else "after"))
    assert fenced is not None
    start = fenced.buffer.data_ptr() + fenced.first
    assert (start % PAGE == 0) if side == "before" else ((start + size) % PAGE == 0)
    assert fenced.buffer.numel() == -(-size // PAGE) * PAGE
    for address in (start, start + size - 1):
        assert _access(address) == "rw-"
    for address in (fenced.low, fenced.low + PAGE - 1, fenced.high - PAGE, fenced.high - 1):
        assert _access(address) == "---"
    assert (fenced.low + PAGE, fenced.high - PAGE) == (
        fenced.buffer.data_ptr(),
        fenced.buffer.data_ptr() + fenced.buffer.numel(),
    )


@pytest.mark.parametrize("alignment", [1, 16, 64])
def test_alignment_leaves_less_than_itself_before_the_fence(alignment: int) -> None:
    """The first byte keeps its alignment, and no closer place would."""
    fenced = fenced_pages(21, Fence("after", alignment))
    assert fenced is not None
    assert fenced.first % alignment == 0
    assert 0 <= PAGE - fenced.first - 21 < alignment


def test_pages_that_are_not_ours_cannot_be_fenced() -> None:
    """The error says which call failed, and why."""
    with pytest.raises(OSError, match="mprotect: ") as caught, forbidden([(PAGE, PAGE)]):
        raise AssertionError("the body must not run")
    assert caught.value.errno == errno.ENOMEM
