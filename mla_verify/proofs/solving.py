"""Puts questions to z3: do these assumptions force that goal, for all integers?

Note [Products]: every product of unknowns is an unknown of its own, so that questions are linear. What is lost comes
back as lemmas, all of them true of multiplication: a ≤ b and c ≥ 0 give a·c ≤ b·c, a < b gives a·c + c ≤ b·c, and two
numbers ≥ 0 have a product ≥ 0. An answer "proved" therefore holds; "not proved" says nothing.

Note [Tables]: an integer table is an unknown function. What is promised of all its entries is said of those that a
question names, and of the entries before and behind them.
"""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mla_verify.errors import Unavailable
from mla_verify.proofs.declaring import Each, Ragged
from mla_verify.proofs.expressions import Symbolic, tables_in
from mla_verify.proofs.terms import (
    And,
    Atom,
    Eq,
    Formula,
    Ge,
    Monomial,
    Not,
    Opaque,
    Or,
    Poly,
    Terms,
    all_of,
    any_of,
    at_least,
    atoms_in,
    equal,
    less,
    negation,
    polys_in,
    without,
)

__all__ = ["Facts", "proves", "z3_here"]

# (pair lemmas, range lemmas, milliseconds): cheap questions first, most are answered by the first two.
_ATTEMPTS: Final = ((False, False, 300), (True, False, 1500), (False, True, 1500), (True, True, 5000))
_MOST_MONOMIALS: Final = 90  # pairs of more would swamp the solver
_MOST_RANGES: Final = 60


def z3_here() -> Any:
    """z3. Raises Unavailable where it is not installed."""
    try:
        return importlib.import_module("z3")
    except ImportError as error:
        raise Unavailable("proofs need z3: pip install 'mla-verify[proofs]'") from error


@dataclass(slots=True)
class Facts:
    """What is assumed: formulas, promises about tables, and whether definitions of quotients hold as they stand."""

    terms: Terms
    constants: dict[str, Any]
    formulas: list[Formula] = field(default_factory=list["Formula"])
    each: Sequence[Each] = ()
    ragged: Sequence[Ragged] = ()
    trusted: bool = False  # that divisors are > 0 and dividends ≥ 0 has been proved

    def plus(self, *formulas: Formula) -> Facts:
        """With more assumed."""
        return Facts(
            self.terms, self.constants, [*self.formulas, *formulas], self.each, self.ragged, self.trusted
        )


def proves(facts: Facts, goal: Formula, *, until: float = 0.0, attempts: int = len(_ATTEMPTS)) -> bool:
    """Whether the facts force the goal. `until` is a time on the monotonic clock after which nothing is tried."""
    if goal == And(()):
        return True
    return any(
        _Question(facts, goal, pairs=pairs, ranges=ranges).forced(milliseconds)
        for pairs, ranges, milliseconds in _ATTEMPTS[:attempts]
        if not until or time.monotonic() < until
    )


