"""Asks for the map of a finding: its problem is examined once more, where that can be done and shows the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mla_verify.isolation import Examiner
from mla_verify.maps import ElementMap, flagged

__all__ = ["maps_at"]

# One ends the process, the other is not about elements.
_WITHOUT: Final = frozenset({"survival", "economy"})


def maps_at(examiner: Examiner, problem: Any, *, clause: str, after: Sequence[Any] = ()) -> tuple[ElementMap, ...]:
    """The maps of a problem that broke `clause`; none where it breaks it only after others."""
    if clause in _WITHOUT or after:
        return ()
    shown = examiner(problem, maps=True)
    again = any(finding.clause == clause for finding in shown.findings)
    return shown.maps if again and any(map(flagged, shown.maps)) else ()
