"""Decides where in the arena each tensor goes: guard, tensor with its gaps, guard, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from sanitizer.fences import Fence, Strip
from sanitizer.geometry import extent_of
from sanitizer.plan import TensorPlan
from sanitizer.secrets import carrier_of

__all__ = ["ALIGNMENT", "Ground", "Placed", "place", "strided_view"]

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


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """Where everything lies. `strips`: pages between fenced tensors, counted from the arena's beginning."""

    places: list[Placed]  # in the order of the plans
    size: int  # bytes, a multiple of the alignment
    strips: tuple[Strip, ...] = ()


def place(plans: Sequence[TensorPlan], *, fence: Fence | None = None) -> Ground:
    """Find a place for every tensor; between fences, where one is given, and then their offsets do not count."""
    builder = _Builder(fence)
    for plan in plans:
        if plan.over is None:
            builder.add(plan, [other for other in plans if other.over == plan.name])
        else:
            builder.placed[plan.name] = _overlay(plan, builder.placed)
    return Ground(list(builder.placed.values()), builder.finish(), tuple(builder.strips))


@dataclass(slots=True, eq=False)
class _Builder:
    """Lays one tensor behind the other. `guard`: bytes that the last one wants behind it, where that is still owed."""

    fence: Fence | None
    placed: dict[str, Placed] = field(default_factory=dict[str, Placed])
    strips: list[Strip] = field(default_factory=list[Strip])
    cursor: int = 0
    guard: int = 0

    def add(self, plan: TensorPlan, overlays: Sequence[TensorPlan]) -> None:
        """Lay `plan`, with room for whatever part of its overlays stands out."""
        extent = extent_of(plan.shape, plan.strides)
        in_front, behind = 0, 0
        for overlay in overlays:
            first = overlay.offset * overlay.dtype.itemsize
            last = first + extent_of(overlay.shape, overlay.strides) * overlay.dtype.itemsize
            in_front = max(in_front, -first)
            behind = max(behind, last - extent * plan.dtype.itemsize)
        low, phase = self.cursor, _PHASE * len(self.placed) % _PHASES
        if self.fence is None:
            start = low + _aligned(plan.guard + in_front) + plan.offset * plan.dtype.itemsize
            end = start + extent * plan.dtype.itemsize + behind
            self.cursor = _aligned(end + max(plan.guard, 1))
        else:
            unit = max(self.fence.alignment, plan.dtype.itemsize, *(other.dtype.itemsize for other in overlays))
            start = self._between_fences(self.fence, plan, in_front, extent * plan.dtype.itemsize + behind, unit)
        self.placed[plan.name] = _placed(plan, extent, low, start, self.cursor, phase)

    def _between_fences(self, fence: Fence, plan: TensorPlan, in_front: int, size: int, unit: int) -> int:
        """Leave out a strip, take pages for what follows, and say where in them the first element lies."""
        # The strip belongs to both neighbours: no smaller than the guard that either of them asks for.
        strip = fence.whole(max(plan.guard, self.guard, 1))
        self.strips.append((self.cursor, strip))
        first, self.guard = self.cursor + strip, plan.guard
        in_front, size = _up(in_front, unit), _up(size, unit)
        self.cursor = first + fence.whole(in_front + size)
        return first + in_front if fence.side == "before" else self.cursor - size

    def finish(self) -> int:
        """The size of all, once the last tensor has its fence."""
        if self.fence is not None and self.strips:
            strip = self.fence.whole(max(self.guard, 1))
            self.strips.append((self.cursor, strip))
            self.cursor += strip
        return self.cursor


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
    return _up(size, ALIGNMENT)


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def strided_view(words: Tensor, placed: Placed, *, first_byte: int = 0) -> Tensor:
    """[*shape] (complex128: [*shape, 2]) the tensor's place within `words`, the arena or a copy of it as carriers."""
    offset = (first_byte + placed.start) // placed.carrier.itemsize
    return words.as_strided(placed.word_shape, placed.word_strides, offset)
