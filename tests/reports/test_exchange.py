"""What other programs read: JUnit XML and SARIF keep their schemas, whatever a kernel says; Markdown stays Markdown."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import xmlschema

from mla_verify.github_summary import summary_text
from mla_verify.junit import junit_text
from mla_verify.kernel import Kernel
from mla_verify.registry import resolve
from mla_verify.report import ClauseVerdict, DeviationReport, Report, unavailable_report
from mla_verify.reports.sarif import sarif_data, write_sarif
from mla_verify.reports.sources import SourcePlace, place_of, shown_path
from sanitizer.finding import CLAUSES
from tests.reports.made import MARKUP, finding, report
from tests.reports.sarif import SCHEMA

_XSD = Path(__file__).with_name("junit.xsd")
_NASTY = f"{MARKUP} \x00\x1b[31m \ud800 ]]> `code` |"


def every_kind() -> list[Report]:
    """A report with each clause broken and each kind of deviation, one of a right kernel, one of an unavailable one."""
    broken = report(
        _NASTY,
        *(finding(clause, detail=_NASTY, problem_text=_NASTY) for clause in CLAUSES),
        notes=(_NASTY,),
        preconditions=("aligned_16",),
        deviations=tuple(
            DeviationReport("agreement", f"{_NASTY} {matched}", "https://example.org/1", matched, deviated, quarantined)
            for matched, deviated, quarantined in ((60, 3, False), (60, 0, False), (4, 0, True), (2, 0, False))
        ),
    )
    right = report("right", clauses={**report().clauses, "layout": ClauseVerdict("known", "as declared")})
    absent = unavailable_report(kernel="absent", contract="decode", device="cuda", reason=_NASTY)
    return [broken, right, absent]


def places(count: int) -> list[SourcePlace | None]:
    """A place for every report but the last."""
    return [*([SourcePlace(Path(__file__), 7)] * (count - 1)), None]


def test_junit_keeps_its_schema() -> None:
    """Counts, properties and outcomes stand where CI systems look for them."""
    schema = xmlschema.XMLSchema(str(_XSD))
    text = junit_text(every_kind())
    schema.validate(text)
    assert text.count("<failure") == len(CLAUSES) + 1  # a stale deviation fails, too
    assert '<property name="precondition" value="aligned_16" />' in text
    assert "map of" in text


@pytest.mark.parametrize(
    "wrong", ['<testsuites><testcase name="a" classname="b"/></testsuites>', "<testsuites><x/></testsuites>"]
)
def test_the_schema_of_junit_refuses_something(wrong: str) -> None:
    """The test above can fail."""
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        xmlschema.XMLSchema(str(_XSD)).validate(wrong)


def test_sarif_keeps_its_schema(tmp_path: Path) -> None:
    """Every result has a rule, a level and a message; locations point at the kernel's line."""
    reports = every_kind()
    data = sarif_data(reports, places(len(reports)))
    jsonschema.Draft7Validator(SCHEMA).validate(data)
    (run,) = data["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(CLAUSES)
    assert all(run["tool"]["driver"]["rules"][one["ruleIndex"]]["id"] == one["ruleId"] for one in run["results"])
    errors = [one for one in run["results"] if one["level"] == "error"]
    assert len(errors) == len(CLAUSES) + 1  # a stale deviation fails, too
    assert all("suppressions" in one for one in run["results"] if one["level"] == "note")
    told = [one["message"]["text"] for one in run["invocations"][0]["toolExecutionNotifications"]]
    assert "right: economy: not checked: nothing is declared" in told
    write_sarif(reports, places(len(reports)), tmp_path / "out.sarif")
    assert (tmp_path / "out.sarif").stat().st_size > 1000


@pytest.mark.parametrize(
    "change", [{"version": "2.0.0"}, {"runs": []}, {"runs": [{"results": []}]}, {"extra": 1}], ids=str
)
def test_the_schema_of_sarif_refuses_something(change: dict[str, Any]) -> None:
    """The test above can fail."""
    data = {**sarif_data([report()], [None]), **change}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(SCHEMA).validate(data)


def test_a_finding_stands_at_the_kernels_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place is the callable's own, seen from the current folder, decorated or not."""
    file = tmp_path / "my kernels" / "mine.py"
    file.parent.mkdir()
    file.write_text(
        "import functools\n\n\ndef plain(x, w_uv, out, **_):\n    pass\n\n\n"
        "@functools.wraps(plain)\ndef wrapped(**rest):\n    pass\n\n\n"
        "class Callable:\n    def __call__(self, x, w_uv, out, **_):\n        pass\n\n\ninstance = Callable()\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    lines: dict[str, int] = {}
    for name in ("plain", "wrapped", "instance"):
        place = place_of(resolve(f"{file}:{name}", contract="up-projection"))
        assert place is not None
        assert shown_path(place.file) == "my kernels/mine.py"
        lines[name] = place.line
    assert lines == {"plain": 4, "wrapped": 4, "instance": 13}
    data = sarif_data([report("k", finding())], [SourcePlace(file, 4)])
    (location,) = data["runs"][0]["results"][0]["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "my%20kernels/mine.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 4},
    }


def test_what_has_no_source_has_no_place() -> None:
    """A built-in function stands nowhere."""
    built_in: Any = functools.partial(print)
    assert place_of(Kernel(name="k", contract="decode", load=lambda: built_in)) is None


def test_fingerprints_stay_the_same_while_the_problem_changes() -> None:
    """A finding is the same one when another problem shows it, and another one under another clause."""
    one, same, other = (
        sarif_data([report("k", each)], [None])["runs"][0]["results"][0]["partialFingerprints"]
        for each in (finding(), finding(problem_text="num_tokens=7", detail="elsewhere"), finding("layout"))
    )
    assert one == same != other


def test_a_summary_shows_the_map_and_nothing_ends_its_code() -> None:
    """The map stands in a block of its own; a kernel's backticks do not end it."""
    text = summary_text([report("k", finding(detail="``` # heading", tensor="out"))])
    assert text.count("```") == 2
    assert "map of" in text
