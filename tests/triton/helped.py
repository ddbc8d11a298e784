"""A kernel that calls jitted helpers, which live in another module than it does."""

# No `from __future__ import annotations`: the interpreter compares the annotation `tl.constexpr` with the type itself.
# pyright: basic
import triton
import triton.language as tl

__all__ = ["extremes_kernel"]


@triton.jit
def extremes_kernel(given_ptr, most_ptr, total_ptr):
    """Largest number and sum of each row of [4, 4], two rows a program."""
    for step in range(0, 2):
        row = tl.program_id(0) * tl.cdiv(4, 2) + step
        lanes = tl.arange(0, 4)
        held = tl.load(given_ptr + row * 4 + lanes) + tl.zeros((4,), dtype=tl.float32)
        tl.store(most_ptr + row, tl.max(held, 0))
        tl.store(total_ptr + row, tl.sum(held, 0))
