"""The questions: what has to follow from the caller's promises for each property of a kernel."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mla_verify.proofs.executing import Site
from mla_verify.proofs.model import Model, Place
from mla_verify.proofs.solving import Facts, proves
from mla_verify.proofs.terms import (
    TRUE,
    Atom,
    Formula,
    Poly,
    all_of,
    any_of,
    at_least,
    atoms_in,
    equal,
    less,
    negation,
    opaque_in,
    parts_of,
)
from mla_verify.proofs.verdicts import OutOfClass
from mla_verify.proofs.witness import Witness, find_witness

__all__ = ["Answer", "bounds", "containment", "coverage", "defined", "flow", "race"]

_SECONDS = 60.0  # of computing, for one property of one tensor


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether it was proved; if not, what was not. `line` is where."""

    proved: bool
    detail: str = ""


def _deadline() -> float:
    return time.process_time() + _SECONDS


def defined(model: Model) -> Answer:
    """Every division is by more than 0 and of nothing negative, every loop goes on, every promise to Triton is kept."""
    until = _deadline()
    facts = model.facts().plus(model.running)
    demands = list(model.program.demands)
    for site in model.program.sites:
        demands += list(site.demands)
    shown: set[tuple[Formula, Formula]] = set()
    for demand in demands:
        site = next((part for part in model.program.sites if demand in part.demands), None)
        within = site.within if site is not None else TRUE
        if (demand.formula, demand.path) in shown:
            continue
        shown.add((demand.formula, demand.path))
        if not proves(facts.plus(demand.path, within), demand.formula, until=until):
            return Answer(False, f"{demand.what} ({demand.line})")
        facts = facts.plus(any_of((negation(all_of((demand.path, within))), demand.formula)))
    return Answer(True)


def containment(model: Model, place: Place, *, stores: bool = True) -> Answer:
    """Every active lane of every store (or load) is at an element of the tensor."""
    until = _deadline()
    facts = model.facts().plus(model.running)
    for site in model.sites(place.layout.tensor, stores=stores):
        index = place.index_of(site)
        here = facts.plus(site.active)
        goal = model.live(place.layout, index) if stores else _box(place, index)
        for part in parts_of(goal):
            if not proves(here, part, until=until):
                return Answer(False, f"{site.line}: {part}")
    return Answer(True)


def bounds(model: Model, place: Place) -> Answer:
    """Every active lane of every load is at an element of the tensor."""
    return containment(model, place, stores=False)


def _box(place: Place, index: Sequence[Poly]) -> Formula:
    return all_of(
        part for at, size in zip(index, place.sizes, strict=True) for part in (at_least(at, 0), less(at, size))
    )


def race(model: Model, place: Place) -> Answer:
    """Two active lanes at one element belong to one program."""
    until = _deadline()
    tensor = place.layout.tensor
    stores = model.sites(tensor, stores=True)
    others = [*stores, *model.sites(tensor, stores=False)]
    for number, first in enumerate(stores):
        for second in others[number:]:
            one = model.side(first, place.index_of(first), other=False)
            two = model.side(second, place.index_of(second), other=True)
            facts = model.facts().plus(one.running, two.running, one.active, two.active)
            facts = facts.plus(*(equal(a, b) for a, b in zip(one.index, two.index, strict=True)))
            goals = [equal(a, b) for a, b in zip(one.axes, two.axes, strict=True)]
            for goal in goals:
                if not proves(facts, goal, until=until):
                    return Answer(False, f"{first.line} and {second.line}")
                facts = facts.plus(goal)
    return Answer(True)


def coverage(model: Model, place: Place) -> Answer:
    """Every live element is stored by some program."""
    until = _deadline()
    tensor = place.layout.tensor
    stores = model.sites(tensor, stores=True)
    if not stores:
        return Answer(False, f"nothing is stored to {tensor}")
    element = tuple(model.terms.atom("element", name) for name in place.layout.names)
    facts = model.facts().plus(model.live(place.layout, element))
    left: list[Formula] = []
    detail = ""
    for site in stores:
        hidden = next(opaque_in(site.active), None)
        if hidden is not None:
            raise OutOfClass("a mask or branch on a float", hidden.line)
        index = place.index_of(site)
        witness = find_witness(model, site, index, element)
        if witness is None:
            detail = detail or f"no formula for the program and lane that store an element ({site.line})"
            continue
        facts = facts.plus(*_digits_below(witness, facts, until))
        facts, missing = _check(model, site, index, element, witness, facts, until)
        if not missing:
            return Answer(True)
        detail = detail or f"{site.line}: {missing[0]}"
        left.append(all_of(missing))
    if len(left) > 1 and proves(facts, any_of(left), until=until):
        return Answer(True)
    return Answer(False, detail)


