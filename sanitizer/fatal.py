"""Tells exceptions after which a process is not what it was: an exit, memory that ran out, a device that broke."""

from __future__ import annotations

import errno
from typing import Final

import torch

__all__ = ["broke_device", "clean", "exception_words", "fatal_words", "spoils_process"]

_LONGEST: Final = 400  # characters of a kernel's own words that are repeated

# Who speaks of a device: torch, its driver calls, Triton's launcher, and the runtimes' own names of their errors.
_DEVICE_VOICES: Final = (
    "CUDA error",
    "HIP error",
    "CUDA driver error",
    "Triton Error [",
    "cudaError",
    "hipError",
    "CUDA_ERROR_",
)
# After one of these every later call fails too, by the documentation of CUDA and HIP: the process has to go. All other
# errors of a device (a wrong argument, a failed capture) leave it as it was.
_STICKY: Final = (
    "illegal memory access",
    "IllegalAddress",
    "ILLEGAL_ADDRESS",
    "misaligned address",
    "MisalignedAddress",
    "MISALIGNED_ADDRESS",
    "unspecified launch failure",
    "LaunchFailure",
    "LAUNCH_FAILED",
    "device-side assert",
    "ErrorAssert",
    "ERROR_ASSERT",
    "illegal instruction",
    "invalid program counter",
    "hardware stack error",
    "launch timed out",
    "global/shared address space",
    "uncorrectable ECC error",
    "context is destroyed",
)


def fatal_words(error: BaseException | None) -> str | None:
    """What a kernel did to its process when it raised `error`; None where the process is as good as before."""
    if error is None:
        return None
    if isinstance(error, SystemExit):
        return f"the kernel ended the process: SystemExit({error.code!r})"
    if not isinstance(error, Exception):
        return f"the kernel raised what no caller catches: {exception_words(error)}"
    words = _message(error).split("\n", 1)[0]
    no_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in words
    if no_memory or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return f"the kernel ran out of memory: {exception_words(error)}"
    if broke_device(error):
        return f"the kernel broke the device: {clean(words)}"
    return None


def broke_device(error: BaseException | None) -> bool:
    """Whether a GPU takes nothing more from this process after `error`: no tensor on it can be looked at again."""
    if not isinstance(error, RuntimeError):
        return False
    words = _message(error).split("\n", 1)[0]
    return any(voice in words for voice in _DEVICE_VOICES) and any(word in words for word in _STICKY)


def spoils_process(error: BaseException | None) -> bool:
    """Whether later results of the same process cannot be trusted; a SystemExit that was caught leaves it sound."""
    return fatal_words(error) is not None and not isinstance(error, SystemExit)


def exception_words(error: BaseException) -> str:
    """An exception's type and message, fit to be printed whatever the message is."""
    message = clean(_message(error))
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def clean(text: str) -> str:
    """A text of bounded length without control characters: what a kernel says may hold anything."""
    text = text.strip()
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "backslashreplace").decode()
        for character in shown
    )


def _message(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception:  # noqa: BLE001 - the kernel's own __str__ runs here
        return "(its message cannot be read: its __str__ raises)"
