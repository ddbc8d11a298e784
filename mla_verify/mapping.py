"""Draws element maps from an audit: which elements each finding means, and how the others stand to the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from mla_verify.contract import Expectation, Judgement
from mla_verify.interpreting import programs_seen
from mla_verify.judging import Comparison, compared
from mla_verify.maps import ElementMap, ElementValue, MemoryStrip, State
from sanitizer.audit import Audit
from sanitizer.containment import Strays
from sanitizer.observing import Observer
from sanitizer.plan import Element, TensorPlan

__all__ = ["maps_of", "stray_maps"]

_MOST_ELEMENTS: Final = 1 << 22  # of a tensor that is drawn at all
_MOST_COMPARED: Final = 1 << 17  # elements that are all asked about their bound, which costs as much as the oracle
_PORTION: Final = 1 << 14  # elements asked at once
_MOST_VALUES: Final = 4096  # elements given in numbers
_MOST_SLOTS: Final = 1 << 16  # of a strip of memory
_WIDEST: Final = 4096  # slots in a row of it
_NARROW: Final = 64  # slots in a row, where the tensor has no rows
_OF_CLAUSE: Final = {
    "repeatability": State.UNSTEADY,
    "independence": State.DEPENDENT,
    "coverage": State.UNWRITTEN,
}
_OF_RULE: Final = {Element.UNTOUCHED: State.KEPT, Element.FREE: State.FREE}


def maps_of(
    result: Audit,
    plans: Iterable[TensorPlan],
    expectation: Expectation | None,
    judgements: Sequence[Judgement],
    strays: Mapping[str, Strays],
    observer: Observer | None,
) -> tuple[ElementMap, ...]:
    """A map of every output that was looked at, and of every other tensor that was written."""
    by_name = {plan.name: plan for plan in plans}
    maps: list[ElementMap] = []
    for name, output in result.outputs.items():
        if output.numel() > _MOST_ELEMENTS:
            continue
        maps.append(_map_of_output(name, output, by_name.get(name), result, expectation, judgements, strays, observer))
    drawn = {element_map.tensor for element_map in maps}
    return (*maps, *stray_maps([plan for plan in by_name.values() if plan.name not in drawn], strays))


def stray_maps(plans: Iterable[TensorPlan], strays: Mapping[str, Strays]) -> tuple[ElementMap, ...]:
    """A map of every tensor that had to stay what it was and did not."""
    maps: list[ElementMap] = []
    for plan in plans:
        stray = strays.get(plan.name)
        if stray is None or stray.elements.numel() > _MOST_ELEMENTS:
            continue
        codes = torch.full(plan.shape, State.KEPT, dtype=torch.uint8, device=stray.elements.device)
        codes.masked_fill_(stray.elements, State.STRAY)
        maps.append(
            ElementMap(tensor=plan.name, shape=plan.shape, codes=_bytes(codes), memory=_strip(plan, codes, stray))
        )
    return tuple(maps)


def _map_of_output(
    name: str,
    output: Tensor,
    plan: TensorPlan | None,
    result: Audit,
    expectation: Expectation | None,
    judgements: Sequence[Judgement],
    strays: Mapping[str, Strays],
    observer: Observer | None,
) -> ElementMap:
    codes = torch.full(output.shape, State.RIGHT, dtype=torch.uint8, device=output.device)
    if plan is not None and plan.rules is not None:
        rules = plan.rules.to(output.device).expand(output.shape)
        for rule, state in _OF_RULE.items():
            codes.masked_fill_(rules == rule, state)
    for judgement in judgements:
        for wrong in judgement.disagreements:
            if wrong.tensor == name:
                codes.masked_fill_(wrong.wrong, State.WRONG)
    for clause, state in _OF_CLAUSE.items():
        mask = result.by_clause.get(name, {}).get(clause)
        if mask is not None:
            codes.masked_fill_(mask, state)
    stray = strays.get(name)
    if stray is not None:
        codes.masked_fill_(stray.elements, State.STRAY)
    values: tuple[ElementValue, ...] = ()
    remark = ""
    if expectation is not None:
        remark = _mark_unjudged(name, output, codes, expectation)
        values = _values(name, codes, result, expectation)
    programs, names = _programs(name, observer)
    return ElementMap(
        tensor=name,
        shape=tuple(output.shape),
        codes=_bytes(codes),
        memory=None if plan is None or stray is None else _strip(plan, codes, stray),
        programs=programs,
        program_names=names,
        values=values,
        remark=remark,
    )


def _mark_unjudged(name: str, output: Tensor, codes: Tensor, expectation: Expectation) -> str:
    """Mark what is right only because it could not be judged; what the map does not show of that."""
    places = (codes == State.RIGHT).flatten().nonzero().flatten()
    if places.numel() > _MOST_COMPARED:
        return "elements that were not judged are not marked: there are too many to ask again"
    for portion in places.split(_PORTION):
        comparison = compared(expectation.reference(name), output, _index(portion, output))
        codes.view(-1)[portion[comparison.unjudged]] = State.NOT_JUDGED
    return ""


def _values(name: str, codes: Tensor, result: Audit, expectation: Expectation) -> tuple[ElementValue, ...]:
    """The elements in numbers, the worst states first."""
    flat = codes.flatten()
    places = flat.to(torch.int16).neg().argsort(stable=True)[:_MOST_VALUES]
    output = result.outputs[name]
    comparison: Comparison = compared(expectation.reference(name), output, _index(places, output))
    secrets = {letter: outputs[name] for letter, outputs in result.by_secret.items() if name in outputs}
    same_form = all(one.shape == output.shape for one in secrets.values())
    columns = {letter: _numbers(one.flatten()[places]) for letter, one in secrets.items()} if same_form else {}
    own = _numbers(output.flatten()[places])
    promised = (flat[places] != State.KEPT) & (flat[places] != State.FREE)
    parts = (comparison.expected, comparison.error, comparison.bound)
    expected, error, bound = (_numbers(part) for part in parts)
    return tuple(
        ElementValue(
            place,
            _value_text(own[row], {letter: column[row] for letter, column in columns.items()}),
            *((expected[row], error[row], bound[row]) if promise else ("", "", "")),
        )
        for row, (place, promise) in enumerate(zip(places.tolist(), promised.tolist(), strict=True))
    )


def _value_text(own: str, by_secret: Mapping[str, str]) -> str:
    """One value; where the secrets decided what it was, one for each."""
    if len(set(by_secret.values())) < 2:
        return own
    return ", ".join(f"{letter} {value}" for letter, value in by_secret.items())


def _numbers(values: Tensor) -> list[str]:
    return [f"{value:.7g}" for value in values.to(torch.float64).tolist()]


def _programs(name: str, observer: Observer | None) -> tuple[bytes, tuple[str, ...]]:
    """Which program stored what: `programs` and `program_names` of a map."""
    seen = programs_seen(observer, name)
    if seen is None:
        return b"", ()
    owners, words = seen
    numbers = sorted(words)
    # How many numbers are no larger: the place in the list, and 0 for none, which is below every number.
    places = torch.searchsorted(torch.tensor(numbers), torch.from_numpy(owners).flatten().long(), right=True)
    return places.numpy().astype("<i4").tobytes(), tuple(words[number] for number in numbers)


def _strip(plan: TensorPlan, codes: Tensor, stray: Strays) -> MemoryStrip | None:
    """The memory around a tensor, where anything beside its elements was written; cut to what was, where it is long."""
    slots = torch.zeros(stray.slots.shape, dtype=torch.uint8, device=codes.device)
    places = _places(plan, codes.device) + stray.first
    slots.scatter_reduce_(0, places, codes.flatten(), "amax")
    beside = stray.slots & (slots == State.SLACK)
    if not bool(beside.any()):
        return None
    slots.masked_fill_(stray.slots, State.STRAY)
    hit = stray.slots.nonzero().flatten()
    width = _width(plan)
    low, high = int(hit[0]), int(hit[-1]) + 1
    if places.numel():
        low, high = min(low, int(places.min())), max(high, int(places.max()) + 1)
    if high - low > _MOST_SLOTS:
        low = int(hit[0])
        high = min(high, low + _MOST_SLOTS)
    # Rows of the picture begin where rows of the tensor do, with one more on either side.
    low = max(0, stray.first + ((low - stray.first) // width - 1) * width)
    high = min(slots.numel(), high + width)
    return MemoryStrip(_bytes(slots[low:high]), stray.first - low, width)


def _places(plan: TensorPlan, device: torch.device) -> Tensor:
    """[elements] where each element lies in memory, in units of elements from the first one."""
    places = torch.zeros(plan.shape, dtype=torch.int64, device=device)
    for dim, stride in enumerate(plan.strides):
        shape = [1] * len(plan.shape)
        shape[dim] = -1
        places = places + stride * torch.arange(plan.shape[dim], device=device).reshape(shape)
    return places.flatten()


def _width(plan: TensorPlan) -> int:
    """Slots from one row of a tensor to the next, as it lies in memory."""
    steps = sorted(stride for stride, size in zip(plan.strides, plan.shape, strict=True) if stride > 1 and size > 1)
    longest = max((size for stride, size in zip(plan.strides, plan.shape, strict=True) if stride == 1), default=1)
    rows = [step for step in steps if step >= longest]
    return min(rows[0] if rows else max(longest, _NARROW), _WIDEST)


def _index(places: Tensor, like: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.unravel_index(places, like.shape)) if like.dim() else ()


def _bytes(codes: Tensor) -> bytes:
    return codes.contiguous().cpu().numpy().tobytes()
