"""Looks for calls that go wrong only after others: problems one after the other in one process, cut to the fewest.

Note [Fresh processes]: what a call does after others can be told from what it does by itself only in a process that has
called nothing yet. A new one costs some 40 ms, so sequences share a process until one of them shows something. That is
then asked for again: the problem alone, and the sequence from its beginning, each in a process of its own. From then on
every sequence has its own, so that Hypothesis sees the same each time that it tries one.

Note [Cutting]: Hypothesis would shrink a whole sequence, a hundred choices and more, with a process for each try.
Leaving out problems one by one takes about as many tries as there are problems. What is left is then drawn again, only
its roots: a problem or two, changed in the ways that were needed; the simplest comes first, and often breaks.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from hypothesis.strategies import SearchStrategy

from mla_verify.drawing import TimeUp, drawn_into, sequences_of
from mla_verify.histories import shortened
from mla_verify.isolation import Sandboxed
from mla_verify.kernel import Kernel, limits_of
from mla_verify.tally import Tally
from mla_verify.violations import ClauseViolation, RepeatabilityViolation
from sanitizer.finding import Finding
from strategies.siblings import changed, changes, reductions

__all__ = ["Broken", "SequenceSearch", "Suspicion", "broken_in_turn"]

_STEPS: Final = 8  # problems in a sequence, before it is cut
_SIMPLER: Final = 40  # draws in which to find simpler problems
_REMARK: Final = "; seen once: the same sequence passed when it was run again"


@dataclass(frozen=True, slots=True)
class Broken:
    """A problem that goes wrong after others, and only then. finding: `repeatability`, in words that name them."""

    problem: Any
    after: tuple[Any, ...]
    finding: Finding


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What a problem showed in a process that had been given others, and not in a new one. history: the others."""

    problem: Any
    finding: Finding
    history: tuple[Any, ...]


class _Step(NamedTuple):
    """A problem of a sequence, and how it came about: from which drawn problem, by which changes in turn."""

    problem: Any
    root: int
    changes: tuple[Any, ...] = ()


