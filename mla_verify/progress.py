"""Shows how far a search has come: a bar on a terminal, a line now and then elsewhere, nothing under xdist."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from mla_verify.table import console

__all__ = ["Standing", "Tell", "search_progress"]

_LINE_EVERY: Final = 30.0  # seconds between lines, where nobody watches: a log is read afterwards
_UNTOLD: Final = 2.0  # seconds before a rate means anything

Tell = Callable[[int, int, int], None]
"""Share of the search, examples that it has seen so far, clauses that it has seen broken."""


@dataclass(slots=True, eq=False)
class Standing:
    """How far a search is. total: examples in all, None where time ends it; until: the `time.monotonic()` that does."""

    title: str
    total: int | None
    until: float | None
    unit: str = "examples"
    began: float = field(default_factory=time.monotonic)
    shares: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    @property
    def examples(self) -> int:
        """Examples that all shares have seen."""
        return sum(examples for examples, _ in self.shares.values())

    @property
    def broken(self) -> int:
        """Clauses that have broken, in all shares."""
        return sum(broken for _, broken in self.shares.values())

    def rate(self, now: float) -> float | None:
        """Examples per second; None while it is too early to say."""
        seconds = now - self.began
        return self.examples / seconds if seconds >= _UNTOLD and self.examples else None

    def left(self, now: float) -> float | None:
        """Seconds to go, where that can be said."""
        if self.until is not None:
            return max(0.0, self.until - now)
        rate = self.rate(now)
        return None if rate is None or self.total is None else max(0, self.total - self.examples) / rate

    def words(self, now: float) -> str:
        """All of it in one line."""
        of = "" if self.total is None else f" of {self.total}"
        rate, left = self.rate(now), self.left(now)
        parts = [f"{self.examples}{of} {self.unit}"]
        parts += [] if rate is None else [f"{rate:.1f}/s"]
        parts += [f"{self.broken} finding{'s' if self.broken > 1 else ''}"] if self.broken else []
        parts += [] if left is None else [f"{_duration(left)} left"]
        return f"{self.title}: {', '.join(parts)}"


@contextmanager
def search_progress(
    title: str, *, total: int | None, until: float | None = None, quiet: bool = False, unit: str = "examples"
) -> Generator[Tell, None, None]:
    """A function to call with (share, examples so far, broken clauses so far), as often as one likes."""
    standing = Standing(title, total, until, unit)
    if quiet or "PYTEST_XDIST_WORKER" in os.environ:
        yield lambda share, done, broken: None
    elif sys.stderr.isatty() and not _dumb(os.environ):
        with _bar(standing) as tell:
            yield tell
    else:
        yield _lines(standing)


def _lines(standing: Standing) -> Tell:
    told = standing.began

    def tell(share: int, done: int, broken: int) -> None:
        nonlocal told
        standing.shares[share] = (done, broken)
        now = time.monotonic()
        if now - told >= _LINE_EVERY:
            told = now
            print(f"mla-verify: {standing.words(now)}", file=sys.stderr, flush=True)

    return tell


@contextmanager
def _bar(standing: Standing) -> Generator[Tell, None, None]:
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(bar_width=30), TextColumn("{task.description}"))
    total = standing.total if standing.until is None else max(standing.until - standing.began, 0.1)
    with Progress(*columns, console=console(stderr=True), transient=True, refresh_per_second=4) as bar:
        task = bar.add_task(_plain(standing.title), total=total)

        def tell(share: int, done: int, broken: int) -> None:
            standing.shares[share] = (done, broken)
            now = time.monotonic()
            completed = standing.examples if standing.until is None else now - standing.began
            bar.update(task, completed=completed, description=_plain(standing.words(now)))

        yield tell


def _plain(text: str) -> str:
    """Text that rich prints as it is: a kernel's name may look like markup."""
    return text.replace("[", r"\[")


def _dumb(environment: Mapping[str, str]) -> bool:
    return environment.get("TERM") == "dumb"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
