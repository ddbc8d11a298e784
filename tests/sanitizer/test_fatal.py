"""Which exceptions leave a process that can be trusted no longer, and how they are put into words."""

from __future__ import annotations

import errno

import pytest
import torch

from sanitizer.fatal import broke_device, clean, exception_words, fatal_words, spoils_process

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA`\nto see more"


class Unreadable(Exception):
    """Its message raises."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, None),
        (ValueError("no"), None),
        (RuntimeError("CUDA error: invalid argument"), None),
        (RuntimeError("an illegal memory access, says a kernel"), None),
        (ValueError(ILLEGAL), None),
        (OSError(errno.EACCES, "no"), None),
        (SystemExit(3), "the kernel ended the process: SystemExit(3)"),
        (SystemExit("bye"), "the kernel ended the process: SystemExit('bye')"),
        (GeneratorExit("odd"), "the kernel raised what no caller catches: GeneratorExit: odd"),
        (MemoryError(), "the kernel ran out of memory: MemoryError"),
        (OSError(errno.ENOMEM, "full"), "the kernel ran out of memory: OSError: [Errno 12] full"),
        (torch.OutOfMemoryError("CUDA"), "the kernel ran out of memory: OutOfMemoryError: CUDA"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            "the kernel ran out of memory: RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried",
        ),
        (RuntimeError(ILLEGAL), "the kernel broke the device: CUDA error: an illegal memory access was encountered"),
    ],
    ids=lambda value: str(value)[:30].split("\n")[0] if value is not None else "none",
)
def test_what_an_exception_did_to_its_process(error: BaseException | None, words: str | None) -> None:
    """An exit, memory that ran out, a device that broke, told by the first line; all other exceptions do no harm."""
    assert fatal_words(error) == words


def test_an_exit_that_was_caught_leaves_the_process_sound() -> None:
    """Everything else that is fatal spoils it."""
    assert not spoils_process(SystemExit(3))
    assert not spoils_process(ValueError("no"))
    assert not spoils_process(None)
    assert spoils_process(MemoryError())
    assert spoils_process(RuntimeError(ILLEGAL))


@pytest.mark.parametrize(
    "message",
    ["HIP error: unspecified launch failure", "Triton Error [CUDA]: device-side assert triggered", ILLEGAL],
    ids=["hip", "triton", "cuda"],
)
def test_a_device_is_broken_where_a_device_says_so_in_the_first_line(message: str) -> None:
    """What follows the first line is advice, and mentions other errors."""
    assert broke_device(RuntimeError(message))
    assert not broke_device(RuntimeError(f"first something else\n{message}"))
    assert not broke_device(ValueError(message))


def test_messages_are_printable_and_of_bounded_length() -> None:
    """What a kernel says may hold anything, and may be a page long."""
    assert clean("  a\tb\nc\x1b[31m é \ud800 ") == r"a\tb\nc\x1b[31m é \ud800"
    assert clean("x" * 400) == "x" * 400
    assert clean("x" * 401) == "x" * 400 + "… (401 characters)"
    assert exception_words(ValueError("")) == "ValueError"
    assert exception_words(KeyError("k")) == "KeyError: 'k'"
    assert exception_words(Unreadable()) == "Unreadable: (its message cannot be read: its __str__ raises)"
