"""A finding: which clause does not hold, at which elements of which tensor, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["CLAUSES", "Finding"]

CLAUSES: Final = (
    "coverage",
    "independence",
    "containment",
    "agreement",
    "layout",
    "repeatability",
    "refusal",
    "survival",
    "economy",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken clause. `elements` counts what is affected; `detail` is a sentence for a person."""

    clause: str
    tensor: str
    elements: int
    detail: str
