"""Executes a kernel's TTIR once, for any program and any lane, and notes where it stores and loads.

A tensor is a function from lane indices to a polynomial. A loop is run once, with its turn as an unknown; integers and
pointers that it carries become functions of the turn where each turn adds the same. Floats are not followed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mla_verify.proofs.parsing import Block, Function, Op, Type
from mla_verify.proofs.terms import (
    FALSE,
    TRUE,
    ZERO,
    Atom,
    Formula,
    Opaque,
    Poly,
    Terms,
    all_of,
    any_of,
    at_least,
    atoms_in,
    equal,
    less,
    negation,
)
from mla_verify.proofs.verdicts import OutOfClass

__all__ = ["AXES", "Demand", "Narrow", "Program", "Site", "execute"]

AXES: Final = "xyz"
Index = tuple[Poly, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """What a name stands for: `kind` is int, bool, pointer or float, `at` gives it at a lane."""

    kind: str
    at: Callable[[Index], Any]
    shape: tuple[int, ...] = ()
    bits: int = 0
    base: str = ""  # of a pointer: the parameter that it starts from


@dataclass(frozen=True, slots=True)
class Narrow:
    """An integer of 32 bits that decides an address: the exact value, and where it is computed."""

    poly: Poly
    bits: int
    line: str
    lanes_matter: bool  # whether it counts on active lanes alone
    path: Formula  # what holds where it is computed


@dataclass(frozen=True, slots=True)
class Demand:
    """What has to hold for the meaning of an operation to be the one that is assumed."""

    formula: Formula
    path: Formula
    line: str
    what: str


@dataclass(slots=True)
class Site:
    """One load or store: where it goes, for which lanes, on which path."""

    stores: bool
    base: str
    offset: Poly  # in elements
    mask: Formula
    path: Formula  # of the branches and loops around it
    lanes: tuple[Atom, ...]
    trips: tuple[Atom, ...]
    within: Formula  # that lanes lie in the tile
    line: str
    atomic: bool = False
    order: int = 0  # among the sites of the program
    narrow: list[Narrow] = field(default_factory=list["Narrow"])
    demands: list[Demand] = field(default_factory=list["Demand"])

    @property
    def active(self) -> Formula:
        """That the lane takes part."""
        return all_of((self.path, self.within, self.mask))


@dataclass(frozen=True, slots=True)
class Program:
    """All that a kernel does to memory, in terms of its program id."""

    terms: Terms
    sites: tuple[Site, ...]
    axes: tuple[Atom, ...]  # program ids
    programs: tuple[Atom, ...]  # how many along each axis
    lost: tuple[OutOfClass, ...]  # sites that could not be read
    demands: tuple[Demand, ...]  # of the branches and loops
    narrow: tuple[Narrow, ...]


def execute(function: Function, names: Sequence[str], terms: Terms, *, tag: str = "") -> Program:
    """Run a kernel whose parameters have these names. Raises OutOfClass for what the method does not cover.

    tag: sets its programs apart from those of another kernel over the same terms.
    """
    return _Executor(function, names, terms, tag).run()


_COMPARISONS: Final[Mapping[str, Callable[[Poly, Poly], Formula]]] = {
    "slt": less,
    "sle": lambda one, other: at_least(other, one),
    "sgt": lambda one, other: less(other, one),
    "sge": at_least,
    "eq": equal,
    "ne": lambda one, other: negation(equal(one, other)),
}
_CALLS: Final = ("tt.call", "func.call", "llvm.call")  # of functions that are not inlined: they may store
_REGIONS: Final = ("tt.reduce", "tt.scan", "tt.map_elementwise")  # whose regions hold arithmetic alone
_PASS: Final = ("tt.return", "scf.yield", "tt.debug_barrier", "gpu.barrier", "ttg.barrier", "tt.print", "tt.assert")


class _Executor:
    def __init__(self, function: Function, names: Sequence[str], terms: Terms, tag: str) -> None:
        self.function, self.terms = function, terms
        self.values: dict[str, Value] = {}
        self.path: list[Formula] = []
        self.trips: list[Atom] = []
        self.sites: list[Site] = []
        self.lost: list[OutOfClass] = []
        self.dry = False  # a first look at a loop's body: nothing is noted
        self._narrow: list[Narrow] = []
        self._demands: list[Demand] = []
        self._masking = True
        self.axes = tuple(_only(terms.atom("pid", f"{tag}program_id({axis})")) for axis in AXES)
        self.programs = tuple(_only(terms.atom("programs", f"{tag}num_programs({axis})")) for axis in AXES)
        if len(names) != len(function.arguments):
            raise OutOfClass(
                f"{function.name} takes {len(function.arguments)} arguments, declared are {len(names)}", ""
            )
        for name, (value, kind) in zip(names, function.arguments, strict=True):
            if kind.pointer:
                self.values[value] = Value("pointer", lambda _: ZERO, base=name)
            elif kind.bits == 1:
                self.values[value] = Value("bool", _always(negation(equal(terms.parameter(name), 0))))
            elif kind.bits:
                self.values[value] = Value("int", _always(terms.parameter(name)), bits=kind.bits)
            else:
                self.values[value] = _float(f"the argument {name}", "", kind)

    def run(self) -> Program:
        self._blocks(self.function.blocks)
        for number, site in enumerate(self.sites):
            site.order = number
        return Program(
            self.terms,
            tuple(self.sites),
            self.axes,
            self.programs,
            tuple(self.lost),
            tuple(dict.fromkeys(self._demands)),
            tuple(dict.fromkeys(self._narrow)),
        )

    # Control flow

    def _blocks(self, blocks: Sequence[Block]) -> None:
        """Blocks in their order, each under the condition that it is reached."""
        reach: dict[str, list[Formula]] = {blocks[0].label: [TRUE]}
        for block in blocks:
            condition = any_of(reach.get(block.label, ()))
            if condition == FALSE:
                continue
            self.path.append(condition)
            self._ops(block.ops)
            self.path.pop()
            last = block.ops[-1] if block.ops else None
            if last is None or not last.name.startswith("cf."):
                continue
            if any(arguments for _, arguments in last.targets):
                raise OutOfClass("a branch that hands on values", last.line)
            ways = [TRUE] if last.name == "cf.br" else self._ways(last)
            for (label, _), way in zip(last.targets, ways, strict=True):
                if label in reach and any(done.label == label for done in blocks[: blocks.index(block) + 1]):
                    raise OutOfClass("a jump backwards", last.line)
                reach.setdefault(label, []).append(all_of((condition, way)))

    def _ways(self, op: Op) -> list[Formula]:
        condition = self._condition(op.operands[0], op)
        return [condition, negation(condition)]

    def _condition(self, name: str, op: Op) -> Formula:
        value = self.values[name]
        if value.kind == "float":
            return Opaque(name, op.line)
        return value.at(())

    def _ops(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if op.name in ("scf.for", "scf.if"):
                (self._loop if op.name == "scf.for" else self._branch)(op)
            elif not op.name.startswith("cf.") and op.name not in _PASS:
                self._one(op)

    def _one(self, op: Op) -> None:
        value = self._step(op)
        if value is not None:
            for name in op.results:
                self.values[name] = value

    def _loop(self, op: Op) -> None:
        head = re.match(
            r"scf\.for (?:unsigned )?(%\S+) = (%\S+) to (%\S+) step (%\S+)(?: iter_args\((.*?)\) ->)?", op.text
        )
        if head is None:
            raise OutOfClass("a loop that cannot be read", op.line)
        turn, first, end, step = head.groups()[:4]
        low, high, stride = (self._integer(name, op)(()) for name in (first, end, step))
        trip = self.terms.fresh("trip", "turn")
        here = low + trip * stride
        self._demand(less(ZERO, stride), op, "the step of a loop is above 0")
        self.values[turn] = Value("int", _always(here), bits=32)
        carried = re.findall(r"(%[\w.$-]+) = (%[\w.$#-]+)", head.group(5) or "")
        inside = all_of((at_least(trip, 0), less(here, high)))
        if not self.dry and self.values[first].bits <= 32:
            # The counter is added to once more before it is compared: wrapped around, it would be below the end again.
            path = all_of((*self.path, less(low, high)))
            self._narrow.append(Narrow(high + stride - 1, self.values[first].bits, op.line, False, path))
        before = dict(self.values)
        per_turn = self._steps_of(op, carried, inside, trip)
        self.values = before
        for (name, start), add in zip(carried, per_turn, strict=True):
            self.values[name] = _moved(self.values[start], trip, add, op.line)
        self.path.append(inside)
        self.trips.append(_only(trip))
        self._ops(op.regions[0][0].ops)
        self.path.pop()
        self.trips.pop()
        span = self.terms.larger(high - low, ZERO)
        turns = self.terms.quotient(span + stride - 1, stride)
        for result, (_, start), add in zip(op.results, carried, per_turn, strict=True):
            self.values[result] = _moved(self.values[start], turns, add, op.line)

    def _steps_of(self, op: Op, carried: Sequence[tuple[str, str]], inside: Formula, trip: Poly) -> list[Poly | None]:
        """By how much each carried value grows in a turn; None where that is not always the same."""
        if not carried:
            return []
        unknown: dict[str, Poly] = {}
        for name, start in carried:
            value = self.values[start]
            unknown[name] = self.terms.fresh("carried", "carried")
            self.values[name] = _moved(value, Poly.number(1), unknown[name], op.line)
        dry, self.dry = self.dry, True
        self.path.append(inside)
        self._ops(op.regions[0][0].ops)
        self.path.pop()
        yields = op.regions[0][0].ops[-1].operands
        steps: list[Poly | None] = []
        hidden = {atom for poly in unknown.values() for atom in poly.atoms()} | trip.atoms()
        for (name, start), out in zip(carried, yields, strict=True):
            value, after = self.values[name], self.values[out]
            if self.values[start].kind not in ("int", "pointer"):
                steps.append(None)
                continue
            probe = tuple(self.terms.atom("lane", f"probe{axis}") for axis in range(len(value.shape)))
            try:
                add = after.at(probe) - value.at(probe) if after.base == value.base else None
            except OutOfClass:
                add = None
            outer = {atom for poly in probe for atom in poly.atoms()} | hidden
            steps.append(add if add is not None and not outer & set(_deep(add)) else None)
        self.dry = dry
        return steps

    def _branch(self, op: Op) -> None:
        condition = self._condition(op.operands[0], op)
        outcomes: list[tuple[Value, ...]] = []
        for region, way in zip(op.regions, (condition, negation(condition)), strict=False):
            self.path.append(way)
            ops = region[0].ops if region else []
            self._ops(ops)
            self.path.pop()
            last = ops[-1] if ops else None
            outcomes.append(
                tuple(self.values[name] for name in last.operands) if last and last.name == "scf.yield" else ()
            )
        if op.results:
            for result, one, other in zip(op.results, *outcomes, strict=True):
                self.values[result] = self._chosen(lambda _: condition, one, other, op)

    # Straight operations

    def _step(self, op: Op) -> Value | None:  # noqa: PLR0912  one branch per family of operations
        name = op.name
        if name in _CALLS or (op.regions and name not in _REGIONS):
            raise OutOfClass(name, op.line)
        if "descriptor" in name or "tensormap" in name:
            if not self.dry:
                self.lost.append(OutOfClass(name, op.line, loads="load" in name or "gather" in name))
            return self._poison(op) if op.results else None
        if name == "arith.constant":
            return self._constant(op)
        if name in ("tt.get_program_id", "tt.get_num_programs"):
            axis = AXES.index(op.text.split()[1])
            return Value(
                "int", _always(Poly.of((self.axes if name == "tt.get_program_id" else self.programs)[axis])), bits=32
            )
        if name == "tt.make_range":
            start = _attribute(op, "start")
            return Value("int", lambda index: index[0] + start, op.result_type.shape, 32)
        if name in ("tt.load", "tt.store"):
            return self._access(op)
        if name.startswith("tt.atomic"):
            return self._atomic(op)
        if name in ("tt.addptr", "tt.splat", "tt.expand_dims", "tt.broadcast", "tt.trans", "tt.reshape", "tt.unsplat"):
            return self._shaped(op)
        if name in ("llvm.intr.assume",):
            self._demand(self._condition(op.operands[0], op), op, "what tl.assume promises")
            return None
        if name.startswith("arith."):
            return self._arithmetic(op)
        if not op.results:
            raise OutOfClass(name, op.line)
        if name in ("tt.bitcast", "ttg.convert_layout") and self.values[op.operands[0]].kind == "pointer":
            if name == "tt.bitcast":
                return self._poison(op)
            return self.values[op.operands[0]]
        return self._poison(op)

    def _poison(self, op: Op) -> Value:
        """A value that is not followed: a float, or the result of what is not covered. Only its use is a fault."""
        return _float(op.name, op.line, op.result_type)

    def _constant(self, op: Op) -> Value:
        kind = op.result_type
        found = re.match(r"arith\.constant (?:\{.*?\} )?(?:dense<)?(-?\d+|true|false)>?(?: :|$)", op.text)
        if found is None or not (kind.bits or found.group(1) in ("true", "false")):
            return self._poison(op)
        text = found.group(1)
        if text in ("true", "false"):
            kind = kind if kind.bits else Type((), "i1")
            return Value("bool", _always(TRUE if text == "true" else FALSE), kind.shape)
        if kind.bits == 1:
            return Value("bool", _always(TRUE if int(text) else FALSE), kind.shape)
        return Value("int", _always(Poly.number(int(text))), kind.shape, kind.bits)

    def _shaped(self, op: Op) -> Value:
        value = self.values[op.operands[0]]
        shape = op.result_type.shape
        if value.kind == "float":
            return Value("float", value.at, shape)
        at = value.at
        if op.name == "tt.addptr":
            more = self._integer(op.operands[1], op)
            return Value("pointer", lambda index: at(index) + more(index), shape, base=value.base)
        if op.name in ("tt.splat", "tt.unsplat"):
            return Value(
                value.kind,
                lambda _: at(() if op.name == "tt.splat" else (ZERO,) * len(value.shape)),
                shape,
                value.bits,
                value.base,
            )
        if op.name == "tt.expand_dims":
            axis = _attribute(op, "axis")
            return Value(value.kind, lambda index: at(index[:axis] + index[axis + 1 :]), shape, value.bits, value.base)
        if op.name == "tt.broadcast":
            sizes = value.shape
            return Value(
                value.kind,
                lambda index: at(tuple(ZERO if size == 1 else lane for size, lane in zip(sizes, index, strict=True))),
                shape,
                value.bits,
                value.base,
            )
        if op.name == "tt.trans":
            order = [int(axis) for axis in re.findall(r"\d+", op.text.split("order = array<i32", 1)[1].split(">")[0])]
            return Value(
                value.kind,
                lambda index: at(tuple(index[order.index(axis)] for axis in range(len(order)))),
                shape,
                value.bits,
                value.base,
            )
        return self._reshaped(value, shape, op)

    def _reshaped(self, value: Value, shape: tuple[int, ...], op: Op) -> Value:
        if "allow_reorder" in op.text:
            return self._poison(op)

        def at(index: Index) -> Any:
            flat = ZERO
            for lane, size in zip(index, shape, strict=True):
                flat = flat * size + lane
            lanes: list[Poly] = []
            for size in reversed(value.shape[1:]):
                lanes.append(self.terms.remainder(flat, Poly.number(size)))
                flat = self.terms.quotient(flat, Poly.number(size))
            return value.at((flat, *reversed(lanes)) if value.shape else ())

        return Value(value.kind, at, shape, value.bits, value.base)

    def _arithmetic(self, op: Op) -> Value:
        name = op.name.removeprefix("arith.")
        values = [self.values[operand] for operand in op.operands]
        kind = op.result_type
        if name == "select":
            return (
                self._chosen(values[0].at, values[1], values[2], op) if values[0].kind == "bool" else self._poison(op)
            )
        if any(value.kind == "float" for value in values):
            return self._unfollowed(values, op)
        if name in ("extsi", "extui", "index_cast", "trunci") and values[0].kind == "int":
            if name == "trunci":
                return self._counted(values[0].at, kind, op)
            if name == "extui":
                return Value("int", self._not_negative(values[0].at, op), kind.shape, kind.bits)
            return Value("int", values[0].at, kind.shape, kind.bits)
        if name in ("extui", "extsi") and values[0].kind == "bool":
            one = 1 if name == "extui" else -1
            truth = values[0].at
            return Value(
                "int", lambda index: self.terms.select(truth(index), Poly.number(one), ZERO), kind.shape, kind.bits
            )
        if name == "cmpi":
            return self._comparison(values, op)
        if len(values) == 2 and all(value.kind == "bool" for value in values):
            return self._logic(name, values, op)
        if len(values) == 2 and all(value.kind == "int" for value in values):
            return self._numeric(name, values, kind, op)
        return self._poison(op)

    def _not_negative(self, at: Callable[[Index], Poly], op: Op) -> Callable[[Index], Poly]:
        def checked(index: Index) -> Poly:
            poly = at(index)
            self._demand(at_least(poly, 0), op, "what is widened without a sign is not negative")
            return poly

        return checked

    def _unfollowed(self, values: Sequence[Value], op: Op) -> Value:
        """A truth that rests on a float is unknown; `and` with it still bounds."""
        if op.result_type.bits == 1 and op.name in ("arith.andi", "arith.ori"):
            kept = [value for value in values if value.kind == "bool"]
            unknown = Opaque(op.operands[0], op.line)
            of = all_of if op.name == "arith.andi" else any_of
            return Value(
                "bool", lambda index: of([unknown, *(value.at(index) for value in kept)]), op.result_type.shape
            )
        return self._poison(op)

    def _comparison(self, values: Sequence[Value], op: Op) -> Value:
        predicate = op.text.split()[1].rstrip(",")
        one, other = values
        if any(value.kind != "int" for value in values):
            return self._poison(op)
        signed = predicate.replace("u", "s", 1) if predicate[0] == "u" else predicate

        def at(index: Index) -> Formula:
            left, right = one.at(index), other.at(index)
            if signed != predicate:
                for side in (left, right):
                    self._demand(at_least(side, 0), op, "an unsigned comparison is of numbers ≥ 0")
            return _COMPARISONS[signed](left, right)

        return Value("bool", at, op.result_type.shape or one.shape)

    def _logic(self, name: str, values: Sequence[Value], op: Op) -> Value:
        one, other = (value.at for value in values)
        made: dict[str, Callable[[Index], Formula]] = {
            "andi": lambda index: all_of((one(index), other(index))),
            "ori": lambda index: any_of((one(index), other(index))),
            "xori": lambda index: any_of(
                (all_of((one(index), negation(other(index)))), all_of((negation(one(index)), other(index))))
            ),
        }
        return Value("bool", made[name], op.result_type.shape) if name in made else self._poison(op)

    def _numeric(self, name: str, values: Sequence[Value], kind: Type, op: Op) -> Value:
        one, other = (value.at for value in values)
        terms = self.terms
        if name in ("addi", "subi", "muli"):
            made: dict[str, Callable[[Index], Poly]] = {
                "addi": lambda index: one(index) + other(index),
                "subi": lambda index: one(index) - other(index),
                "muli": lambda index: one(index) * other(index),
            }
            return self._counted(made[name], kind, op)
        if name in ("divsi", "remsi", "divui", "remui"):
            make = terms.quotient if name.startswith("div") else terms.remainder

            def divided(index: Index) -> Poly:
                top, bottom = one(index), other(index)
                self._demand(less(ZERO, bottom), op, "a divisor is above 0")
                self._demand(at_least(top, 0), op, "what is divided is not negative")
                return make(top, bottom)

            return Value("int", divided, kind.shape, kind.bits)
        if name in ("minsi", "maxsi"):
            extreme = terms.smaller if name == "minsi" else terms.larger
            return Value("int", lambda index: extreme(one(index), other(index)), kind.shape, kind.bits)
        return self._shifted(name, values, kind, op)

    def _shifted(self, name: str, values: Sequence[Value], kind: Type, op: Op) -> Value:
        """Shifts by a constant, and masks of low bits, are multiplication, division and remainder."""
        amount = _constant_of(values[1])
        one = values[0].at
        if amount is None or amount < 0:
            return self._poison(op)
        if name == "shli":
            return self._counted(lambda index: one(index) * (1 << amount), kind, op)
        low_bits = name == "andi" and (amount + 1) & amount == 0
        if name in ("shrsi", "shrui") or low_bits:
            divisor = Poly.number(amount + 1 if low_bits else 1 << amount)
            make = self.terms.remainder if low_bits else self.terms.quotient

            def divided(index: Index) -> Poly:
                top = one(index)
                self._demand(at_least(top, 0), op, "what is shifted or masked is not negative")
                return make(top, divisor)

            return Value("int", divided, kind.shape, kind.bits)
        return self._poison(op)

    def _counted(self, at: Callable[[Index], Poly], kind: Type, op: Op) -> Value:
        """An integer whose width may not hold it."""
        if kind.bits > 32:
            return Value("int", at, kind.shape, kind.bits)

        def checked(index: Index) -> Poly:
            poly = at(index)
            if not self.dry and poly.constant is None:
                self._narrow.append(Narrow(poly, kind.bits, op.line, not self._masking, all_of(self.path)))
            return poly

        return Value("int", checked, kind.shape, kind.bits)

    def _chosen(self, condition: Callable[[Index], Formula], one: Value, other: Value, op: Op) -> Value:
        if one.kind != other.kind or one.kind == "float" or one.base != other.base:
            return self._poison(op)
        if one.kind == "bool":
            return Value(
                "bool",
                lambda index: any_of(
                    (
                        all_of((condition(index), one.at(index))),
                        all_of((negation(condition(index)), other.at(index))),
                    )
                ),
                one.shape or other.shape,
            )
        return Value(
            one.kind,
            lambda index: self.terms.select(condition(index), one.at(index), other.at(index)),
            one.shape or other.shape,
            one.bits,
            one.base,
        )

    # Memory

    def _access(self, op: Op) -> Value | None:
        stores = op.name == "tt.store"
        masked = op.operands[1 + stores :]
        pointer = self.values[op.operands[0]]
        if pointer.kind != "pointer":
            self._not_followed(stores, op)
            return None if stores else self._poison(op)
        mask = self.values[masked[0]] if masked else None
        if not self.dry:
            self._note(stores, pointer, mask, op)
        return None if stores else self._loaded(op, pointer, mask, masked)

    def _loaded(self, op: Op, pointer: Value, mask: Value | None, masked: Sequence[str]) -> Value:
        kind = op.result_type
        element = Type(kind.shape, kind.element[4:-1]) if kind.pointer else kind  # the type is that of the pointer
        if not element.bits or element.bits < 32:
            return _float("a loaded value", op.line, element)
        other = self.values[masked[1]] if len(masked) > 1 else None

        def at(index: Index) -> Poly:
            held = self.terms.load(pointer.base, pointer.at(index))
            if mask is None:
                return held
            otherwise = other.at(index) if other is not None else self.terms.fresh("undefined", "undefined")
            return self.terms.select(self._truth(mask, index, op), held, otherwise)

        return Value("int", at, element.shape, element.bits)

    def _truth(self, mask: Value, index: Index, op: Op) -> Formula:
        return Opaque(op.text, op.line) if mask.kind == "float" else mask.at(index)

    def _atomic(self, op: Op) -> Value:
        pointer = self.values[op.operands[0]]
        if not self.dry:
            where = pointer.base or "an unknown address"
            self.lost.append(OutOfClass(f"{op.name} on {where}", op.line, tensor=pointer.base))
        return self._poison(op)

    def _not_followed(self, stores: bool, op: Op) -> None:
        what = "a store to" if stores else "a load from"
        if not self.dry:
            self.lost.append(OutOfClass(f"{what} an address that is not followed", op.line, loads=not stores))

    def _note(self, stores: bool, pointer: Value, mask: Value | None, op: Op) -> None:
        sizes = op.operand_type.shape
        lanes = tuple(self.terms.fresh("lane", "lane", (size,)) for size in sizes)
        narrow: list[Narrow] = []
        demands: list[Demand] = []
        outer = self._narrow, self._demands
        self._narrow, self._demands = narrow, demands
        try:
            self._masking = False
            offset = pointer.at(lanes)
            self._masking = True
            active = TRUE if mask is None else self._truth(mask, lanes, op)
        except OutOfClass as lost:
            what = "stores to" if stores else "loads from"
            why = f"an address that {what} {pointer.base} rests on {lost.what}"
            self.lost.append(OutOfClass(why, lost.line, tensor=pointer.base, loads=not stores))
            return
        finally:
            self._narrow, self._demands = outer
            self._masking = True
        within = all_of(
            part
            for lane, size in zip(lanes, sizes, strict=True)
            for part in (at_least(lane, 0), less(lane, Poly.number(size)))
        )
        self.sites.append(
            Site(
                stores=stores,
                base=pointer.base,
                offset=offset,
                mask=active,
                path=all_of(self.path),
                lanes=tuple(map(_only, lanes)),
                trips=tuple(self.trips),
                within=within,
                line=op.line,
                narrow=list(dict.fromkeys(narrow)),
                demands=list(dict.fromkeys(demands)),
            )
        )

    def _demand(self, formula: Formula, op: Op, what: str) -> None:
        if not self.dry and formula != TRUE:
            self._demands.append(Demand(formula, all_of(self.path), op.line, what))

    def _integer(self, name: str, op: Op) -> Callable[[Index], Poly]:
        value = self.values[name]
        if value.kind != "int":
            raise OutOfClass(f"{op.name} on a value that is not followed", op.line)
        return value.at


def _deep(poly: Poly) -> dict[Atom, None]:
    return atoms_in(poly)


def _only(poly: Poly) -> Atom:
    atom = poly.atom
    if atom is None:
        raise ValueError(f"{poly} is no atom")
    return atom


def _always(value: Any) -> Callable[[Index], Any]:
    return lambda _: value


def _float(what: str, line: str, kind: Type) -> Value:
    def at(_: Index) -> Any:
        raise OutOfClass(what, line)

    return Value("float", at, kind.shape)


def _moved(value: Value, turns: Poly, add: Poly | None, line: str) -> Value:
    """A carried value after so many turns."""
    if value.kind not in ("int", "pointer"):
        return Value("float", _float("a value that a loop carries", line, Type(value.shape, "")).at, value.shape)
    if add is None:

        def lost(_: Index) -> Any:
            raise OutOfClass("a value that a loop changes by a different step each turn", line)

        return Value(value.kind, lost, value.shape, value.bits, value.base)
    at = value.at
    return Value(value.kind, lambda index: at(index) + turns * add, value.shape, value.bits, value.base)


def _attribute(op: Op, name: str) -> int:
    found = re.search(rf"{name} = (-?\d+)", op.text)
    if found is None:
        raise OutOfClass(f"{op.name} without {name}", op.line)
    return int(found.group(1))


def _constant_of(value: Value) -> int | None:
    try:
        poly = value.at(tuple(ZERO for _ in value.shape))
    except OutOfClass:
        return None
    return poly.constant if isinstance(poly, Poly) else None
