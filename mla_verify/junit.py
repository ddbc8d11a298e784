"""Reports as JUnit XML: one test case per kernel and clause, as CI systems read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as Xml

from mla_verify.cases import versions, write_whole
from mla_verify.report import Report
from mla_verify.reports.terminal import map_lines
from mla_verify.table import replay_line

__all__ = ["junit_text", "write_junit"]

_MAP_WIDTH: Final = 100  # characters; what a CI system shows of a failure without scrolling

# What XML 1.0 has no way to say; a kernel may have put anything into its message.
_UNSPEAKABLE: Final = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")


def write_junit(reports: Sequence[Report], path: Path) -> None:
    """Write the reports to `path`. Raises UsageError where it cannot be written."""
    write_whole(path, junit_text(reports))


def junit_text(reports: Sequence[Report]) -> str:
    """The XML. Only `pass` and `known` are successes; what was not checked or is unavailable is skipped, with why."""
    root = Xml.Element("testsuites", name="mla-verify")
    for report in reports:
        suite = Xml.SubElement(root, "testsuite", name=_said(f"{report.kernel} ({report.contract}, {report.device})"))
        _add_properties(suite, report)
        for clause, verdict in report.clauses.items():
            case = _case(suite, report, clause)
            if verdict.verdict == "fail":
                _fail(case, report, clause)
            elif verdict.verdict in ("not checked", "unavailable"):
                Xml.SubElement(case, "skipped", message=_said(f"{verdict.verdict}: {verdict.reason}"))
            elif verdict.verdict == "known":
                Xml.SubElement(case, "system-out").text = _said(f"known deviation: {verdict.reason}")
        for deviation in report.deviations:
            if deviation.state == "stale":
                case = _case(suite, report, f"known deviation of {deviation.clause}: {deviation.reason}")
                words = f"stale: {deviation.matched} matching problems ran and none deviated; delete the declaration"
                Xml.SubElement(case, "failure", message=_said(words))
        cases = suite.findall("testcase")
        suite.set("tests", str(len(cases)))
        suite.set("errors", "0")
        suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
        suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
        suite.set("time", f"{report.seconds:.3f}")
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _add_properties(suite: Xml.Element, report: Report) -> None:
    """What a reader of the verdicts has to know beside them."""
    told: list[tuple[str, object]] = [
        ("contract", report.contract),
        ("device", report.device),
        ("seed", report.seed),
        ("examples", report.examples),
        ("not_judged", report.not_judged),
        *(("precondition", word) for word in report.preconditions),
        *(("declares", word) for word in report.declarations),
        *(("note", note) for note in report.notes),
        *((f"version.{name}", version) for name, version in versions().items()),
    ]
    properties = Xml.SubElement(suite, "properties")
    for name, value in told:
        Xml.SubElement(properties, "property", name=name, value=_said(str(value)))


def _case(suite: Xml.Element, report: Report, name: str) -> Xml.Element:
    return Xml.SubElement(suite, "testcase", classname=_said(report.kernel), name=_said(name))


def _fail(case: Xml.Element, report: Report, clause: str) -> None:
    findings = [finding for finding in report.findings if finding.clause == clause]
    first = findings[0].detail if findings else clause
    failure = Xml.SubElement(case, "failure", message=_said(first), type=clause)
    lines: list[str] = []
    for finding in findings:
        lines += [finding.detail, f"smallest problem: {finding.problem_text}"]
        if finding.case is not None:
            lines.append(f"replay: {replay_line(finding.case, report.target)}")
        lines += [line.plain for line in map_lines(finding.maps, finding.tensor, width=_MAP_WIDTH)]
    failure.text = _said("\n".join(lines))


def _said(text: str) -> str:
    return _UNSPEAKABLE.sub("\N{REPLACEMENT CHARACTER}", text)
