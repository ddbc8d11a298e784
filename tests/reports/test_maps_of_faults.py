"""The map of each seeded fault is right, element by element, against a write map made by other means."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample
from torch import Tensor

from mla_verify.examine import Bench, examine
from mla_verify.faults import calls
from mla_verify.faults.corpus import controls, faults
from mla_verify.faults.fault import Fault, kernel_of
from mla_verify.kernel import Kernel
from mla_verify.loading import open_bench
from mla_verify.maps import ElementMap, State, flagged
from sanitizer.plan import Element, TensorPlan
from tests.reports.writes import Writes, writes_of

# What a map can show. The others have no elements, or end the process.
_SHOWN: Final = ("coverage", "independence", "containment", "agreement", "repeatability")
_WRITTEN: Final = (State.RIGHT, State.NOT_JUDGED, State.WRONG, State.DEPENDENT, State.UNSTEADY)
_STATES: Final = {"coverage": State.UNWRITTEN, "independence": State.DEPENDENT, "agreement": State.WRONG}
_EXAMPLES: Final = 400


def _mapped(fault: Fault) -> bool:
    """Not those that go wrong only after other problems: such a finding has no map."""
    if fault.declares.get("consumers"):
        return False  # the output itself is as it should be, and so is its map: what a caller makes of it is not
    return fault.clauses[0] in _SHOWN and fault.call.__module__ != calls.__name__


_FAULTS: Final = [fault for fault in faults(triton=False) if _mapped(fault)]
_SETTINGS: Final = settings(
    max_examples=_EXAMPLES,
    database=None,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
)


def first_failing(fault: Fault, bench: Bench) -> Any:
    """The first problem drawn at which a fault shows in a way that a map can show; not shrunk, so that it has size."""

    def fails(problem: Any) -> bool:
        if problem.invalid is not None:
            return False
        found = {finding.clause for finding in examine(problem, bench).findings}
        return bool(found & set(fault.clauses) & set(_SHOWN)) and not found - set(_SHOWN)

    strategy = bench.contract.problems(bench.kernel)
    return find(strategy, fails, settings=_SETTINGS, random=random.Random(0))


def codes_of(element_map: ElementMap) -> Tensor:
    """[shape] the states of a map."""
    return torch.frombuffer(bytearray(element_map.codes) or bytearray(1), dtype=torch.uint8)[
        : len(element_map.codes)
    ].reshape(element_map.shape)


def in_state(codes: Tensor, *states: State) -> Tensor:
    """[shape] bool: elements in one of these states."""
    return torch.isin(codes, torch.tensor(states, dtype=torch.uint8))


def complaints(element_map: ElementMap, writes: Writes, plan: TensorPlan, *, remembers: bool = False) -> Iterator[str]:
    """Where a map says something else than the exact write map.

    Whatever depends on memory is different over some two fills, and what is different between NaN and zero depends on
    memory; three secrets need not show what it takes seven fills to see. remembers: the kernel keeps memory between
    calls, which only an audit restores.
    """
    codes = codes_of(element_map)
    rules = torch.zeros(plan.shape, dtype=torch.uint8) if plan.rules is None else plan.rules.expand(plan.shape)
    if plan.role == "input":
        rules = torch.full(plan.shape, Element.UNTOUCHED, dtype=torch.uint8)
    owed = rules <= Element.WRITTEN
    exactly = {
        "unwritten": (in_state(codes, State.UNWRITTEN), owed & ~writes.written),
        "stray": (in_state(codes, State.STRAY), (rules == Element.UNTOUCHED) & writes.written),
        "kept": (in_state(codes, State.KEPT), (rules == Element.UNTOUCHED) & ~writes.written),
        "free": (in_state(codes, State.FREE), rules == Element.FREE),
        "looked at": (in_state(codes, *_WRITTEN), owed & writes.written),
    }
    for word, (shown, wanted) in exactly.items():
        if not torch.equal(shown, wanted):
            yield f"{word}: {int((shown & ~wanted).sum())} too many, {int((wanted & ~shown).sum())} missing"
    if not remembers:
        dependent = in_state(codes, State.DEPENDENT, State.UNSTEADY)
        owed_one_value = (rules == Element.DETERMINED) & writes.written
        if bool((dependent & ~(owed_one_value & writes.differing)).any()):
            yield "dependent: elements that are the same over every fill"
        if bool((owed_one_value & writes.surely_differing & ~dependent).any()):
            yield "dependent: elements that differ between NaN and zero are missing"
    beside = frozenset(place for place in beside_of(element_map) if is_near(place, plan))
    if beside != writes.beside:
        yield f"beside: {sorted(beside)} for {sorted(writes.beside)}"


def beside_of(element_map: ElementMap) -> set[int]:
    """Places of stray writes that hit no element, counted in elements from the first one."""
    strip = element_map.memory
    if strip is None:
        return set()
    return {slot - strip.first for slot, code in enumerate(strip.codes) if code == State.STRAY}


def is_near(place: int, plan: TensorPlan) -> bool:
    """Whether a place lies in a tensor's extent or in the guard that it asked for."""
    extent = (
        0
        if 0 in plan.shape
        else 1 + sum((size - 1) * stride for size, stride in zip(plan.shape, plan.strides, strict=True))
    )
    guard = plan.guard // plan.dtype.itemsize if plan.form == "view" else 0
    return -guard <= place < extent + guard


@pytest.mark.parametrize("fault", _FAULTS, ids=[fault.name for fault in _FAULTS])
def test_the_map_of_a_seeded_fault_is_the_exact_write_map(fault: Fault) -> None:
    """Unwritten, dependent, stray, kept and judged elements are those of plain runs over constant fills.

    And a finding counts as many elements as the map shows in its state.
    """
    bench = open_bench(kernel_of(fault))
    try:
        problem = first_failing(fault, bench)
    except NoSuchExample:
        pytest.fail(f"no problem shows {fault.name} in a map")
    shown = examine(problem, bench, maps=True)
    plans = {plan.name: plan for plan in bench.contract.place(problem, bench.kernel, bench.device).tensors}
    exact = writes_of(problem, bench)
    assert any(map(flagged, shown.maps)), shown.findings
    for element_map in shown.maps:
        name = element_map.tensor
        remembers = "cached" in fault.name
        wrong = list(complaints(element_map, exact[name], plans[name], remembers=remembers))
        assert wrong == [], f"{name} at {bench.contract.describe(problem)}"
    drawn = {element_map.tensor for element_map in shown.maps}
    missed = [name for name, one in exact.items() if plans[name].role == "input" and bool(one.written.any())]
    assert set(missed) <= drawn
    for finding in shown.findings:
        if finding.clause in _STATES and finding.tensor in drawn:
            (codes,) = (codes_of(one) for one in shown.maps if one.tensor == finding.tensor)
            assert int(in_state(codes, _STATES[finding.clause]).sum()) == finding.elements, finding


@pytest.mark.parametrize("kernel", controls(triton=False)[:4], ids=lambda kernel: kernel.name)
def test_the_map_of_a_right_kernel_shows_no_bad_news(kernel: Kernel) -> None:
    """Every element is written and right, not judged, or promised to nobody."""
    bench = open_bench(kernel)
    seen: list[ElementMap] = []

    def many_elements(problem: Any) -> bool:
        seen[:] = examine(problem, bench, maps=True).maps
        return sum(len(element_map.codes) for element_map in seen) > 60

    find(bench.contract.problems(kernel), many_elements, settings=_SETTINGS, random=random.Random(1))
    assert seen
    assert not any(map(flagged, seen))
