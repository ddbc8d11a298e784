"""Tells exceptions after which a process is not what it was: an exit, memory that ran out, a device that broke."""

from __future__ import annotations

import errno
from typing import Final

import torch

__all__ = ["fatal_words", "spoils_process"]

_DEVICE_ERRORS: Final = ("CUDA error", "HIP error", "CUDA driver error")


def fatal_words(error: BaseException | None) -> str | None:
    """What a kernel did to its process when it raised `error`; None where the process is as good as before."""
    if error is None:
        return None
    if isinstance(error, SystemExit):
        return f"the kernel ended the process: SystemExit({error.code!r})"
    words = str(error).strip().split("\n", 1)[0]
    no_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in words
    if no_memory or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return f"the kernel ran out of memory: {type(error).__name__}: {words}"
    if isinstance(error, RuntimeError) and words.startswith(_DEVICE_ERRORS):
        return f"the kernel broke the device: {words}"
    return None


def spoils_process(error: BaseException | None) -> bool:
    """Whether later results of the same process cannot be trusted; a SystemExit that was caught leaves it sound."""
    return fatal_words(error) is not None and not isinstance(error, SystemExit)
