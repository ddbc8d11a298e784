"""The page in a real browser: filter, order, hover, copy and keys, without an error and without a request."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from mla_verify.check import check
from mla_verify.faults.corpus import kernel_named
from mla_verify.report import Report
from mla_verify.reports.folder import write_report
from mla_verify.reports.page import write_page
from mla_verify.violations import VIOLATIONS
from tests.reports.browser import missing, started
from tests.reports.made import finding, report

_MISSING: Final = missing()
pytestmark = pytest.mark.skipif(bool(_MISSING), reason=f"no browser to test in: {', '.join(_MISSING)} not installed")

# A fault for each clause; the search is as short as finds it.
_OF_CLAUSE: Final = {
    "coverage": ("up_projection_tail_tile_unwritten", 3),
    "independence": ("up_projection_accumulates", 5),
    "containment": ("up_projection_input_cleared", 5),
    "agreement": ("up_projection_last_term_dropped", 10),
    "layout": ("up_projection_output_repointed", 5),
    "repeatability": ("up_projection_every_other_call_differs", 5),
    "refusal": ("up_projection_strided_output_refused", 10),
    "survival": ("up_projection_tail_loaded_unmasked", 3),
    "economy": ("up_projection_allocates_per_call", 3),
}


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    """A run over a fault of each clause."""
    found: list[Report] = []
    for clause, (name, examples) in _OF_CLAUSE.items():
        isolation = "process" if clause == "survival" else "none"
        kernel = kernel_named(name)
        if clause == "economy":
            kernel = replace(kernel, allocations=0)  # the first problem is the one that is profiled
        found.append(check(kernel, examples=examples, seed=0, isolation=isolation))
    return found


@pytest.fixture(scope="module")
def page(reports: list[Report], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of that run, with one made kernel of an odd name at its end."""
    folder = tmp_path_factory.mktemp("report")
    odd = replace(report("<script>alert(1)</script>", finding()), seconds=0.0)
    write_report([*reports, odd], [None] * (len(reports) + 1), folder)
    return write_page(folder)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Generator[Any, None, None]:
    """A browser, told nothing by others and telling nothing to them."""
    driver = started(tmp_path_factory.mktemp("profile"))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    """The page, freshly opened."""
    browser.get("about:blank")
    browser.get_log("performance")  # of the browser's own first page
    browser.get(page.as_uri())
    return browser


def shown(browser: Any) -> list[str]:
    """The clauses of the findings that are to be seen, from the top."""
    script = "return [...document.querySelectorAll('.finding')].filter(f => !f.hidden).map(f => f.dataset.clause)"
    return browser.execute_script(script)


def press(browser: Any, *keys: str) -> None:
    """Keys, one after the other, on whatever has the focus."""
    from selenium.webdriver.common.action_chains import ActionChains

    chain = ActionChains(browser)
    for key in keys:
        chain = chain.send_keys(key)
    chain.perform()


def choose(browser: Any, which: str, value: str) -> None:
    """Choose from one of the lists of the filter."""
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("id", which)).select_by_visible_text(value)


def open_finding(browser: Any, clause: str) -> Any:
    """The first finding of a clause, opened."""
    found = browser.find_element("css selector", f".finding[data-clause={clause}]")
    if not found.get_attribute("open"):
        found.find_element("css selector", "summary").click()
    return found


def test_a_run_with_every_clause_broken_is_on_the_page(opened: Any, reports: list[Report]) -> None:
    """Each clause has a finding, and the table leads to it."""
    assert {one.clause for each in reports for one in each.findings} == set(VIOLATIONS)
    assert set(shown(opened)) == set(VIOLATIONS)
    opened.find_element("css selector", "#verdicts td.v-fail a").click()
    assert opened.execute_script("return document.querySelector('.finding[open]').dataset.clause") == "coverage"


def test_filter_and_order(opened: Any) -> None:
    """Words, clause and verdict leave what they name; findings can be put in another order."""
    everything = shown(opened)
    choose(opened, "clause", "layout")
    assert set(shown(opened)) == {"layout"}
    choose(opened, "clause", "every clause")
    words = opened.find_element("id", "words")
    words.send_keys("every_other_call")
    opened.execute_async_script("setTimeout(arguments[0], 50)")
    assert set(shown(opened)) == {"repeatability"}
    rows = "return [...document.querySelectorAll('#verdicts tbody tr')].filter(r => !r.hidden).length"
    assert opened.execute_script(rows) == 1
    press(opened, "\ue00c")  # Escape
    assert shown(opened) == everything
    choose(opened, "order", "clause")
    assert shown(opened) == sorted(everything)


