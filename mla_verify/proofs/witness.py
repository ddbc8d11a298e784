"""Finds, for an element of an output, the program, turn and lane that store it.

It solves "the index that a site stores is this one" for the site's unknowns: digits of a mixed radix, then backwards
through quotients and remainders, and through the offsets of a ragged table. What it finds is a proposal; that it is
right is proved afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mla_verify.proofs.executing import Site
from mla_verify.proofs.model import Model
from mla_verify.proofs.terms import ZERO, Atom, Formula, Ge, Monomial, Poly, atoms_in, parts_of, polys_in, without

__all__ = ["Divided", "Witness", "find_witness"]

_ROUNDS: Final = 60


@dataclass(frozen=True, slots=True)
class Divided:
    """A division whose result the witness fixes: dividend = quotient · divisor + remainder is to be proved."""

    dividend: Poly
    divisor: Poly
    quotient: Poly
    remainder: Poly | None  # None: whatever is left


@dataclass(frozen=True, slots=True)
class Witness:
    """What each unknown is, in terms of the element."""

    values: dict[Atom, Poly]
    divided: tuple[Divided, ...]


def find_witness(model: Model, site: Site, index: tuple[Poly, ...], element: tuple[Poly, ...]) -> Witness | None:
    """A proposal for who stores `element` at `site`; None where there is none."""
    solver = _Solver(model, site)
    return solver.solve(list(zip(index, element, strict=True)))


class _Solver:
    def __init__(self, model: Model, site: Site) -> None:
        self.model, self.terms, self.site = model, model.terms, site
        self.base = (*model.program.axes, *site.lanes, *site.trips)
        self.known: dict[Atom, Poly] = {}
        self.equations: list[tuple[Poly, Poly]] = []
        self.used: set[tuple[Poly, Poly]] = set()
        self.divided: list[Divided] = []
        unknown = set(self.base)
        self.divisions = [
            atom
            for atom in atoms_in(site.offset, site.active, *(poly for poly in index_polys(site)))
            if atom.kind in ("quotient", "remainder") and unknown & set(atoms_in(*atom.args))
        ]

    def solve(self, equations: list[tuple[Poly, Poly]]) -> Witness | None:
        self.equations = equations
        steps = (self._from_equations, self._from_divisions, self._from_offsets, self._left_free)
        for _ in range(_ROUNDS):
            if not any(step() for step in steps):
                break
        if any(atom not in self.known for atom in self.base):
            return None
        fixed = {poly.atom for part in self.divided for poly in self._results_of(part)}
        # A load, minimum or choice is computed again from what it rests on; only divisions are fixed by proof.
        values = {atom: value for atom, value in self.known.items() if atom in self.base or atom in fixed}
        return Witness(values, tuple(self.divided))

    def _results_of(self, part: Divided) -> tuple[Poly, Poly]:
        return self.terms.quotient(part.dividend, part.divisor), self.terms.remainder(part.dividend, part.divisor)

    # What is known

    def _unknown(self, atom: Atom) -> bool:
        if atom in self.known:
            return False
        return atom in self.base or any(self._unknown(part) for poly in _polys_of(atom) for part in poly.atoms())

    def _open(self, poly: Poly) -> bool:
        return any(self._unknown(atom) for atom in poly.atoms())

    def _now(self, poly: Poly) -> Poly:
        """With what is known put in, where that is possible."""
        known = dict(self.known)
        total = ZERO
        for monomial, factor in poly.terms:
            product = Poly.number(factor)
            for atom in monomial:
                if atom in known:
                    product = product * known[atom]
                elif self._unknown(atom):
                    product = product * Poly.of(atom)
                else:
                    product = product * self.terms.substitution(known).poly(Poly.of(atom))
            total = total + product
        return total

    # Steps; each says whether it found something new

    def _from_equations(self) -> bool:
        for number, (left, right) in enumerate(self.equations):
            now = self._now(left)
            factors: dict[Atom, Poly] = {}
            rest = right
            linear = True
            for monomial, factor in now.terms:
                unknown = [atom for atom in monomial if self._unknown(atom)]
                if not unknown:
                    rest = rest - Poly({monomial: factor})
                elif len(unknown) > 1:
                    linear = False
                else:
                    scale = Poly({without(monomial, (unknown[0],)) or (): factor})
                    factors[unknown[0]] = factors.get(unknown[0], ZERO) + scale
            if not linear or not factors:
                continue
            if self._solved(number, factors, rest):
                return True
        return False

    def _solved(self, number: int, factors: dict[Atom, Poly], rest: Poly) -> bool:
        if all(len(factor.terms) == 1 and factor.terms[0][1] < 0 for factor in factors.values()):
            factors, rest = {atom: factor * -1 for atom, factor in factors.items()}, rest * -1
        if len(factors) == 1:
            ((atom, factor),) = factors.items()
            value = factor.constant
            if value == 1:
                self.known[atom] = rest
            elif value == -1:
                self.known[atom] = rest * -1
            elif value is None or value > 0:
                self.known[atom] = self.terms.quotient(rest, factor)
            else:
                self.known[atom] = self.terms.quotient(rest * -1, factor * -1)
            return True
        for atom, factor in factors.items():
            if atom.kind == "load":
                continue
            reach = self._reach(atom)
            if reach is None or len(factor.terms) != 1 or factor.terms[0][1] <= 0:
                continue
            others = {other: scale for other, scale in factors.items() if other is not atom}
            base = factor * reach
            lifted = {other: _ratio(scale, base) for other, scale in others.items()}
            if any(part is None for part in lifted.values()):
                continue
            # rest = factor · (atom + reach · others): the last digit first.
            digits = rest if factor.constant == 1 else self.terms.quotient(rest, factor)
            self.known[atom] = self.terms.remainder(digits, reach)
            above = ZERO
            for other, part in lifted.items():
                above = above + (part or ZERO) * Poly.of(other)
            self.equations[number] = (above, self.terms.quotient(digits, reach))
            return True
        return False

    def _reach(self, atom: Atom) -> Poly | None:
        """How many values an unknown has, from 0 on."""
        if atom.kind == "lane":
            return Poly.number(atom.args[0])
        if atom.kind == "pid":
            return Poly.of(self.model.program.programs[self.model.program.axes.index(atom)])
        if atom.kind == "trip":
            return self._turns(atom)
        if atom.kind == "remainder":
            divisor = self._now(atom.args[1])
            return self._most(divisor) if self._open(divisor) else divisor
        return None

    def _turns(self, trip: Atom) -> Poly | None:
        """How many turns a loop takes, where that is a number."""
        for part in parts_of(self.site.path):
            if isinstance(part, Ge):
                step, rest = part.poly.divided((trip,))
                by, last = step.constant, rest.constant
                if by is not None and by < 0 and last is not None and last >= 0:
                    return Poly.number(last // -by + 1)
        return None

    def _most(self, divisor: Poly) -> Poly | None:
        """The number that a divisor does not pass: of a last, smaller group, the size of the others."""
        atom = divisor.atom
        if atom is None or atom.kind != "minimum":
            return None
        return next((part for part in atom.args if part.constant is not None), None)

    def _from_divisions(self) -> bool:
        """dividend = quotient · divisor + remainder, once the results are known."""
        for atom in self.divisions:
            dividend, divisor = atom.args
            if (dividend, divisor) in self.used or self._open(divisor):
                continue
            quotient, remainder = self.terms.quotient(dividend, divisor), self.terms.remainder(dividend, divisor)
            if not self._open(dividend):
                self._settle(quotient, remainder, dividend, divisor)
                return True
            if self._open(quotient) or self._open(remainder):
                continue
            self._settle(quotient, remainder, dividend, divisor)
            top = self._now(quotient) * self._now(divisor) + self._now(remainder)
            self.equations.append((dividend, top))
            return True
        return False

    def _settle(self, quotient: Poly, remainder: Poly, dividend: Poly, divisor: Poly) -> None:
        """Note a division whose results were fixed before its dividend was known."""
        self.used.add((dividend, divisor))
        fixed = [poly.atom for poly in (quotient, remainder) if poly.atom is not None and poly.atom in self.known]
        if quotient.atom in fixed:
            rest = self._now(remainder) if remainder.atom in fixed else None
            self.divided.append(Divided(dividend, divisor, self._now(quotient), rest))
        elif (
            remainder.atom is not None
            and remainder.atom in fixed
            and not self._open(dividend)
            and not self._open(quotient)
        ):
            self.divided.append(Divided(dividend, divisor, self._now(quotient), self._now(remainder)))

    def _from_offsets(self) -> bool:
        """offsets[request] + … = row: the request is the one that the row belongs to."""
        for number, (left, right) in enumerate(self.equations):
            now = self._now(left)
            for monomial, factor in now.terms:
                atom = monomial[0] if len(monomial) == 1 else None
                if factor != 1 or atom is None or atom.kind != "load" or not self._unknown(atom):
                    continue
                ragged = next((part for part in self.model.proof.ragged if part.table == atom.name), None)
                if ragged is None:
                    continue
                rest = right
                for other, scale in now.terms:
                    if not any(self._unknown(part) for part in other):
                        rest = rest - Poly({other: scale})
                # A row that is told by its request's offset belongs to that request.
                told = [part for part in rest.atoms() if part.kind == "load" and part.name == ragged.table]
                owner = told[0].args[0] if len(told) == 1 else None
                if owner is None:
                    owner = self.terms.atom("owner", f"owner of a row by {ragged.table}", (rest,))
                self.equations[number] = (left, right)
                self.equations.append((atom.args[0], owner))
                self.known[atom] = self.terms.load(ragged.table, owner)
                return True
        return False

    def _left_free(self) -> bool:
        """What no equation decides is 0: a remainder that nobody asked for, a turn or program that repeats a store."""
        for atom in self.divisions:
            dividend, divisor = atom.args
            if (dividend, divisor) in self.used or self._open(divisor):
                continue
            quotient, remainder = self.terms.quotient(dividend, divisor), self.terms.remainder(dividend, divisor)
            for here, there in ((quotient, remainder), (remainder, quotient)):
                free = there.atom
                if free is not None and not self._open(here) and self._unknown(free) and not self._named(free):
                    self.known[free] = ZERO
                    return True
        for atom in self.base:
            if atom not in self.known and not self._named(atom):
                self.known[atom] = ZERO
                return True
        return False

    def _named(self, atom: Atom) -> bool:
        """Whether an equation still has to say what an unknown is."""
        return any(atom in atoms_in(self._now(left)) and self._open(self._now(left)) for left, _ in self.equations)


def index_polys(site: Site) -> list[Poly]:
    """The polynomials of a site's address."""
    return [site.offset]


def _polys_of(atom: Atom) -> list[Poly]:
    """The polynomials that an atom rests on."""
    return [
        poly
        for part in atom.args
        for poly in ((part,) if isinstance(part, Poly) else polys_in(part) if isinstance(part, Formula) else ())
    ]


def _ratio(scale: Poly, base: Poly) -> Poly | None:
    """scale / base, where that is a number of monomials."""
    if len(base.terms) != 1:
        return None
    (divisor, number), ratio = base.terms[0], {}
    for monomial, factor in scale.terms:
        left: Monomial | None = without(monomial, divisor)
        if left is None or factor % number:
            return None
        ratio[left] = factor // number
    return Poly(ratio)
