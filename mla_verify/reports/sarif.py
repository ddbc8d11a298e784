"""Reports as SARIF 2.1.0, so that findings stand beside the kernel's source line where code is reviewed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from mla_verify.cases import versions, write_whole
from mla_verify.report import DeviationReport, Report, ReportedFinding
from mla_verify.reports.sources import SourcePlace, shown_path
from mla_verify.table import replay_line
from sanitizer.finding import CLAUSES

__all__ = ["PROMISES", "sarif_data", "write_sarif"]

PROMISES: Final = {
    "coverage": "A kernel writes every live output element.",
    "independence": "A kernel computes from its inputs alone.",
    "containment": "A kernel writes nothing but its outputs.",
    "agreement": "A kernel agrees with the oracle within the derived bound.",
    "layout": "A kernel leaves the caller's output tensor as it is.",
    "repeatability": "A kernel gives the same bits again.",
    "refusal": "A kernel refuses invalid problems, and only those, having written nothing.",
    "survival": "A kernel neither dies, hangs nor exits, nor touches memory beside its tensors.",
    "economy": "A kernel allocates no more than it declares.",
}
_SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def write_sarif(reports: Sequence[Report], places: Sequence[SourcePlace | None], path: Path) -> None:
    """Write the reports to `path`; `places` says where each one's kernel stands. Raises UsageError as `write_whole`."""
    write_whole(path, json.dumps(sarif_data(reports, places), indent=2) + "\n")


def sarif_data(reports: Sequence[Report], places: Sequence[SourcePlace | None]) -> dict[str, Any]:
    """The log: an error for each finding, a suppressed note for each known deviation that was seen."""
    results: list[dict[str, Any]] = []
    for report, place in zip(reports, places, strict=True):
        where = {} if place is None else {"locations": [_location(place)]}
        results += [{**result, **where} for result in _results(report)]
    driver = {
        "name": "mla-verify",
        "version": versions().get("mla-verify", "0"),
        "rules": [
            {
                "id": clause,
                "name": clause.capitalize(),
                "shortDescription": {"text": PROMISES[clause]},
                "defaultConfiguration": {"level": "error"},
            }
            for clause in CLAUSES
        ],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(reports)],
        "results": results,
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _results(report: Report) -> Iterator[dict[str, Any]]:
    for finding in report.findings:
        yield {
            "ruleId": finding.clause,
            "ruleIndex": CLAUSES.index(finding.clause),
            "level": "error",
            "kind": "fail",
            "message": {"text": _message(finding, report)},
            "partialFingerprints": {"mlaVerify/v1": _fingerprint(report.kernel, finding.clause, finding.tensor)},
            "properties": _properties(finding, report),
        }
    for deviation in report.deviations:
        if deviation.state in ("seen", "quarantined", "stale"):
            yield _deviation(deviation, report)


def _message(finding: ReportedFinding, report: Report) -> str:
    words = f"{finding.clause}: {finding.detail} ({finding.problem_text}) [{report.kernel}]"
    return words if finding.case is None else f"{words}  replay: {replay_line(finding.case, report.target)}"


def _properties(finding: ReportedFinding, report: Report) -> dict[str, Any]:
    known = {
        "kernel": report.kernel,
        "contract": report.contract,
        "device": report.device,
        "seed": report.seed,
        "tensor": finding.tensor,
        "elements": finding.elements,
        "problem": finding.problem_text,
        "case": finding.case,
    }
    return {name: value for name, value in known.items() if value is not None}


def _deviation(deviation: DeviationReport, report: Report) -> dict[str, Any]:
    count = f"{deviation.deviated} of {deviation.matched} matching problems deviated"
    stale = deviation.state == "stale"
    issue = f" ({deviation.issue})" if deviation.issue else ""
    kind = "stale known deviation, to be deleted" if stale else "known deviation"
    result: dict[str, Any] = {
        "ruleId": deviation.clause,
        "ruleIndex": CLAUSES.index(deviation.clause),
        "level": "error" if stale else "note",
        "kind": "fail",
        "message": {"text": f"{kind}: {deviation.reason}{issue}; {count} [{report.kernel}]"},
        "partialFingerprints": {"mlaVerify/v1": _fingerprint(report.kernel, deviation.clause, deviation.reason)},
    }
    if not stale:
        result["suppressions"] = [{"kind": "inSource", "justification": deviation.reason}]
    return result


def _invocation(reports: Sequence[Report]) -> dict[str, Any]:
    """The run itself: what was not checked is a notification, so that silence is not taken for success."""
    told = [
        {
            "level": "note",
            "message": {"text": f"{report.kernel}: {clause}: {verdict.verdict}: {verdict.reason}"},
            "associatedRule": {"id": clause, "index": CLAUSES.index(clause)},
        }
        for report in reports
        for clause, verdict in report.clauses.items()
        if verdict.verdict in ("not checked", "unavailable")
    ]
    return {"executionSuccessful": True, "toolExecutionNotifications": told}


def _location(place: SourcePlace) -> dict[str, Any]:
    shown = shown_path(place.file)
    artifact = {"uri": place.file.resolve().as_uri()} if Path(shown).is_absolute() else _relative(shown)
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": place.line}}}


def _relative(shown: str) -> dict[str, str]:
    from urllib.parse import quote

    return {"uri": quote(shown), "uriBaseId": "%SRCROOT%"}


def _fingerprint(*words: str) -> str:
    """What makes this finding the same one in the next run."""
    return hashlib.sha256("\n".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:32]
