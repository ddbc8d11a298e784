"""Makes one report of a kernel's shards and saved cases: nothing that failed anywhere may be lost on the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from mla_verify.cases import weight_of
from mla_verify.declared import declarations_of
from mla_verify.kernel import Kernel
from mla_verify.replaying import Replayed
from mla_verify.report import (
    ClauseVerdict,
    DeviationReport,
    Report,
    ReportedFinding,
    Verdict,
    unavailable_report,
)
from sanitizer.finding import CLAUSES

__all__ = ["merged"]

_GRAVEST_FIRST: Final[tuple[Verdict, ...]] = ("fail", "known", "not checked", "pass")


def merged(
    kernel: Kernel,
    parts: Sequence[Report],
    replayed: Sequence[Replayed],
    *,
    device: str,
    seed: int,
    nothing_ran: str,
    interrupted: bool,
) -> Report:
    """The report of one kernel. Per clause the gravest verdict of all parts counts: fail, known, not checked, pass.

    A part in which no problem was run counts only where none was run at all; `nothing_ran` then says why. A saved case
    that still fails is a finding, one that cannot be run leaves its clause not checked. Where the search was
    interrupted, no clause passes.
    """
    unavailable = next((part.unavailable for part in parts if part.unavailable is not None), None)
    if unavailable is not None:
        return unavailable_report(kernel=kernel.name, contract=kernel.contract, device=device, reason=unavailable)
    ran = [part for part in parts if part.examples or part.findings]
    clauses = {clause: _gravest([part.clauses[clause] for part in ran], nothing_ran) for clause in CLAUSES}
    if interrupted:
        examples = sum(part.examples for part in ran)
        cut = ClauseVerdict("not checked", f"interrupted after {examples} examples")
        clauses = {clause: cut if verdict.verdict == "pass" else verdict for clause, verdict in clauses.items()}
    for case in replayed:
        _count_case(case, clauses)
    return Report(
        kernel=kernel.name,
        contract=kernel.contract,
        device=device,
        target=kernel.target,
        seed=seed,
        examples=sum(part.examples for part in ran),
        seconds=sum(part.seconds for part in parts),
        clauses=clauses,
        preconditions=kernel.preconditions,
        declarations=declarations_of(kernel),
        notes=tuple(dict.fromkeys((*kernel.notes, *_first_of_kind(parts), *_notes(replayed)))),
        not_judged=sum(part.not_judged for part in ran),
        findings=_smallest(
            [*(finding for part in parts for finding in part.findings), *filter(None, map(_finding_of, replayed))]
        ),
        deviations=_summed(ran),
        sequences=sum(part.sequences for part in ran),
    )


def _first_of_kind(parts: Sequence[Report]) -> Iterable[str]:
    """The parts' notes, of each kind the first: what stands before a colon is alike for every problem."""
    kinds: dict[str, str] = {}
    for part in parts:
        for note in part.notes:
            kinds.setdefault(note.split(":", 1)[0], note)
    return kinds.values()


def _gravest(verdicts: Sequence[ClauseVerdict], nothing_ran: str) -> ClauseVerdict:
    for word in _GRAVEST_FIRST:
        reasons = dict.fromkeys(verdict.reason for verdict in verdicts if verdict.verdict == word)
        if reasons:
            return ClauseVerdict(word, "; ".join(reason for reason in reasons if reason))
    return ClauseVerdict("not checked", nothing_ran)


def _count_case(case: Replayed, clauses: dict[str, ClauseVerdict]) -> None:
    """Let a saved case weigh in on the verdict of its clause."""
    saved_for = case.case.clause if case.case is not None else "survival"
    if case.finding is not None:
        clauses[case.finding.clause] = ClauseVerdict("fail")
    elif case.outcome == "cannot run here" and clauses[saved_for].verdict != "fail":
        clauses[saved_for] = ClauseVerdict("not checked", f"{case.path} cannot run here: {case.detail}")
    elif case.outcome == "known deviation" and clauses[saved_for].verdict not in ("fail", "not checked"):
        clauses[saved_for] = ClauseVerdict("known", case.detail)


def _finding_of(case: Replayed) -> ReportedFinding | None:
    if case.finding is None or case.case is None:
        return None
    return ReportedFinding(
        clause=case.finding.clause,
        tensor=case.finding.tensor,
        elements=case.finding.elements,
        detail=case.finding.detail,
        problem=case.case.problem,
        problem_text=case.problem_text,
        found_after=0,
        case=str(case.path),
        after=case.case.after,
        maps=case.maps,
    )


def _smallest(findings: Iterable[ReportedFinding]) -> tuple[ReportedFinding, ...]:
    """One finding per clause, at the smallest problem; the earliest of those, so that order alone decides nothing."""
    best: dict[str, ReportedFinding] = {}
    for finding in findings:
        known = best.get(finding.clause)
        if known is None or weight_of(finding.problem, finding.after) < weight_of(known.problem, known.after):
            best[finding.clause] = finding
    return tuple(best[clause] for clause in CLAUSES if clause in best)


def _summed(parts: Sequence[Report]) -> tuple[DeviationReport, ...]:
    """Known deviations with their counts added up: whether one is stale is asked of all problems together."""
    return tuple(
        replace(
            column[0],
            matched=sum(deviation.matched for deviation in column),
            deviated=sum(deviation.deviated for deviation in column),
        )
        for column in zip(*(part.deviations for part in parts), strict=True)
    )


def _notes(replayed: Sequence[Replayed]) -> list[str]:
    words = [case.outcome for case in replayed]
    return (
        [f"saved cases: {', '.join(f'{words.count(word)} {word}' for word in dict.fromkeys(words))}"] if words else []
    )
