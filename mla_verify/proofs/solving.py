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
    opaque_in,
    polys_in,
    without,
)

__all__ = ["Facts", "proves", "z3_here"]

# (pair lemmas, range lemmas, work): cheap questions first, most are answered by the first two. The work is counted in
# the solver's own steps, some millions a second, so that a verdict does not depend on how busy the machine is.
_ATTEMPTS: Final = ((False, False, 4_000_000), (True, False, 16_000_000), (True, True, 60_000_000))
_MILLISECONDS: Final = 60_000  # of one attempt all the same
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
    """What is assumed: formulas, and promises about tables."""

    terms: Terms
    constants: dict[str, Any]
    formulas: list[Formula] = field(default_factory=list["Formula"])
    each: Sequence[Each] = ()
    ragged: Sequence[Ragged] = ()

    def plus(self, *formulas: Formula) -> Facts:
        """With more assumed."""
        return Facts(self.terms, self.constants, [*self.formulas, *formulas], self.each, self.ragged)


def proves(facts: Facts, goal: Formula, *, until: float = 0.0, attempts: int = len(_ATTEMPTS)) -> bool:
    """Whether the facts force the goal. `until` is a time of this process's computing after which nothing is tried."""
    if goal == And(()):
        return True
    question = _Question(facts, goal)
    return any(
        question.forced(pairs=pairs, ranges=ranges, work=work)
        for pairs, ranges, work in _ATTEMPTS[:attempts]
        if not until or time.process_time() < until
    )


class _Words:
    """Terms in SMT-LIB's language, each once: text is far cheaper to make than the solver's own objects."""

    def __init__(self) -> None:
        self._polys: dict[Poly, str] = {}
        self._formulas: dict[Formula, str] = {}

    def number(self, poly: Poly) -> str:
        """A polynomial, linear in its monomials."""
        known = self._polys.get(poly)
        if known is None:
            parts = [_scaled(factor, monomial) for monomial, factor in poly.terms]
            known = f"(+ {' '.join(parts)})" if len(parts) > 1 else parts[0] if parts else "0"
            self._polys[poly] = known
        return known

    def truth(self, formula: Formula) -> str:
        """A formula."""
        known = self._formulas.get(formula)
        if known is None:
            known = self._formulas[formula] = self._written(formula)
        return known

    def _written(self, formula: Formula) -> str:
        match formula:
            case Ge(poly):
                return f"(>= {self.number(poly)} 0)"
            case Eq(poly):
                return f"(= {self.number(poly)} 0)"
            case And(parts):
                return f"(and {' '.join(map(self.truth, parts))})" if parts else "true"
            case Or(parts):
                return f"(or {' '.join(map(self.truth, parts))})" if parts else "false"
            case Not(part):
                return f"(not {self.truth(part)})"
            case Opaque():
                return opaque_name(formula)


def monomial_name(monomial: Monomial) -> str:
    """The unknown that stands for a product."""
    return "m" + "_".join(str(atom.serial) for atom in monomial)


def opaque_name(formula: Opaque) -> str:
    """The unknown truth."""
    return "o" + "".join(char if char.isalnum() else "_" for char in f"{formula.name} {formula.line}")


