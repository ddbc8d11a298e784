"""Triton kernels whose atomics go astray in some lanes."""

# No `from __future__ import annotations`: the interpreter compares the annotation `tl.constexpr` with the type itself.
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
import triton
import triton.language as tl

__all__ = ["add_astray"]


@triton.jit
def add_astray(target_ptr, shift, SIZE: tl.constexpr):  # noqa: N803
    """Adds ten to every element; the lanes from the third on are so many elements away."""
    i = tl.arange(0, SIZE)
    at = i + tl.where(i < 2, 0, 1).to(tl.int64) * shift
    tl.atomic_add(target_ptr + at, i * 0 + 10)
