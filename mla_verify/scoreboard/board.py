"""The board of all cells: fills them in several processes, and says what follows from them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from mla_verify.faults.corpus import controls, faults
from mla_verify.faults.fault import Fault, kinds_of
from mla_verify.faults.reports import REPORTS
from mla_verify.parts import PARTS
from mla_verify.scoreboard.cells import COLUMNS, SUITE, WITHOUT, Cell, Job, run_job

__all__ = ["Board", "board_of", "fill", "jobs_for"]

_INTERPRETED_SHARE: Final = 20  # an interpreted control gets one example for so many of another's
_CONTROL_SHARE: Final = 4  # a control is tested by others on so many times fewer problems than by the suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Every fault and control with what each column said about it: cells[kernel][column]."""

    examples: int
    seed: int
    faults: tuple[Fault, ...]
    controls: tuple[str, ...]
    cells: Mapping[str, Mapping[str, Cell]]

    def found(self, column: str) -> list[Fault]:
        """The faults that a column's method found."""
        return [fault for fault in self.faults if self.cells[fault.name][column].found_after is not None]

    @property
    def missed(self) -> list[Fault]:
        """The faults that the whole suite missed."""
        found = {fault.name for fault in self.found(SUITE)}
        return [fault for fault in self.faults if fault.name not in found]

    def lost_without(self, part: str) -> list[Fault]:
        """The faults that the whole suite finds and the suite without this part does not."""
        kept = {fault.name for fault in self.found(WITHOUT + part.replace("_", " "))}
        return [fault for fault in self.found(SUITE) if fault.name not in kept]

    @property
    def blamed(self) -> list[Cell]:
        """The right kernels that the whole suite blames."""
        return [cell for name in self.controls if (cell := self.cells[name][SUITE]).found_after is not None]

    @property
    def control_examples(self) -> int:
        """Problems on which right kernels were checked by the whole suite."""
        return sum(self.cells[name][SUITE].examples for name in self.controls)

    def false_alarms(self, column: str) -> tuple[int, int]:
        """How many right kernels a column's method complained about, of how many."""
        cells = [self.cells[name][column] for name in self.controls if column in self.cells[name]]
        return sum(bool(cell.false_alarms or cell.found_after) for cell in cells), len(cells)

    def median_of(self, column: str, field: str) -> float:
        """The median of a number over the faults that a column's method found; 0 where it found none."""
        values: list[float] = [float(getattr(self.cells[fault.name][column], field)) for fault in self.found(column)]
        return median(values) if values else 0.0

    @property
    def sound(self) -> bool:
        """Whether every fault was found and no control blamed."""
        return not self.missed and not self.blamed

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data. The same for the same seed, `seconds` and `shrink_seconds` excepted."""
        return {
            "examples": self.examples,
            "seed": self.seed,
            "columns": list(COLUMNS),
            "faults": [self._fault_to_json(fault) for fault in self.faults],
            "controls": [
                {"name": name, "cells": {column: cell_to_json(cell) for column, cell in self.cells[name].items()}}
                for name in self.controls
            ],
            "control_examples": self.control_examples,
            "missed": [fault.name for fault in self.missed],
            "blamed": [cell.kernel for cell in self.blamed],
            "lost_without": {part: [fault.name for fault in self.lost_without(part)] for part in PARTS},
        }

    def _fault_to_json(self, fault: Fault) -> dict[str, Any]:
        return {
            "name": fault.name,
            "contract": fault.contract,
            "clauses": list(fault.clauses),
            "what": fault.what,
            "kinds": kinds_of(fault),
            "reports": [url for report in fault.reports for url in REPORTS[report].urls],
            "cells": {column: cell_to_json(cell) for column, cell in self.cells[fault.name].items()},
        }


def cell_to_json(cell: Cell) -> dict[str, Any]:
    """A cell as plain data, without what its place says already."""
    return {
        "examples": cell.examples,
        "found_after": cell.found_after,
        "clause": cell.clause,
        "complaint": cell.complaint,
        "problem": cell.problem,
        "calls": cell.calls,
        "seconds": round(cell.seconds, 3),
        "shrink_seconds": round(cell.shrink_seconds, 3),
        "false_alarms": cell.false_alarms,
        "others": list(cell.others),
    }


def jobs_for(*, examples: int, control_examples: int, seed: int, columns: Sequence[str] = COLUMNS) -> list[Job]:
    """Every cell of the board as a job, the long ones first. control_examples: for all right kernels together."""
    right = controls()
    shares = [1 / _INTERPRETED_SHARE if kernel.triton else 1.0 for kernel in right]
    jobs: list[Job] = []
    for kernel, share in zip(right, shares, strict=True):
        own = -(-int(control_examples * share) // max(1, round(sum(shares)))) if control_examples else 0
        for column in columns:
            if own and not column.startswith(WITHOUT):
                asked = own if column == SUITE else max(1, min(own, own // _CONTROL_SHARE))
                jobs.append(Job(kernel=kernel.name, column=column, examples=asked, seed=seed, control=True))
    jobs.sort(key=lambda job: -job.examples)
    jobs += [
        Job(kernel=fault.name, column=column, examples=examples, seed=seed, control=False)
        for fault in reversed(faults())
        for column in reversed(columns)
    ]
    return jobs


def fill(
    jobs: Sequence[Job], *, processes: int | None = None, tell: Callable[[Job, Cell], None] = lambda job, cell: None
) -> list[Cell]:
    """Every job's cell, in the order of the jobs. tell: called with each as it is done."""
    count = max(1, min(processes or os.cpu_count() or 1, len(jobs)))
    cells: dict[int, Cell] = {}
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: dict[Future[Cell], int] = {pool.submit(run_job, job): number for number, job in enumerate(jobs)}
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    number = waiting.pop(future)
                    cells[number] = future.result()
                    tell(jobs[number], cells[number])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [cells[number] for number in range(len(jobs))]


def board_of(jobs: Iterable[Job], cells: Iterable[Cell], *, examples: int, seed: int) -> Board:
    """The board that filled cells make."""
    by_kernel: dict[str, dict[str, Cell]] = {}
    right: dict[str, None] = {}
    for job, cell in zip(jobs, cells, strict=True):
        by_kernel.setdefault(job.kernel, {})[job.column] = cell
        if job.control:
            right[job.kernel] = None
    order = {column: number for number, column in enumerate(COLUMNS)}
    ordered = {
        name: dict(sorted(row.items(), key=lambda entry: order[entry[0]])) for name, row in sorted(by_kernel.items())
    }
    return Board(
        examples=examples,
        seed=seed,
        faults=tuple(fault for fault in faults() if fault.name in ordered),
        controls=tuple(sorted(right)),
        cells=ordered,
    )
