"""The board: what it counts as found, missed, lost and blamed, and that the same seed gives the same one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mla_verify.cli import app
from mla_verify.errors import UsageError
from mla_verify.faults import corpus
from mla_verify.faults.fault import Fault, kernel_of
from mla_verify.kernel import Kernel
from mla_verify.parts import PARTS
from mla_verify.scoreboard import board as board_module
from mla_verify.scoreboard import cells as cells_module
from mla_verify.scoreboard.board import Board, board_of, jobs_for
from mla_verify.scoreboard.cells import COLUMNS, SUITE, WITHOUT, Cell, Job, run_job
from mla_verify.scoreboard.methods import METHODS
from mla_verify.scoreboard.printing import long_rows, markdown, short_rows, summary, update
from tests.scoreboard.kernels import FOUND, OUTSIDE

# part of a check → a fault that is lost without it
EARNS = {
    "secrets": "up_projection_nan_scrubbed",
    "guards": "up_projection_stride_gap_written",
    "exact_regimes": "up_projection_rounded_half_away",
    "sequences": "up_projection_result_by_address",
    "fences": "up_projection_tail_loaded_unmasked",
}


def cell(name: str, column: str, *, examples: int = 300, seed: int = 0, control: bool = False) -> Cell:
    """One cell of the board, filled."""
    return run_job(Job(kernel=name, column=column, examples=examples, seed=seed, control=control))


def made_up(faults: Sequence[Fault], found: dict[tuple[str, str], int], blamed: Sequence[str] = ()) -> Board:
    """A board of the faults and one control, on which `found` says what was found after how many examples."""
    cells = {
        fault.name: {
            column: Cell(
                kernel=fault.name,
                column=column,
                examples=300,
                found_after=found.get((fault.name, column)),
                clause="agreement" if (fault.name, column) in found else "",
            )
            for column in COLUMNS
        }
        for fault in faults
    }
    cells["right"] = {
        column: Cell(kernel="right", column=column, examples=10, found_after=1 if column in blamed else None)
        for column in COLUMNS
    }
    return Board(examples=300, seed=0, faults=tuple(faults), controls=("right",), cells=cells)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_earns_its_place(part: str) -> None:
    """Without a part of the check a fault of the corpus is lost, which the whole check finds."""
    assert cell(EARNS[part], SUITE, examples=100).found_after is not None
    assert cell(EARNS[part], WITHOUT + part.replace("_", " "), examples=100).found_after is None


def test_a_fault_outside_the_contract_is_shown_as_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is only slow breaks no clause: no method finds it, and the board is not sound."""
    names = {fault.name: kernel_of(fault) for fault in (OUTSIDE, FOUND)}

    def inside(fault: Fault) -> Kernel:
        return replace(names[fault.name], target=None)

    monkeypatch.setattr(cells_module, "faults", lambda: (OUTSIDE, FOUND))
    monkeypatch.setattr(board_module, "faults", lambda: (OUTSIDE, FOUND))
    monkeypatch.setattr(cells_module, "kernel_of", inside)
    jobs = [Job(kernel=name, column=SUITE, examples=40, seed=0, control=False) for name in (OUTSIDE.name, FOUND.name)]
    cells = [run_job(job) for job in jobs]
    assert [one.found_after is None for one in cells] == [True, False]
    board = board_of(jobs, cells, examples=40, seed=0)
    assert board.missed == [OUTSIDE]
    assert not board.sound


def test_what_is_missed_is_said_everywhere() -> None:
    """Table, summary and JSON name a fault that nothing found, and the board is not sound."""
    board = made_up((OUTSIDE, FOUND), {(FOUND.name, SUITE): 3})
    assert board.missed == [OUTSIDE]
    assert not board.sound
    assert "MISSED: slow_for_many_heads" in summary(board)
    rows = {row[0]: row for row in long_rows(board)}
    assert "MISSED" in rows[OUTSIDE.name]
    assert "agreement" in rows[FOUND.name]
    assert board.to_json()["missed"] == [OUTSIDE.name]


def test_a_right_kernel_that_is_blamed_makes_the_board_unsound() -> None:
    """By the whole suite only: what others blame is shown and is their affair."""
    found = {(FOUND.name, SUITE): 3}
    assert made_up((FOUND,), found).sound
    assert not made_up((FOUND,), found, blamed=(SUITE,)).sound
    others = made_up((FOUND,), found, blamed=("drawn shapes",))
    assert others.sound
    row = next(row for row in short_rows(others) if row[0] == "drawn shapes")
    assert "1 of 1" in row


def test_lost_is_what_the_whole_finds_and_the_rest_does_not() -> None:
    """A fault that the whole suite misses too is not lost by leaving a part out."""
    column = WITHOUT + "guards"
    board = made_up((OUTSIDE, FOUND), {(FOUND.name, SUITE): 3, (FOUND.name, WITHOUT + "fences"): 2})
    assert board.lost_without("guards") == [FOUND]
    assert board.lost_without("fences") == []
    assert column in COLUMNS


