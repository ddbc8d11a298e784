"""Reads the text of a Triton IR function into a tree of operations, each with the source line that it came from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Block", "Function", "Op", "Type", "parse_ttir"]

_LOCATION: Final = re.compile(r"\s+loc\((#\w+|unknown)\)$")
_DEFINITION: Final = re.compile(r"^(#\w+) = loc\((.*)\)$")
_FILE: Final = re.compile(r'^"(.*)":(\d+):(\d+)$')
_RESULT: Final = re.compile(r"^(%[\w.$-]+)(?::(\d+))? = (.*)$")
_VALUE: Final = re.compile(r"%[\w.$-]+(?:#\d+)?")
_ARGUMENT: Final = re.compile(r"(%[\w.$-]+): (!tt\.ptr<[^>]*>|!tt\.tensordesc<[^)]*?>|[\w.]+)")


@dataclass(frozen=True, slots=True)
class Type:
    """What a value is: a shape (empty for a scalar) and an element: `i32`, `f16`, `ptr<f32>`."""

    shape: tuple[int, ...]
    element: str

    @property
    def pointer(self) -> bool:
        """Whether the elements are addresses."""
        return self.element.startswith("ptr<")

    @property
    def bits(self) -> int:
        """The width of an integer; 0 for anything else."""
        return int(self.element[1:]) if re.fullmatch(r"i\d+", self.element) else 64 if self.element == "index" else 0


@dataclass(slots=True)
class Op:
    """One operation: names of its results and operands, its text, its regions and where it stands in the source."""

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    text: str
    line: str
    regions: list[list[Block]] = field(default_factory=list["list[Block]"])
    targets: tuple[tuple[str, tuple[str, ...]], ...] = ()  # of a branch: label, operands

    @property
    def types(self) -> str:
        """What stands behind the last colon at the outer level: the types."""
        return _types_of(self.text)

    @property
    def result_type(self) -> Type:
        """The type of the first result."""
        text = self.types
        for arrow in (" -> ", " to "):
            if arrow in text:
                text = text.split(arrow, 1)[1]
        return parse_type(text.strip().lstrip("("))

    @property
    def operand_type(self) -> Type:
        """The type of the first operand."""
        text = self.types
        for arrow in (" -> ", " to "):
            text = text.split(arrow, 1)[0]
        return parse_type(text.strip().lstrip("("))


@dataclass(slots=True)
class Block:
    """A straight run of operations, reached under a label with arguments."""

    label: str
    arguments: tuple[str, ...]
    ops: list[Op]


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel: its parameters' types in order, and its blocks."""

    name: str
    arguments: tuple[tuple[str, Type], ...]
    blocks: list[Block]


def parse_type(text: str) -> Type:
    """`tensor<16x1x!tt.ptr<f32>>`, `!tt.ptr<f32>`, `i32`."""
    text = text.strip()
    match = re.match(r"tensor<((?:\d+x)*)(.*)", text)
    shape: tuple[int, ...] = ()
    if match:
        shape = tuple(int(size) for size in match.group(1).split("x") if size)
        text = match.group(2)
    pointer = re.match(r"!tt\.ptr<([\w]+)", text)
    if pointer:
        return Type(shape, f"ptr<{pointer.group(1)}>")
    plain = re.match(r"!?[\w.]+", text)
    return Type(shape, plain.group(0) if plain else text)


def _types_of(text: str) -> str:
    depth, last = 0, -1
    for at, char in enumerate(text):
        depth += char in "<([{"
        depth -= char in ")]}" or (char == ">" and text[at - 1] != "-")
        if char == ":" and depth == 0 and text[at - 1 : at + 2] == " : ":
            last = at
    return text[last + 1 :].strip() if last >= 0 else ""


def _resolve(name: str, definitions: dict[str, str]) -> str:
    """`file.py:12` for a location: for an inlined function the line of the kernel that called it."""
    text = definitions.get(name, "")
    for _ in range(32):
        found = _FILE.match(text)
        if found:
            return f"{found.group(1)}:{found.group(2)}"
        call = re.match(r"^callsite\((.*) at (#\w+)\)$", text)
        named = re.match(r'^".*?"\((#\w+)\)$', text)
        inner = call.group(2) if call else named.group(1) if named else text
        if inner == text and inner not in definitions:
            return "unknown"
        text = definitions.get(inner, inner)
    return "unknown"


def parse_ttir(text: str) -> Function:
    """The one public function of a module."""
    definitions: dict[str, str] = {}
    lines: list[tuple[str, str]] = []
    for raw in text.splitlines():
        defined = _DEFINITION.match(raw.strip())
        if defined:
            definitions[defined.group(1)] = defined.group(2)
            continue
        stripped = raw.strip()
        location = _LOCATION.search(stripped)
        lines.append((_LOCATION.sub("", stripped), location.group(1) if location else ""))
    start = next(number for number, (line, _) in enumerate(lines) if line.startswith("tt.func"))
    header = re.sub(r" loc\([^()]*(?:\([^()]*\))?\)", "", lines[start][0])
    name = re.search(r"@([\w.$-]+)", header)
    arguments = tuple(
        (found.group(1), parse_type(found.group(2)))
        for found in _ARGUMENT.finditer(header.split("@", 1)[1].split(" attributes ")[0])
    )
    reader = _Reader(lines, definitions, start + 1)
    return Function(name.group(1) if name else "kernel", arguments, reader.region())


class _Reader:
    """Walks over lines; a region ends at the line that begins with a closing brace."""

    def __init__(self, lines: Sequence[tuple[str, str]], definitions: dict[str, str], at: int) -> None:
        self.lines, self.definitions, self.at = lines, definitions, at

    def region(self) -> list[Block]:
        blocks = [Block("", (), [])]
        while not self.lines[self.at][0].startswith("}"):
            line, location = self.lines[self.at]
            self.at += 1
            label = re.match(r"^(\^\w+)(?:\((.*)\))?:", line)
            if label:
                blocks.append(Block(label.group(1), tuple(_VALUE.findall(label.group(2) or "")), []))
            elif line and not line.startswith("//"):
                blocks[-1].ops.append(self.op(line, location))
        return [block for block in blocks if block.ops or block.label]

    def op(self, line: str, location: str) -> Op:
        found = _RESULT.match(line)
        results: tuple[str, ...] = ()
        text = line
        if found:
            count = int(found.group(2) or 1)
            results = (found.group(1),) if count == 1 else tuple(f"{found.group(1)}#{n}" for n in range(count))
            text = found.group(3)
        name = re.match(r'"?([\w.]+)"?', text)
        op = Op(name.group(1) if name else text, results, (), text, "")
        where = location
        if text.endswith("{"):
            where = self._regions(op) or location
        head = op.text.split(" : ")[0] if op.name != "scf.for" else op.text
        op.operands = tuple(_VALUE.findall(head))
        op.targets = tuple(
            (label, tuple(_VALUE.findall(given or "")))
            for label, given in re.findall(r"(\^\w+)(?:\((.*?)\))?(?=,|$|\s)", op.text)
            if op.name.startswith("cf.")
        )
        op.line = _resolve(where, self.definitions) if where else "unknown"
        return op

    def _regions(self, op: Op) -> str:
        """Read the regions of an operation up to its last closing brace, and append what stands behind that."""
        while True:
            op.regions.append(self.region())
            line, location = self.lines[self.at]
            self.at += 1
            if line.endswith("{"):  # `} else {`, `} do {`
                continue
            op.text = f"{op.text} {line}"
            return location
