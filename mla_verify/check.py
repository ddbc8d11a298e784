"""Fuzzes one kernel on every clause, shrinks what breaks, and reports a verdict per clause."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from hypothesis import reject
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Flaky, InvalidArgument, Unsatisfiable
from hypothesis.strategies import SearchStrategy

from mla_verify.budget import fitting, most_elements
from mla_verify.cases import save_case
from mla_verify.contract import Contract
from mla_verify.contracts import contract_named
from mla_verify.databases import Keeping
from mla_verify.declared import declarations_of
from mla_verify.devices import one_thread, resolve_device
from mla_verify.drawing import TimeUp, drawn_into
from mla_verify.errors import UsageError
from mla_verify.isolation import Examiner, Isolation, Sandboxed, examiner_for
from mla_verify.journal import Journal, case_of
from mla_verify.kernel import Kernel, Unavailable, economy_is_declared
from mla_verify.mapped import maps_at
from mla_verify.parts import WHOLE, Parts, plain_values
from mla_verify.report import Report, ReportedFinding, unavailable_report
from mla_verify.sequences import SequenceSearch, Suspicion
from mla_verify.tally import Tally
from mla_verify.violations import VIOLATIONS, ClauseViolation
from mla_verify.within import why_outside
from sanitizer.finding import Finding
from sanitizer.sandbox import ServiceBroken
from strategies.smaller import smaller

__all__ = ["Aim", "Progress", "check"]

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
_SHRINK_SECONDS: Final = 30.0  # per clause; only a kernel that hangs needs as much
_SMALLER_TRIES: Final = 100  # problems that are tried per clause once Hypothesis has shrunk it
_LOST_SECONDS: Final = 10.0  # to deaths; after which, one being known, the search for other clauses is given up
_INVALID_TIME: Final = 1 / 8  # of a deadline, where there are invalid problems
_SEQUENCES_SHARE: Final = 16  # one sequence of eight problems to so many problems by themselves
_INTERPRETED_SHARE: Final = 64  # the same where an interpreter takes a hundred times as long
_SEQUENCES_TIME: Final = 1 / 8  # of a deadline
_UNTRACED: Final = "; seen once, after many other problems: in a new process the same problem passed"
_HISTORY: Final = 100  # problems on the way to the smallest one
_ROUND_SEEDS: Final = 1_000_003  # between the seeds of consecutive rounds

Progress = Callable[[int, int, int], None]  # examples so far, examples in all, broken clauses so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a search is after, when it is not after everything: it ends once one of `clauses` is known to be broken.

    shrink: whether to look for the smallest problem first.
    """

    clauses: frozenset[str]
    shrink: bool = True


