"""Progress: a rate, what was found and how long it takes, where somebody can see it."""

from __future__ import annotations

import pytest

from mla_verify import progress
from mla_verify.progress import Standing, search_progress


@pytest.fixture(autouse=True)
def outside_xdist(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the suite itself did not run in a worker of xdist."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


def test_words_say_rate_findings_and_time_left() -> None:
    """Shares are added up; the time left follows from the rate."""
    standing = Standing("gate", 200, None, began=100.0, shares={0: (30, 1), 1: (20, 1)})
    assert standing.words(105.0) == "gate: 50 of 200 examples, 10.0/s, 2 findings, 15 s left"


def test_under_a_budget_the_clock_decides() -> None:
    """What is left is what is left of the budget, however fast the search is."""
    standing = Standing("gate", None, 400.0, began=100.0, shares={0: (50, 0)})
    assert standing.words(110.0) == "gate: 50 examples, 5.0/s, 4 min 50 s left"
    assert standing.left(500.0) == 0.0


def test_nothing_is_said_of_a_rate_too_early() -> None:
    """In the first moments there is no rate, and no time left."""
    assert Standing("k", 10, None, began=0.0, shares={0: (1, 0)}).words(0.5) == "k: 1 of 10 examples"


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere than on a terminal: plain lines, far apart, on stderr."""
    with search_progress("[bold]k[/bold]", total=100) as tell:
        tell(0, 1, 0)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(progress, "_LINE_EVERY", 0.0)
    with search_progress("[bold]k[/bold]", total=100) as tell:
        for done in range(3):
            tell(0, done, 0)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [f"mla-verify: [bold]k[/bold]: {done} of 100 examples" for done in range(3)]


@pytest.mark.parametrize("quiet", [True, False])
def test_workers_and_quiet_searches_say_nothing(
    quiet: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under xdist, and where it was asked for, not a byte is written."""
    if not quiet:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    monkeypatch.setattr(progress, "_LINE_EVERY", 0.0)
    with search_progress("k", total=10, quiet=quiet) as tell:
        tell(0, 5, 0)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a bar with the same words, a kernel's name being text."""
    import io
    import sys

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with search_progress("[red]k[/red]", total=4) as tell:
        tell(0, 4, 1)
    assert "[red]k[/red]: 4 of 4 examples, 1 finding" in screen.getvalue()
