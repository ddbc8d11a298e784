"""Reads the expressions of a declaration, as polynomials and formulas or as plain numbers."""

from __future__ import annotations

import ast
import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mla_verify.errors import UsageError
from mla_verify.proofs.terms import (
    FALSE,
    TRUE,
    Formula,
    Poly,
    Terms,
    all_of,
    any_of,
    at_least,
    equal,
    less,
    negation,
)

__all__ = ["Concrete", "Symbolic", "names_in", "tables_in"]


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise UsageError(
            f"{text!r} is no expression of a proof: {error.msg}; write e.g. 'cdiv(M, BLOCK) * N'"
        ) from error


@functools.lru_cache(maxsize=4096)
def names_in(text: str) -> frozenset[str]:
    """Every name in an expression, functions aside."""
    called = {id(node.func) for node in ast.walk(_parsed(text)) if isinstance(node, ast.Call)}
    return frozenset(
        node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name) and id(node) not in called
    )


@functools.lru_cache(maxsize=4096)
def tables_in(text: str) -> frozenset[str]:
    """The names in an expression that are subscripted."""
    return frozenset(
        node.value.id
        for node in ast.walk(_parsed(text))
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
    )


class _Reader:
    """Walks an expression; what the operations mean is left to the two classes below."""

    operations: Mapping[type, Callable[[Any, Any], Any]]
    comparisons: Mapping[type, Callable[[Any, Any], Any]]
    functions: Mapping[str, Callable[..., Any]]

    def read(self, text: str) -> Any:
        """What an expression says."""
        return self._read(_parsed(text), text)

    def _read(self, node: ast.expr, text: str) -> Any:
        match node:
            case ast.Constant(value=bool() as truth):
                return self.truth(truth)
            case ast.Constant(value=int() as number):
                return self.number(number)
            case ast.Name(id=name):
                return self.name(name, text)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in self.operations:
                return self.operations[type(op)](self._read(left, text), self._read(right, text))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.operations[ast.Sub](self.number(0), self._read(operand, text))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.opposite(self._read(operand, text))
            case ast.BoolOp(op=op, values=values):
                return self.joined([self._read(value, text) for value in values], every=isinstance(op, ast.And))
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in self.comparisons for op in ops):
                sides = [self._read(side, text) for side in (left, *others)]
                return self.joined(
                    [
                        self.comparisons[type(op)](*pair)
                        for op, pair in zip(ops, itertools.pairwise(sides), strict=True)
                    ],
                    every=True,
                )
            case ast.Subscript(value=ast.Name(id=table), slice=index):
                return self.entry(table, self._read(index, text))
            case ast.Call(func=ast.Name(id=function), args=args) if function in self.functions:
                return self.functions[function](*(self._read(arg, text) for arg in args))
            case _:
                raise UsageError(
                    f"{text!r} holds {ast.unparse(node)!r}, which a proof does not read; it knows names, integers, "
                    "+ - * // %, comparisons, and/or/not, table[index], cdiv, min, max and implies"
                )

    def truth(self, value: bool) -> Any:
        """True or False."""
        raise NotImplementedError

    def number(self, value: int) -> Any:
        """An integer."""
        raise NotImplementedError

    def name(self, name: str, text: str) -> Any:
        """What a name in `text` stands for."""
        raise NotImplementedError

    def entry(self, table: str, index: Any) -> Any:
        """What a table holds."""
        raise NotImplementedError

    def opposite(self, value: Any) -> Any:
        """The opposite of a truth."""
        raise NotImplementedError

    def joined(self, values: Sequence[Any], *, every: bool) -> Any:
        """All of them, or any."""
        raise NotImplementedError


