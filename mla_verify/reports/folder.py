"""The folder of a report: report.json with everything that was found; written whole, read as mere data."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, cast

from mla_verify.cases import make_folder, versions, write_whole
from mla_verify.contracts import contract_named
from mla_verify.errors import UsageError
from mla_verify.report import Report, ReportedFinding
from mla_verify.reports.sources import SourcePlace, shown_path
from mla_verify.table import replay_line
from strategies.serial import problem_to_json

__all__ = [
    "CASES",
    "FORMAT",
    "REPORT",
    "list_of",
    "mapping_of",
    "read_extra",
    "read_report",
    "report_data",
    "write_report",
]

FORMAT: Final = 1
REPORT: Final = "report.json"
CASES: Final = "cases"
_LARGEST: Final = 512 * 2**20  # bytes of a report that is read


def write_report(reports: Sequence[Report], places: Sequence[SourcePlace | None], folder: Path) -> Path:
    """Write `folder`/report.json, whole or not at all; its path. Raises UsageError where it cannot be written."""
    make_folder(folder)
    path = folder / REPORT
    write_whole(path, json.dumps(report_data(reports, places), allow_nan=False) + "\n")
    return path


def report_data(reports: Sequence[Report], places: Sequence[SourcePlace | None]) -> dict[str, Any]:
    """What report.json holds: the objects of `--json`, with maps, histories and the lines that replay."""
    return {
        "format": FORMAT,
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["mla-verify", *sys.argv[1:]]),
        "environment": versions(),
        "kernels": [_kernel(report, place) for report, place in zip(reports, places, strict=True)],
    }


def _kernel(report: Report, place: SourcePlace | None) -> dict[str, Any]:
    return {
        **report.to_json(),
        "target": report.target,
        "source": None if place is None else {"file": shown_path(place.file), "line": place.line},
        "findings": [_finding(finding, report) for finding in report.findings],
    }


def _finding(finding: ReportedFinding, report: Report) -> dict[str, Any]:
    describe = contract_named(report.contract).describe
    return {
        "clause": finding.clause,
        "tensor": finding.tensor,
        "elements": finding.elements,
        "detail": finding.detail,
        "problem": finding.problem_text,
        "fields": problem_to_json(finding.problem),
        "after": [describe(problem) for problem in finding.after],
        "found_after": finding.found_after,
        "case": finding.case,
        "replay": None if finding.case is None else replay_line(finding.case, report.target),
        "history": list(finding.history),
        "maps": [element_map.to_json() for element_map in finding.maps],
    }


def read_report(folder: Path) -> dict[str, Any]:
    """What `write_report` wrote. Raises UsageError with one sentence for whatever is no report."""
    path = folder / REPORT
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; `mla-verify check TARGET --report {folder}` makes it")
    if not path.is_file():
        raise UsageError(f"{folder} holds no {REPORT}; `mla-verify check TARGET --report {folder}` writes it")
    data = _read(path)
    if not isinstance(data, dict) or "kernels" not in data:
        raise UsageError(f"{path} is no report: it is not an object with kernels in it")
    members = cast("dict[str, Any]", data)
    if members.get("format") != FORMAT:
        got = str(members.get("format"))[:40]
        raise UsageError(f"{path}: got format {got!r}, wanted {FORMAT}; another version of mla-verify wrote it")
    return members


def read_extra(folder: Path, name: str) -> Any | None:
    """The data of another file in the folder, such as scoreboard.json; None where there is none."""
    path = folder / name
    return _read(path) if path.is_file() else None


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > _LARGEST:
            raise UsageError(f"{path} has more than {_LARGEST} bytes, which is not read")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not whole JSON ({str(error)[:100]})") from error


def list_of(data: Mapping[str, Any], name: str) -> list[Any]:
    """A member that ought to be a list; empty where it is something else."""
    value = data.get(name)
    return cast("list[Any]", value) if isinstance(value, list) else []


def mapping_of(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A member that ought to be an object; empty where it is something else."""
    value = data.get(name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