def _integer(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"


def _scaled(factor: int, monomial: Monomial) -> str:
    if not monomial:
        return _integer(factor)
    return monomial_name(monomial) if factor == 1 else f"(* {_integer(factor)} {monomial_name(monomial)})"


class _Question:
    """One question, asked again with more lemmas as long as it is not answered."""

    def __init__(self, facts: Facts, goal: Formula) -> None:
        self.z3 = z3_here()
        self.facts, self.goal = facts, goal
        self.words: _Words = facts.terms.memory.setdefault("words", _Words())
        self.solver = self.z3.Solver()
        self._declared: set[str] = set()
        formulas = [*facts.formulas, goal]
        self.table_facts = self._table_facts(formulas)
        formulas += self.table_facts
        atoms = atoms_in(*formulas)
        definitions = [part for atom in atoms for part in self._definition(atom)]
        # The remainder that belongs to a quotient may be new here, and the other way round.
        self.atoms = atoms_in(*formulas, *definitions)
        self.definitions = list(dict.fromkeys(part for atom in self.atoms for part in self._definition(atom)))
        self.monomials: dict[Monomial, None] = {}
        self.tables = sorted({atom.name for atom in self.atoms if atom.kind == "load"})
        self._tell([*facts.formulas, *self.table_facts, *self.definitions, negation(goal)], loads=True)
        self._told: set[str] = set()

    def forced(self, *, pairs: bool, ranges: bool, work: int) -> bool:
        """Whether the goal follows, with these lemmas and those that were asked for before."""
        if ranges and "ranges" not in self._told:
            self._told = {"ranges"}  # pairs again: there are more products to compare now
            self._tell(self._range_lemmas([*self.definitions, *self.facts.formulas]))
        if pairs and "pairs" not in self._told:
            self._told.add("pairs")
            self._tell(self._quotient_lemmas([*self.definitions, *self.table_facts, *self.facts.formulas, self.goal]))
            self._tell([], extra=self._pair_lemmas())
        self.solver.set("rlimit", work)
        self.solver.set("timeout", _MILLISECONDS)
        return self.solver.check() == self.z3.unsat

    def _tell(self, formulas: Sequence[Formula], *, extra: Sequence[str] = (), loads: bool = False) -> None:
        """Assert formulas, and declare what they are the first to name."""
        lines = [f"(assert {self.words.truth(formula)})" for formula in formulas]
        for poly in (poly for formula in formulas for poly in polys_in(formula)):
            self.monomials.update(dict.fromkeys(monomial for monomial, _ in poly.terms if monomial))
        lines += [f"(assert {text})" for text in extra]
        if loads:
            for atom in self.atoms:
                if atom.kind == "load":
                    index = atom.args[0]
                    self.monomials.update(dict.fromkeys(monomial for monomial, _ in index.terms if monomial))
                    self.monomials[atom,] = None
                    table = f"t{self.tables.index(atom.name)}"
                    lines.append(f"(assert (= {monomial_name((atom,))} ({table} {self.words.number(index)})))")
        hidden = {opaque_name(part) for formula in formulas for part in opaque_in(formula)}
        names = [f"(declare-const {monomial_name(monomial)} Int)" for monomial in self.monomials]
        names += [f"(declare-fun t{number} (Int) Int)" for number in range(len(self.tables))]
        names += [f"(declare-const {name} Bool)" for name in sorted(hidden)]
        new = [name for name in names if name not in self._declared]
        self._declared.update(new)
        self.solver.from_string("\n".join((*new, *lines)))

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
        """The request that a row of a ragged tensor belongs to: there is one, as offsets run from 0 to their end."""
        ragged = next(
            part for part in self.facts.ragged if f"owner of a row by {part.table}" == atom.name.split("(")[0]
        )
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

    def _pair_lemmas(self) -> list[str]:
        """How the order of two products follows from that of what they do not share."""
        products = [monomial for monomial in self.monomials if len(monomial) > 1][:_MOST_MONOMIALS]
        singles = [monomial for monomial in self.monomials if len(monomial) == 1]
        made: list[str] = []

        def name(monomial: Monomial) -> str:
            if not monomial:
                return "1"
            self.monomials[monomial] = None
            return monomial_name(monomial)

        for first, second in itertools.combinations([*products, *singles], 2):
            common = _common(first, second)
            if not common:
                continue
            a, b = name(without(first, common) or ()), name(without(second, common) or ())
            whole, other, factor = name(first), name(second), name(common)
            sound = " ".join(f"(>= {name((atom,))} 0)" for atom in common)
            made.append(
                f"(=> (and {sound}) (and (=> (< {a} {b}) (<= (+ {whole} {factor}) {other})) "
                f"(=> (< {b} {a}) (<= (+ {other} {factor}) {whole})) (=> (= {a} {b}) (= {whole} {other}))))"
            )
        for product in products:
            for atom in dict.fromkeys(product):
                value, other, whole = name((atom,)), name(without(product, (atom,)) or ()), name(product)
                made.append(
                    f"(and (=> (and (>= {value} 0) (>= {other} 0)) (>= {whole} 0)) "
                    f"(=> (or (= {value} 0) (= {other} 0)) (= {whole} 0)) (=> (= {value} 1) (= {whole} {other})))"
                )
        return made

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
            part
            for atom in self.atoms
            if atom.kind in ("minimum", "maximum")
            for part in atom.args
            if part.constant is None
        )
        for poly in list(either)[:_MOST_RANGES]:  # the sign of what a minimum chooses from is not known
            for atom in sorted(scales, key=lambda atom: atom.serial):
                scale = Poly.of(atom)
                sound = (negation(at_least(Poly({}), poly)), negation(at_least(scale, 0)))
                lemmas.append(any_of((*sound, at_least(Poly({}), poly * scale))))
                lemmas.append(
                    any_of((negation(at_least(poly, 0)), negation(at_least(scale, 0)), at_least(poly * scale, 0)))
                )
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