class Symbolic(_Reader):
    """Expressions as polynomials and formulas. `constants` are constexprs, `bound` are variables of a promise."""

    def __init__(self, terms: Terms, constants: Mapping[str, Any], bound: Mapping[str, Poly] | None = None) -> None:
        self.terms, self.constants, self.bound = terms, constants, bound or {}
        self.operations = {
            ast.Add: operator.add,
            ast.Sub: operator.sub,
            ast.Mult: operator.mul,
            ast.FloorDiv: terms.quotient,
            ast.Mod: terms.remainder,
        }
        self.comparisons = {
            ast.Lt: less,
            ast.LtE: lambda one, other: at_least(other, one),
            ast.Gt: lambda one, other: less(other, one),
            ast.GtE: at_least,
            ast.Eq: equal,
            ast.NotEq: lambda one, other: negation(equal(one, other)),
        }
        self.functions = {
            "cdiv": self._ceiling,
            "min": lambda *values: functools.reduce(terms.smaller, values),
            "max": lambda *values: functools.reduce(terms.larger, values),
            "implies": _implied,
        }

    def _ceiling(self, one: Poly, other: Poly) -> Poly:
        return self.terms.quotient(one + other - 1, other)

    def poly(self, text: str) -> Poly:
        """An expression that is a number."""
        value = self.read(text)
        if not isinstance(value, Poly):
            raise UsageError(f"{text!r} is a truth, wanted a number")
        return value

    def formula(self, text: str) -> Formula:
        """An expression that is true or false."""
        value = self.read(text)
        if isinstance(value, Poly):
            raise UsageError(f"{text!r} is a number, wanted a comparison")
        return value

    def truth(self, value: bool) -> Formula:
        """True or False."""
        return TRUE if value else FALSE

    def number(self, value: int) -> Poly:
        """An integer."""
        return Poly.number(value)

    def name(self, name: str, text: str) -> Poly:
        """What a name in `text` stands for."""
        if name in self.bound:
            return self.bound[name]
        if name in self.constants:
            value = self.constants[name]
            if not isinstance(value, int):
                raise UsageError(f"{text!r} names the constexpr {name}, which is {value!r}, wanted an integer")
            return Poly.number(int(value))
        return self.terms.parameter(name)

    def entry(self, table: str, index: Poly) -> Poly:
        """What a table holds."""
        return self.terms.load(table, index)

    def opposite(self, value: Formula) -> Formula:
        """The opposite of a truth."""
        return negation(value)

    def joined(self, values: Sequence[Formula], *, every: bool) -> Formula:
        """All of them, or any."""
        return (all_of if every else any_of)(values)


def _implied(one: Formula, other: Formula) -> Formula:
    return any_of((negation(one), other))


def _rounded_up(one: int, other: int) -> int:
    return -(-one // other)


def _follows(one: object, other: object) -> bool:
    return not one or bool(other)


class Concrete(_Reader):
    """Expressions as numbers. Raises LookupError for an entry that a table does not have."""

    operations: Mapping[type, Callable[[Any, Any], Any]] = MappingProxyType(
        {
            ast.Add: operator.add,
            ast.Sub: operator.sub,
            ast.Mult: operator.mul,
            ast.FloorDiv: operator.floordiv,
            ast.Mod: operator.mod,
        }
    )
    comparisons: Mapping[type, Callable[[Any, Any], Any]] = MappingProxyType(
        {
            ast.Lt: operator.lt,
            ast.LtE: operator.le,
            ast.Gt: operator.gt,
            ast.GtE: operator.ge,
            ast.Eq: operator.eq,
            ast.NotEq: operator.ne,
        }
    )
    functions: Mapping[str, Callable[..., Any]] = MappingProxyType(
        {
            "cdiv": _rounded_up,
            "min": min,
            "max": max,
            "implies": _follows,
        }
    )

    def __init__(self, names: Mapping[str, Any], tables: Mapping[str, Sequence[int]]) -> None:
        self.names, self.tables = names, tables

    def truth(self, value: bool) -> bool:
        """True or False."""
        return value

    def number(self, value: int) -> int:
        """An integer."""
        return value

    def name(self, name: str, text: str) -> int:
        """What a name in `text` stands for."""
        if name not in self.names:
            raise UsageError(f"{text!r} names {name}, which is no parameter, constexpr or size of this proof")
        return int(self.names[name])

    def entry(self, table: str, index: int) -> int:
        """What a table holds."""
        held = self.tables[table]
        if not 0 <= index < len(held):
            raise LookupError(f"{table}[{index}]")
        return int(held[index])

    def opposite(self, value: bool) -> bool:
        """The opposite of a truth."""
        return not value

    def joined(self, values: Sequence[bool], *, every: bool) -> bool:
        """All of them, or any."""
        return (all if every else any)(values)
