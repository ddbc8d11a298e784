"""Fences: one step past a tensor, or before it, ends the process, and the death names the tensor and the distance."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import pytest
import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.audit import audit
from sanitizer.fences import PAGE, Fence
from sanitizer.plan import TensorPlan
from sanitizer.sandbox import Death, Sandbox
from sanitizer.secrets import Secret
from tests.sanitizer.problems import COLUMNS, ROWS, clauses, doubling, output, run_audit, source
from tests.sanitizer.services import BIG

SIDES: Final[tuple[Literal["after", "before"], ...]] = ("after", "before")
DTYPES: Final = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex128)


@pytest.fixture(name="sandbox", scope="module")
def _sandbox() -> Iterator[Sandbox]:
    with Sandbox("tests.sanitizer.services:obeying", None, preload=("torch", "tests.sanitizer.services")) as sandbox:
        yield sandbox


def touch(sandbox: Sandbox, **request: Any) -> Any:
    """Have a kernel touch a byte beside x (five float32): how it died of it, or what containment said."""
    return sandbox.request({"do": "fence", **request}, timeout=60.0)


def words_of(answer: Any) -> tuple[str, str, int]:
    """How a worker died, and of which access."""
    assert isinstance(answer, Death)
    assert answer.fault is not None
    assert answer.fault.tensor in answer.fault.words
    return answer.how, answer.fault.words, answer.fault.elements


def run_loaded(kernel: Any, arena: Arena) -> set[str]:
    """The clauses that a kernel breaks on what is loaded."""
    return clauses(audit(kernel, arena))


def first_and_end(tensor: Tensor) -> tuple[int, int]:
    """Addresses of a tensor's first byte and of the one behind its last."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + extent * tensor.itemsize


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("side", SIDES)
def test_tensors_touch_their_fence_to_the_byte(side: Literal["after", "before"], dtype: torch.dtype) -> None:
    """Whatever the dtype, strides, offset or form: the last element ends with a page, or the first begins with one."""
    arena = Arena()
    columns_first = replace(output(dtype, strides=(1, ROWS)), name="columns_first")
    arena.load((source(dtype, offset=3), output(dtype, form="owner", offset=1), columns_first), fence=Fence(side))
    for tensor in arena.tensors().values():
        assert first_and_end(tensor)[side == "after"] % PAGE == 0


@pytest.mark.parametrize("side", SIDES)
def test_aligned_tensors_stay_aligned(side: Literal["after", "before"]) -> None:
    """Up to 15 bytes lie between an aligned tensor and its fence, so that its first element keeps its alignment."""
    arena = Arena()
    arena.load((source(torch.bfloat16), output(torch.bfloat16)), fence=Fence(side, 16))
    for tensor in arena.tensors().values():
        first, end = first_and_end(tensor)
        assert first % 16 == 0
        assert (-end if side == "after" else first) % PAGE < 16


@pytest.mark.parametrize("elements", [0, 300_000], ids=["small", "large"])
@pytest.mark.parametrize("side", SIDES)
def test_a_right_kernel_passes_between_fences(side: Literal["after", "before"], elements: int) -> None:
    """Values, secrets and comparisons are what they are without fences, with kept and fresh scratch too."""
    kept: list[Tensor] = []

    def kernel(tensors: dict[str, Tensor]) -> None:
        if not kept:
            kept.append(torch.empty(ROWS, COLUMNS))
        scratch = torch.mul(tensors["x"], 1, out=torch.empty(ROWS, COLUMNS))
        kept[0].copy_(scratch)
        torch.mul(kept[0], 2, out=tensors["out"])

    ballast = TensorPlan(
        name="ballast", shape=(elements,), strides=(1,), dtype=torch.float32, role="input", values=torch.ones(elements)
    )
    arena = Arena()
    for fence in (Fence(side), None, Fence(side, 16)):
        arena.load((source(), output(), ballast), fence=fence)
        assert run_loaded(kernel, arena) == set()