@dataclass(slots=True, eq=False, kw_only=True)
class SequenceSearch:
    """A search for sequences of problems that break what each problem alone keeps.

    ignored: clauses that single problems are known to break. is_over: asked before each call, with the time since when
    a failure is being shrunk (None while there is none). Afterwards, `broken` is the shortest sequence, `untraced` what
    was seen in one sequence because of an earlier one, and `single` what turned out to need no sequence at all:
    clause → problem and finding.
    """

    kernel: Kernel
    describe: Callable[[Any], str]
    examiner: Sandboxed
    tally: Tally
    ignored: frozenset[str]
    is_over: Callable[[float | None], bool]
    sequences: int = 0
    broken: Broken | None = None
    untraced: Suspicion | None = None
    single: dict[str, tuple[Any, Finding]] = field(default_factory=dict[str, tuple[Any, Finding]])
    _apart: bool = False  # every sequence has a process of its own; see Note [Fresh processes]
    _steps: tuple[_Step, ...] = ()  # of what broke, up to there
    _shrinking_since: float | None = None
    _alone: dict[Any, frozenset[str]] = field(default_factory=dict[Any, frozenset[str]])

    def run(
        self, problems: SearchStrategy[Any], sequences: int, seed: int, *, database: ExampleDatabase | None, key: str
    ) -> None:
        """Try so many sequences, or fewer once one has broken; the same seed draws the same ones.

        What breaks is cut down to the fewest problems first, and then to the smallest.
        """
        if self.examiner.renews_quickly:
            self.examiner.afresh()
        search = sequences_of(
            _machine(self, problems),
            sequences=sequences,
            steps=_STEPS,
            seed=seed,
            phases=(Phase.generate,),
            database=database,
            key=key,
        )
        try:
            search()
        except TimeUp:
            return
        except ClauseViolation:
            self._shorten()
            self._simplify(problems, seed)
        except Flaky:
            if self.broken is not None:
                finding = self.broken.finding
                self.broken = replace(self.broken, finding=replace(finding, detail=finding.detail + _REMARK))

    def call(self, step: _Step, before: list[_Step]) -> bool:
        """Examine a problem after those `before` it, and count it among them. Whether the sequence can go on.

        Raises RepeatabilityViolation where it shows what it does not show alone.
        """
        if self.is_over(None):
            raise TimeUp
        problem = step.problem
        if any(known.quarantine and known.problems(problem) for known in self.kernel.known_deviations):
            return True
        if not before:
            self.sequences += self._shrinking_since is None
            if self._apart:
                self.examiner.afresh()
        findings, sound = self._shown(problem, [earlier.problem for earlier in before])
        history = tuple(self.examiner.given)[:-1]
        before.append(step)
        if not findings:
            return sound
        known = problem in self._alone
        new = self._not_alone(problem, findings)
        if not new:
            return sound and known  # else the process that had seen the others is gone
        if self._apart:
            self._break(before, new[0])
            return False
        self._apart = True
        found = self._first_broken([earlier.problem for earlier in before])
        if found is not None:
            self._break(before[: found[0] + 1], found[1])
            return False
        self.untraced = Suspicion(problem, new[0], history)  # the culprit came in an earlier sequence
        if not self.examiner.renews_quickly:
            raise TimeUp  # each further sequence would take seconds
        return False

    def trace(self, suspicion: Suspicion) -> Broken | None:
        """The fewest problems of its history after which a problem still shows something; None if it does not."""
        shortest = self._cut(suspicion.history, suspicion.problem)
        if shortest is None or not self.tally.unexcused(shortest.problem, [shortest.finding], count=True):
            return None
        return shortest

    def _cut(self, history: Sequence[Any], problem: Any) -> Broken | None:
        """The fewest problems of a history after which `problem`, or one of them, shows something."""
        shortest: Broken | None = None
        since = time.perf_counter()

        def breaks(problems: Sequence[Any]) -> bool:
            nonlocal shortest
            sequence = (*problems, problem)
            found = self._first_broken(sequence)
            if found is None:
                return False
            index, finding = found
            if shortest is None or index < len(shortest.after):
                shortest = self._broken(sequence[: index + 1], finding)
            return True

        shortened(history, breaks, is_over=lambda: self.is_over(since))
        return shortest

    def _shorten(self) -> None:
        """Leave out of the sequence that broke whatever is not needed."""
        assert self.broken is not None
        broken = self._cut(self.broken.after, self.broken.problem)
        if broken is None:
            return
        self.broken = broken
        left, steps = list(self._steps), list[_Step]()
        for problem in (*broken.after, broken.problem):
            index = next(index for index, step in enumerate(left) if step.problem == problem)
            steps.append(left[index])
            del left[: index + 1]
        self._steps = tuple(steps)

    def _simplify(self, problems: SearchStrategy[Any], seed: int) -> None:
        """Look for simpler problems that, changed in the same ways, break in the same order."""
        roots = list(dict.fromkeys(step.root for step in self._steps))
        limits, since = limits_of(self.kernel), time.perf_counter()

        def same_changes(drawn: tuple[Any, ...]) -> None:
            if self.is_over(since):
                raise TimeUp
            sequence = [
                functools.reduce(lambda made, change: changed(made, change, limits), step.changes, root)
                for step in self._steps
                for root in (drawn[roots.index(step.root)],)
            ]
            if any(known.quarantine and any(map(known.problems, sequence)) for known in self.kernel.known_deviations):
                return
            found = self._first_broken(sequence)
            if found is not None:
                broken = self._broken(sequence[: found[0] + 1], found[1])
                if self.tally.unexcused(broken.problem, [broken.finding], count=False):
                    self.broken = broken
                    raise RepeatabilityViolation(broken.finding, kernel=self.kernel.name, problem="")

        simpler = drawn_into(same_changes, st.tuples(*[problems] * len(roots)), examples=_SIMPLER, seed=seed)
        with contextlib.suppress(ClauseViolation, TimeUp, Flaky):
            simpler()

    def _shown(self, problem: Any, before: Sequence[Any]) -> tuple[list[Finding], bool]:
        """What a problem shows after others, and whether the process can be used further."""
        shown = self.examiner.in_turn(problem, before)
        findings = self.tally.unexcused(problem, shown.findings, count=False)
        return [finding for finding in findings if finding.clause not in self.ignored], not shown.spoiled

    def _not_alone(self, problem: Any, findings: Sequence[Finding]) -> list[Finding]:
        """Those of the findings whose clauses the problem alone keeps. Where it does not, that is remembered."""
        if problem not in self._alone:
            self.examiner.afresh()
            alone, _ = self._shown(problem, ())
            self._alone[problem] = frozenset(finding.clause for finding in alone)
            for finding in alone:
                self.single.setdefault(finding.clause, (problem, finding))
        return [finding for finding in findings if finding.clause not in self._alone[problem]]

    def _first_broken(self, problems: Sequence[Any]) -> tuple[int, Finding] | None:
        """Try a sequence in a process of its own: which problem shows something first, and what not alone, if any."""
        found = _first_shown(self._shown, self.examiner, problems)
        if found is None:
            return None
        index, findings = found
        new = self._not_alone(problems[index], findings)
        return (index, new[0]) if new else None

    def _broken(self, problems: Sequence[Any], found: Finding) -> Broken:
        *after, problem = problems
        return Broken(problem, tuple(after), _in_words(found, after, self.describe))

    def _break(self, steps: Sequence[_Step], found: Finding) -> None:
        """Remember a sequence that broke, and raise it, unless a known deviation excuses its last problem."""
        broken = self._broken([step.problem for step in steps], found)
        if not self.tally.unexcused(broken.problem, [broken.finding], count=self._shrinking_since is None):
            return
        self._shrinking_since = self._shrinking_since or time.perf_counter()
        self.broken, self._steps = broken, tuple(steps)
        raise RepeatabilityViolation(broken.finding, kernel=self.kernel.name, problem=self.describe(broken.problem))


