"""What `mla-verify gate` does: saved cases first, then a search on all cores, a verdict per kernel, an exit code."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mla_verify.cases import Case, case_files, load_case, make_folder
from mla_verify.changes import changed_files, is_touched
from mla_verify.crashes import shard_reports
from mla_verify.devices import devices_of, resolve_device
from mla_verify.errors import INTERRUPTED, ExitCode, UsageError
from mla_verify.github_summary import github_summary_path, write_github_summary
from mla_verify.isolation import Isolation
from mla_verify.junit import write_junit
from mla_verify.kernel import Kernel
from mla_verify.merging import merged
from mla_verify.progress import search_progress
from mla_verify.registry import resolve
from mla_verify.replaying import Replayed, Replayer, is_case_of
from mla_verify.report import Report
from mla_verify.reports.publishing import cases_of, publish
from mla_verify.shards import SHARDS, Shard, ShardResults, run_shards, shards_of
from mla_verify.table import print_reports

__all__ = ["GateRequest", "gate", "seconds_of"]

_ENDLESS: Final = 1_000_000  # examples per kernel where time alone ends the search
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequest:
    """What was asked of the gate. Exactly one of `budget` (seconds) and `examples` (per kernel) ends the search."""

    targets: Sequence[str]
    contract: str | None = None
    device: str = "cpu"
    since: str | None = None
    cases: Path | None = None
    budget: float | None = None
    examples: int | None = None
    seed: int = 0
    isolation: Isolation = "process"
    junit: Path | None = None
    report: Path | None = None
    sarif: Path | None = None
    github: bool = False
    as_json: bool = False


@dataclass(slots=True, eq=False)
class _Progress:
    """How far a gate has come, so that an interrupt loses nothing of it."""

    replayed: list[list[Replayed]]
    results: ShardResults = field(default_factory=ShardResults)


def gate(request: GateRequest) -> int:
    """Run the gate, print its table (or JSON) and return the exit code. Raises UsageError before anything has run."""
    started = time.monotonic()
    device = str(resolve_device(request.device))
    summary = github_summary_path() if request.github else None
    kept = cases_of(request.cases, request.report)
    kernels = [resolve(target, contract=request.contract) for target in request.targets]
    if request.since is not None:
        changed = changed_files(request.since)
        unchanged = [kernel.name for kernel in kernels if not is_touched(kernel, changed)]
        kernels = [kernel for kernel in kernels if is_touched(kernel, changed)]
        if unchanged:
            _say(f"unchanged since {request.since}, not run: {', '.join(unchanged)}")
    saved = _saved_cases(request.cases, kernels)
    until = None if request.budget is None else started + request.budget
    with tempfile.TemporaryDirectory() as scratch:
        folder = kept or Path(scratch)
        make_folder(folder)
        so_far = _Progress([[] for _ in kernels])
        shards = _shards(kernels, request)
        try:
            _replay(saved, kernels, request, so_far)
            _search(shards, request, folder, until, so_far)
        except KeyboardInterrupt:
            so_far.results.interrupted = True
        reports = [
            _report(index, kernel, shards, so_far, request, folder, device) for index, kernel in enumerate(kernels)
        ]
    _publish(reports, kernels, request, summary)
    return _exit_code(reports, so_far)


def seconds_of(duration: str) -> float:
    """The seconds in "120s", "5m", "1h" or "90". Raises UsageError for anything else, and for no time at all."""
    match = _DURATION.fullmatch(duration.strip())
    seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
    if seconds <= 0:
        raise UsageError(f"--budget {duration!r} is no time; write seconds, minutes or hours, such as 120s, 5m or 1h")
    return seconds


def _saved_cases(folder: Path | None, kernels: Sequence[Kernel]) -> list[tuple[int, Path, Case]]:
    """The saved cases of these kernels, each with its kernel's place. One that cannot be read ends the gate."""
    if folder is None or not folder.exists():
        return []
    found: list[tuple[int, Path, Case]] = []
    others = 0
    for path in case_files([folder]):
        case = load_case(path)
        own = [index for index, kernel in enumerate(kernels) if is_case_of(case, kernel)]
        found += [(index, path, case) for index in own]
        others += not own
    if others:
        _say(f"{others} saved case{'s' if others > 1 else ''} of other kernels in {folder}, not run")
    return found


