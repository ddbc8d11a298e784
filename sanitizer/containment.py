"""Puts stray writes into words: which tensor, gap or guard was hit, where, how much, how far from an output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sanitizer.finding import Finding
from sanitizer.geometry import gap_mask, preceding_element
from sanitizer.indices import describe_mask, index_text
from sanitizer.placed import Placed
from sanitizer.plan import Element

__all__ = ["Strays", "describe_strays", "strays_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Strays:
    """Where one tensor's surroundings were written that had to stay as they were.

    elements: [shape] bool. slots: [many] bool, the same in the order of memory, guards and gaps included, in units of
    the tensor's elements; the first element is `slots[first]`.
    """

    elements: Tensor
    slots: Tensor
    first: int


def describe_strays(changed: Tensor, places: Sequence[Placed]) -> list[Finding]:
    """One finding per thing that was hit.

    changed: [arena bytes] bool, true where a byte is not what it had to be.
    """
    findings: list[Finding] = []
    outputs = [placed for placed in places if placed.plan.role == "output"]
    for placed in places:
        if placed.plan.over is None and bool(changed[placed.low : placed.high].any()):
            findings += _in_elements(changed, placed, outputs)
            findings += _in_gaps(changed, placed, outputs)
            findings += _in_guard(changed, placed, outputs, low=placed.low, high=placed.start)
            findings += _in_guard(changed, placed, outputs, low=placed.end, high=placed.high)
    return findings


def strays_of(changed: Tensor, places: Sequence[Placed]) -> dict[str, Strays]:
    """Where bytes are not what they had to be, by tensor; tensors among whose bytes there are none are left out."""
    found: dict[str, Strays] = {}
    for placed in places:
        if placed.plan.over is None and bool(changed[placed.low : placed.high].any()):
            slots = changed[placed.low : placed.high].view(-1, placed.itemsize).any(-1)
            found[placed.plan.name] = Strays(
                _elements_of(changed, placed), slots, (placed.start - placed.low) // placed.itemsize
            )
    return found


def _elements_of(changed: Tensor, placed: Placed) -> Tensor:
    """[*shape] bool: elements any byte of which is not what it had to be."""
    shape, item = placed.plan.shape, placed.itemsize
    if placed.extent == 0:
        return torch.zeros(shape, dtype=torch.bool, device=changed.device)
    strides = (*(stride * item for stride in placed.plan.strides), 1)
    return changed.as_strided((*shape, item), strides, placed.start).any(-1)


def _in_elements(changed: Tensor, placed: Placed, outputs: Sequence[Placed]) -> list[Finding]:
    """Elements that were changed: of an input, or rows of an output that belong to nobody."""
    plan = placed.plan
    mask = _elements_of(changed, placed)
    if not bool(mask.any()):
        return []
    addresses = _addresses(changed, placed.start, placed.end)
    if plan.role == "input":
        parts = [(mask, "input {} was changed")]
        if plan.live is not None:
            live = plan.live.to(mask.device).expand(plan.shape)
            parts = [(mask & live, "input {} was changed"), (mask & ~live, "{} was changed, where no request owns it")]
    elif plan.rules is not None:
        untouched = (plan.rules.to(mask.device) == Element.UNTOUCHED).expand(plan.shape)
        parts = [
            (mask & untouched, "{} was written, which had to stay untouched"),
            (mask & ~untouched, "{} was written"),
        ]
    else:
        parts = [(mask, "{} was written")]
    return [
        Finding(
            "containment",
            plan.name,
            int(part.sum()),
            words.format(describe_mask(plan.name, part)) + _distance(placed, addresses, outputs),
        )
        for part, words in parts
        if bool(part.any())
    ]


def _in_gaps(changed: Tensor, placed: Placed, outputs: Sequence[Placed]) -> list[Finding]:
    """Bytes inside the extent that belong to no element: the caller's neighbours in a strided tensor."""
    plan, item = placed.plan, placed.itemsize
    if placed.extent == 0:
        return []
    gaps = gap_mask(plan.shape, plan.strides, changed.device)
    hit = changed[placed.start : placed.end].view(-1, item).any(-1) & gaps
    where = hit.nonzero().flatten()
    if where.numel() == 0:
        return []
    first, last = int(where[0]), int(where[-1])
    beside = [index_text(plan.name, preceding_element(plan.shape, plan.strides, place)) for place in (first, last)]
    behind = beside[0] if beside[0] == beside[1] else f"{beside[0]} to {beside[1]}"
    detail = (
        f"stride gap of {plan.name}: {where.numel()} elements overwritten behind {behind}, "
        f"{first * item} to {(last + 1) * item} bytes from its first element"
    )
    addresses = where * item + placed.start
    return [Finding("containment", plan.name, where.numel(), detail + _distance(placed, addresses, outputs))]


def _in_guard(changed: Tensor, placed: Placed, outputs: Sequence[Placed], *, low: int, high: int) -> list[Finding]:
    item = placed.itemsize
    # Whole elements: a stray value may share some of its bytes with the secret.
    addresses = changed[low:high].view(-1, item).any(-1).nonzero().flatten() * item + low
    elements = addresses.numel()
    if elements == 0:
        return []
    name = placed.plan.name
    first, last = int(addresses[0]), int(addresses[-1])
    size = f"{elements} elements ({elements * item} bytes)"
    if low == placed.end:
        where = f"guard behind {name}: {size} overwritten, the first {first - placed.end} bytes past its end"
    else:
        where = f"guard in front of {name}: {size} overwritten, the last {placed.start - last} bytes before it"
    return [Finding("containment", name, elements, where + _distance(placed, addresses, outputs))]


def _addresses(changed: Tensor, low: int, high: int) -> Tensor:
    return changed[low:high].nonzero().flatten() + low


def _distance(hit: Placed, addresses: Tensor, outputs: Sequence[Placed]) -> str:
    """How far outside of the nearest other output the nearest of the `addresses` lies, in bytes; where that tells."""
    nearest: tuple[int, str] | None = None
    for output in outputs:
        if output is hit or output.plan.form == "owner":
            continue
        # An address inside the output has distance 0: 0 behind its last byte means one step outside of it.
        past = torch.clamp(addresses - output.end, min=0) + torch.clamp(output.start - addresses - 1, min=0)
        distance = int(past.min())
        side = "past the end" if int(addresses[int(past.argmin())]) >= output.end else "before the beginning"
        candidate = (distance, f"; {distance} bytes {side} of {output.plan.name}")
        nearest = candidate if nearest is None else min(nearest, candidate)
    return nearest[1] if nearest else ""
