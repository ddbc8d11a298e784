"""Integer polynomials over named atoms: what a tensor's lane, a program's id or a loop's turn make of an index.

A quotient, a remainder, a minimum, a load from an integer table or a choice between two values is an atom of its own,
with a definition in terms of others. Equal terms are one atom, so that two places that compute the same agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = [
    "FALSE",
    "TRUE",
    "ZERO",
    "And",
    "Atom",
    "Eq",
    "Formula",
    "Ge",
    "Not",
    "Opaque",
    "Or",
    "Poly",
    "Terms",
    "all_of",
    "any_of",
    "at_least",
    "atoms_in",
    "equal",
    "less",
    "negation",
    "opaque_in",
    "parts_of",
    "polys_in",
    "without",
]


class Atom:
    """An indivisible integer. Only `Terms` makes atoms; two with one definition are one object."""

    __slots__ = ("args", "kind", "name", "serial")

    def __init__(self, serial: int, kind: str, name: str, args: tuple[Any, ...]) -> None:
        self.serial, self.kind, self.name, self.args = serial, kind, name, args

    def __repr__(self) -> str:
        return self.name


Monomial = tuple[Atom, ...]


class Poly:
    """An integer polynomial, immutable and hashable: a sorted tuple of (monomial, coefficient)."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        kept = [(monomial, factor) for monomial, factor in terms.items() if factor]
        self.terms: tuple[tuple[Monomial, int], ...] = tuple(
            sorted(kept, key=lambda term: (len(term[0]), [atom.serial for atom in term[0]]))
        )
        self._hash = hash(self.terms)

    @staticmethod
    def number(value: int) -> Poly:
        """A constant."""
        return Poly({(): value})

    @staticmethod
    def of(atom: Atom) -> Poly:
        """One atom."""
        return Poly({(atom,): 1})

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self._hash == other._hash and self.terms == other.terms

    def __add__(self, other: Poly | int) -> Poly:
        total = dict(self.terms)
        for monomial, factor in _poly(other).terms:
            total[monomial] = total.get(monomial, 0) + factor
        return Poly(total)

    def __sub__(self, other: Poly | int) -> Poly:
        return self + _poly(other) * -1

    def __mul__(self, other: Poly | int) -> Poly:
        total: dict[Monomial, int] = {}
        for left, factor in self.terms:
            for right, more in _poly(other).terms:
                monomial = tuple(sorted(left + right, key=_serial))
                total[monomial] = total.get(monomial, 0) + factor * more
        return Poly(total)

    @property
    def constant(self) -> int | None:
        """Its value, where it has no atoms."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def atom(self) -> Atom | None:
        """The atom that it is, and nothing else."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            return self.terms[0][0][0]
        return None

    def atoms(self) -> set[Atom]:
        """Those that it names itself, not those in their definitions."""
        return {atom for monomial, _ in self.terms for atom in monomial}

    def divided(self, divisor: Monomial) -> tuple[Poly, Poly]:
        """(quotient, rest) by a monomial: the terms that contain it, and those that do not."""
        quotient: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for monomial, factor in self.terms:
            left = without(monomial, divisor)
            if left is None:
                rest[monomial] = factor
            else:
                quotient[left] = factor
        return Poly(quotient), Poly(rest)

    def __repr__(self) -> str:
        if not self.terms:
            return "0"
        parts: list[str] = []
        for monomial, factor in self.terms:
            names = "*".join(atom.name for atom in monomial)
            text = str(factor) if not names else names if factor == 1 else f"{factor}*{names}"
            parts.append(text)
        return " + ".join(parts).replace("+ -", "- ")


def _serial(atom: Atom) -> int:
    return atom.serial


def _poly(value: Poly | int) -> Poly:
    return value if isinstance(value, Poly) else Poly.number(value)


def without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """The monomial divided by another, None where that does not divide it."""
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


ZERO: Final = Poly({})


@dataclass(frozen=True, slots=True)
class Ge:
    """poly ≥ 0."""

    poly: Poly


@dataclass(frozen=True, slots=True)
class Eq:
    """poly = 0."""

    poly: Poly


@dataclass(frozen=True, slots=True)
class And:
    """All of them."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one of them."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Its opposite."""

    part: Formula


@dataclass(frozen=True, slots=True)
class Opaque:
    """A truth that is not decided by integers, such as a comparison of floats; `line` is where it is made."""

    name: str
    line: str


