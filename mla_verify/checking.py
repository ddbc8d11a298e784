"""What `mla-verify check` does: resolves targets, checks each, several kernels at a time, prints table or JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mla_verify.cases import make_folder
from mla_verify.check import check
from mla_verify.crashes import shard_reports
from mla_verify.databases import NO_DATABASES, Databases
from mla_verify.devices import devices_of, resolve_device
from mla_verify.errors import INTERRUPTED, ExitCode
from mla_verify.isolation import Isolation
from mla_verify.kernel import Kernel
from mla_verify.merging import merged
from mla_verify.narrowing import narrowed
from mla_verify.progress import search_progress
from mla_verify.registry import registered, resolve
from mla_verify.report import Report, exit_code_of
from mla_verify.reports.publishing import cases_of, publish
from mla_verify.shards import Shard, run_shards
from mla_verify.table import print_reports

__all__ = ["CheckRequest", "check_targets"]

_COMPILED: Final = 200
_INTERPRETED: Final = 50  # every fault of a Triton kernel in the corpus shows within 5 (docs/scoreboard.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """What was asked of `check`. targets: all registered kernels where none is named.

    examples: valid problems per kernel; None for 200, or 50 of one that Triton's interpreter runs.
    processes: how many kernels are checked at a time, None for one per core or GPU. report, sarif: where else to write
    what was found.
    """

    targets: Sequence[str] = ()
    contract: str | None = None
    device: str = "cpu"
    examples: int | None = None
    seed: int = 0
    dtypes: tuple[str, ...] = ()
    known_excused: bool = True
    isolation: Isolation = "process"
    processes: int | None = None
    cases: Path | None = None
    databases: Databases = NO_DATABASES
    as_json: bool = False
    report: Path | None = None
    sarif: Path | None = None

    def examples_of(self, kernel: Kernel) -> int:
        """How many problems a kernel is checked on."""
        if self.examples is not None:
            return self.examples
        return _INTERPRETED if kernel.interpreted_on(resolve_device(self.device).type) else _COMPILED


def check_targets(request: CheckRequest) -> int:
    """Check the kernels and print what was found; the exit code of the command.

    With no names, kernels that are unavailable here are listed and do not count. The reports do not depend on how many
    kernels are checked at a time.
    """
    resolve_device(request.device)
    cases = cases_of(request.cases, request.report)
    found = [resolve(target, contract=request.contract) for target in request.targets] or list(registered())
    kernels = [narrowed(kernel, dtypes=request.dtypes, known_excused=request.known_excused) for kernel in found]
    devices = devices_of(request.device)[: request.processes]
    if min(len(kernels), len(devices)) < 2 or request.isolation == "none" or not all(one.target for one in kernels):
        reports, interrupted = _in_turn(kernels, request, cases), False
    else:
        reports, interrupted = _at_a_time(kernels, request, cases, devices)
    publish(reports, kernels, report=request.report, sarif=request.sarif)
    if request.as_json:
        print(json.dumps([report.to_json() for report in reports], indent=2))
    else:
        print_reports(reports)
    counted = reports if request.targets else [report for report in reports if report.unavailable is None]
    code = exit_code_of(counted)
    return INTERRUPTED if interrupted and code != ExitCode.VIOLATION else code


def _in_turn(kernels: Sequence[Kernel], request: CheckRequest, cases: Path | None) -> list[Report]:
    """One kernel after the other, from this process."""
    database = request.databases.open()
    reports: list[Report] = []
    for kernel in kernels:
        examples = request.examples_of(kernel)
        with search_progress(kernel.name, total=examples, quiet=request.as_json) as tell:
            reports.append(
                check(
                    kernel,
                    examples=examples,
                    seed=request.seed,
                    device=request.device,
                    progress=lambda done, _total, broken, tell=tell: tell(0, done, broken),
                    isolation=request.isolation,
                    cases=cases,
                    database=database,
                )
            )
    return reports


def _at_a_time(
    kernels: Sequence[Kernel], request: CheckRequest, cases: Path | None, devices: Sequence[str]
) -> tuple[list[Report], bool]:
    """A process for each of `devices`, and a kernel at a time for each; and whether an interrupt cut it short."""
    request.databases.open()  # one that cannot be opened is told now
    # What is interpreted takes longest, and is begun first: nobody waits for a single process at the end.
    order = sorted(range(len(kernels)), key=lambda index: not kernels[index].triton)
    shards = [_shard(index, kernels[index], request) for index in order]
    with tempfile.TemporaryDirectory() as scratch:
        folder = cases or Path(scratch)
        make_folder(folder)
        total = sum(shard.examples for shard in shards)
        with search_progress("check", total=total, quiet=request.as_json) as tell:
            results = run_shards(
                shards,
                devices=devices,
                isolation=request.isolation,
                folder=folder,
                until=None,
                tell=tell,
                databases=request.databases,
            )
        device = str(resolve_device(request.device))
        reports: list[Report] = []
        for index, kernel in enumerate(kernels):
            done = shard_reports(
                index, kernel, shards, results, folder=folder, device=device, cases_kept=cases is not None
            )
            if results.interrupted:
                why = "interrupted before any problem was run"
                merge = merged(kernel, done, [], device=device, seed=request.seed, nothing_ran=why, interrupted=True)
                done = [merge]
            reports += done
    return reports, results.interrupted


def _shard(index: int, kernel: Kernel, request: CheckRequest) -> Shard:
    assert kernel.target is not None
    return Shard(
        kernel=index,
        target=kernel.target,
        contract=kernel.contract,
        examples=request.examples_of(kernel),
        seed=request.seed,
        alone=kernel.in_process,
        dtypes=request.dtypes,
        known_excused=request.known_excused,
    )
