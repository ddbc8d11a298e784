"""What a process of its own costs a check: the rate of small problems in a worker, and replacing a dead one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mla_verify.check import check
from mla_verify.isolation import Isolation, Sandboxed
from mla_verify.kernel import Kernel

__all__ = ["SandboxRow", "print_sandbox_rows", "sandbox_row"]

_EXAMPLES: Final = 200
_ROUNDS: Final = 3  # of either kind, taking turns
_DEATHS: Final = 50


@dataclass(frozen=True, slots=True)
class SandboxRow:
    """Small problems, by the clock: two processes take part.

    check, sandboxed: milliseconds per example of a whole check with the kernel in this process, and in a worker,
    between fences on a CPU; medians of several rounds. sandboxed_over_check: the second rate over the first.
    with_sequences: as sandboxed, with the sequences of problems that only a worker is given. replacing: milliseconds,
    median, from the kill of a worker until the next one has loaded the kernel.
    """

    contract: str
    check: float
    sandboxed: float
    sandboxed_over_check: float
    with_sequences: float
    replacing: float


def sandbox_row(kernel: Kernel, device: str) -> SandboxRow:
    """Measure one kernel, whose limits leave small problems only."""
    kinds: tuple[tuple[Isolation, bool], ...] = (("none", False), ("process", False), ("process", True))
    rounds = [[_per_example(kernel, device, *kind) for kind in kinds] for _ in range(_ROUNDS)]
    inside, sandboxed, in_turn = (statistics.median(column) for column in zip(*rounds, strict=True))
    return SandboxRow(
        contract=kernel.contract,
        check=round(1e3 * inside, 3),
        sandboxed=round(1e3 * sandboxed, 3),
        sandboxed_over_check=round(inside / sandboxed, 3),
        with_sequences=round(1e3 * in_turn, 3),
        replacing=round(1e3 * _replacing(kernel, device), 1),
    )


def _per_example(kernel: Kernel, device: str, isolation: Isolation, sequences: bool) -> float:
    """Seconds; everything is started and loaded once outside the count."""
    check(kernel, examples=20, seed=0, device=device, isolation=isolation, sequences=sequences)
    report = check(kernel, examples=_EXAMPLES, seed=0, device=device, isolation=isolation, sequences=sequences)
    return report.seconds / report.examples


def _replacing(kernel: Kernel, device: str) -> float:
    examiner = Sandboxed(kernel, device=device)
    try:
        return statistics.median(_seconds_of(examiner.replace_worker) for _ in range(_DEATHS))
    finally:
        examiner.close()


def _seconds_of(act: Callable[[], None]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def print_sandbox_rows(rows: list[dict[str, Any]], *, to: Console) -> None:
    """Print the rows as a table."""
    columns = ("check", "sandboxed", "sandboxed/check", "with sequences", "replacing")
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.title = "small problems in a worker, ms per example by the clock"
    table.add_column("contract")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        figures = (row["check"], row["sandboxed"], row["sandboxed_over_check"], row["with_sequences"], row["replacing"])
        table.add_row(row["contract"], *(f"{figure:.2f}" for figure in figures))
    to.print(table)
    to.print(Text("sandboxed/check: rate in a worker process over the rate in this one", style="dim"))
    to.print(Text("with sequences: those of the worker's own included, one of eight problems to 16", style="dim"))
    to.print(Text("replacing: ms, median, from the kill of a worker until its successor is ready", style="dim"))
