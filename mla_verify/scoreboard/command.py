"""What `mla-verify scoreboard` does: fills the board in several processes and prints it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mla_verify.errors import ExitCode, UsageError
from mla_verify.progress import search_progress
from mla_verify.scoreboard.board import Board, board_of, fill, jobs_for
from mla_verify.scoreboard.cells import Cell, Job
from mla_verify.scoreboard.printing import markdown, print_board, update

__all__ = ["measured", "scoreboard_command"]


def scoreboard_command(
    names: Sequence[str],
    *,
    examples: int,
    control_examples: int,
    seed: int,
    processes: int | None,
    as_markdown: bool,
    as_json: bool,
    into: Sequence[Path] = (),
) -> ExitCode:
    """Measure the faults and controls that have one of `names` in theirs, all where there is none, and print it.

    into: Markdown files in which the board is put between its markers.
    """
    board = measured(names, examples=examples, control_examples=control_examples, seed=seed, processes=processes)
    for path in into:
        update(path, board)
    if as_json:
        print(json.dumps(board.to_json(), indent=2))
    elif as_markdown:
        print(markdown(board), end="")
    else:
        print_board(board)
    return ExitCode.HOLDS if board.sound else ExitCode.VIOLATION


def measured(names: Sequence[str], *, examples: int, control_examples: int, seed: int, processes: int | None) -> Board:
    """The board, with a bar on a terminal. Raises UsageError where nothing has one of the names."""
    jobs = jobs_for(examples=examples, control_examples=control_examples, seed=seed)
    jobs = [job for job in jobs if not names or any(name in job.kernel for name in names)]
    if not any(not job.control for job in jobs):
        raise UsageError(f"no fault of the corpus has {' or '.join(map(repr, names))} in its name")
    with search_progress("scoreboard", total=len(jobs), unit="cells") as tell:
        done = 0

        def count(job: Job, cell: Cell) -> None:
            nonlocal done
            done += 1
            tell(0, done, 0)

        cells = fill(jobs, processes=processes, tell=count)
    return board_of(jobs, cells, examples=examples, seed=seed)
