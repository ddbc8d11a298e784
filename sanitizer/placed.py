"""Decides where in the arena each tensor goes: guard, tensor with its gaps, guard, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from sanitizer.geometry import extent_of
from sanitizer.plan import TensorPlan
from sanitizer.secrets import carrier_of

__all__ = ["ALIGNMENT", "Placed", "place", "strided_view"]

_PHASE: Final = 67  # elements; coprime to the period of the patterns
_PHASES: Final = 1 << 10
ALIGNMENT: Final = 64  # bytes; what torch's own CPU allocations begin at


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """One tensor's place. Addresses count bytes from the arena's beginning.

    [low, start) is the guard in front, [start, end) the extent, [end, high) the guard behind. A tensor that lies over
    another has no guards of its own.
    """

    plan: TensorPlan
    extent: int  # elements from the first to the last, gaps included
    low: int
    start: int
    high: int
    carrier: torch.dtype
    words: int  # carrier words per element
    word_shape: tuple[int, ...]
    word_strides: tuple[int, ...]
    phase: int  # elements of the secret pattern to skip, so that neighbours do not hold the same numbers

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.plan.dtype.itemsize

    @property
    def end(self) -> int:
        """One past the last byte of the last element."""
        return self.start + self.extent * self.itemsize


def place(plans: Sequence[TensorPlan]) -> tuple[list[Placed], int]:
    """Places of all tensors, in the order of `plans`, and the arena's size in bytes, a multiple of the alignment."""
    over: dict[str, list[TensorPlan]] = {}
    for plan in plans:
        if plan.over is not None:
            over.setdefault(plan.over, []).append(plan)
    placed: dict[str, Placed] = {}
    cursor = 0
    for plan in plans:
        if plan.over is None:
            placed[plan.name] = _root(plan, cursor, over.get(plan.name, []), _PHASE * len(placed) % _PHASES)
            cursor = placed[plan.name].high
        else:
            placed[plan.name] = _overlay(plan, placed)
    return list(placed.values()), cursor


def _root(plan: TensorPlan, cursor: int, overlays: Sequence[TensorPlan], phase: int) -> Placed:
    """Lay `plan` at `cursor`, with guards that also hold whatever part of its overlays stands out."""
    extent = extent_of(plan.shape, plan.strides)
    in_front, behind = 0, 0
    for overlay in overlays:
        first = overlay.offset * overlay.dtype.itemsize
        last = first + extent_of(overlay.shape, overlay.strides) * overlay.dtype.itemsize
        in_front = max(in_front, -first)
        behind = max(behind, last - extent * plan.dtype.itemsize)
    start = cursor + _aligned(plan.guard + in_front) + plan.offset * plan.dtype.itemsize
    end = start + extent * plan.dtype.itemsize
    return _placed(plan, extent, cursor, start, _aligned(end + behind + max(plan.guard, 1)), phase)


def _overlay(plan: TensorPlan, placed: dict[str, Placed]) -> Placed:
    base = placed.get(plan.over or "")
    if base is None:
        raise ValueError(f"{plan.name} lies over {plan.over}, which is no earlier tensor")
    start = base.start + plan.offset * plan.dtype.itemsize
    if start % plan.dtype.itemsize:
        raise ValueError(f"{plan.name} would begin at a byte that is no multiple of its {plan.dtype.itemsize}")
    extent = extent_of(plan.shape, plan.strides)
    return _placed(plan, extent, start, start, start + extent * plan.dtype.itemsize, 0)


def _placed(plan: TensorPlan, extent: int, low: int, start: int, high: int, phase: int) -> Placed:
    carrier, words = carrier_of(plan.dtype)
    shape, strides = plan.shape, plan.strides
    if words > 1:
        shape, strides = (*shape, words), (*(words * stride for stride in strides), 1)
    return Placed(plan, extent, low, start, high, carrier, words, shape, strides, phase)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def strided_view(words: Tensor, placed: Placed, *, first_byte: int = 0) -> Tensor:
    """[*shape] (complex128: [*shape, 2]) the tensor's place within `words`, the arena or a copy of it as carriers."""
    offset = (first_byte + placed.start) // placed.carrier.itemsize
    return words.as_strided(placed.word_shape, placed.word_strides, offset)
