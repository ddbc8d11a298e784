"""What a check found, as data: a verdict per clause, findings with their smallest problems, and the JSON of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mla_verify.errors import ExitCode
from mla_verify.maps import ElementMap
from sanitizer.finding import CLAUSES
from strategies.problems import Problem

__all__ = ["ClauseVerdict", "DeviationReport", "Report", "ReportedFinding", "Verdict", "unavailable_report"]

Verdict = Literal["pass", "fail", "known", "not checked", "unavailable"]
STALE_AFTER: Final = 50  # matching problems in one run, none of which deviated


@dataclass(frozen=True, slots=True)
class ClauseVerdict:
    """One clause's verdict, with the reason where it is neither pass nor fail."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReportedFinding:
    """A broken clause at the smallest problem that shows it. `found_after` counts examples up to the first sight.

    after: the problems that the same process has to be given before it, where it takes any. maps: what became of every
    output element there. history: the problems that failed on the way to it, in words, the first one first.
    seconds, shrink_seconds: from the beginning of the search to the first sight, and from there to this problem.
    """

    clause: str
    tensor: str
    elements: int
    detail: str
    problem: Problem
    problem_text: str
    found_after: int
    case: str | None = None
    after: tuple[Problem, ...] = ()
    maps: tuple[ElementMap, ...] = ()
    history: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    shrink_seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class DeviationReport:
    """What became of a known deviation: how many problems matched it, and how many of those deviated."""

    clause: str
    reason: str
    issue: str
    matched: int
    deviated: int
    quarantined: bool

    @property
    def state(self) -> Literal["seen", "quarantined", "stale", "not exercised"]:
        """Stale once 50 matching problems ran and none deviated: the declaration must go."""
        if self.quarantined:
            return "quarantined"
        if self.deviated:
            return "seen"
        return "stale" if self.matched >= STALE_AFTER else "not exercised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of checking one kernel on one device."""

    kernel: str
    contract: str
    device: str
    seed: int
    examples: int
    seconds: float
    clauses: dict[str, ClauseVerdict]
    preconditions: tuple[str, ...] = ()
    declarations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    not_judged: int = 0
    findings: tuple[ReportedFinding, ...] = ()
    deviations: tuple[DeviationReport, ...] = ()
    unavailable: str | None = None
    sequences: int = 0  # of problems in one process, each looked at after those before it
    target: str | None = None  # by what a command finds the kernel again

    @property
    def verdict(self) -> Literal["pass", "fail", "unavailable"]:
        """Fail where a clause does, or where a known deviation has gone stale."""
        if self.unavailable is not None:
            return "unavailable"
        stale = any(deviation.state == "stale" for deviation in self.deviations)
        failed = any(clause.verdict == "fail" for clause in self.clauses.values())
        return "fail" if failed or stale else "pass"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command about this kernel alone."""
        codes = {"pass": ExitCode.HOLDS, "fail": ExitCode.VIOLATION, "unavailable": ExitCode.UNAVAILABLE}
        return codes[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """One object of `--json`, as docs/contract.md describes it."""
        return {
            "kernel": self.kernel,
            "contract": self.contract,
            "device": self.device,
            "seed": self.seed,
            "examples": self.examples,
            "sequences": self.sequences,
            "seconds": round(self.seconds, 3),
            "verdict": self.verdict,
            "clauses": {name: clause.verdict for name, clause in self.clauses.items()},
            "reasons": {name: clause.reason for name, clause in self.clauses.items() if clause.reason},
            "preconditions": list(self.preconditions),
            "declarations": list(self.declarations),
            "notes": list(self.notes),
            "not_judged": self.not_judged,
            "findings": [
                {
                    "clause": finding.clause,
                    "tensor": finding.tensor,
                    "elements": finding.elements,
                    "detail": finding.detail,
                    "problem": finding.problem_text,
                    "found_after": finding.found_after,
                    "case": finding.case,
                }
                for finding in self.findings
            ],
            "known_deviations": [
                {
                    "clause": deviation.clause,
                    "reason": deviation.reason,
                    "issue": deviation.issue,
                    "matched": deviation.matched,
                    "deviated": deviation.deviated,
                    "state": deviation.state,
                }
                for deviation in self.deviations
            ],
            "unavailable": self.unavailable,
        }


def unavailable_report(*, kernel: str, contract: str, device: str, reason: str) -> Report:
    """The report of a kernel that cannot run here: every clause unavailable, never passed."""
    clauses = {name: ClauseVerdict("unavailable", reason) for name in CLAUSES}
    return Report(
        kernel=kernel,
        contract=contract,
        device=device,
        seed=0,
        examples=0,
        seconds=0.0,
        clauses=clauses,
        unavailable=reason,
    )


def exit_code_of(reports: Iterable[Report]) -> ExitCode:
    """The exit code of a command about several kernels."""
    return ExitCode.of_several([report.exit_code for report in reports])
