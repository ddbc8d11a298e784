"""Reports made by hand, of any size and with any words in them, without running a kernel."""

from __future__ import annotations

import struct
from typing import Any, Final

from mla_verify.maps import ElementMap, ElementValue, MemoryStrip, State
from mla_verify.report import ClauseVerdict, Report, ReportedFinding
from sanitizer.finding import CLAUSES
from strategies.problems import UpProjectionProblem

__all__ = ["MARKUP", "finding", "map_of", "report"]

MARKUP: Final = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"quoted\" 'too' {{ 7 * 7 }} <!-- maps -->"
)


def map_of(
    *, rows: int = 3, columns: int = 8, unwritten: int = 4, tensor: str = "out", program: str = "k"
) -> ElementMap:
    """`unwritten` elements at the end of each row, two programs by turns, and one slot behind the end written."""
    row = bytes([State.RIGHT] * (columns - unwritten) + [State.UNWRITTEN] * unwritten)
    codes = row * rows
    programs = b"".join(
        struct.pack("<i", 0 if code == State.UNWRITTEN else 1 + place % 2) for place, code in enumerate(codes)
    )
    strip = bytes([State.SLACK] * columns) + codes + bytes([State.STRAY] + [State.SLACK] * (columns - 1))
    values = tuple(
        ElementValue(place, "nan" if code == State.UNWRITTEN else "1.5", "1.5", "0", "0.001")
        for place, code in enumerate(codes)
    )
    return ElementMap(
        tensor=tensor,
        shape=(rows, 1, columns),
        codes=codes,
        memory=MemoryStrip(strip, columns, columns),
        programs=programs,
        program_names=(f"{program} program 0", f"{program} program 1"),
        values=values,
    )


def finding(clause: str = "coverage", **changes: Any) -> ReportedFinding:
    """A finding about `out` at two tokens."""
    problem = UpProjectionProblem(num_tokens=2)
    plain: dict[str, Any] = {
        "clause": clause,
        "tensor": "out",
        "elements": 12,
        "detail": "out[0:3, 0, 4:8] never written: still the secret in every run",
        "problem": problem,
        "problem_text": "num_tokens=2",
        "found_after": 3,
        "case": "cases/kernel.coverage.0123456789ab.json",
        "maps": (map_of(),),
        "history": ("num_tokens=9", "num_tokens=4", "num_tokens=2"),
    }
    return ReportedFinding(**{**plain, **changes})


def report(name: str = "my_kernel", *findings: ReportedFinding, **changes: Any) -> Report:
    """The report of one kernel that broke the clauses of its findings, and passed or was not checked on the others."""
    broken = {one.clause for one in findings}
    clauses = {
        clause: ClauseVerdict("fail")
        if clause in broken
        else ClauseVerdict("not checked", "nothing is declared")
        if clause == "economy"
        else ClauseVerdict("pass")
        for clause in CLAUSES
    }
    plain: dict[str, Any] = {
        "kernel": name,
        "contract": "up-projection",
        "device": "cpu",
        "seed": 0,
        "examples": 200,
        "seconds": 4.5,
        "clauses": clauses,
        "findings": findings,
        "target": "kernels/mine.py:my_kernel",
    }
    return Report(**{**plain, **changes})
