"""Turns a set of elements into text: a mask over a tensor becomes `o[2, 5, 480:512]`."""

from __future__ import annotations

from torch import Tensor

__all__ = ["bounding_box", "describe_mask", "index_text"]


def bounding_box(mask: Tensor) -> tuple[tuple[int, int], ...]:
    """Half-open bounds per dimension of the smallest box that holds every true element; empty without any."""
    bounds: list[tuple[int, int]] = []
    for dim in range(mask.dim()):
        others = [other for other in range(mask.dim()) if other != dim]
        hit = mask.any(dim=others) if others else mask
        where = hit.nonzero().flatten()
        if where.numel() == 0:
            return ()
        bounds.append((int(where[0]), int(where[-1]) + 1))
    return tuple(bounds)


def describe_mask(name: str, mask: Tensor) -> str:
    """Name the true elements of `mask`: per-dimension ranges, and a count where they do not fill the box."""
    count = int(mask.sum())
    if count == 0:
        return f"no element of {name}"
    if mask.dim() == 0:
        return name
    bounds = bounding_box(mask)
    inside = 1
    for low, high in bounds:
        inside *= high - low
    ranges = ", ".join(str(low) if high == low + 1 else f"{low}:{high}" for low, high in bounds)
    suffix = "" if inside == count else f" ({count} of these {inside} elements)"
    return f"{name}[{ranges}]{suffix}"


def index_text(name: str, index: tuple[int, ...]) -> str:
    """One element's name: `o[2, 5, 480]`, or the bare name of a tensor without dimensions."""
    return f"{name}[{', '.join(map(str, index))}]" if index else name
