"""What became of a kernel's shards, as reports: of a process that it has taken down, the problem in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mla_verify.cases import load_case, save_case
from mla_verify.contracts import contract_named
from mla_verify.errors import UsageError
from mla_verify.kernel import Kernel
from mla_verify.report import ClauseVerdict, Report, ReportedFinding
from mla_verify.shards import Crashed, Shard, ShardResults
from sanitizer.finding import CLAUSES

__all__ = ["shard_reports"]


def shard_reports(
    index: int,
    kernel: Kernel,
    shards: Sequence[Shard],
    results: ShardResults,
    *,
    folder: Path,
    device: str,
    cases_kept: bool,
) -> list[Report]:
    """The reports of one kernel's shards, those that were begun. cases_kept: `folder` outlives the search."""
    done = [(shard, results.done.get(place)) for place, shard in enumerate(shards) if shard.kernel == index]
    reports = [
        one if isinstance(one, Report) else _crash_report(kernel, shard, one, folder, device)
        for shard, one in done
        if one is not None
    ]
    return reports if cases_kept else [_without_cases(report) for report in reports]


def _crash_report(kernel: Kernel, shard: Shard, crash: Crashed, folder: Path, device: str) -> Report:
    """The report of a shard whose process a kernel has taken down: `survival`, at the problem that was in flight."""
    if crash.journal is None:
        raise UsageError(f"the process that was to examine {kernel.name} {crash.how} before it ran any problem")
    case = replace(load_case(crash.journal), detail=f"the kernel's process {crash.how}")
    path = save_case(case, folder)
    crash.journal.unlink(missing_ok=True)
    finding = ReportedFinding(
        clause="survival",
        tensor="",
        elements=0,
        detail=case.detail,
        problem=case.problem,
        problem_text=contract_named(kernel.contract).describe(case.problem),
        found_after=0,
        case=str(path),
        after=case.after,
    )
    clauses = {clause: ClauseVerdict("not checked", case.detail) for clause in CLAUSES}
    return Report(
        kernel=kernel.name,
        contract=kernel.contract,
        device=device,
        seed=shard.seed,
        examples=0,
        seconds=0.0,
        clauses={**clauses, "survival": ClauseVerdict("fail")},
        findings=(finding,),
    )


def _without_cases(report: Report) -> Report:
    """The same report; its cases lie in a folder that nobody asked for."""
    return replace(report, findings=tuple(replace(finding, case=None) for finding in report.findings))
