"""What our Triton kernels share: whether Triton is there, how many programs to launch, what memory may not overlap."""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.errors import Unavailable

__all__ = ["PROGRAMS", "block", "interpreted", "jitted", "overlap", "overlaps_itself", "programs"]

PROGRAMS: Final = 8
"""So many programs of a launch at most in the interpreter, where each costs milliseconds and they run one by one."""


def jitted(module: str) -> Any:
    """A module of jitted functions, imported now. Raises Unavailable where it could not run."""
    try:
        importlib.import_module("triton")
    except ImportError as error:
        raise Unavailable(f"Triton cannot be imported: {error}") from error
    if not torch.cuda.is_available() and not interpreted():
        raise Unavailable("Triton needs a GPU, or TRITON_INTERPRET=1 in the environment before it is imported")
    return importlib.import_module(f"mla_verify.kernels.jitted.{module}")


def programs(items: int) -> tuple[int]:
    """The grid for so many pieces of work: one program each on a GPU, a few that share them in the interpreter."""
    return (min(items, PROGRAMS) if interpreted() else items,)


def block(size: int, *, most: int = 1 << 20) -> int:
    """The power of two that holds `size`, from 16 (the least that a matrix product takes) up to `most`."""
    return min(max(16, 1 << max(0, size - 1).bit_length()), most)


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the address ranges of two tensors meet. Tensors that interleave without sharing an element count too."""
    if one.numel() == 0 or other.numel() == 0 or one.device != other.device:
        return False
    start, other_start = one.data_ptr(), other.data_ptr()
    return start < other_start + _span(other) and other_start < start + _span(one)


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements may share an address: a stride is no longer than what the smaller strides reach."""
    if tensor.numel() == 0:
        return False
    reach = 0
    for stride, size in sorted(
        (stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    ):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _span(tensor: Tensor) -> int:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, as far as the environment says."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")