class _Question:
    """One question in z3's language."""

    def __init__(self, facts: Facts, goal: Formula, *, pairs: bool, ranges: bool) -> None:
        self.z3 = z3_here()
        self.facts, self.goal = facts, goal
        self._numbers: dict[Monomial, Any] = {}
        self._truths: dict[str, Any] = {}
        self.asserted: list[Any] = []
        formulas = [*facts.formulas, goal]
        table_facts = self._table_facts(formulas)
        formulas += table_facts
        self.atoms = atoms_in(*formulas)
        definitions = [part for atom in self.atoms for part in self._definition(atom)]
        self.atoms = atoms_in(*formulas, *definitions)
        # The remainder that belongs to a quotient may be new here, and the other way round.
        definitions = [part for atom in self.atoms for part in self._definition(atom)]
        lemmas = self._range_lemmas([*definitions, *facts.formulas]) if ranges else []
        for formula in (*facts.formulas, *table_facts, *definitions, *lemmas):
            self.asserted.append(self.truth(formula))
        self.asserted.append(self.z3.Not(self.truth(goal)))
        self._loads()
        if pairs:
            for lemma in self._quotient_lemmas([*definitions, *table_facts, *facts.formulas, goal]):
                self.asserted.append(self.truth(lemma))
            self._pair_lemmas()

    def forced(self, milliseconds: int) -> bool:
        solver = self.z3.Solver()
        solver.set("timeout", milliseconds)
        solver.add(*self.asserted)
        return solver.check() == self.z3.unsat

    # Translation

    def number(self, poly: Poly) -> Any:
        """A polynomial, linear in its monomials."""
        parts = [
            self.z3.IntVal(factor) if not monomial else factor * self.monomial(monomial)
            for monomial, factor in poly.terms
        ]
        return self.z3.Sum(*parts) if len(parts) > 1 else parts[0] if parts else self.z3.IntVal(0)

    def monomial(self, monomial: Monomial) -> Any:
        known = self._numbers.get(monomial)
        if known is None:
            name = "*".join(f"{atom.kind[:2]}{atom.serial}" for atom in monomial)
            known = self._numbers[monomial] = self.z3.Int(name)
        return known

    def truth(self, formula: Formula) -> Any:
        z3 = self.z3
        match formula:
            case Ge(poly):
                return self.number(poly) >= 0
            case Eq(poly):
                return self.number(poly) == 0
            case And(parts):
                return z3.And(*(self.truth(part) for part in parts)) if parts else z3.BoolVal(True)  # noqa: FBT003
            case Or(parts):
                return z3.Or(*(self.truth(part) for part in parts)) if parts else z3.BoolVal(False)  # noqa: FBT003
            case Not(part):
                return z3.Not(self.truth(part))
            case Opaque(name):
                return self._truths.setdefault(name, z3.Bool(f"opaque {name}"))

    # What atoms mean

    def _definition(self, atom: Atom) -> list[Formula]:
        terms = self.facts.terms
        match atom.kind:
            case "quotient" | "remainder":
                dividend, divisor = atom.args
                quotient, remainder = terms.quotient(dividend, divisor), terms.remainder(dividend, divisor)
                meant = (
                    equal(dividend, quotient * divisor + remainder),
                    at_least(remainder, 0),
                    less(remainder, divisor),
                    at_least(quotient, 0),
                )
                if self.facts.trusted:
                    return list(meant)
                return [any_of((negation(at_least(dividend, 0)), negation(less(Poly({}), divisor)), all_of(meant)))]
            case "minimum" | "maximum":
                one, other = atom.args
                it = Poly.of(atom)
                if atom.kind == "minimum":
                    return [at_least(one, it), at_least(other, it), any_of((equal(it, one), equal(it, other)))]
                return [at_least(it, one), at_least(it, other), any_of((equal(it, one), equal(it, other)))]
            case "select":
                condition, one, other = atom.args
                it = Poly.of(atom)
                return [any_of((negation(condition), equal(it, one))), any_of((condition, equal(it, other)))]
            case "owner":
                return self._owner(atom)
            case _:
                return []

    def _owner(self, atom: Atom) -> list[Formula]:
        """The request that a row of a ragged tensor belongs to: there is one, as the offsets run from 0 to their end."""
        ragged = next(part for part in self.facts.ragged if f"owner of a row by {part.table}" == atom.name.split("(")[0])
        terms, row, it = self.facts.terms, atom.args[0], Poly.of(atom)
        count = self._reader().poly(ragged.count)
        there = all_of((at_least(row, 0), less(row, terms.load(ragged.table, count))))
        found = (
            at_least(it, 0),
            less(it, count),
            at_least(row, terms.load(ragged.table, it)),
            less(row, terms.load(ragged.table, it + 1)),
        )
        return [any_of((negation(there), all_of(found)))]

    def _loads(self) -> None:
        for atom in atoms_in(*self.facts.formulas, self.goal, *(Poly.of(atom) for atom in self.atoms)):
            if atom.kind == "load":
                function = self.z3.Function(f"table {atom.name}", self.z3.IntSort(), self.z3.IntSort())
                self.asserted.append(self.monomial((atom,)) == function(self.number(atom.args[0])))

    def _reader(self, **bound: Poly) -> Symbolic:
        return Symbolic(self.facts.terms, self.facts.constants, bound)

    def _table_facts(self, formulas: Iterable[Formula]) -> list[Formula]:
        """Promises about tables, said of the entries that the question names."""
        listed = list(formulas)
        owners = [part for atom in atoms_in(*listed) if atom.kind == "owner" for part in self._owner(atom)]
        loads: dict[str, dict[Poly, None]] = {}
        for atom in atoms_in(*listed, *owners):
            if atom.kind == "load":
                loads.setdefault(atom.name, {})[atom.args[0]] = None
        made: list[Formula] = []
        for ragged in self.facts.ragged:
            made += self._ragged_facts(ragged, list(loads.get(ragged.table, {})))
        for promise in self.facts.each:
            places = {
                place: None
                for table in tables_in(promise.fact)
                for index in loads.get(table, {})
                for place in (index, index - 1)
            }
            for place in places:
                reader = self._reader(**{promise.variable: place})
                there = all_of((at_least(place, 0), less(place, reader.poly(promise.below))))
                made.append(any_of((negation(there), reader.formula(promise.fact))))
        return made

    def _ragged_facts(self, ragged: Ragged, indices: list[Poly]) -> list[Formula]:
        terms, reader = self.facts.terms, self._reader()
        count, total = reader.poly(ragged.count), reader.poly(ragged.total)

        def at(index: Poly) -> Poly:
            return terms.load(ragged.table, index)

        made: list[Formula] = [
            equal(at(Poly({})), 0),
            at_least(at(count), 0),
            at_least(total, at(count)),
        ]
        known = list(dict.fromkeys([*indices, *(index + 1 for index in indices), Poly({}), count]))
        for low, high in itertools.permutations(known, 2):
            span = (high - low).constant
            if span is not None and span < 0:
                continue
            there = all_of((at_least(low, 0), at_least(high, low), at_least(count, high)))
            made.append(any_of((negation(there), at_least(at(high), at(low)))))
        return made

    # Lemmas, Note [Products]

    def _pair_lemmas(self) -> None:
        z3 = self.z3
        products = [monomial for monomial in self._numbers if len(monomial) > 1][:_MOST_MONOMIALS]
        singles = [monomial for monomial in self._numbers if len(monomial) == 1]
        one = z3.IntVal(1)
        for first, second in itertools.combinations([*products, *singles], 2):
            common = _common(first, second)
            if not common:
                continue
            left, right = without(first, common) or (), without(second, common) or ()
            a = self.monomial(left) if left else one
            b = self.monomial(right) if right else one
            factor = self.monomial(common)
            sound = z3.And(*(self.monomial((atom,)) >= 0 for atom in common))
            whole, other = self.monomial(first), self.monomial(second)
            self.asserted.append(
                z3.Implies(
                    sound,
                    z3.And(
                        z3.Implies(a < b, whole + factor <= other),
                        z3.Implies(b < a, other + factor <= whole),
                        z3.Implies(a == b, whole == other),
                    ),
                )
            )
        for product in products:
            for atom in set(product):
                rest = without(product, (atom,)) or ()
                value, other = self.monomial((atom,)), self.monomial(rest)
                whole = self.monomial(product)
                self.asserted += [
                    z3.Implies(z3.And(value >= 0, other >= 0), whole >= 0),
                    z3.Implies(z3.Or(value == 0, other == 0), whole == 0),
                    z3.Implies(value == 1, whole == other),
                ]

    def _quotient_lemmas(self, formulas: Iterable[Formula]) -> list[Formula]:
        """x < a·d gives x // d < a: the sign of a − x // d decides that of its product with d."""
        multiples: dict[tuple[Monomial, Poly], None] = {}
        listed = list(formulas)
        divisors = {
            atom: divisor.terms[0][0]
            for atom in self.atoms
            if atom.kind == "quotient"
            for divisor in (atom.args[1],)
            if len(divisor.terms) == 1 and divisor.terms[0][0] and divisor.terms[0][1] == 1
        }
        for poly in (poly for formula in listed for poly in polys_in(formula)):
            for divisor in set(divisors.values()):
                factor, _ = poly.divided(divisor)
                if factor.constant is None:
                    multiples[divisor, factor] = None
        lemmas: list[Formula] = []
        for quotient, divisor in divisors.items():
            unit = Poly({divisor: 1})
            for other, factor in list(multiples)[:_MOST_MONOMIALS]:
                if other != divisor or quotient in factor.atoms():
                    continue
                for sign in (1, -1):
                    lemmas += _signs(factor * sign - Poly.of(quotient), unit)
        return lemmas

    def _range_lemmas(self, formulas: Iterable[Formula]) -> list[Formula]:
        """Products of what is known to be ≥ 0 with the atoms that occur in products."""
        listed = list(formulas)
        scales = {
            atom
            for formula in (*listed, self.goal)
            for poly in polys_in(formula)
            for monomial, _ in poly.terms
            if len(monomial) > 1
            for atom in monomial
        }
        ranges = dict.fromkeys(poly for formula in listed for poly in _always_at_least_zero(formula))
        lemmas: list[Formula] = []
        either = dict.fromkeys(
            part for atom in self.atoms if atom.kind in ("minimum", "maximum") for part in atom.args if part.constant is None
        )
        for poly in list(either)[:_MOST_RANGES]:  # the sign of what a minimum chooses from is not known
            for atom in sorted(scales, key=lambda atom: atom.serial):
                scale = Poly.of(atom)
                sound = (negation(at_least(Poly({}), poly)), negation(at_least(scale, 0)))
                lemmas.append(any_of((*sound, at_least(Poly({}), poly * scale))))
                lemmas.append(any_of((negation(at_least(poly, 0)), negation(at_least(scale, 0)), at_least(poly * scale, 0))))
        for poly in list(ranges)[:_MOST_RANGES]:
            if len(poly.terms) > 6:
                continue
            for atom in sorted(scales, key=lambda atom: atom.serial):
                scale = Poly.of(atom)
                sound = (negation(at_least(poly, 0)), negation(at_least(scale, 0)))
                lemmas.append(any_of((*sound, at_least(poly * scale, 0))))
        return lemmas


def _common(first: Monomial, second: Monomial) -> Monomial:
    left = list(second)
    shared: list[Atom] = []
    for atom in first:
        if atom in left:
            left.remove(atom)
            shared.append(atom)
    return tuple(shared)


def _signs(poly: Poly, unit: Poly) -> list[Formula]:
    """What the sign of a number says of its product with another that is ≥ 0."""
    product, nothing = poly * unit, Poly({})
    unsound = negation(at_least(unit, 0))
    return [
        any_of((unsound, less(poly, nothing), at_least(product, 0))),
        any_of((unsound, less(nothing, poly), at_least(nothing, product))),
        any_of((unsound, at_least(nothing, poly), at_least(product, unit))),
        any_of((unsound, at_least(poly, 0), at_least(unit * -1, product))),
    ]


def _always_at_least_zero(formula: Formula) -> Iterable[Poly]:
    match formula:
        case Ge(poly):
            if poly.constant is None:
                yield poly
        case And(parts):
            for part in parts:
                yield from _always_at_least_zero(part)
        case Or(parts):  # a guarded definition: its last part is the definition
            if parts and isinstance(parts[-1], And):
                yield from _always_at_least_zero(parts[-1])
        case _:
            return
