"""Memory between pages that nobody may touch: one step past a tensor, or before it, ends the process at once.

Only memory of a CPU is fenced here, with whole pages of `mmap` whose access `mprotect` forbids.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import torch
from torch import Tensor

__all__ = ["PAGE", "Fence", "FencedPages", "Strip", "fenced_pages", "forbidden", "own_pages", "whole_pages"]

PAGE: Final = mmap.PAGESIZE

Strip = tuple[int, int]  # first byte and length of whole pages


@dataclass(frozen=True, slots=True)
class Fence:
    """On which side a tensor touches its fence, to the byte.

    side: "after", the last element ends at one; "before", the first begins at one. The other side has a fence too,
    with up to a page of guard bytes in front of it.
    alignment: bytes that the first element's address must be a multiple of, beyond its own size. With "after", up to
    alignment − 1 bytes stay between a tensor and its fence; they are guard bytes.
    """

    side: Literal["after", "before"] = "after"
    alignment: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class FencedPages:
    """A piece of memory between two fences of a page each. `first`: where in `buffer` what was asked for begins."""

    buffer: Tensor  # [whole pages] uint8
    first: int

    @property
    def low(self) -> int:
        """The address where the fence in front begins."""
        return self.buffer.data_ptr() - PAGE

    @property
    def high(self) -> int:
        """The address where the fence behind ends."""
        return self.buffer.data_ptr() + self.buffer.numel() + PAGE


def whole_pages(size: int) -> int:
    """The bytes of as many pages as `size` bytes need."""
    return -(-size // PAGE) * PAGE


def own_pages(size: int) -> Tensor:
    """[size, whole pages] uint8: zeroed memory of its own that begins with a page. Raises OSError without any left."""
    mapping = mmap.mmap(-1, max(whole_pages(size), PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(mapping, dtype=torch.uint8)


def fenced_pages(size: int, fence: Fence) -> FencedPages | None:
    """Memory for `size` bytes that stays fenced for as long as it lives; None where there is none left."""
    inner = whole_pages(size)
    try:
        whole = own_pages(inner + 2 * PAGE)
        for address in (whole.data_ptr(), whole.data_ptr() + PAGE + inner):
            _protect(address, PAGE, _NOTHING)
    except OSError:
        return None
    first = 0 if fence.side == "before" else (inner - size) // fence.alignment * fence.alignment
    return FencedPages(whole[PAGE : PAGE + inner], first)


@contextmanager
def forbidden(strips: Sequence[Strip]) -> Generator[None, None, None]:
    """Forbid all access to `strips`, pages of ours, while the body runs."""
    try:
        for address, length in strips:
            _protect(address, length, _NOTHING)
        yield
    finally:
        for address, length in strips:
            _protect(address, length, _READ_AND_WRITE)


_NOTHING: Final = 0  # PROT_NONE, which the module mmap has no name for
_READ_AND_WRITE: Final = mmap.PROT_READ | mmap.PROT_WRITE


def _protect(address: int, length: int, access: int) -> None:
    if _mprotect()(address, length, access):
        error = ctypes.get_errno()
        raise OSError(error, f"mprotect: {os.strerror(error)}")


@cache
def _mprotect() -> Callable[[int, int, int], int]:
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function.restype = ctypes.c_int
    return function