def check(
    kernel: Kernel,
    *,
    examples: int,
    seed: int,
    device: str = "cpu",
    deadline_s: float | None = None,
    progress: Progress | None = None,
    isolation: Isolation = "process",
    cases: Path | None = None,
    database: ExampleDatabase | None = None,
    stopped: Callable[[], bool] = lambda: False,
    sequences: bool = True,
    workers: int = 1,
    parts: Parts = WHOLE,
    aim: Aim | None = None,
) -> Report:
    """Check `kernel` on `examples` valid problems, and on invalid ones where it declares that it validates.

    Every clause is looked for over all examples: a clause that breaks is shrunk, then the search goes on for the
    others. The same seed draws the same problems. `deadline_s` ends the search early (seconds); `progress` is told
    of every example. isolation: "process" runs the kernel in a worker that it may take down, where it can be loaded
    there. cases: a folder for the failures, each a file to replay, written as soon as it is shrunk; a journal of what
    is in flight lies in it too, as long as the check runs. database: what failed in earlier runs is tried first.
    stopped: asked before each example; the search ends early where it says so. sequences: also look for problems that
    go wrong only after others. workers: how many processes share the device, and so its memory. Raises UsageError for
    a request that cannot be carried out; a kernel that is not available here gives a report that says so.
    """
    if examples < 1:
        raise UsageError(f"examples must be at least 1, got {examples}")
    started = time.perf_counter()
    journal = None if cases is None else Journal(cases, kernel, seed)
    try:
        examiner = examiner_for(kernel, device=device, isolation=isolation, journal=journal, parts=parts)
    except Unavailable as reason:
        return unavailable_report(kernel=kernel.name, contract=kernel.contract, device=device, reason=str(reason))
    contract = contract_named(kernel.contract)
    tally = Tally(kernel, examiner.why_not)
    search = _Search(
        contract=contract,
        examiner=examiner,
        tally=tally,
        total=examples,
        progress=progress,
        stopped=stopped,
        database=database,
        cases=cases,
        seed=seed,
        device=device,
        aim=aim,
    )
    in_turn = search.in_turn = sequences and parts.sequences and isinstance(examiner, Sandboxed)
    for_invalid = _INVALID_TIME if kernel.validates else 0.0
    for_sequences = _SEQUENCES_TIME if in_turn else 0.0

    def stop_at(share: float) -> float | None:
        return None if deadline_s is None else started + deadline_s * share

    try:
        with one_thread(resolve_device(device)):
            search.stop_at = stop_at(1.0 - for_invalid - for_sequences)
            problems = _strategy(contract.problems, kernel)
            if not parts.exact_regimes:
                problems = problems.map(plain_values)
            problems = fitting(problems, most_elements(resolve_device(device), workers=workers))
            search.run(problems, examples, seed, invalid=False)
            if in_turn:
                search.stop_at = stop_at(1.0 - for_invalid)
                search.run_in_turn(problems, _how_many_sequences(kernel, device, examples), seed)
            if kernel.validates:
                invalid = _strategy(contract.invalid_problems, kernel)
                search.stop_at = stop_at(1.0)
                search.run(invalid, max(1, examples // _INVALID_SHARE), seed, invalid=True)
    except ServiceBroken as error:
        print(error, file=sys.stderr)
        reason = f"mla-verify itself failed while examining it: {str(error).strip().splitlines()[-1]}"
        return unavailable_report(kernel=kernel.name, contract=kernel.contract, device=device, reason=reason)
    finally:
        examiner.close()
    findings = tuple(search.found.values())
    return Report(
        kernel=kernel.name,
        contract=kernel.contract,
        device=str(resolve_device(device)),
        target=kernel.target,
        seed=seed,
        examples=tally.examples,
        seconds=time.perf_counter() - started,
        clauses=tally.verdicts(findings, cut_short=search.cut_short),
        preconditions=kernel.preconditions,
        declarations=declarations_of(kernel),
        notes=(
            *kernel.notes,
            *examiner.notes,
            *([f"sequences of problems not run: {examiner.why_not}"] if sequences and not in_turn else []),
            *tally.interception(),
            *tally.notes.values(),
        ),
        not_judged=tally.not_judged,
        findings=findings,
        deviations=tally.deviations(),
        sequences=search.sequences,
    )


def _how_many_sequences(kernel: Kernel, device: str, examples: int) -> int:
    interpreted = kernel.interpreted_on(resolve_device(device).type)
    return max(1, examples // (_INTERPRETED_SHARE if interpreted else _SEQUENCES_SHARE))


def _strategy(make: Callable[[Kernel], SearchStrategy[Any]], kernel: Kernel) -> SearchStrategy[Any]:
    """The problems of a kernel. Raises UsageError where its declared limits leave nothing to draw."""
    try:
        return make(kernel)
    except InvalidArgument as error:
        raise UsageError(f"{kernel.name}: its declared limits cannot be drawn from: {error}") from error


def _with(text: str, history: tuple[str, ...]) -> tuple[str, ...]:
    """A history with one more problem; of a long one the beginning and the end are kept."""
    if history and history[-1] == text:
        return history
    return (*history[: _HISTORY // 2], *history[_HISTORY // 2 :][-(_HISTORY // 2 - 1) :], text)


@dataclass(slots=True, eq=False, kw_only=True)
class _Search:
    """A search for broken clauses. Each clause is shrunk once; the search then goes on without it."""

    contract: Contract
    examiner: Examiner
    tally: Tally
    total: int
    progress: Progress | None
    stopped: Callable[[], bool]
    database: ExampleDatabase | None
    cases: Path | None
    seed: int
    device: str
    stop_at: float | None = None
    found: dict[str, ReportedFinding] = field(default_factory=dict[str, ReportedFinding])
    lost_before: float = 0.0  # seconds that deaths had cost when the last clause had been shrunk
    cut_short: bool = False
    in_turn: bool = False  # sequences of problems are looked at as well
    sequences: int = 0
    aim: Aim | None = None
    began: float = field(default_factory=time.perf_counter)
    suspicion: Suspicion | None = None  # the first finding that a new process did not show

    def run(self, problems: SearchStrategy[Any], examples: int, seed: int, *, invalid: bool) -> None:
        """Look at `examples` problems; start a new round after each clause that broke."""
        left, round_number = examples, 0
        while left > 0:
            seen = self._round(problems, left, seed + _ROUND_SEEDS * round_number, invalid=invalid)
            if seen is None:
                return
            left -= seen
            round_number += 1

    def run_in_turn(self, problems: SearchStrategy[Any], sequences: int, seed: int) -> None:
        """Look at so many sequences of problems, unless `repeatability` is known to be broken."""
        assert isinstance(self.examiner, Sandboxed)
        if self.cut_short or "repeatability" in self.found or self._has_its_aim():
            return
        key = f"{self.contract.name} {self.tally.kernel.name} sequences"
        seen_at: list[float] = []

        def is_over(since: float | None) -> bool:
            if since is not None and not seen_at:
                seen_at.append(since)
            return self._is_over(since is None, since or 0.0)

        search = SequenceSearch(
            kernel=self.tally.kernel,
            describe=self.contract.describe,
            examiner=self.examiner,
            tally=self.tally,
            ignored=frozenset(self.found),
            is_over=is_over,
        )
        search.run(problems, sequences, seed, database=self.database, key=key)
        self.sequences = search.sequences
        for problem, finding in search.single.values():
            self._keep(self._reported(finding, problem))
        broken, suspicion = search.broken, self.suspicion or search.untraced
        if broken is None and suspicion is not None:
            broken = search.trace(suspicion)
            if broken is None:
                words = f"{suspicion.finding.clause}: {suspicion.finding.detail}{_UNTRACED}"
                finding = replace(suspicion.finding, clause="repeatability", detail=words)
                if self.tally.unexcused(suspicion.problem, [finding], count=True):
                    self._keep(self._reported(finding, suspicion.problem))
        if broken is not None:
            found = self._reported(broken.finding, broken.problem, after=broken.after)
            self._keep(replace(found, seconds=seen_at[0] - self.began if seen_at else found.seconds))

    def _shows_alone(self, problem: Any, finding: Finding) -> bool:
        """Whether a new process shows a finding too. If not, the problems before this one are under suspicion.

        Found out where a new process takes milliseconds. A death needs none: it is followed by one.
        """
        examiner, kernel = self.examiner, self.tally.kernel
        if not (self.in_turn and isinstance(examiner, Sandboxed) and examiner.renews_quickly and kernel.deterministic):
            return True
        if finding.clause in ("survival", "economy"):
            return True
        history = tuple(examiner.given)[:-1]
        if not history:
            return True
        examiner.afresh()
        if any(shown.clause == finding.clause for shown in examiner.in_turn(problem, ()).findings):
            return True
        self.suspicion = self.suspicion or Suspicion(problem, finding, history)
        return False

    def _reported(self, finding: Finding, problem: Any, *, after: tuple[Any, ...] = ()) -> ReportedFinding:
        text = self.contract.describe(problem)
        return ReportedFinding(
            finding.clause,
            finding.tensor,
            finding.elements,
            finding.detail,
            problem,
            text,
            self.tally.examples,
            after=after,
            seconds=time.perf_counter() - self.began,
        )

    def _round(self, problems: SearchStrategy[Any], examples: int, seed: int, *, invalid: bool) -> int | None:
        """One Hypothesis run. None when it went through or ran out of time; else how many examples it took to fail."""
        target: str | None = None  # the clause that this round shrinks, once one has broken
        smallest: ReportedFinding | None = None
        seen = 0
        shrinking_since = 0.0

        def one_problem(problem: Any) -> None:
            nonlocal target, smallest, seen, shrinking_since
            searching = target is None
            if self._is_over(searching, shrinking_since) or (searching and self._is_for_sequences()):
                raise TimeUp
            if self.tally.quarantines(problem):
                reject()  # not launched, and so not counted: another one is drawn in its place
            seen += searching
            finding = self._look_at(problem, searching=searching, target=target, invalid=invalid)
            if finding is None:
                return
            if searching:
                shrinking_since = time.perf_counter()
            target = finding.clause
            smallest = self._at(problem, finding, smallest)
            if self.aim is not None and not self.aim.shrink:
                raise TimeUp
            raise VIOLATIONS[finding.clause](finding, kernel=self.tally.kernel.name, problem=smallest.problem_text)

        key = f"{self.contract.name} {self.tally.kernel.name}{' invalid' if invalid else ''}"
        run = drawn_into(one_problem, problems, examples=examples, seed=seed, database=self._database(key), key=key)
        try:
            run()
        except TimeUp:
            self._keep(smallest)
            return seen if smallest is not None and not self._is_over(True, 0.0) else None
        except KeyboardInterrupt:
            self._keep(smallest, mapped=False)
            raise
        except ClauseViolation:
            self._keep(smallest if smallest is None or invalid else self._smaller_still(smallest, shrinking_since))
            return seen
        except Unsatisfiable:
            return None  # every problem is quarantined
        except Flaky:
            # The kernel remembers earlier calls: what it did once it did not do again on the same problem.
            self._keep(smallest, remark="; seen once: the same problem passed when it was run again")
            return seen
        return None

    def _smaller_still(self, found: ReportedFinding, shrinking_since: float) -> ReportedFinding:
        """The finding at the smallest problem that shows it, of those that Hypothesis' shrinker does not come by."""
        left = _SMALLER_TRIES
        try:
            while left:
                for problem in smaller(found.problem):
                    if not left or self._is_over(False, shrinking_since):
                        return found
                    if why_outside(problem, self.tally.kernel) or self.tally.quarantines(problem):
                        continue
                    left -= 1
                    finding = self._shown_twice(problem, found.clause)
                    if finding is not None:
                        found = self._at(problem, finding, found)
                        break
                else:
                    return found
        except KeyboardInterrupt:
            self._keep(found, mapped=False)
            raise
        return found

    def _shown_twice(self, problem: Any, clause: str) -> Finding | None:
        """What a problem shows about a clause, time and again: what is seen once may hang on the calls before."""
        once = self._look_at(problem, searching=False, target=clause, invalid=False)
        return once and self._look_at(problem, searching=False, target=clause, invalid=False)

    def _at(self, problem: Any, finding: Finding, before: ReportedFinding | None) -> ReportedFinding:
        """A finding at a problem; `before`: the same one at the smallest problem that showed it so far."""
        found = self._reported(finding, problem)
        if before is None:
            return replace(found, history=(found.problem_text,))
        history = _with(found.problem_text, before.history)
        return replace(found, found_after=before.found_after, history=history, seconds=before.seconds)

    def _database(self, key: str) -> ExampleDatabase | None:
        """The database of one round. What the rounds before have saved is not theirs to delete."""
        if self.database is None or not self.found:
            return self.database
        return Keeping(self.database, self.database.fetch(key.encode()))

    def _keep(self, finding: ReportedFinding | None, *, remark: str = "", mapped: bool = True) -> None:
        """Remember a finding, and save it at once: this process may not live to the end of the search.

        mapped: run the kernel once more, for the map.
        """
        if finding is None:
            return
        shrink_seconds = time.perf_counter() - self.began - finding.seconds
        finding = replace(finding, detail=finding.detail + remark, shrink_seconds=shrink_seconds)
        if self.cases is not None:
            case = case_of(finding, self.tally.kernel, self.seed)
            finding = replace(finding, case=str(save_case(case, self.cases)))
        self.found[finding.clause] = finding
        if mapped and not self.stopped():
            maps = maps_at(self.examiner, finding.problem, clause=finding.clause, after=finding.after)
            self.found[finding.clause] = replace(finding, maps=maps)
        self.lost_before = self.examiner.lost

    def _is_over(self, searching: bool, shrinking_since: float) -> bool:
        """Whether the run has to end here: out of time, shrunk for long enough, or one hang after the other."""
        now = time.perf_counter()
        if (self.stop_at is not None and now > self.stop_at) or self.stopped():
            return True
        if searching:
            if self._has_its_aim():
                return True
            self.cut_short = self.cut_short or (
                "survival" in self.found and self.examiner.lost > self.lost_before + _LOST_SECONDS
            )
            return self.cut_short
        return now > shrinking_since + _SHRINK_SECONDS

    def _is_for_sequences(self) -> bool:
        """Whether what the search is after has shown itself as something that single problems do not show."""
        return self.aim is not None and "repeatability" in self.aim.clauses and self.suspicion is not None

    def _has_its_aim(self) -> bool:
        """Whether a clause is known to be broken that the search is after."""
        return self.aim is not None and not self.aim.clauses.isdisjoint(self.found)

    def _look_at(self, problem: Any, *, searching: bool, target: str | None, invalid: bool) -> Finding | None:
        """Examine one problem; the finding to raise, if any: the target's while shrinking, else a new clause's."""
        tally = self.tally
        if searching:
            tally.examples += not invalid
            tally.invalid_examples += invalid
            if self.progress is not None:
                self.progress(tally.examples, self.total, len(self.found))
        profiled = searching and not invalid and tally.examples % _ECONOMY_EVERY == 1
        shown = self.examiner(problem, economy=profiled or target == "economy")
        if searching:
            tally.not_judged += shown.not_judged
            tally.returned += shown.returned
            tally.elements += shown.elements
            tally.intercepted += shown.intercepted
            tally.note(shown.notes)
            tally.economy_runs += profiled and economy_is_declared(tally.kernel, self.device)
        findings = tally.unexcused(problem, shown.findings, count=searching)
        wanted = [
            finding
            for finding in findings
            if (finding.clause == target if target is not None else finding.clause not in self.found)
        ]
        worst = min(wanted, key=lambda finding: _BY_CAUSE.index(finding.clause), default=None)
        if worst is not None and searching and not invalid and not self._shows_alone(problem, worst):
            return None
        return worst
