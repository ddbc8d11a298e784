"""Reports for a terminal: the table kernel × clause, and below it what each kernel needs, deviates in and breaks."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mla_verify.report import ClauseVerdict, Report
from mla_verify.reports.terminal import map_lines
from sanitizer.finding import CLAUSES

__all__ = ["console", "print_reports", "replay_line"]

_PLAIN_WIDTH: Final = 150  # columns where the output is no terminal: a log is not wrapped by a screen
_STYLES: Final = {"pass": "green", "fail": "bold red", "known": "yellow", "not checked": "dim", "unavailable": "dim"}
_WORDS: Final = {"fail": "FAIL", "not checked": "not chk.", "unavailable": "unavail."}


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal, or of a fixed width and without colour where there is none."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _PLAIN_WIDTH, highlight=False)


def print_reports(reports: Sequence[Report], *, to: Console | None = None) -> None:
    """Print the table and the paragraphs below it."""
    out = to or console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("kernel", overflow="fold")
    for clause in CLAUSES:
        table.add_column(clause, no_wrap=True)
    table.add_column("examples", justify="right")
    table.add_column("seconds", justify="right")
    for report in reports:
        cells = [_cell(report.clauses[clause]) for clause in CLAUSES]
        table.add_row(Text(report.kernel), *cells, str(report.examples), f"{report.seconds:.1f}")
    out.print(table)
    for report in reports:
        lines = list(_paragraph(report, width=out.width))
        if lines:
            out.print()
            out.print(Text(f"{report.kernel} ({report.contract}, {report.device})", style="bold"))
            for line in lines:
                out.print(line, soft_wrap=True)


def _cell(verdict: ClauseVerdict) -> Text:
    return Text(_WORDS.get(verdict.verdict, verdict.verdict), style=_STYLES[verdict.verdict])


def _paragraph(report: Report, *, width: int) -> list[Text]:
    """What stands below the table about one kernel; only the maps are made to fit the width."""
    if report.unavailable is not None:
        return [Text(f"  unavailable: {report.unavailable}")]
    lines: list[Text] = []
    for finding in report.findings:
        lines.append(Text(f"  {finding.clause}: {finding.detail}", style="red"))
        lines.append(Text(f"    smallest problem: {finding.problem_text}"))
        if finding.found_after:
            lines.append(Text(f"    first seen after {finding.found_after} examples; {_again(report)}"))
        if finding.case is not None:
            lines.append(Text(f"    replay: {replay_line(finding.case, report.target)}"))
        lines += [Text("    ") + line for line in map_lines(finding.maps, finding.tensor, width=width - 4)]
    for deviation in report.deviations:
        issue = f" ({deviation.issue})" if deviation.issue else ""
        count = f"{deviation.deviated} of {deviation.matched} matching problems deviated"
        words = {
            "seen": f"known deviation, {count}",
            "quarantined": f"known deviation, quarantined: {deviation.matched} problems not launched",
            "not exercised": f"known deviation, not exercised: {deviation.matched} matching problems",
            "stale": f"STALE known deviation: {deviation.matched} matching problems ran and none deviated; delete "
            f"this KnownDeviation from the registration of {report.kernel}",
        }[deviation.state]
        style = "red" if deviation.state == "stale" else "yellow"
        lines.append(Text(f"  {deviation.clause}: {words}: {deviation.reason}{issue}", style=style))
    lines += [Text(f"  {line}", style="dim") for line in _not_checked(report)]
    if report.preconditions:
        lines.append(Text(f"  preconditions, for the caller to keep: {', '.join(report.preconditions)}"))
    if report.declarations:
        lines.append(Text(f"  declares: {', '.join(report.declarations)}"))
    if report.sequences:
        lines.append(Text(f"  repeatability: looked at over {report.sequences} sequences of problems as well"))
    lines += [Text(f"  note: {note}") for note in report.notes]
    if report.not_judged:
        lines.append(Text(f"  {report.not_judged} output elements not judged: no usable bound exists for them"))
    return lines


def replay_line(case: str, target: str | None) -> str:
    """The command that runs a case again; a kernel that is not ours has to be named, as no case may import one."""
    kernel = f" --kernel {shlex.quote(target)}" if target is not None and ":" in target else ""
    return f"mla-verify replay {shlex.quote(case)}{kernel}"


def _not_checked(report: Report) -> list[str]:
    """One line for each reason why clauses have not been checked."""
    by_reason: dict[str, list[str]] = {}
    for clause, verdict in report.clauses.items():
        if verdict.verdict == "not checked":
            by_reason.setdefault(verdict.reason, []).append(clause)
    return [f"{', '.join(clauses)}: not checked: {reason}" for reason, clauses in by_reason.items()]


def _again(report: Report) -> str:
    """The command that draws the same problems again."""
    target = shlex.quote(report.target or report.kernel)
    return f"again: mla-verify check {target} --contract {report.contract} --seed {report.seed}"
