"""Fuzzes one kernel on every clause, shrinks what breaks, and reports a verdict per clause."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from mla_verify.contracts import contract_named
from mla_verify.declared import declarations_of
from mla_verify.devices import one_thread, resolve_device
from mla_verify.drawing import drawn_into
from mla_verify.errors import UsageError
from mla_verify.examine import Bench, examine
from mla_verify.kernel import Kernel, Unavailable
from mla_verify.registry import check_signature
from mla_verify.report import Report, ReportedFinding, unavailable_report
from mla_verify.tally import Tally
from mla_verify.violations import VIOLATIONS, ClauseViolation
from sanitizer.arena import Arena
from sanitizer.finding import Finding

__all__ = ["Progress", "check", "open_bench"]

# Which of several findings at one problem speaks first: the one that explains the others.
_BY_CAUSE: Final = (
    "survival",
    "refusal",
    "layout",
    "containment",
    "coverage",
    "independence",
    "repeatability",
    "agreement",
    "economy",
)
_INVALID_SHARE: Final = 8  # one invalid problem to so many valid ones
_ECONOMY_EVERY: Final = 50  # a profiled run costs a few milliseconds
_ROUND_SEEDS: Final = 1_000_003  # between the seeds of consecutive rounds

Progress = Callable[[int, int, int], None]  # examples so far, examples in all, broken clauses so far


class _TimeUp(KeyboardInterrupt):
    """Ends a Hypothesis run at once: it passes every other exception on to its shrinker."""


def open_bench(kernel: Kernel, *, device: str = "cpu") -> Bench:
    """Load a kernel and make its arena. Raises Unavailable where it cannot run here, UsageError where it never can."""
    where = resolve_device(device)
    if where.type not in kernel.devices:
        raise Unavailable(f"{kernel.name} runs on {', '.join(kernel.devices)}, not on {where.type}")
    function = kernel.load()
    check_signature(function, kernel.contract, name=kernel.name, prepared=kernel.prepare is not None)
    return Bench(
        kernel=kernel,
        contract=contract_named(kernel.contract),
        function=function,
        device=where,
        arena=Arena(where),
    )


def check(
    kernel: Kernel,
    *,
    examples: int,
    seed: int,
    device: str = "cpu",
    deadline_s: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check `kernel` on `examples` valid problems, and on invalid ones where it declares that it validates.

    Every clause is looked for over all examples: a clause that breaks is shrunk, then the search goes on for the
    others. The same seed draws the same problems. `deadline_s` ends the search early (seconds); `progress` is told
    of every example. Raises UsageError for a request that cannot be carried out; a kernel that is not available
    here gives a report that says so.
    """
    if examples < 1:
        raise UsageError(f"examples must be at least 1, got {examples}")
    started = time.perf_counter()
    try:
        bench = open_bench(kernel, device=device)
    except Unavailable as reason:
        return unavailable_report(kernel=kernel.name, contract=kernel.contract, device=device, reason=str(reason))
    tally = Tally(kernel)
    search = _Search(
        bench=bench,
        tally=tally,
        total=examples,
        stop_at=None if deadline_s is None else started + deadline_s,
        progress=progress,
    )
    with one_thread(bench.device):
        search.run(bench.contract.problems(kernel), examples, seed, invalid=False)
        if kernel.validates:
            invalid = bench.contract.invalid_problems(kernel)
            search.run(invalid, max(1, examples // _INVALID_SHARE), seed, invalid=True)
    findings = tuple(search.found.values())
    return Report(
        kernel=kernel.name,
        contract=kernel.contract,
        device=str(bench.device),
        seed=seed,
        examples=tally.examples,
        seconds=time.perf_counter() - started,
        clauses=tally.verdicts(findings),
        preconditions=kernel.preconditions,
        declarations=declarations_of(kernel),
        notes=kernel.notes,
        not_judged=tally.not_judged,
        findings=findings,
        deviations=tally.deviations(),
    )


@dataclass(slots=True, eq=False, kw_only=True)
class _Search:
    """A search for broken clauses. Each clause is shrunk once; the search then goes on without it."""

    bench: Bench
    tally: Tally
    total: int
    stop_at: float | None
    progress: Progress | None
    found: dict[str, ReportedFinding] = field(default_factory=dict[str, ReportedFinding])

    def run(self, problems: SearchStrategy[Any], examples: int, seed: int, *, invalid: bool) -> None:
        """Look at `examples` problems; start a new round after each clause that broke."""
        left, round_number = examples, 0
        while left > 0:
            seen = self._round(problems, left, seed + _ROUND_SEEDS * round_number, invalid=invalid)
            if seen is None:
                return
            left -= seen
            round_number += 1

    def _round(self, problems: SearchStrategy[Any], examples: int, seed: int, *, invalid: bool) -> int | None:
        """One Hypothesis run. None when it went through or ran out of time; else how many examples it took to fail."""
        target: str | None = None  # the clause that this round shrinks, once one has broken
        smallest: ReportedFinding | None = None
        seen = 0

        def one_problem(problem: Any) -> None:
            nonlocal target, smallest, seen
            if self.stop_at is not None and time.perf_counter() > self.stop_at:
                raise _TimeUp
            searching = target is None
            seen += searching
            finding = self._look_at(problem, searching=searching, target=target, invalid=invalid)
            if finding is None:
                return
            target = finding.clause
            before = smallest.found_after if smallest is not None else self.tally.examples
            text = self.bench.contract.describe(problem)
            smallest = ReportedFinding(
                finding.clause, finding.tensor, finding.elements, finding.detail, problem, text, before
            )
            raise VIOLATIONS[finding.clause](finding, kernel=self.bench.kernel.name, problem=text)

        run = drawn_into(one_problem, problems, examples=examples, seed=seed)
        try:
            run()
        except _TimeUp:
            self._keep(smallest)
            return None
        except ClauseViolation:
            self._keep(smallest)
            return seen
        except Flaky:
            # The kernel remembers earlier calls: what it did once it did not do again on the same problem.
            self._keep(smallest, remark="; seen once: the same problem passed when it was run again")
            return seen
        return None

    def _keep(self, finding: ReportedFinding | None, *, remark: str = "") -> None:
        if finding is not None:
            self.found[finding.clause] = replace(finding, detail=finding.detail + remark)

    def _look_at(self, problem: Any, *, searching: bool, target: str | None, invalid: bool) -> Finding | None:
        """Examine one problem; the finding to raise, if any: the target's while shrinking, else a new clause's."""
        tally = self.tally
        if searching:
            tally.examples += not invalid
            tally.invalid_examples += invalid
            if self.progress is not None:
                self.progress(tally.examples, self.total, len(self.found))
        if tally.quarantines(problem):
            return None
        profiled = searching and not invalid and tally.examples % _ECONOMY_EVERY == 1
        shown = examine(problem, self.bench, economy=profiled or target == "economy")
        if searching:
            tally.not_judged += shown.not_judged
            tally.intercepted += shown.intercepted
            tally.economy_runs += profiled and self.bench.kernel.allocations is not None
        findings = tally.unexcused(problem, shown.findings, count=searching)
        wanted = [
            finding
            for finding in findings
            if (finding.clause == target if target is not None else finding.clause not in self.found)
        ]
        return min(wanted, key=lambda finding: _BY_CAUSE.index(finding.clause), default=None)
