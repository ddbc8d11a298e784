"""Memory between pages that nobody may touch: one step past a tensor, or before it, ends the process at once.

Here is a CPU's, with whole pages of `mmap` whose access `mprotect` forbids; `sanitizer.mapped_memory` has a device's.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, Protocol

import torch
from torch import Tensor

__all__ = [
    "PAGE",
    "Fence",
    "FencedPages",
    "Fencing",
    "HostFences",
    "Strip",
    "fenced_pages",
    "forbidden",
    "own_pages",
    "whole_pages",
]

PAGE: Final = mmap.PAGESIZE

Strip = tuple[int, int]  # first byte and length of whole pages


@dataclass(frozen=True, slots=True)
class Fence:
    """On which side a tensor touches its fence, to the byte.

    side: "after", the last element ends at one; "before", the first begins at one. The other side has a fence too,
    with up to a page of guard bytes in front of it.
    alignment: bytes that the first element's address must be a multiple of, beyond its own size. With "after", up to
    alignment − 1 bytes stay between a tensor and its fence; they are guard bytes.
    page: bytes that can be forbidden at least, and where such a piece begins; set by whoever lays tensors out.
    """

    side: Literal["after", "before"] = "after"
    alignment: int = 1
    page: int = PAGE

    def whole(self, size: int) -> int:
        """The bytes of as many pages as `size` bytes need."""
        return -(-size // self.page) * self.page


class Fencing(Protocol):
    """What memory between fences takes on one kind of device. `page`: bytes that can be forbidden at least."""

    page: int

    def own_pages(self, size: int) -> Tensor:
        """[size, whole pages] uint8: zeroed memory of its own that begins with a page."""
        ...

    def forbidden(self, strips: Sequence[Strip]) -> AbstractContextManager[None]:
        """Forbid all access to `strips` of the latest such memory while the body runs."""
        ...


class HostFences:
    """Fences on a CPU."""

    page = PAGE

    def own_pages(self, size: int) -> Tensor:
        """[size, whole pages] uint8: zeroed memory of its own."""
        return own_pages(size)

    def forbidden(self, strips: Sequence[Strip]) -> AbstractContextManager[None]:
        """Forbid all access to `strips` while the body runs."""
        return forbidden(strips)


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