@pytest.mark.parametrize("method", [method.name for method in METHODS])
def test_every_method_of_others_finds_a_plain_fault_and_lets_a_right_kernel_be(method: str) -> None:
    """The methods that are compared work: a missing term is found by each."""
    assert cell("up_projection_last_term_dropped", method, examples=30).found_after is not None
    right = cell("up_projection_summed_then_copied", method, examples=30, control=True)
    assert (right.found_after, right.false_alarms) == (None, 0)


@pytest.mark.parametrize(
    ("name", "method", "found"),
    [
        ("up_projection_old_value_times_zero", "drawn shapes", False),  # fresh memory is zero
        ("up_projection_old_value_times_zero", "NaN pre-fill", True),
        ("up_projection_scratch_read_first", "NaN pre-fill", False),  # it looks at outputs alone
        ("up_projection_scratch_read_first", "deterministic fill", True),
        ("up_projection_output_repointed", "NaN pre-fill", False),  # the values are right
        ("up_projection_stride_gap_written", "out= check", False),
        ("up_projection_strided_output_refused", "fixed shapes", False),
        ("up_projection_strided_output_refused", "out= check", True),
    ],
)
def test_each_method_sees_what_it_looks_at_and_no_more(name: str, method: str, *, found: bool) -> None:
    """What outputs and scratch hold before the call decides what a comparison of values can see."""
    assert (cell(name, method, examples=60).found_after is not None) == found


def test_the_same_seed_gives_the_same_cells() -> None:
    """Seconds excepted."""

    def once(column: str) -> dict[str, Any]:
        filled = cell("up_projection_zero_results_skipped", column, seed=3)
        return {
            name: getattr(filled, name) for name in ("found_after", "clause", "complaint", "problem", "false_alarms")
        }

    for column in ("drawn shapes", SUITE):
        assert once(column) == once(column)


def test_jobs_fill_every_cell_of_every_fault() -> None:
    """One job per fault and column; the controls share their examples, interpreted ones get few."""
    jobs = jobs_for(examples=300, control_examples=20_000, seed=0)
    of_faults = {(job.kernel, job.column) for job in jobs if not job.control}
    assert of_faults == {(fault.name, column) for fault in corpus.faults() for column in COLUMNS}
    total = sum(job.examples for job in jobs if job.control and job.column == SUITE)
    assert total >= 20_000


def test_markdown_has_a_row_per_fault_with_its_source() -> None:
    """The long table names every fault, and links the reports behind it."""
    text = markdown(made_up((OUTSIDE, FOUND), {(FOUND.name, SUITE): 3}))
    assert re.search(r"\| heads_reversed \| heads reversed \| \[.*#5385\]\(https://github.com/.*/issues/5385\)", text)
    assert "| slow_for_many_heads |" in text


def test_the_command_prints_json_and_its_exit_code_says_what_became_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Two small rows of the board: found everywhere, exit code 0."""
    arguments = ["up_projection_last_term", "--examples", "10", "--control-examples", "0", "--json"]
    with pytest.raises(SystemExit) as ended:
        app(["scoreboard", *arguments, "--processes", "2"])
    assert ended.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    (fault,) = printed["faults"]
    assert {name for name, one in fault["cells"].items() if one["found_after"] is None} == set()
    assert fault["cells"][SUITE]["clause"] == "agreement"


def test_a_document_is_updated_between_its_markers(tmp_path: Path) -> None:
    """Short and long table go where the document wants them, and nothing else changes."""
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- scoreboard: short -->\nold\n<!-- scoreboard: end -->\nafter\n", encoding="utf-8")
    board = made_up((OUTSIDE, FOUND), {(FOUND.name, SUITE): 3})
    update(document, board)
    once = document.read_text(encoding="utf-8")
    assert once.startswith("before\n<!-- scoreboard: short -->\n")
    assert once.endswith("<!-- scoreboard: end -->\nafter\n")
    assert "old" not in once
    assert markdown(board, long=False) in once
    update(document, board)
    assert document.read_text(encoding="utf-8") == once
    document.write_text("no markers\n", encoding="utf-8")
    with pytest.raises(UsageError, match="no place for a scoreboard"):
        update(document, board)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--examples", "0"], "--examples must be at least 1"),
        (["--control-examples", "-1"], "--control-examples must be at least 0"),
        (["--processes", "0"], "--processes must be at least 1"),
        (["--markdown", "--json"], "not both"),
        (["no_such_fault"], "no fault of the corpus"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(arguments: list[str], words: str) -> None:
    """What, got, wanted."""
    with pytest.raises(UsageError, match=words):
        app(["scoreboard", *arguments], standalone_mode=False)
