"""Bounds every integer of 32 bits that decides an address, and every axis of the grid, at the largest sizes declared.

Plain interval arithmetic, helped where it is too coarse: by the conditions on the path, by the tensor's own sizes for
an index that was proved to lie within them, and by (x // d) · (y % d) ≤ x.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from mla_verify.proofs.declaring import Proof
from mla_verify.proofs.executing import Narrow, Site
from mla_verify.proofs.model import Model
from mla_verify.proofs.obligations import Answer
from mla_verify.proofs.terms import TRUE, Atom, Formula, Ge, Monomial, Poly, parts_of
from mla_verify.proofs.verdicts import OutOfClass

__all__ = ["GRID_LIMITS", "grid_fits", "largest_factor", "widths_hold"]

GRID_LIMITS: Final = ((1 << 31) - 1, 65_535, 65_535)  # programs along x, y and z that CUDA and HIP take
_DOUBLINGS: Final = 12
_HALF: Final = 1 << 31

Interval = tuple[int, int]


def widths_hold(model: Model, most: Mapping[str, int]) -> Answer:
    """Whether no 32-bit integer that decides an address can leave its range at sizes up to `most`."""
    for narrow, site in _narrows(model):
        bounds = _Bounds(model, most, site, narrow.path)
        low, high = bounds.tight(narrow.poly) if site is not None and narrow.lanes_matter else bounds.of(narrow.poly)
        half = 1 << (narrow.bits - 1)
        if not -half <= low <= high < half:
            return Answer(False, f"{narrow.poly} may reach {high if high >= half else low} ({narrow.line})")
    return Answer(True)


def grid_fits(model: Model, most: Mapping[str, int]) -> Answer:
    """Whether no axis of the grid is longer than a GPU takes, at sizes up to `most`."""
    bounds = _Bounds(model, most, None, TRUE)
    for axis, extent, limit in zip("xyz", model.grid, GRID_LIMITS, strict=True):
        high = bounds.of(extent)[1]
        if high > limit:
            return Answer(False, f"axis {axis} of the grid may have {high} programs, a GPU takes {limit}")
    return Answer(True)


def largest_factor(model: Model) -> int:
    """By which power of two all declared largest sizes could grow with both properties still holding."""
    factor = 1
    for _ in range(_DOUBLINGS):
        most = {name: value * factor * 2 for name, value in model.proof.most.items()}
        if not (widths_hold(model, most).proved and grid_fits(model, most).proved):
            break
        factor *= 2
    return factor


def _narrows(model: Model) -> Iterable[tuple[Narrow, Site | None]]:
    for narrow in model.program.narrow:
        yield narrow, None
    for site in model.program.sites:
        for narrow in site.narrow:
            yield narrow, site


@dataclass(slots=True)
class _Bounds:
    """Intervals of terms, where `path` holds; at a site, of an address that is accessed there."""

    model: Model
    most: Mapping[str, int]
    site: Site | None
    path: Formula
    known: dict[Atom, Interval] = field(default_factory=dict["Atom", "Interval"])
    asked: set[Atom] = field(default_factory=set["Atom"])  # being bounded now: a bound must not rest on itself

    def tight(self, poly: Poly) -> Interval:
        """Of part of an address on an active lane: its indices lie within the tensor."""
        site = self.site
        place = self.model.places.get(site.base) if site is not None else None
        if site is None or place is None:
            return self.of(poly)
        try:
            index = place.index_of(site)
        except OutOfClass:
            return self.of(poly)
        low = high = 0
        rest = poly
        for stride, at, size in zip(place.strides, index, place.sizes, strict=True):
            part, left = rest.divided(stride) if stride else (rest, Poly({}))
            if part == Poly({}):
                continue
            rest = left
            span = (0, max(self.of(size)[1] - 1, 0)) if part == at else self.of(part)
            low_here, high_here = _product(span, self.of(Poly({stride: 1})))
            low, high = low + low_here, high + high_here
        low_left, high_left = self.of(rest)
        plain = self.of(poly)
        return max(low + low_left, plain[0]), min(high + high_left, plain[1])

    def of(self, poly: Poly) -> Interval:
        """From the least to the most that a polynomial can be."""
        low, high = self._sum(poly)
        for fact in self._facts():
            for times in _cancelling(poly, fact):
                high = min(high, self._sum(poly + fact * times)[1])  # poly ≤ poly + times · fact
        return low, high

    def _facts(self) -> list[Poly]:
        return [part.poly for part in parts_of(self.path) if isinstance(part, Ge)]

    def _sum(self, poly: Poly) -> Interval:
        low = high = 0
        for monomial, factor in poly.terms:
            least, most = self._monomial(monomial)
            low += min(factor * least, factor * most)
            high += max(factor * least, factor * most)
        return low, high

    def _monomial(self, monomial: Monomial) -> Interval:
        span = (1, 1)
        left = list(monomial)
        for atom in monomial:
            pair = next((other for other in left if _share_a_divisor(atom, other)), None)
            if pair is not None and atom in left:
                left.remove(atom)
                left.remove(pair)
                span = _product(span, (0, max(self.of(atom.args[0])[1], 0)))
        for atom in left:
            span = _product(span, self._atom(atom))
        return span

    def _atom(self, atom: Atom) -> Interval:
        known = self.known.get(atom)
        if known is not None:
            return known
        if atom in self.asked:
            return (
                (0, _HALF * _HALF)
                if atom.kind in ("trip", "quotient", "remainder")
                else (-_HALF * _HALF, _HALF * _HALF)
            )
        self.asked.add(atom)
        span = self._bounded(atom)
        self.asked.discard(atom)
        if not self.asked:  # otherwise it may be coarser than it has to be
            self.known[atom] = span
        return span

    def _bounded(self, atom: Atom) -> Interval:
        match atom.kind:
            case "parameter":
                return self._parameter(atom.name)
            case "programs":
                return 1, max(1, self.of(self.model.grid[self.model.program.programs.index(atom)])[1])
            case "pid":
                return 0, max(0, self.of(self.model.grid[self.model.program.axes.index(atom)])[1] - 1)
            case "lane":
                return 0, atom.args[0] - 1
            case "trip":
                return 0, self._turns(atom)
            case "quotient":
                return self._quotient(atom)
            case "remainder":
                dividend, divisor = (self.of(part) for part in atom.args)
                return 0, max(0, min(divisor[1] - 1, dividend[1]))
            case "minimum" | "maximum":
                one, other = (self.of(part) for part in atom.args)
                pick = min if atom.kind == "minimum" else max
                return pick(one[0], other[0]), pick(one[1], other[1])
            case "select":
                one, other = self.of(atom.args[1]), self.of(atom.args[2])
                return min(one[0], other[0]), max(one[1], other[1])
            case "load":
                return (0, self.most[atom.name]) if atom.name in self.most else (-_HALF, _HALF - 1)
            case _:
                return -_HALF, _HALF - 1

    def _parameter(self, name: str) -> Interval:
        low = _least(self.model.proof, name)
        if name in self.most:
            return low if low is not None else 0, self.most[name]
        return low if low is not None else -_HALF, _HALF - 1

    def _quotient(self, atom: Atom) -> Interval:
        dividend, divisor = atom.args
        span, by = self.of(dividend), self.of(divisor)
        high = max(span[1], 0) // max(by[0], 1)
        if len(divisor.terms) == 1 and divisor.terms[0][1] == 1:
            for fact in self._facts():  # x ≤ a·d − 1 gives x // d ≤ a − 1
                factor, rest = (dividend + fact).divided(divisor.terms[0][0])
                if factor != Poly({}) and not factor.atoms() & dividend.atoms() and self._sum(rest)[1] < 0:
                    high = min(high, self._sum(factor)[1] - 1)
        return 0, max(high, 0)

    def _turns(self, trip: Atom) -> int:
        best = _HALF
        for fact in self._facts():
            step, rest = fact.divided((trip,))
            if step == Poly({}):
                continue
            least, most = self._sum(step)
            if most < 0:
                best = min(best, max(self._sum(rest)[1], 0) // -most)
            elif least >= 0:
                continue
        return best


def _cancelling(poly: Poly, fact: Poly) -> set[int]:
    """How often a fact has to be added for one of the terms to go away."""
    held = dict(fact.terms)
    return {
        -factor // held[monomial]
        for monomial, factor in poly.terms
        if monomial and factor * held.get(monomial, 0) < 0 and factor % held[monomial] == 0
    }


def _share_a_divisor(atom: Atom, other: Atom) -> bool:
    """(x // d) · (y % d)."""
    return atom.kind == "quotient" and other.kind == "remainder" and atom.args[1] == other.args[1]


def _product(one: Interval, other: Interval) -> Interval:
    corners = [a * b for a in one for b in other]
    return min(corners), max(corners)


def _least(proof: Proof, name: str) -> int | None:
    """The least value of a size: what a promise `name >= number` says; a size is never negative."""
    found: list[int] = []
    if any(name in layout.sizes for layout in proof.layouts):
        found.append(0)
    for text in proof.preconditions:
        match ast.parse(text.strip(), mode="eval").body:
            case ast.Compare(
                left=ast.Name(id=other), ops=[ast.GtE()], comparators=[ast.Constant(value=int() as value)]
            ):
                if other == name:
                    found.append(value)
            case _:
                continue
    return max(found, default=None)