def _shards(kernels: Sequence[Kernel], request: GateRequest) -> list[Shard]:
    """All shards, a first of every kernel before a second of any: under a budget each kernel gets its turn.

    Under a budget there are no more than keep every process busy: each begins with seconds of loading.
    """
    busy = -(-len(devices_of(request.device)) // max(len(kernels), 1))
    per_kernel = [
        shards_of(
            index,
            target=kernel.target or kernel.name,
            contract=kernel.contract,
            examples=request.examples or _ENDLESS,
            seed=request.seed,
            alone=request.isolation == "none" or kernel.in_process,
            shards=SHARDS if request.examples else min(SHARDS, busy),
        )
        for index, kernel in enumerate(kernels)
    ]
    most = max(map(len, per_kernel), default=0)
    return [shards[turn] for turn in range(most) for shards in per_kernel if turn < len(shards)]


def _replay(
    saved: Sequence[tuple[int, Path, Case]], kernels: Sequence[Kernel], request: GateRequest, so_far: _Progress
) -> None:
    """Run every saved case, whatever the budget: a known failure must not pass because time ran out."""
    replayer = Replayer(device=request.device, isolation=request.isolation)
    try:
        for index, path, case in saved:
            so_far.replayed[index].append(replayer(path, case, kernels[index]))
    finally:
        replayer.close()


def _search(
    shards: Sequence[Shard], request: GateRequest, folder: Path, until: float | None, so_far: _Progress
) -> None:
    total = request.examples * len({shard.kernel for shard in shards}) if request.examples else None
    with search_progress("gate", total=total, until=until, quiet=request.as_json) as tell:
        so_far.results = run_shards(
            shards,
            devices=devices_of(request.device),
            isolation=request.isolation,
            folder=folder,
            until=until,
            tell=tell,
        )


def _report(
    index: int,
    kernel: Kernel,
    shards: Sequence[Shard],
    so_far: _Progress,
    request: GateRequest,
    folder: Path,
    device: str,
) -> Report:
    """One kernel's report, of its shards and its saved cases."""
    parts = shard_reports(
        index,
        kernel,
        shards,
        so_far.results,
        folder=folder,
        device=device,
        cases_kept=request.cases is not None or request.report is not None,
    )
    interrupted = so_far.results.interrupted
    return merged(
        kernel,
        parts,
        so_far.replayed[index],
        device=device,
        seed=request.seed,
        nothing_ran="interrupted before any problem was run"
        if interrupted
        else "the budget ended before any problem was run",
        interrupted=interrupted,
    )


def _publish(reports: Sequence[Report], kernels: Sequence[Kernel], request: GateRequest, summary: Path | None) -> None:
    publish(reports, kernels, report=request.report, sarif=request.sarif)
    if request.junit is not None:
        write_junit(reports, request.junit)
    if summary is not None:
        write_github_summary(reports, summary)
    if request.as_json:
        print(json.dumps([report.to_json() for report in reports], indent=2))
    elif reports:
        print_reports(reports)
    else:
        print("no kernel to check")


def _exit_code(reports: Sequence[Report], so_far: _Progress) -> int:
    """1 where something is broken, whatever else is the case; a search that never came to run is no success."""
    codes = [report.exit_code for report in reports]
    codes += [case.exit_code for cases in so_far.replayed for case in cases]
    if ExitCode.VIOLATION in codes:
        return ExitCode.VIOLATION
    if so_far.results.interrupted:
        return INTERRUPTED
    idle = [report.kernel for report in reports if report.unavailable is None and not report.examples]
    if idle:
        _say(f"the budget ended before any problem of {', '.join(idle)} was run; give more with --budget")
        return ExitCode.USAGE
    return ExitCode.of_several(codes)


def _say(sentence: str) -> None:
    print(f"mla-verify: {sentence}", file=sys.stderr)
