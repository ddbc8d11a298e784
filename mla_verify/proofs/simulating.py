"""Runs a kernel's TTIR at given sizes, integers only, and notes every address that a program stores to or loads from.

It shares nothing with the symbolic execution but the parser, so that each checks the other. Floats are not computed;
a branch or mask that rests on one is out of class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mla_verify.proofs.executing import AXES
from mla_verify.proofs.parsing import Block, Function, Op
from mla_verify.proofs.verdicts import OutOfClass

__all__ = ["Access", "Launch", "TooMuch", "run_program"]

_TURNS: Final = 4096  # of one loop; a longer one is beyond a search at small sizes
_LARGEST: Final = (1 << 31) - 1  # that 32 bits hold

_REGIONS: Final = ("tt.reduce", "tt.scan", "tt.map_elementwise")  # whose regions hold arithmetic alone

Array = NDArray[Any]


class TooMuch(Exception):
    """The launch is too large to be tried."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """Addresses within one tensor."""

    base: str
    offsets: Array


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """A value that is not computed, and why."""

    what: str
    line: str


@dataclass(frozen=True, slots=True)
class Access:
    """The active lanes of one load or store by one program."""

    stores: bool
    base: str
    offsets: Array
    line: str


@dataclass(slots=True)
class Launch:
    """One launch: arguments, tables, grid; and what was seen."""

    arguments: Mapping[str, int]
    tables: Mapping[str, Sequence[int]]
    grid: tuple[int, int, int]
    wrap: bool = True  # whether an integer that leaves its width comes back at the other end
    accesses: list[Access] = field(default_factory=list["Access"])
    strange: list[tuple[str, str]] = field(default_factory=list["tuple[str, str]"])  # (what, line): undefined, negative


def run_program(
    function: Function, names: Sequence[str], launch: Launch, program: tuple[int, int, int]
) -> list[Access]:
    """What one program does. Raises OutOfClass or TooMuch."""
    launch.accesses = []
    values: dict[str, Any] = {}
    for name, (value, kind) in zip(names, function.arguments, strict=True):
        if kind.pointer:
            values[value] = Pointer(name, np.array(0))
        elif kind.bits == 1:
            values[value] = np.array(bool(launch.arguments[name]))
        elif kind.bits:
            values[value] = np.array(launch.arguments[name])
        else:
            values[value] = Unfollowed(f"the argument {name}", "")
    _Run(launch, program, values).blocks(function.blocks)
    return launch.accesses


class _Run:
    def __init__(self, launch: Launch, program: tuple[int, int, int], values: dict[str, Any]) -> None:
        self.launch, self.program, self.values = launch, program, values

    def blocks(self, blocks: Sequence[Block]) -> None:
        by_label = {block.label: block for block in blocks}
        block, jumps = blocks[0], 0
        while True:
            self.ops(block.ops)
            last = block.ops[-1]
            if not last.name.startswith("cf."):
                return
            way = 0 if last.name == "cf.br" or self.truth(last.operands[0], last) else 1
            label, given = last.targets[way]
            block = by_label[label]
            for name, value in zip(block.arguments, given, strict=True):
                self.values[name] = self.values[value]
            jumps += 1
            if jumps > len(blocks):
                raise OutOfClass("a jump backwards", last.line)

    def truth(self, name: str, op: Op) -> bool:
        value = self.values[name]
        if isinstance(value, Unfollowed):
            raise OutOfClass(f"a branch on {value.what}", op.line)
        return bool(value)

    def ops(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if op.name == "scf.for":
                self.loop(op)
            elif op.name == "scf.if":
                self.branch(op)
            elif not op.name.startswith("cf."):
                value = self.step(op)
                if isinstance(value, np.generic):  # what numpy makes of scalars
                    value = np.asarray(value)
                if value is not None:
                    for name in op.results:
                        self.values[name] = value

    def loop(self, op: Op) -> None:
        head = re.match(
            r"scf\.for (?:unsigned )?(%\S+) = (%\S+) to (%\S+) step (%\S+)(?: iter_args\((.*?)\) ->)?", op.text
        )
        if head is None:
            raise OutOfClass("a loop that cannot be read", op.line)
        turn = head.group(1)
        first, end, step = (int(self.integer(name, op)) for name in head.groups()[1:4])
        if step <= 0:
            self.launch.strange.append(("the step of a loop is not above 0", op.line))
            return
        if (end - first) // step > _TURNS:
            raise TooMuch
        carried = re.findall(r"(%[\w.$-]+) = (%[\w.$#-]+)", head.group(5) or "")
        state = [self.values[start] for _, start in carried]
        body = op.regions[0][0].ops
        turns = range(first, end, step)
        if turns and self.launch.wrap and turns[-1] + step > _LARGEST and not op.text.rstrip(" {").endswith(" i64"):
            self.launch.strange.append(
                ("the counter of a loop leaves its range and starts below the end again", op.line)
            )
        for here in turns:
            self.values[turn] = np.array(here)
            for (name, _), value in zip(carried, state, strict=True):
                self.values[name] = value
            self.ops(body)
            if carried:
                state = [self.values[name] for name in body[-1].operands]
        for name, value in zip(op.results, state, strict=True):
            self.values[name] = value

    def branch(self, op: Op) -> None:
        way = 0 if self.truth(op.operands[0], op) else 1
        if way < len(op.regions) and op.regions[way]:
            ops = op.regions[way][0].ops
            self.ops(ops)
            if op.results:
                for name, value in zip(op.results, ops[-1].operands, strict=True):
                    self.values[name] = self.values[value]

    def integer(self, name: str, op: Op) -> Array:
        value = self.values[name]
        if isinstance(value, np.ndarray):
            return value
        what = value.what if isinstance(value, Unfollowed) else "an address"
        raise OutOfClass(f"{op.name} on {what}", op.line)

    def step(self, op: Op) -> Any:  # noqa: PLR0912  one branch per family of operations
        name = op.name
        if name in ("tt.call", "func.call", "llvm.call") or (op.regions and name not in _REGIONS):
            raise OutOfClass(name, op.line)
        if name == "arith.constant":
            return self.constant(op)
        if name == "tt.get_program_id":
            return np.array(self.program[AXES.index(op.text.split()[1])])
        if name == "tt.get_num_programs":
            return np.array(self.launch.grid[AXES.index(op.text.split()[1])])
        if name == "tt.make_range":
            low, high = (int(_found(rf"{part} = (\d+)", op)) for part in ("start", "end"))
            return np.arange(low, high)
        if name in ("tt.load", "tt.store"):
            return self.access(op)
        if name in (
            "tt.return",
            "scf.yield",
            "tt.debug_barrier",
            "gpu.barrier",
            "ttg.barrier",
            "tt.print",
            "tt.assert",
        ):
            return None
        if name == "llvm.intr.assume":
            value = self.values[op.operands[0]]
            if isinstance(value, np.ndarray) and not value.all():
                self.launch.strange.append(("what tl.assume promises is false", op.line))
            return None
        if not op.operands:
            return Unfollowed(name, op.line)
        value = self.values[op.operands[0]]
        if name in ("tt.splat", "tt.unsplat", "tt.expand_dims", "tt.broadcast", "tt.trans", "tt.reshape"):
            return self.shaped(op, value)
        if name == "ttg.convert_layout":
            return value
        if name == "tt.addptr":
            if not isinstance(value, Pointer):
                return Unfollowed("an address that is not followed", op.line)
            return Pointer(value.base, np.asarray(value.offsets + self.integer(op.operands[1], op)))
        if name.startswith("arith."):
            return self.arithmetic(op)
        return Unfollowed(name, op.line)

    def constant(self, op: Op) -> Any:
        found = re.match(r"arith\.constant (?:\{.*?\} )?(?:dense<)?(-?\d+|true|false)>?(?: :|$)", op.text)
        kind = op.result_type
        if found is None or not (kind.bits or found.group(1) in ("true", "false")):
            return Unfollowed("a float", op.line)
        text = found.group(1)
        plain: Any = text == "true" if text in ("true", "false") else int(text)
        plain = bool(plain) if kind.bits == 1 else plain
        return np.full(kind.shape, plain) if kind.bits else np.array(plain)

    def shaped(self, op: Op, value: Any) -> Any:
        shape = op.result_type.shape
        if isinstance(value, Unfollowed):
            return value
        array = value.offsets if isinstance(value, Pointer) else value
        if op.name in ("tt.splat", "tt.broadcast"):
            array = np.broadcast_to(array, shape)
        elif op.name == "tt.unsplat":
            array = array.reshape(())
        elif op.name == "tt.trans":
            order = [int(axis) for axis in re.findall(r"\d+", op.text.split("order = array<i32", 1)[1].split(">")[0])]
            array = array.transpose(order)
        else:
            array = array.reshape(shape)
        return Pointer(value.base, array) if isinstance(value, Pointer) else array

    def arithmetic(self, op: Op) -> Any:
        name = op.name.removeprefix("arith.")
        values = [self.values[operand] for operand in op.operands]
        kind = op.result_type
        if name == "select":
            return self.chosen(values, op)
        if any(not isinstance(value, np.ndarray) for value in values):
            return Unfollowed(next((value.what for value in values if isinstance(value, Unfollowed)), name), op.line)
        one = values[0]
        if name in ("extsi", "extui", "index_cast"):
            return one.astype(np.int64) * (-1 if name == "extsi" and one.dtype == np.bool_ else 1)
        if name == "trunci":
            return one.astype(np.bool_) if kind.bits == 1 else self.held(one, kind.bits, op)
        if len(values) != 2:
            return Unfollowed(name, op.line)
        other = values[1]
        if name == "cmpi":
            return _COMPARED[op.text.split()[1].rstrip(",")](one, other)
        if one.dtype == np.bool_ or name in ("andi", "ori", "xori"):
            made = {"andi": np.bitwise_and, "ori": np.bitwise_or, "xori": np.bitwise_xor}.get(name)
            return made(one, other) if made else Unfollowed(name, op.line)
        if name in ("divsi", "remsi", "divui", "remui"):
            return self.divided(name, one, other, op)
        if name in ("shrsi", "shrui"):
            return one >> other
        whole = _WHOLE.get(name)
        return self.held(whole(one, other), kind.bits, op) if whole else Unfollowed(name, op.line)

    def divided(self, name: str, one: Array, other: Array, op: Op) -> Array:
        if (other <= 0).any():
            self.launch.strange.append(("a divisor is not above 0", op.line))
            other = np.where(other <= 0, 1, other)
        if (one < 0).any():
            self.launch.strange.append(("a negative number is divided", op.line))
        quotient = np.sign(one) * (np.abs(one) // other)  # towards zero
        return quotient if name.startswith("div") else one - quotient * other

    def held(self, exact: Array, bits: int, op: Op) -> Array:
        if bits > 32 or not bits or not self.launch.wrap:
            return exact
        half = 1 << (bits - 1)
        if ((exact < -half) | (exact >= half)).any():
            return (exact + half) % (2 * half) - half
        return exact

    def chosen(self, values: Sequence[Any], op: Op) -> Any:
        condition, one, other = values
        if not isinstance(condition, np.ndarray):
            return Unfollowed("a choice by a float", op.line)
        if isinstance(one, Pointer) and isinstance(other, Pointer) and one.base == other.base:
            return Pointer(one.base, np.where(condition, one.offsets, other.offsets))
        if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
            return np.where(condition, one, other)
        return Unfollowed("a choice between values that are not followed", op.line)

    def access(self, op: Op) -> Any:
        stores = op.name == "tt.store"
        pointer = self.values[op.operands[0]]
        masked = op.operands[1 + stores :]
        if not isinstance(pointer, Pointer):
            raise OutOfClass(f"{op.name} at an address that is not followed", op.line)
        mask = self.values[masked[0]] if masked else np.array(True)
        if not isinstance(mask, np.ndarray):
            if stores or pointer.base in self.launch.tables:
                raise OutOfClass(f"a mask that rests on {mask.what}", op.line)
            return Unfollowed("a loaded value", op.line)
        offsets, active = np.broadcast_arrays(pointer.offsets, mask)
        self.launch.accesses.append(Access(stores, pointer.base, offsets[active], op.line))
        if stores:
            return None
        table = self.launch.tables.get(pointer.base)
        if table is None:
            return Unfollowed("a loaded value", op.line)
        held = np.asarray([*table, 0], dtype=np.int64)
        inside = active & (offsets >= 0) & (offsets < len(table))
        found = held[np.where(inside, offsets, len(table))]
        other = self.values[masked[1]] if len(masked) > 1 else np.array(0)
        return np.where(active, found, other) if isinstance(other, np.ndarray) else found


def _found(pattern: str, op: Op) -> str:
    found = re.search(pattern, op.text)
    if found is None:
        raise OutOfClass(f"{op.name} that cannot be read", op.line)
    return found.group(1)


_COMPARED: Final[Mapping[str, Any]] = {
    "slt": np.less,
    "sle": np.less_equal,
    "sgt": np.greater,
    "sge": np.greater_equal,
    "ult": np.less,
    "ule": np.less_equal,
    "ugt": np.greater,
    "uge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
_WHOLE: Final[Mapping[str, Any]] = {
    "addi": np.add,
    "subi": np.subtract,
    "muli": np.multiply,
    "minsi": np.minimum,
    "maxsi": np.maximum,
    "shli": np.left_shift,
}
