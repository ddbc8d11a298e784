"""Reports as Markdown for the summary page of a GitHub Actions run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from mla_verify.errors import UsageError
from mla_verify.report import Report
from mla_verify.reports.terminal import map_lines
from mla_verify.table import replay_line
from sanitizer.finding import CLAUSES

__all__ = ["github_summary_path", "summary_text", "write_github_summary"]

_MAP_WIDTH = 100  # characters; what the page shows without scrolling
_MARKS = {"pass": "✅", "fail": "❌ fail", "known": "known", "not checked": "not chk.", "unavailable": "unavailable"}


def github_summary_path() -> Path:
    """The file that GitHub Actions shows as the summary of a step. Raises UsageError outside of GitHub Actions."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        raise UsageError(
            "--github needs the variable GITHUB_STEP_SUMMARY, which GitHub Actions sets; leave it out here"
        )
    return Path(path)


def write_github_summary(reports: Sequence[Report], path: Path) -> None:
    """Append the summary to `path`: other steps of a job write there too."""
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(summary_text(reports))
    except OSError as error:
        raise UsageError(f"cannot write the summary {path}: {error.strerror}") from error


def summary_text(reports: Sequence[Report]) -> str:
    """A table kernel × clause, and below it every finding with the line that replays it."""
    return "\n".join(_lines(reports)) + "\n"


def _lines(reports: Sequence[Report]) -> Iterator[str]:
    yield "### mla-verify"
    yield ""
    if not reports:
        yield "No kernel to check."
        return
    yield f"| kernel | {' | '.join(CLAUSES)} | examples |"
    yield f"|---|{'---|' * len(CLAUSES)}---:|"
    for report in reports:
        cells = " | ".join(_MARKS[report.clauses[clause].verdict] for clause in CLAUSES)
        yield f"| {_cell(report.kernel)} | {cells} | {report.examples} |"
    for report in reports:
        details = list(_details(report))
        if details:
            yield from ("", f"**{_cell(report.kernel)}** ({report.contract}, {report.device})", "", *details)


def _details(report: Report) -> Iterator[str]:
    if report.unavailable is not None:
        yield f"* unavailable: {_code(report.unavailable)}"
        return
    for finding in report.findings:
        yield f"* {finding.clause}: {_code(finding.detail)}, smallest problem {_code(finding.problem_text)}"
        if finding.case is not None:
            yield f"  * {_code(replay_line(finding.case, report.target))}"
        lines = [line.plain for line in map_lines(finding.maps, finding.tensor, width=_MAP_WIDTH)]
        if lines:
            yield from ("", "  ```text", *(f"  {line.replace('`', chr(39))}" for line in lines), "  ```", "")
    for deviation in report.deviations:
        if deviation.state == "stale":
            yield f"* stale known deviation, to be deleted: {deviation.clause}, {_code(deviation.reason)}"
    for clause, verdict in report.clauses.items():
        if verdict.verdict in ("not checked", "known"):
            yield f"* {clause}: {verdict.verdict}: {_code(verdict.reason)}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _code(text: str) -> str:
    """Text that Markdown leaves as it is."""
    return f"`{' '.join(text.replace('`', chr(39)).split())}`"