def _check(
    model: Model,
    site: Site,
    index: tuple[Poly, ...],
    element: tuple[Poly, ...],
    witness: Witness,
    facts: Facts,
    until: float,
) -> tuple[Facts, list[Formula]]:
    """Prove that the witness is a program and lane of the launch that are active and store the element.

    The facts grow by what was proved; what was not is returned.
    """
    missing: list[Formula] = []
    for goal in _wanted(model, site, index, element, witness):
        if proves(facts, goal, until=until):
            facts = facts.plus(goal)
        else:
            missing.append(goal)
            if len(model.sites(site.base, stores=True)) == 1:
                break
    return facts, missing


def _digits_below(witness: Witness, facts: Facts, until: float) -> list[Formula]:
    """That a tile's number is below the number of tiles: what products of the two rest on."""
    counts = [atom for atom in atoms_in(*facts.formulas) if atom.kind == "quotient" and not _of_element(atom)]
    digits = [atom for atom in atoms_in(*witness.values.values()) if atom.kind == "quotient" and _of_element(atom)]
    found: list[Formula] = []
    for count, digit in itertools.product(counts, digits):
        small, large = count.args[1].constant, digit.args[1].constant
        if small and large and large % small == 0:
            goal = less(Poly.of(digit) * (large // small), Poly.of(count))
            if proves(facts, goal, until=until, attempts=1):
                found.append(goal)
    return found


def _of_element(atom: Atom) -> bool:
    return any(part.kind == "element" for part in atoms_in(Poly.of(atom)))


def _wanted(
    model: Model, site: Site, index: tuple[Poly, ...], element: tuple[Poly, ...], witness: Witness
) -> Iterator[Formula]:
    change = model.terms.substitution(witness.values)
    for part in witness.divided:
        dividend, divisor = change.poly(part.dividend), change.poly(part.divisor)
        remainder = dividend - part.quotient * divisor if part.remainder is None else part.remainder
        yield less(Poly({}), divisor)
        yield at_least(dividend, 0)
        yield at_least(part.quotient, 0)
        yield equal(dividend, part.quotient * divisor + remainder)
        yield at_least(remainder, 0)
        yield less(remainder, divisor)
    for axis, count in zip(model.program.axes, model.program.programs, strict=True):
        yield at_least(change.poly(Poly.of(axis)), 0)
        yield less(change.poly(Poly.of(axis)), Poly.of(count))
    for formula in (site.path, site.within, site.mask):
        yield from parts_of(change.formula(formula))
    for at, wanted in zip(index, element, strict=True):
        yield equal(change.poly(at), wanted)


def flow(producer: Model, consumer: Model, tensor: str) -> Answer:
    """What the consumer loads of a tensor, the producer has stored."""
    until = _deadline()
    there, here = producer.places[tensor], consumer.places[tensor]
    stores = producer.sites(tensor, stores=True)
    for load in consumer.sites(tensor, stores=False):
        wanted = here.index_of(load)
        facts = consumer.facts().plus(consumer.running, load.active)
        promised = producer.facts()
        facts = Facts(
            facts.terms,
            {**promised.constants, **facts.constants},
            [*facts.formulas, *promised.formulas],
            (*facts.each, *promised.each),
            tuple(dict.fromkeys((*facts.ragged, *promised.ragged))),
        )
        left: list[Formula] = []
        for site in stores:
            index = there.index_of(site)
            witness = find_witness(producer, site, index, wanted)
            if witness is None:
                continue
            _, missing = _check(producer, site, index, wanted, witness, facts, until)
            if not missing:
                break
            left.append(all_of(missing))
        else:
            return Answer(False, f"{load.line}: {left[0] if left else 'no store that could be its source is found'}")
    return Answer(True)
