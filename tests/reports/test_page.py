"""The page: everything on it is text, whatever a kernel calls itself; it stays small, and says what it leaves out."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pytest

from mla_verify.errors import UsageError
from mla_verify.report import DeviationReport, Report
from mla_verify.reports.folder import REPORT, read_report, report_data, write_report
from mla_verify.reports.page import page_text, write_page
from mla_verify.reports.page_tables import tables_of
from sanitizer.finding import CLAUSES
from tests.reports.made import MARKUP, finding, map_of, report

_OUR_SCRIPTS: Final = {None, "application/json"}


class Elements(HTMLParser):
    """What a browser would make of a page: its elements, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.said.append(data)


def page_of(tmp_path: Path, *reports: Report) -> str:
    """The page of some reports."""
    write_report(reports, [None] * len(reports), tmp_path)
    return write_page(tmp_path).read_text(encoding="utf-8")


def test_markup_from_a_kernel_is_text(tmp_path: Path) -> None:
    """A name, a detail, a problem, a note or a program that looks like markup makes no element and no script."""
    odd = finding(
        detail=MARKUP,
        problem_text=MARKUP,
        tensor=MARKUP,
        history=(MARKUP, MARKUP, "num_tokens=2"),
        maps=(map_of(tensor=MARKUP, program=MARKUP),),
        case=f"cases/{MARKUP}.json",
    )
    known = DeviationReport("economy", MARKUP, MARKUP, 60, 2, False)
    named = report(MARKUP, odd, notes=(MARKUP,), preconditions=(MARKUP,), deviations=(known,), target=MARKUP)
    whole = page_of(tmp_path, named)
    plain = Elements(
        page_of(tmp_path, report("plain", finding(), notes=("n",), preconditions=("p",), deviations=(known,)))
    )
    found = Elements(whole)
    assert [tag for tag, _ in found.seen] == [tag for tag, _ in plain.seen]
    assert {attributes.get("type") for tag, attributes in found.seen if tag == "script"} == _OUR_SCRIPTS
    assert not any("onerror" in attributes for _, attributes in found.seen)
    assert "".join(found.said).count(MARKUP) >= 8
    assert "{{ 7 * 7 }}" in whole


def test_what_utf8_cannot_say_is_replaced(tmp_path: Path) -> None:
    """Half a surrogate pair, a NUL or an escape sequence in a message keeps no page from being written."""
    assert 'class="finding"' in page_of(tmp_path, report("\ud800", finding(detail="\x00 \x1b[31m \udfff")))


def test_data_for_the_script_cannot_end_its_element(tmp_path: Path) -> None:
    """Inside the JSON of a map no "<" is left, and it is read back as it was."""
    whole = page_of(tmp_path, report("k", finding(maps=(map_of(program=MARKUP),))))
    islands = re.findall(r'<script type="application/json">(.*?)</script>', whole, re.DOTALL)
    assert islands
    assert not any("<" in one for one in islands)
    words = [word for one in islands for word in json.loads(one)["words"]]
    assert f"{MARKUP} program 1" in words


def test_the_page_runs_nothing_but_its_own_script(tmp_path: Path) -> None:
    """Its policy names the one script and the one style by their digests, and no address is fetched."""
    whole = page_of(tmp_path, report("k", finding()))
    policy = next(one["content"] for tag, one in Elements(whole).seen if one.get("http-equiv") and tag == "meta")
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    linked = [one.get("src") or one.get("href") or "" for _, one in Elements(whole).seen]
    assert all(link.startswith(("data:", "#")) for link in linked if link)


def test_the_facts_are_there_without_a_script(tmp_path: Path) -> None:
    """Verdicts, the problem, the lines to type, the legend, the image and what was not checked are plain HTML."""
    whole = page_of(tmp_path, report("k", finding(), preconditions=("aligned_16",), not_judged=17))
    bare = re.sub(r"<script.*?</script>", "", whole, flags=re.DOTALL)
    said = " ".join(" ".join(Elements(bare).said).split())
    for fact in (
        "num_tokens=2",
        "mla-verify replay cases/kernel.coverage.0123456789ab.json --kernel kernels/mine.py:my_kernel",
        "mla-verify check kernels/mine.py:my_kernel --contract up-projection --seed 0",
        "unwritten 12",
        "aligned_16",
        "17 output elements",
        "not checked: nothing is declared",
        "3 failing problems",
        "num_tokens=9",
    ):
        assert fact in said, fact
    assert bare.count('src="data:image/png;base64,') == 3  # memory, elements, programs


