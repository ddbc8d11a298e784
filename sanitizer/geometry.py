"""Where the elements of a strided tensor lie, and where they do not: extents, gaps between them, overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Box", "extent_of", "gap_boxes", "gap_mask", "narrowed", "preceding_element", "rows_overlap", "run_boxes"]


@dataclass(frozen=True, slots=True)
class Box:
    """Equally long runs of adjacent elements: `sizes[-1]` elements each, at every combination of the outer strides."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def extent_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one, both included; 0 for a tensor without elements."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def run_boxes(box: Box, period: int) -> list[Box]:
    """Cut `box` into boxes whose runs are at most `period` long, so that a short pattern covers them."""
    length = box.sizes[-1]
    outer_sizes, outer_strides = box.sizes[:-1], box.strides[:-1]
    if length == 0 or 0 in outer_sizes:
        return []
    if length <= period:
        return [box]
    whole, rest = divmod(length, period)
    boxes = [Box(box.offset, (*outer_sizes, whole, period), (*outer_strides, period, 1))]
    if rest:
        boxes.append(Box(box.offset + whole * period, (*outer_sizes, rest), (*outer_strides, 1)))
    return boxes


def gap_boxes(shape: Sequence[int], strides: Sequence[int]) -> list[Box] | None:
    """The elements inside the extent that belong to nobody, one box per level, counted from the first element.

    Levels are dimensions in the order of their strides: a level has a gap where its stride is longer than what the
    levels below it reach. None where blocks overlap, because then gaps have no such form. A stride of 0 adds nothing.
    """
    if 0 in shape:
        return []
    levels = _levels(shape, strides)
    boxes: list[Box] = []
    reach = 1  # of all levels below the current one, in elements
    for depth in range(len(levels) - 1, -1, -1):
        stride, size = levels[depth]
        if stride < reach:
            return None
        if stride > reach:
            outer = levels[:depth]
            boxes.append(
                Box(
                    reach,
                    (*(size_ for _, size_ in outer), size - 1, stride - reach),
                    (*(stride_ for stride_, _ in outer), stride, 1),
                )
            )
        reach += (size - 1) * stride
    return boxes


def rows_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether blocks begin before their predecessor ends; strides of 0 are not meant."""
    if 0 in shape:
        return False
    reach = 1
    for stride, size in reversed(_levels(shape, strides)):
        if stride < reach:
            return True
        reach += (size - 1) * stride
    return False


def _levels(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Strides and sizes of the dimensions that move through memory, the largest stride first."""
    return sorted(
        ((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1 and stride), reverse=True
    )


def narrowed(tensor: Tensor) -> Tensor:
    """`tensor` with one element left along every dimension of stride 0, so that torch agrees to write through it."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, size - 1, 1)
    return tensor


def gap_mask(shape: Sequence[int], strides: Sequence[int], device: torch.device) -> Tensor:
    """[extent] bool: true where an element of the extent belongs to nobody. For every kind of strides."""
    mask = torch.ones(extent_of(shape, strides), dtype=torch.bool, device=device)
    if mask.numel():
        narrowed(mask.as_strided(tuple(shape), tuple(strides))).fill_(False)
    return mask


def preceding_element(shape: Sequence[int], strides: Sequence[int], offset: int) -> tuple[int, ...]:
    """The index of the element that lies last at or before `offset`, counted in elements from the first one."""
    index = [0] * len(shape)
    order = sorted(range(len(shape)), key=lambda dim: -strides[dim])
    for dim in order:
        if strides[dim] > 0:
            index[dim] = min(offset // strides[dim], shape[dim] - 1)
            offset -= index[dim] * strides[dim]
    return tuple(index)