def broken_in_turn(
    examiner: Sandboxed, tally: Tally, problems: Sequence[Any], describe: Callable[[Any], str]
) -> Finding | None:
    """What a sequence shows in a process of its own: `repeatability`, unless the problem alone shows it too."""

    def shown(problem: Any, before: Sequence[Any]) -> tuple[list[Finding], bool]:
        result = examiner.in_turn(problem, before)
        return tally.unexcused(problem, result.findings, count=False), not result.spoiled

    found = _first_shown(shown, examiner, problems)
    if found is None:
        return None
    index, findings = found
    examiner.afresh()
    alone = {finding.clause for finding in shown(problems[index], ())[0]} if index else set[str]()
    new = [finding for finding in findings if index and finding.clause not in alone]
    if not new:
        return findings[0]
    finding = _in_words(new[0], problems[:index], describe)
    return next(iter(tally.unexcused(problems[index], [finding], count=False)), None)


def _first_shown(
    shown: Callable[[Any, Sequence[Any]], tuple[list[Finding], bool]], examiner: Sandboxed, problems: Sequence[Any]
) -> tuple[int, list[Finding]] | None:
    """Run a sequence in a process of its own up to the first problem that shows something: its number, and what."""
    examiner.afresh()
    for index, problem in enumerate(problems):
        findings, sound = shown(problem, problems[:index])
        if findings:
            return index, findings
        if not sound:
            return None
    return None


def _in_words(found: Finding, after: Sequence[Any], describe: Callable[[Any], str]) -> Finding:
    """A finding as one of `repeatability`, with the problems that came before it."""
    others = ", then ".join(f"({describe(problem)})" for problem in after)
    what = found.detail if found.clause == "repeatability" else f"{found.clause}: {found.detail}"
    detail = f"after {others}: {what}; alone in a new process the problem does not show this"
    return Finding("repeatability", found.tensor, found.elements, detail)


def _machine(search: SequenceSearch, problems: SearchStrategy[Any]) -> type[RuleBasedStateMachine]:
    """The rules by which a sequence grows. A sibling asks for something else of whoever goes by shapes or addresses."""
    limits = limits_of(search.kernel)
    back = st.integers(0, _STEPS - 1)
    siblings, smaller = changes(limits), reductions(limits)

    class Calls(RuleBasedStateMachine):
        """One process that is given one problem after the other."""

        def __init__(self) -> None:
            super().__init__()
            self.before: list[_Step] = []
            self.goes_on = True

        def call(self, step: _Step) -> None:
            if self.goes_on:
                self.goes_on = search.call(step, self.before)

        def change(self, back: int, change: Any) -> None:
            if self.before:
                step = self.before[-1 - back % len(self.before)]
                other = changed(step.problem, change, limits)
                self.call(_Step(other, step.root, (*step.changes, change)))

        @initialize(problem=problems)
        def first(self, problem: Any) -> None:
            self.call(_Step(problem, 0))

        @rule(problem=problems)
        def another(self, problem: Any) -> None:
            self.call(_Step(problem, len(self.before)))

        @rule(back=back)
        def again(self, back: int) -> None:
            if self.before:
                self.call(self.before[-1 - back % len(self.before)])

        @rule(back=back, change=siblings)
        def sibling(self, back: int, change: Any) -> None:
            self.change(back, change)

        @rule(change=siblings)
        def sibling_of_the_last(self, change: Any) -> None:
            self.change(0, change)

        @rule(back=back, change=smaller)
        def smaller_one(self, back: int, change: Any) -> None:
            self.change(back, change)

    return Calls
