"""Counts what known deviations and clauses met during a run, and turns the counts into verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mla_verify.kernel import Kernel, KnownDeviation
from mla_verify.report import ClauseVerdict, DeviationReport, ReportedFinding
from sanitizer.finding import CLAUSES, Finding

__all__ = ["Tally"]


# What can be said only of calls that came back, and of those, what needs an output element to be said of.
_OF_A_RESULT: Final = ("coverage", "independence", "containment", "agreement", "layout", "repeatability", "economy")
_OF_AN_ELEMENT: Final = ("coverage", "independence", "agreement", "repeatability")
_INTERCEPTED: Final = "memory that the kernel allocated itself was filled with secrets"
_OUT_OF_REACH: Final = "what C++ operators, other threads and raw storages allocate was not"


@dataclass(slots=True, eq=False)
class Tally:
    """Running counts of one check. `matched` and `deviated` count problems per known deviation."""

    kernel: Kernel
    not_isolated: str  # why a death could not have been survived; empty where it could
    examples: int = 0
    invalid_examples: int = 0
    not_judged: int = 0
    intercepted: int = 0
    economy_runs: int = 0
    returned: int = 0  # problems from which every call came back
    elements: int = 0  # output elements that were looked at
    notes: dict[str, str] = field(default_factory=dict[str, str])  # what stands before a colon → the first such note
    matched: dict[int, int] = field(default_factory=dict[int, int])
    deviated: dict[int, int] = field(default_factory=dict[int, int])

    def note(self, notes: Sequence[str]) -> None:
        """Remember the first note of each kind."""
        for note in notes:
            self.notes.setdefault(note.split(":", 1)[0], note)

    def interception(self) -> tuple[str, ...]:
        """A note of the scratch that was filled with secrets, and of what lies out of reach."""
        if not self.intercepted:
            return ()
        pieces = "1 piece" if self.intercepted == 1 else f"{self.intercepted:,} pieces"
        return (f"{_INTERCEPTED}: {pieces} in {self.examples:,} examples; {_OUT_OF_REACH}",)

    def quarantines(self, problem: Any) -> bool:
        """Whether a known deviation forbids launching this problem; counts it as matched."""
        hit = [
            index
            for index, known in enumerate(self.kernel.known_deviations)
            if known.quarantine and known.problems(problem)
        ]
        for index in hit:
            self.matched[index] = self.matched.get(index, 0) + 1
        return bool(hit)

    def unexcused(self, problem: Any, findings: Sequence[Finding], *, count: bool) -> list[Finding]:
        """The findings that no known deviation covers. `count` is off while a failure is being shrunk."""
        covered: set[str] = set()
        for index, known in enumerate(self.kernel.known_deviations):
            if known.quarantine or not known.problems(problem):
                continue
            covered.add(known.clause)
            if count:
                self.matched[index] = self.matched.get(index, 0) + 1
                if any(finding.clause == known.clause for finding in findings):
                    self.deviated[index] = self.deviated.get(index, 0) + 1
        return [finding for finding in findings if finding.clause not in covered]

    def deviations(self) -> tuple[DeviationReport, ...]:
        """What became of every known deviation."""
        return tuple(self._deviation(index, known) for index, known in enumerate(self.kernel.known_deviations))

    def _deviation(self, index: int, known: KnownDeviation) -> DeviationReport:
        return DeviationReport(
            known.clause,
            known.reason,
            known.issue,
            self.matched.get(index, 0),
            self.deviated.get(index, 0),
            known.quarantine,
        )

    def verdicts(self, findings: Sequence[ReportedFinding], *, cut_short: bool) -> dict[str, ClauseVerdict]:
        """One verdict per clause; whatever was not exercised says so instead of passing.

        cut_short: the search was given up before its examples were spent.
        """
        failed = {finding.clause for finding in findings}
        known: dict[str, str] = {}
        for deviation in self.deviations():
            if deviation.state in ("seen", "quarantined") and deviation.matched:
                known.setdefault(deviation.clause, deviation.reason)
        return {
            clause: ClauseVerdict("fail")
            if clause in failed
            else self._unfailed(clause, known.get(clause), cut_short=cut_short)
            for clause in CLAUSES
        }

    def _unfailed(self, clause: str, known: str | None, *, cut_short: bool) -> ClauseVerdict:
        if known is not None:
            return ClauseVerdict("known", known)
        if cut_short:
            return ClauseVerdict(
                "not checked",
                f"given up after {self.examples} examples: it keeps taking its process down, and time with it",
            )
        reason = self._not_checked(clause)
        return ClauseVerdict("not checked", reason) if reason else ClauseVerdict("pass")

    def _not_checked(self, clause: str) -> str:
        """Why a clause without a finding has not been checked; empty where it has."""
        if self.examples == 0:
            return "no problem was run"
        if clause in _OF_A_RESULT and self.returned == 0:
            return "no call of the kernel came back"
        if clause in _OF_AN_ELEMENT and self.elements == 0:
            return "no problem had an output element"
        if clause == "survival" and self.not_isolated:
            return self.not_isolated
        if clause == "refusal" and not self.kernel.validates:
            return "the kernel declares nothing that it validates"
        if clause == "refusal" and self.invalid_examples == 0:
            return "no invalid problem was run"
        if clause == "economy" and self.kernel.allocations is None:
            if self.kernel.launches is not None and self.economy_runs == 0:
                return "the kernel declares launches alone, which are counted on a GPU"
            if self.kernel.launches is None:
                return "the kernel declares no number of allocations or launches"
        if clause == "economy" and self.economy_runs == 0:
            return "no run was profiled"
        if clause == "repeatability" and not self.kernel.deterministic:
            return "declared non-deterministic: held to the bound and to the same pattern of finite values"
        return ""