Formula = Ge | Eq | And | Or | Not | Opaque
TRUE: Final = And(())
FALSE: Final = Or(())


def all_of(parts: Iterable[Formula]) -> Formula:
    """Their conjunction, flat and without what is always true."""
    kept: dict[Formula, None] = {}
    for part in parts:
        if part == FALSE:
            return FALSE
        kept.update(dict.fromkeys(part.parts if isinstance(part, And) else (part,)))
    return next(iter(kept)) if len(kept) == 1 else And(tuple(kept))


def any_of(parts: Iterable[Formula]) -> Formula:
    """Their disjunction, flat and without what is never true."""
    kept: dict[Formula, None] = {}
    for part in parts:
        if part == TRUE:
            return TRUE
        kept.update(dict.fromkeys(part.parts if isinstance(part, Or) else (part,)))
    return next(iter(kept)) if len(kept) == 1 else Or(tuple(kept))


def negation(part: Formula) -> Formula:
    """Its opposite, pushed into inequalities."""
    match part:
        case Ge(poly):
            return _decided(Ge(poly * -1 - 1))
        case Not(inner):
            return inner
        case And(parts):
            return any_of(negation(inner) for inner in parts)
        case Or(parts):
            return all_of(negation(inner) for inner in parts)
        case _:
            return Not(part)


def _decided(part: Ge | Eq) -> Formula:
    value = part.poly.constant
    if value is None:
        return part
    return TRUE if (value >= 0 if isinstance(part, Ge) else value == 0) else FALSE


def at_least(larger: Poly | int, smaller: Poly | int) -> Formula:
    """larger ≥ smaller."""
    return _decided(Ge(_poly(larger) - smaller))


def less(smaller: Poly | int, larger: Poly | int) -> Formula:
    """smaller < larger."""
    return _decided(Ge(_poly(larger) - smaller - 1))


def equal(one: Poly | int, other: Poly | int) -> Formula:
    """one = other."""
    return _decided(Eq(_poly(one) - other))


def parts_of(formula: Formula) -> tuple[Formula, ...]:
    """What a conjunction joins; any other formula alone."""
    return formula.parts if isinstance(formula, And) else (formula,)


def polys_in(formula: Formula) -> Iterator[Poly]:
    """Every polynomial that a formula compares."""
    match formula:
        case Ge(poly) | Eq(poly):
            yield poly
        case And(parts) | Or(parts):
            for part in parts:
                yield from polys_in(part)
        case Not(part):
            yield from polys_in(part)
        case Opaque():
            return


def opaque_in(formula: Formula) -> Iterator[Opaque]:
    """Every truth in a formula that integers do not decide."""
    match formula:
        case Opaque():
            yield formula
        case And(parts) | Or(parts):
            for part in parts:
                yield from opaque_in(part)
        case Not(part):
            yield from opaque_in(part)
        case _:
            return


def atoms_in(*values: Poly | Formula) -> dict[Atom, None]:
    """All atoms that values rest on, those of definitions included, each after those that define it."""
    seen: dict[Atom, None] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Poly):
            for atom in value.atoms():
                if atom not in seen:
                    for part in atom.args:
                        visit(part)
                    seen[atom] = None
        elif isinstance(value, Ge | Eq | And | Or | Not):
            for poly in polys_in(value):
                visit(poly)

    for value in values:
        visit(value)
    return seen


