"""From a problem's layouts to the plans of its tensors, within what the kernel's preconditions leave free."""

from __future__ import annotations

import math
from typing import Final, Literal

import torch
from torch import Tensor

from mla_verify.kernel import Kernel
from sanitizer.plan import Fills, Role, TensorPlan
from strategies.layouts import CONTIGUOUS, Layout, strides_of

__all__ = ["DTYPES", "PLAIN_FILLS", "cache_fills", "dtype_of", "plan", "table_fills"]

DTYPES: Final[dict[str, torch.dtype]] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
PLAIN_FILLS: Final = Fills()
_ALIGNED_BYTES: Final = 16  # what the precondition "aligned_16" promises of a first element's address


def dtype_of(name: str) -> torch.dtype:
    """The dtype that a problem calls by this name."""
    try:
        return DTYPES[name]
    except KeyError:
        raise ValueError(f"dtype {name!r} is not one of {', '.join(DTYPES)}") from None


def plan(
    name: str,
    shape: tuple[int, ...],
    layout: Layout,
    dtype: torch.dtype,
    role: Role,
    *,
    kernel: Kernel,
    group: str | None = None,
    values: Tensor | None = None,  # [shape]
    live: Tensor | None = None,  # bool, broadcastable to shape
    rules: Tensor | None = None,  # uint8, broadcastable to shape
    fills: Fills = PLAIN_FILLS,
    guard: int = 64,
    form: Literal["view", "owner"] = "view",
) -> TensorPlan:
    """Plan one tensor that lies as `layout` says.

    A kernel that declares `contiguous_<group>` (the tensor's name unless given) gets it contiguous, and one
    that declares `aligned_16` its first element at a multiple of 16 bytes, whatever the problem drew.
    """
    preconditions = kernel.preconditions
    if preconditions and f"contiguous_{group or name}" in preconditions:
        layout = CONTIGUOUS if layout.offset == 0 else Layout(offset=layout.offset)
    strides, offset = strides_of(shape, layout)
    if preconditions and "aligned_16" in preconditions:
        unit = _ALIGNED_BYTES // math.gcd(_ALIGNED_BYTES, dtype.itemsize)
        offset = -(-offset // unit) * unit
    return TensorPlan(
        name=name,
        shape=shape,
        strides=strides,
        dtype=dtype,
        role=role,
        offset=offset,
        values=values,
        live=live,
        rules=rules,
        fills=fills,
        guard=guard,
        form=form,
    )


def cache_fills(kernel: Kernel) -> Fills:
    """What unused cache slots hold: NaN under secret A, unless the kernel may expect them to be finite."""
    if "finite_unused_slots" in kernel.preconditions:
        return Fills(a="ordinary2")
    return PLAIN_FILLS


def table_fills(kernel: Kernel, *, foreign: int, other: int = 0) -> Fills:
    """What the tails of a table of page ids hold: −1 under secret A and a foreign page's id under B.

    A kernel that may expect valid ids gets `other` in place of −1: any page of the pool.
    """
    if "valid_table_tails" in kernel.preconditions:
        return Fills(a=other, b=foreign, z=0)
    return Fills(a=-1, b=foreign, z=0)
