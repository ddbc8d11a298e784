"""Writes what was found to where a command was told to: a report's folder, a SARIF file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mla_verify.cases import make_folder
from mla_verify.errors import UsageError
from mla_verify.kernel import Kernel
from mla_verify.report import Report
from mla_verify.reports.folder import CASES, write_report
from mla_verify.reports.sarif import write_sarif
from mla_verify.reports.sources import place_of

__all__ = ["cases_of", "publish"]


def cases_of(cases: Path | None, report: Path | None) -> Path | None:
    """Where failures are saved: where it was asked for, else in the folder of the report, which is made.

    Raises UsageError, before anything has run, where the folder cannot be made.
    """
    if report is not None:
        if report.exists() and not report.is_dir():
            raise UsageError(f"--report {report} is a file; name a folder, which is made where there is none")
        make_folder(report)
    return cases if cases is not None or report is None else report / CASES


def publish(reports: Sequence[Report], kernels: Sequence[Kernel], *, report: Path | None, sarif: Path | None) -> None:
    """Write the report of each kernel. Raises UsageError where something cannot be written."""
    if report is None and sarif is None:
        return
    places = [place_of(kernel) for kernel in kernels]
    if report is not None:
        write_report(reports, places, report)
    if sarif is not None:
        write_sarif(reports, places, sarif)