def test_the_table_is_sorted_by_its_heads(opened: Any) -> None:
    """A click sorts by that column, failures first; a second one turns it round; the direction is told to readers."""
    script = "return [...document.querySelectorAll('#verdicts tbody tr')].map(r => r.cells[arguments[0]].textContent)"
    head = opened.find_element("css selector", "#verdicts button[data-column='3']")
    head.click()
    words = [word.strip() for word in opened.execute_script(script, 3)]
    assert words[0] == "fail"
    assert words[-1] == "pass"
    assert head.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"
    head.click()
    assert [word.strip() for word in opened.execute_script(script, 3)][-1] == "fail"
    opened.find_element("css selector", "#verdicts button[data-column='10']").click()
    numbers = [int(word) for word in opened.execute_script(script, 10)]
    assert numbers == sorted(numbers)


def test_a_pointer_over_a_map_is_told_element_value_and_bound(opened: Any) -> None:
    """Index, state, value, expected value, error and bound of the element below the pointer."""
    from selenium.webdriver.common.action_chains import ActionChains

    found = open_finding(opened, "agreement")
    image = found.find_element("css selector", ".view img")
    ActionChains(opened).move_to_element_with_offset(image, 0, 0).perform()
    said = found.find_element("css selector", ".readout").text
    for word in ("[0, 0, 0]", "wrong", "value", "expected", "error", "bound"):
        assert word in said, said


def test_a_program_map_names_the_program(opened: Any) -> None:
    """Over the map by program the readout is the program's name."""
    from selenium.webdriver.common.action_chains import ActionChains

    found = opened.find_elements("css selector", ".finding")[-1]
    found.find_element("css selector", "summary").click()
    memory, elements, programs = found.find_elements("css selector", ".map")
    image = programs.find_element("css selector", "img")
    ActionChains(opened).move_to_element_with_offset(image, 2 - image.size["width"] // 2, 0).perform()
    assert "[1, 0, 0]: k program 0" in programs.find_element("css selector", ".readout").text
    ActionChains(opened).move_to_element_with_offset(elements.find_element("css selector", "img"), 4, 0).perform()
    assert "[1, 0, 4]: unwritten, value nan" in elements.find_element("css selector", ".readout").text
    image = memory.find_element("css selector", "img")
    corner = (2 - image.size["width"] // 2, image.size["height"] // 2 - 2)
    ActionChains(opened).move_to_element_with_offset(image, *corner).perform()
    assert "+24 from the first element: stray write" in memory.find_element("css selector", ".readout").text


def test_the_line_that_replays_is_copied(opened: Any) -> None:
    """The button puts the line on the clipboard, and says so."""
    found = opened.find_elements("css selector", ".finding")[-1]
    found.find_element("css selector", "summary").click()
    opened.execute_async_script("setTimeout(arguments[0], 50)")  # the button comes with the opening
    button = found.find_element("css selector", ".copy")
    button.click()
    opened.execute_async_script("setTimeout(arguments[0], 200)")
    assert button.text == "copied"
    words = opened.find_element("id", "words")
    words.click()
    words.send_keys("\ue009v")  # Control+V
    assert words.get_attribute("value").startswith("mla-verify replay cases/kernel.coverage.")


def test_everything_can_be_reached_by_keys(opened: Any) -> None:
    """j and k go from finding to finding, Enter opens one, Tab reaches its map, arrows walk over it, / filters."""
    active = "return document.activeElement.closest('.finding')?.id ?? document.activeElement.id"
    press(opened, "j")
    assert opened.execute_script(active) == "f1"
    press(opened, "j", "k")
    assert opened.execute_script(active) == "f1"
    opened.execute_script("document.activeElement.blur()")
    press(opened, "k", "\ue007")  # the last one, which has a map of some size; Enter
    assert opened.execute_script("return document.activeElement.closest('.finding').open")
    press(opened, "\ue004", "\ue004")  # Tab, to its memory and on to its elements
    assert opened.execute_script("return document.activeElement.className") == "view"
    press(opened, "\ue014", "\ue014")  # Right, twice: the first shows the cursor
    readout = "return document.activeElement.closest('.map').querySelector('.readout').textContent"
    assert opened.execute_script(readout).startswith("[0, 0, 1]")
    press(opened, "/")
    assert opened.execute_script(active) == "words"


def test_the_page_asks_for_nothing_and_reports_no_error(opened: Any, page: Path) -> None:
    """Nothing but the file itself is fetched, nothing is said on the console, and a kernel's name runs no script."""
    for summary in opened.find_elements("css selector", ".finding > summary"):
        summary.click()
    assert opened.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = {
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in asked if not url.startswith(("data:", "about:"))} <= {page.as_uri()}
    names = opened.execute_script("return [...document.querySelectorAll('#verdicts th a')].map(a => a.textContent)")
    assert names[-1] == "<script>alert(1)</script>"


def test_both_colour_schemes_are_drawn(opened: Any) -> None:
    """The background follows what the reader prefers."""
    colours: list[str] = []
    for scheme in ("light", "dark"):
        feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
        colours.append(opened.execute_script("return getComputedStyle(document.body).backgroundColor"))
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert colours == ["rgb(255, 255, 255)", "rgb(13, 17, 23)"]
