"""Prints a board: a short table of methods, a long one of faults, as text for a terminal or as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mla_verify.cases import write_whole
from mla_verify.errors import UsageError
from mla_verify.faults.fault import Fault, kinds_of
from mla_verify.faults.reports import KINDS, REPORTS
from mla_verify.parts import PARTS
from mla_verify.scoreboard.board import Board
from mla_verify.scoreboard.cells import COLUMNS, SUITE, WITHOUT, Cell
from mla_verify.table import console

__all__ = ["long_rows", "markdown", "print_board", "short_rows", "summary", "update"]

_METHOD_WORDS: Final = {SUITE: "**mla-verify**"}
_END: Final = "<!-- scoreboard: end -->"
_SHORT_HEAD: Final = ("method", "faults found", "kinds", "right kernels blamed", "examples", "seconds")
_LONG_HEAD: Final = ("fault", "kinds", *COLUMNS, "clause", "seconds", "shrunk in", "smallest problem")


def short_rows(board: Board) -> list[tuple[str, ...]]:
    """A row per method: faults found, of which kinds, controls blamed, medians up to the first find."""
    rows: list[tuple[str, ...]] = []
    for column in COLUMNS:
        found = board.found(column)
        kinds = "".join(letter if letter in _letters(found) else "·" for letter in KINDS)
        blamed, right = board.false_alarms(column)
        rows.append(
            (
                _METHOD_WORDS.get(column, column),
                f"{len(found)} of {len(board.faults)}",
                kinds,
                f"{blamed} of {right}" if right else "",
                f"{board.median_of(column, 'found_after'):.0f}",
                f"{board.median_of(column, 'seconds'):.1f}",
            )
        )
    return rows


def _letters(found: Iterable[Fault]) -> set[str]:
    return {letter for fault in found for letter in kinds_of(fault)}


def long_rows(board: Board) -> list[tuple[str, ...]]:
    """A row per fault: the examples that each method took, and what the whole suite made of it."""
    rows: list[tuple[str, ...]] = []
    for fault in board.faults:
        cells = board.cells[fault.name]
        whole = cells[SUITE]
        rows.append(
            (
                fault.name,
                kinds_of(fault),
                *(_examples(cells[column]) for column in COLUMNS),
                whole.clause or "MISSED",
                f"{whole.seconds:.1f}",
                f"{whole.shrink_seconds:.1f}",
                _problem(whole),
            )
        )
    return rows


def _examples(cell: Cell) -> str:
    return "-" if cell.found_after is None else str(cell.found_after)


def _problem(cell: Cell) -> str:
    if cell.found_after is None:
        return ""
    text = cell.problem or "the simplest problem"
    return text if cell.calls == 1 else f"{text}, the last of {cell.calls}"


def summary(board: Board) -> list[str]:
    """What follows from the board, in sentences."""
    lines = [
        f"{len(board.found(SUITE))} of {len(board.faults)} faults found under a clause that they declare, within "
        f"{board.examples} examples (seed {board.seed}); first seen after {board.median_of(SUITE, 'seconds'):.1f} s, "
        f"shrunk in {board.median_of(SUITE, 'shrink_seconds'):.1f} s more, both medians"
    ]
    if board.controls:
        blamed = board.blamed
        words = f"{len(blamed)} blamed: {', '.join(cell.kernel for cell in blamed)}" if blamed else "none blamed"
        lines.append(f"{len(board.controls)} right kernels, {board.control_examples} examples: {words}")
    for part in PARTS:
        lost = board.lost_without(part)
        names = ", ".join(fault.name for fault in lost) or "nothing"
        lines.append(f"{WITHOUT}{part.replace('_', ' ')}, {len(lost)} are lost: {names}")
    if board.missed:
        lines.append(f"MISSED: {', '.join(fault.name for fault in board.missed)}")
    return lines


def print_board(board: Board, *, to: Console | None = None) -> None:
    """Print both tables and the summary for a terminal, or for a log that is as wide as it has to be."""
    out = to or console()
    out.print(_table(_SHORT_HEAD, [tuple(cell.replace("*", "") for cell in row) for row in short_rows(board)]))
    for line in summary(board):
        out.print(Text(line, style="bold red" if line.startswith("MISSED") else ""), soft_wrap=True)
    out.print()
    head = ("fault", "clause", "examples", "seconds", "shrunk in", "smallest problem")
    rows = [(row[0], row[-4], _examples(board.cells[row[0]][SUITE]), *row[-3:]) for row in long_rows(board)]
    out.print(_table(head, rows))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(head):
        table.add_column(
            name, justify="left" if number == 0 or name in ("clause", "smallest problem", "kinds") else "right"
        )
    for row in rows:
        table.add_row(*(Text(cell, style="red" if cell == "MISSED" else "") for cell in row))
    return table


def markdown(board: Board, *, long: bool = True) -> str:
    """The board as Markdown: the short table and the summary; long: and every fault with its sources."""
    lines = [*_markdown_table(_SHORT_HEAD, short_rows(board)), ""]
    lines += [f"* {line}" for line in summary(board)]
    if long:
        lines += ["", *_markdown_table(_LONG_HEAD, long_rows(board)), "", "| fault | what | reported |", "|-|-|-|"]
        lines += [f"| {fault.name} | {fault.what} | {_sources(fault)} |" for fault in board.faults]
    return "\n".join(lines) + "\n"


def update(path: Path, board: Board) -> None:
    """Put a board between the markers of a Markdown file: `short` or `long`. Raises UsageError where there are none."""
    try:
        before = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    places = re.compile(rf"(<!-- scoreboard: (short|long) -->\n).*?({re.escape(_END)})", re.DOTALL)
    after, count = places.subn(lambda found: found[1] + markdown(board, long=found[2] == "long") + found[3], before)
    if not count:
        raise UsageError(
            f"{path} has no place for a scoreboard: wanted <!-- scoreboard: short --> or long, then {_END}"
        )
    write_whole(path, after)


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'-|' * len(head)}",
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows),
    ]


def _sources(fault: Fault) -> str:
    links: list[str] = []
    for name in fault.reports:
        report = REPORTS[name]
        links += [
            f"[{report.project}#{number}]({url})" for number, url in zip(report.numbers, report.urls, strict=True)
        ]
    return ", ".join(links)
