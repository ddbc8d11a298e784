"""Remembers what each problem of a sequence gave, and says where it gives other bits when it comes again."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

from torch import Tensor

from sanitizer.audit import Audit
from sanitizer.finding import Finding
from sanitizer.indices import describe_mask
from sanitizer.plan import Element, TensorPlan
from sanitizer.secrets import carrier_view

__all__ = ["not_as_before"]


def not_as_before(
    earlier: MutableMapping[Any, dict[str, Tensor]], problem: Any, result: Audit, plans: Iterable[TensorPlan]
) -> list[Finding]:
    """Where a problem's outputs differ from its first ones, as `repeatability`; the first ones are put into `earlier`.

    Bits are compared, of the elements that the contract determines and that no other finding blames already.
    """
    before = earlier.setdefault(problem, result.outputs)
    rules = {plan.name: plan.rules for plan in plans if plan.rules is not None}
    findings: list[Finding] = []
    for name, output in result.outputs.items():
        first = before.get(name)
        if first is None or first is output or first.shape != output.shape or first.dtype != output.dtype:
            continue  # the same outputs, or a form that the layout clause has judged
        mask = _other_bits(first, output)
        if name in rules:
            mask = mask & (rules[name] == Element.DETERMINED)
        if name in result.blamed:
            mask = mask & ~result.blamed[name]
        if bool(mask.any()):
            where = tuple(int(index) for index in mask.nonzero()[0])
            was, now = first[where].item(), output[where].item()
            detail = (
                f"{describe_mask(name, mask)} differs from what the same problem gave the first time: "
                f"the first of them was {was:.9g} and is {now:.9g}"
            )
            findings.append(Finding("repeatability", name, int(mask.sum()), detail))
    return findings


def _other_bits(first: Tensor, output: Tensor) -> Tensor:
    """[*shape] bool: where two tensors of one shape and dtype differ in their bits."""
    words = carrier_view(first) != carrier_view(output)
    return words if words.shape == output.shape else words.any(-1)
