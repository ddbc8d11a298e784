"""The parts of a check that can be left out, one at a time, to see which faults it then misses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

__all__ = ["PARTS", "WHOLE", "Parts", "plain_values", "without"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Which parts a check has; all of them, unless it is measured what one is worth.

    secrets: three secrets; without, NaN alone. guards: bytes beside the outputs are compared. exact_regimes: values
    whose answer is known bit for bit; without, gaussian ones stand in. sequences: problems after other problems in one
    process. fences: pages around the tensors that nobody may touch.
    """

    secrets: bool = True
    guards: bool = True
    exact_regimes: bool = True
    sequences: bool = True
    fences: bool = True

    def to_json(self) -> dict[str, bool]:
        """As plain data, for a worker process."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Parts:
        """The parts that `to_json` wrote."""
        return Parts(**{name: bool(data[name]) for name in PARTS})


PARTS: Final = tuple(field.name for field in fields(Parts))
WHOLE: Final = Parts()
_EXACT: Final = frozenset({"exact", "retrieval", "uniform"})


def without(part: str) -> Parts:
    """Everything but one part."""
    return replace(WHOLE, **{part: False})


def plain_values(problem: Any) -> Any:
    """The same problem, with gaussian values where its own have an exact answer."""
    return replace(problem, regime="gaussian") if problem.regime in _EXACT else problem
