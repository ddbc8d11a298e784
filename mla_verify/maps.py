"""Element maps: what became of every element of an output at one failing problem, as plain bytes."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

__all__ = ["STATE_WORDS", "ElementMap", "ElementValue", "MemoryStrip", "State", "counts_of", "flagged", "program_of"]

_LARGEST: Final = 1 << 26  # bytes that a packed part of a map may unfold to


class State(IntEnum):
    """What became of one element. The higher number is the worse news, and wins where several share a place."""

    SLACK = 0  # no element: a guard, or a gap between elements
    KEPT = 1  # had to stay what it was, and did
    FREE = 2  # no promise is made about it
    RIGHT = 3  # written, from the inputs alone, and right as far as that was judged
    NOT_JUDGED = 4  # written; no usable bound exists
    WRONG = 5  # written, and outside the bound around the oracle or the baseline
    UNSTEADY = 6  # not the same when the kernel is called again
    DEPENDENT = 7  # computed from memory that is no input
    UNWRITTEN = 8  # never written
    STRAY = 9  # written, and had to stay what it was


STATE_WORDS: Final[Mapping[State, str]] = {
    State.SLACK: "gap or guard",
    State.KEPT: "kept",
    State.FREE: "no promise",
    State.RIGHT: "written, right",
    State.NOT_JUDGED: "not judged",
    State.WRONG: "wrong",
    State.UNSTEADY: "not repeatable",
    State.DEPENDENT: "dependent",
    State.UNWRITTEN: "unwritten",
    State.STRAY: "stray write",
}


class ElementValue(NamedTuple):
    """One element in numbers, as text: what the kernel left, the oracle's answer, how far apart, how far is allowed."""

    place: int  # row-major
    value: str
    expected: str
    error: str
    bound: str


@dataclass(frozen=True, slots=True)
class MemoryStrip:
    """What a tensor lies in, in the order of memory: its elements with the gaps between them and its guards.

    codes: a `State` per slot; a slot is as long as one element. first: the slot of the first element, negative where
    the strip begins behind it. width: slots from one row of the tensor to the next.
    """

    codes: bytes
    first: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementMap:
    """One tensor at one problem.

    codes: a `State` per element, row-major. memory: where something was written beside the elements. programs: per
    element the 1-based place in `program_names` of the program that stored it last, 0 for none, as little-endian
    int32; empty where nobody watched. values: the elements in numbers, those with bad news first. remark: what the map
    does not show.
    """

    tensor: str
    shape: tuple[int, ...]
    codes: bytes
    memory: MemoryStrip | None = None
    programs: bytes = b""
    program_names: tuple[str, ...] = ()
    values: tuple[ElementValue, ...] = ()
    remark: str = ""

    def to_json(self) -> dict[str, Any]:
        """The map as JSON data; bytes are deflated and in base64."""
        memory = self.memory
        return {
            "tensor": self.tensor,
            "shape": list(self.shape),
            "codes": _packed(self.codes),
            "memory": None
            if memory is None
            else {"codes": _packed(memory.codes), "first": memory.first, "width": memory.width},
            "programs": _packed(self.programs),
            "program_names": list(self.program_names),
            "values": [list(value) for value in self.values],
            "remark": self.remark,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ElementMap:
        """A map from its JSON data. Raises ValueError (KeyError, TypeError) where it is none."""
        shape = tuple(int(size) for size in data["shape"])
        elements = 1
        for size in shape:
            elements *= size
        memory = data["memory"]
        made = cls(
            tensor=str(data["tensor"]),
            shape=shape,
            codes=_unpacked(data["codes"]),
            memory=None
            if memory is None
            else MemoryStrip(_unpacked(memory["codes"]), int(memory["first"]), int(memory["width"])),
            programs=_unpacked(data["programs"]),
            program_names=tuple(map(str, data["program_names"])),
            values=tuple(ElementValue(int(place), *map(str, rest)) for place, *rest in data["values"]),
            remark=str(data["remark"]),
        )
        strip = b"" if made.memory is None else made.memory.codes
        if len(made.codes) != elements or len(made.programs) not in (0, 4 * elements):
            raise ValueError(f"a map of {elements} elements has {len(made.codes)} codes")
        if made.memory is not None and made.memory.width < 1:
            raise ValueError(f"a strip of memory is {made.memory.width} slots wide")
        if max(made.codes, default=0) > State.STRAY or max(strip, default=0) > State.STRAY:
            raise ValueError("a map holds a code that means nothing")
        return made


def counts_of(element_map: ElementMap) -> dict[State, int]:
    """How many elements are in which state, and how many slots beside them were written; worst first."""
    counts = {state: element_map.codes.count(state) for state in reversed(State)}
    if element_map.memory is not None:
        counts[State.STRAY] = max(counts[State.STRAY], element_map.memory.codes.count(State.STRAY))
    return {state: count for state, count in counts.items() if count}


def flagged(element_map: ElementMap) -> bool:
    """Whether the map shows any bad news."""
    return any(state >= State.WRONG for state in counts_of(element_map))


def program_of(element_map: ElementMap, place: int) -> str:
    """The program that stored an element last, in words; empty where none did, or nobody watched."""
    if not element_map.programs:
        return ""
    (number,) = struct.unpack_from("<i", element_map.programs, 4 * place)
    return element_map.program_names[number - 1] if number else ""


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii") if data else ""


def _unpacked(text: str) -> bytes:
    if not text:
        return b""
    unfolding = zlib.decompressobj()
    try:
        data = unfolding.decompress(base64.b64decode(text, validate=True), _LARGEST)
    except zlib.error as error:
        raise ValueError(f"a part of a map cannot be unfolded: {error}") from error
    if unfolding.unconsumed_tail:
        raise ValueError(f"a part of a map unfolds to more than {_LARGEST} bytes")
    return data
