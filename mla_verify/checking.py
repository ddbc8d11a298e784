"""What `mla-verify check` does: resolves targets, checks them one after the other, prints table or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mla_verify.check import check
from mla_verify.databases import open_database
from mla_verify.devices import resolve_device
from mla_verify.errors import ExitCode, UsageError
from mla_verify.isolation import Isolation
from mla_verify.kernel import Kernel, limits_of
from mla_verify.progress import search_progress
from mla_verify.registry import registered, resolve
from mla_verify.report import Report, exit_code_of
from mla_verify.reports.publishing import cases_of, publish
from mla_verify.table import print_reports

__all__ = ["check_targets", "isolation_named"]


def check_targets(
    targets: Sequence[str],
    *,
    contract: str | None,
    device: str,
    examples: int,
    seed: int,
    dtypes: tuple[str, ...],
    known_excused: bool,
    isolation: Isolation,
    cases: Path | None,
    database: str | None,
    shared_database: str | None,
    as_json: bool,
    report: Path | None = None,
    sarif: Path | None = None,
) -> ExitCode:
    """Check the named kernels (all registered ones where none is named) and print what was found.

    With no names, kernels that are unavailable here are listed and do not count. report, sarif: where else to write it.
    """
    resolve_device(device)
    cases = cases_of(cases, report)
    remembered = open_database(database, shared=shared_database)
    kernels = [resolve(target, contract=contract) for target in targets] or list(registered())
    if dtypes:
        kernels = [_restricted(kernel, dtypes) for kernel in kernels]
    if not known_excused:
        kernels = [replace(kernel, known_deviations=()) for kernel in kernels]
    reports: list[Report] = []
    for kernel in kernels:
        with search_progress(kernel.name, total=examples, quiet=as_json) as tell:
            reports.append(
                check(
                    kernel,
                    examples=examples,
                    seed=seed,
                    device=device,
                    progress=lambda done, _total, broken, tell=tell: tell(0, done, broken),
                    isolation=isolation,
                    cases=cases,
                    database=remembered,
                )
            )
    publish(reports, kernels, report=report, sarif=sarif)
    if as_json:
        print(json.dumps([report.to_json() for report in reports], indent=2))
    else:
        print_reports(reports)
    counted = reports if targets else [report for report in reports if report.unavailable is None]
    return exit_code_of(counted)


def isolation_named(word: str) -> Isolation:
    """The isolation that a user asked for by name. Raises UsageError for another word."""
    if word not in ("process", "none"):
        raise UsageError(f"--isolation {word!r} is unknown; there are process and none")
    return word


def _restricted(kernel: Kernel, dtypes: tuple[str, ...]) -> Kernel:
    """The same kernel, asked for some of its dtypes only."""
    limits = limits_of(kernel)
    for dtype in dtypes:
        if dtype not in limits.dtypes:
            raise UsageError(f"{kernel.name} does not support dtype {dtype!r}; it supports {', '.join(limits.dtypes)}")
    return replace(kernel, limits=replace(limits, dtypes=dtypes))