@pytest.mark.parametrize("side", SIDES)
def test_gaps_and_unfenced_bytes_are_guarded(side: Literal["after", "before"]) -> None:
    """A write between rows, or into the rest of the page on the other side, is `containment` as ever."""

    def into_the_gap(tensors: dict[str, Tensor]) -> None:
        doubling(tensors)
        tensors["out"].as_strided((1,), (1,), int(tensors["out"].storage_offset()) + COLUMNS).zero_()

    def beside(tensors: dict[str, Tensor]) -> None:
        doubling(tensors)
        out = tensors["out"]
        extent = (ROWS - 1) * (COLUMNS + 3) + COLUMNS
        out.as_strided((1,), (1,), int(out.storage_offset()) + (-1 if side == "after" else extent)).zero_()

    for kernel in (into_the_gap, beside):
        arena = Arena()
        arena.load((source(), output()), fence=Fence(side))
        assert run_loaded(kernel, arena) == {"containment"}


def test_memory_is_readable_again_after_the_kernel() -> None:
    """Fences stand only while a kernel runs, and fall when it raises too."""

    def kernel(_: dict[str, Tensor]) -> None:
        raise ValueError

    arena = Arena()
    arena.load((source(), output()), fence=Fence())
    assert run_loaded(kernel, arena) == {"refusal"}
    arena.poison(Secret.B)
    assert arena.stray() == []
    assert run_audit(doubling, arena=arena).findings == ()


@pytest.mark.parametrize("distance", [0, 3, 4, 40], ids="{} bytes".format)
@pytest.mark.parametrize(("what", "verb"), [("read", "read"), ("write", "wrote")])
def test_a_step_past_a_tensor_is_told_with_its_distance(sandbox: Sandbox, what: str, verb: str, distance: int) -> None:
    """Reads and writes are told apart, and counted in whole elements from the tensor's end."""
    count = distance // 4 + 1
    many = "1 element" if count == 1 else f"{count} elements"
    words = f"{verb} {4 * count} bytes past the end of x ({many})"
    answer = touch(sandbox, side="past", what=what, distance=distance)
    assert words_of(answer) == ("killed by SIGSEGV", words, count)


def test_a_step_before_a_tensor_is_told_with_its_distance(sandbox: Sandbox) -> None:
    """The element in front of the first is one element before the beginning."""
    words = "read 4 bytes before the beginning of x (1 element)"
    assert words_of(touch(sandbox, side="before", distance=4)) == ("killed by SIGSEGV", words, 1)
    assert words_of(touch(sandbox, side="before", distance=1))[1] == words


@pytest.mark.parametrize("side", ["past", "before"])
def test_scratch_has_fences_too(sandbox: Sandbox, side: str) -> None:
    """Memory that the kernel asks torch for is named by its number and the line that asked for it."""
    distance = 0 if side == "past" else 4
    how, words, elements = words_of(touch(sandbox, side=side, distance=distance, what="scratch"))
    assert (how, elements) == ("killed by SIGSEGV", 1)
    assert "of scratch 0 (torch.empty [5] at services.py:" in words


def test_a_fault_of_another_thread_is_told_just_the_same(sandbox: Sandbox) -> None:
    """The report needs no lock that the main thread might hold."""
    words = "read 4 bytes past the end of x (1 element)"
    assert words_of(touch(sandbox, side="past", distance=0, what="thread", elements=BIG)) == (
        "killed by SIGSEGV",
        words,
        1,
    )


def test_unfenced_bytes_behind_an_aligned_tensor_can_be_read_and_are_guarded(sandbox: Sandbox) -> None:
    """Five float32 leave twelve bytes to the next 16: a read there passes, a write is `containment`, a step on dies."""
    assert touch(sandbox, side="past", distance=11, alignment=16) == []
    (detail,) = touch(sandbox, side="past", distance=0, what="write", alignment=16)
    assert detail.startswith("guard behind x: 1 elements")
    assert words_of(touch(sandbox, side="past", distance=12, alignment=16))[2] == 4


def test_fenced_scratch_is_given_back() -> None:
    """A kernel that asks for scratch again and again does not use up the mappings that a process may have."""

    def kernel(tensors: dict[str, Tensor]) -> None:
        for _ in range(200):
            torch.empty(5)
        doubling(tensors)

    arena = Arena()
    arena.load((source(), output()), fence=Fence())
    assert run_loaded(kernel, arena) == set()
    gc.collect()
    before = len(Path("/proc/self/maps").read_text().splitlines())
    for _ in range(3):
        assert run_loaded(kernel, arena) == set()
    gc.collect()
    assert len(Path("/proc/self/maps").read_text().splitlines()) < before + 100