class Terms:
    """Makes atoms, each definition once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, tuple[Any, ...]], Atom] = {}
        self._fresh = 0
        self.memory: dict[str, Any] = {}  # of those who translate terms, for as long as the terms live

    def atom(self, kind: str, name: str, args: tuple[Any, ...] = ()) -> Poly:
        """The atom of a kind with a name and a definition."""
        key = (kind, name, args)
        atom = self._known.get(key)
        if atom is None:
            shown = f"{name}({', '.join(map(repr, args))})" if args and kind != "lane" else name
            atom = self._known[key] = Atom(len(self._known), kind, shown, args)
            if kind == "load":
                atom.name = name  # the table; z3 reads the index from args
        return Poly.of(atom)

    def fresh(self, kind: str, base: str, args: tuple[Any, ...] = ()) -> Poly:
        """An atom that differs from all others."""
        self._fresh += 1
        return self.atom(kind, f"{base}.{self._fresh}", args)

    def parameter(self, name: str) -> Poly:
        """An argument of the launch, or a size that only declarations name."""
        return self.atom("parameter", name)

    def quotient(self, dividend: Poly, divisor: Poly) -> Poly:
        """dividend // divisor, of what is proved elsewhere to be ≥ 0 and > 0. (x // a) // b is x // (a·b)."""
        top, bottom = dividend.constant, divisor.constant
        if bottom == 1:
            return dividend
        if top is not None and bottom is not None and top >= 0 and bottom > 0:
            return Poly.number(top // bottom)
        inner = dividend.atom
        if inner is not None and inner.kind == "quotient":
            return self.quotient(inner.args[0], inner.args[1] * divisor)
        return self.atom("quotient", "quotient", (dividend, divisor))

    def remainder(self, dividend: Poly, divisor: Poly) -> Poly:
        """dividend % divisor."""
        top, bottom = dividend.constant, divisor.constant
        if bottom == 1:
            return ZERO
        if top is not None and bottom is not None and top >= 0 and bottom > 0:
            return Poly.number(top % bottom)
        return self.atom("remainder", "remainder", (dividend, divisor))

    def smaller(self, one: Poly, other: Poly) -> Poly:
        """min(one, other)."""
        return self._extreme("minimum", one, other, min)

    def larger(self, one: Poly, other: Poly) -> Poly:
        """max(one, other)."""
        return self._extreme("maximum", one, other, max)

    def _extreme(self, kind: str, one: Poly, other: Poly, of: Callable[[int, int], int]) -> Poly:
        if one == other:
            return one
        difference = (one - other).constant
        if difference is not None:
            return other if of(difference, 0) == 0 else one
        one, other = sorted((one, other), key=repr)
        return self.atom(kind, kind, (one, other))

    def load(self, table: str, index: Poly) -> Poly:
        """What an integer table holds at an index."""
        return self.atom("load", table, (index,))

    def select(self, condition: Formula, one: Poly, other: Poly) -> Poly:
        """one if condition else other."""
        if condition == TRUE or one == other:
            return one
        if condition == FALSE:
            return other
        return self.atom("select", "select", (condition, one, other))

    def rebuilt(self, atom: Atom, args: tuple[Any, ...]) -> Poly:
        """The atom of the same kind with other operands."""
        makers: dict[str, Callable[..., Poly]] = {
            "quotient": self.quotient,
            "remainder": self.remainder,
            "minimum": self.smaller,
            "maximum": self.larger,
            "select": self.select,
        }
        if atom.kind == "load":
            return self.load(atom.name, args[0])
        return makers[atom.kind](*args)

    def substitution(self, bindings: Mapping[Atom, Poly], *, mark: str = "") -> Substitution:
        """What replaces atoms by polynomials, in definitions too. A mark sets apart what integers do not decide."""
        return Substitution(self, bindings, mark)


class Substitution:
    """Replaces atoms everywhere, and remembers what it made of each."""

    def __init__(self, terms: Terms, bindings: Mapping[Atom, Poly], mark: str) -> None:
        self._terms, self._mark = terms, mark
        self._known: dict[Atom, Poly] = dict(bindings)

    def poly(self, poly: Poly) -> Poly:
        """A polynomial with its atoms replaced."""
        if all(self._atom(atom) == Poly.of(atom) for atom in poly.atoms()):
            return poly
        total = ZERO
        for monomial, factor in poly.terms:
            product = Poly.number(factor)
            for atom in monomial:
                product = product * self._atom(atom)
            total = total + product
        return total

    def formula(self, formula: Formula) -> Formula:
        """A formula with its atoms replaced."""
        match formula:
            case Ge(poly):
                return _decided(Ge(self.poly(poly)))
            case Eq(poly):
                return _decided(Eq(self.poly(poly)))
            case And(parts):
                return all_of(self.formula(part) for part in parts)
            case Or(parts):
                return any_of(self.formula(part) for part in parts)
            case Not(part):
                return negation(self.formula(part))
            case Opaque(name, line):
                return Opaque(f"{name}{self._mark}", line)

    def _atom(self, atom: Atom) -> Poly:
        known = self._known.get(atom)
        if known is None:
            args = tuple(
                self.poly(part)
                if isinstance(part, Poly)
                else self.formula(part)
                if isinstance(part, Ge | Eq | And | Or | Not)
                else part
                for part in atom.args
            )
            known = Poly.of(atom) if args == atom.args else self._terms.rebuilt(atom, args)
            self._known[atom] = known
        return known