def many(count: int) -> list[Report]:
    """Reports with so many findings, each with a map and words of a common length."""
    detail = "out[0:3, 0, 4:8] never written: still the secret in every run " + "x" * 80
    problem = "num_tokens=16, num_heads=3, kv_lora_rank=17, v_head_dim=40, out_layout=padded_rows(pad=3), seed=12345"
    return [
        report(
            f"kernel_{number}",
            *(finding(clause, detail=detail, problem_text=problem, history=(problem,) * 20) for clause in CLAUSES),
        )
        for number in range(-(-count // len(CLAUSES)))
    ]


def test_ten_thousand_findings_stay_under_ten_megabytes(tmp_path: Path) -> None:
    """Every finding is on the page, in few words; maps as long as there is room, and the page says what is missing."""
    reports = many(10_000)
    whole = page_of(tmp_path, *reports)
    total = sum(len(one.findings) for one in reports)
    assert len(whole.encode()) < 10_000_000
    assert whole.count('class="finding"') == total >= 10_000
    assert 0 < whole.count("<figure") < total
    assert re.search(r"The maps of \d+ findings did not fit on this page", whole)


def test_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    """With more findings than a page can bear, it is still under 10 MB and says how many are missing."""
    whole = page_of(tmp_path, *many(18_000))
    assert len(whole.encode()) < 10_000_000
    left_out = re.search(r"(\d+) more findings did not fit", whole)
    assert left_out is not None
    assert whole.count('class="finding"') + int(left_out[1]) == 18_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "holds no report.json"),
        ("", "not whole JSON"),
        ("[]", "is no report"),
        ('{"kernels": [], "format": 99}', "another version"),
        ('{"kernels": [{"findings": [{"clause": "nonsense"}]}], "format": 1}', "got the clause"),
        ('{"kernels": [{"findings": [{"clause": "layout", "maps": [{"tensor": "o"}]}]}], "format": 1}', "no map"),
    ],
)
def test_what_is_no_report_gets_one_sentence(tmp_path: Path, text: str | None, words: str) -> None:
    """A folder without a report, half a file, another version or a broken map end with exit code 2's exception."""
    if text is not None:
        (tmp_path / REPORT).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=words):
        write_page(tmp_path)


def test_a_map_that_unfolds_without_end_is_refused(tmp_path: Path) -> None:
    """A few kilobytes that claim to be gigabytes are no map."""
    import base64
    import zlib

    data = report_data([report("k", finding())], [None])
    bomb = zlib.compress(b"\0" * (1 << 27), 9)
    data["kernels"][0]["findings"][0]["maps"][0]["codes"] = base64.b64encode(bomb).decode()
    (tmp_path / REPORT).write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(UsageError, match="no map"):
        write_page(tmp_path)


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Maps come back from report.json with every byte."""
    from mla_verify.maps import ElementMap

    write_report([report("k", finding())], [None], tmp_path)
    (kernel,) = read_report(tmp_path)["kernels"]
    assert ElementMap.from_json(kernel["findings"][0]["maps"][0]) == map_of()


@pytest.mark.parametrize(
    ("data", "tables"),
    [
        ([{"fault": "a", "found": {"ours": True, "asan": False}}], [(("fault", "found ours", "found asan"), 1)]),
        ({"rows": [{"a": 1.23456}], "seed": 3}, [(("a",), 1), (("what", "value"), 1)]),
        ({"seconds": 2}, [(("what", "value"), 1)]),
        (
            [{"name": "a", "cells": {"ours": {"found_after": 3}, "nan": {"found_after": None}}}],
            [(("name", "ours", "nan"), 1)],
        ),
        (
            [{"kernel": "k", "properties": [{"name": "in bounds", "verdict": "proven"}]}],
            [(("kernel", "properties"), 1)],
        ),
        ("nonsense", []),
        ([1, 2], []),
    ],
)
def test_other_tables_are_shown_whatever_their_form(data: Any, tables: list[tuple[tuple[str, ...], int]]) -> None:
    """Lists of objects become tables, objects inside them columns, and what is neither is left out."""
    assert [(table.head, len(table.rows)) for table in tables_of(data, "Title")] == tables


def test_tables_that_lie_in_the_folder_are_on_the_page(tmp_path: Path) -> None:
    """scoreboard.json and the others appear where they are there; their markup is text."""
    (tmp_path / "scoreboard.json").write_text(json.dumps([{"fault": "<b>bold</b>", "ours": "found"}]), encoding="utf-8")
    whole = page_of(tmp_path, report("k"))
    assert "Scoreboard" in whole
    assert "&lt;b&gt;bold&lt;/b&gt;" in whole
    assert "Proofs" not in whole


def test_an_empty_report_has_a_page(tmp_path: Path) -> None:
    """No kernel is no success, and says so."""
    assert "No kernel was checked" in page_text({"kernels": []}, tmp_path)
