"""Shows how far a search over several processes has come: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from mla_verify.table import console

__all__ = ["gate_progress"]


@contextmanager
def gate_progress(
    total: int | None, *, until: float | None, quiet: bool
) -> Generator[Callable[[int, int, int], None], None, None]:
    """A function to call with (shard, examples so far, broken clauses so far).

    The bar counts examples towards `total`, or seconds towards `until` (a `time.monotonic()`).
    """
    if quiet or not sys.stderr.isatty():
        yield lambda shard, done, broken: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    started = time.monotonic()
    seen: dict[int, tuple[int, int]] = {}
    with Progress(*columns, console=console(stderr=True), transient=True, refresh_per_second=4) as bar:
        task = bar.add_task("starting", total=total if until is None else max(until - started, 0.1))

        def tell(shard: int, done: int, broken: int) -> None:
            seen[shard] = (done, broken)
            examples = sum(one for one, _ in seen.values())
            failures = sum(one for _, one in seen.values())
            words = f"{examples} examples" + (f", {failures} failures" if failures else "")
            bar.update(task, completed=examples if until is None else time.monotonic() - started, description=words)

        yield tell
