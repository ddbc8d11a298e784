"""What comes of a question: proved, refuted, unknown or out of class, and with what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

__all__ = ["PROPERTIES", "OutOfClass", "Outcome", "Property", "Verdict"]

Outcome = Literal["proved", "refuted", "unknown", "out of class"]
Property = Literal["defined", "containment", "race", "coverage", "bounds", "flow", "overflow", "grid"]

PROPERTIES: Final[dict[Property, str]] = {
    "defined": "no division by zero, no loop without progress, no remainder of a negative number",
    "containment": "every store lies within the live elements of its output",
    "race": "no element is stored by two programs of a launch, nor loaded by one and stored by another",
    "coverage": "every live element of every output is stored",
    "bounds": "every load lies within its tensor",
    "flow": "what the second kernel loads of the first one's output, the first one stored",
    "overflow": "no 32-bit integer that decides an address leaves its range",
    "grid": "no axis of the grid is longer than a GPU takes",
}


class OutOfClass(Exception):
    """An operation that the method does not cover stands in the way; it is named with its source line.

    tensor: the only one that it accesses; empty where that is not known. loads: that it does not write.
    """

    def __init__(self, what: str, line: str, *, tensor: str = "", loads: bool = False) -> None:
        super().__init__(f"{what} ({line})" if line else what)
        self.what, self.line, self.tensor, self.loads = what, line, tensor, loads


@dataclass(frozen=True, slots=True)
class Verdict:
    """One property of one kernel, or of one of its tensors."""

    property: Property
    outcome: Outcome
    tensor: str = ""
    detail: str = ""  # one sentence
    sizes: dict[str, int] = field(default_factory=dict[str, int])  # of a refutation
    tables: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    seconds: float = 0.0
