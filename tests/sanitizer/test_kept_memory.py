"""Memory that a kernel keeps between calls is put back or poisoned, whichever it deserves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sanitizer.arena import Arena
from tests.sanitizer.problems import COLUMNS, ROWS, Kernel, clauses, run_audit


class Cached:
    """A kernel with one cached workspace: made by `make`, used by `use`."""

    def __init__(self, make: str, use: str) -> None:
        self.workspace: Tensor | None = None
        self.make, self.use = make, use

    def __call__(self, t: dict[str, Tensor]) -> None:
        """out = 2·x, by way of the workspace."""
        if self.workspace is None:
            self.workspace = getattr(self, f"make_{self.make}")()
        getattr(self, f"use_{self.use}")(t, self.workspace)

    def make_empty(self) -> Tensor:
        """Uninitialised, larger than needed."""
        return torch.empty(ROWS + 5, COLUMNS)

    def make_zeros(self) -> Tensor:
        """Initialised by torch."""
        return torch.zeros(ROWS + 5, COLUMNS)

    def make_emptied(self) -> Tensor:
        """Initialised by the kernel, once."""
        return torch.empty(ROWS + 5, COLUMNS).zero_()

    def make_doubles(self) -> Tensor:
        """A table computed once, in part: its tail is never used."""
        table = torch.empty(ROWS + 5, COLUMNS)
        table[:ROWS] = 2.0
        return table

    def make_cosines(self) -> Tensor:
        """A table computed by an operator."""
        return torch.zeros(ROWS, COLUMNS).cos() * 2

    def make_arange(self) -> Tensor:
        """An index table from torch.arange."""
        return torch.arange(ROWS)

    def make_indices(self) -> Tensor:
        """An index table written into uninitialised memory, padded with −1."""
        table = torch.empty(ROWS + 40, dtype=torch.int32)
        table.fill_(-1)
        table[:ROWS] = torch.arange(ROWS, dtype=torch.int32)
        return table

    def make_mask(self) -> Tensor:
        """A table of True in uninitialised memory."""
        return torch.empty(ROWS, COLUMNS, dtype=torch.bool).fill_(True)

    def make_semaphore(self) -> Tensor:
        """A counter that starts at zero."""
        return torch.zeros(1, dtype=torch.int32)

    def use_rewriting(self, t: dict[str, Tensor], workspace: Tensor) -> None:
        """Writes what it reads, on every call."""
        torch.mul(t["x"], 2, out=workspace[:ROWS])
        t["out"].copy_(workspace[:ROWS])

    def use_accumulating(self, t: dict[str, Tensor], workspace: Tensor) -> None:
        """Adds to what the workspace held, then wipes it with ones."""
        workspace[:ROWS] += t["x"]
        t["out"].copy_(workspace[:ROWS] * 2)
        workspace.fill_(1.0)

    def use_tail(self, t: dict[str, Tensor], workspace: Tensor) -> None:
        """Reads a row that nobody ever writes."""
        workspace[:ROWS] = t["x"]
        t["out"].copy_(workspace[:ROWS] * 2 + workspace[-1].nan_to_num(0.0))

    def use_restoring(self, t: dict[str, Tensor], workspace: Tensor) -> None:
        """Accumulates into zeros, and leaves zeros behind for the next call."""
        workspace[:ROWS] += t["x"]
        t["out"].copy_(workspace[:ROWS] * 2)
        workspace[:ROWS].zero_()

    def use_growing(self, t: dict[str, Tensor], workspace: Tensor) -> None:
        """Accumulates over calls and never wipes."""
        workspace[:ROWS] += t["x"]
        t["out"].copy_(workspace[:ROWS] * 2)

    def use_table(self, t: dict[str, Tensor], workspace: Tensor) -> None:
        """Reads a table."""
        torch.mul(t["x"], workspace[:ROWS], out=t["out"])

    def use_indices(self, t: dict[str, Tensor], workspace: Tensor) -> None:
        """Gathers through an index table."""
        t["out"].copy_(t["x"].index_select(0, workspace[:ROWS]) * 2)

    def use_mask(self, t: dict[str, Tensor], workspace: Tensor) -> None:
        """Selects by a mask."""
        t["out"].copy_(torch.where(workspace, t["x"] * 2, 0.0))

    def use_semaphore(self, t: dict[str, Tensor], workspace: Tensor) -> None:
        """Counts up, computes if it was the first, and counts down again."""
        workspace += 1
        if int(workspace) == 1:
            torch.mul(t["x"], 2, out=t["out"])
        workspace -= 1


RIGHT = [
    ("empty", "rewriting"),
    ("zeros", "rewriting"),
    ("zeros", "restoring"),
    ("emptied", "restoring"),
    ("doubles", "table"),
    ("cosines", "table"),
    ("arange", "indices"),
    ("indices", "indices"),
    ("mask", "mask"),
    ("semaphore", "semaphore"),
]
WRONG = [
    ("empty", "accumulating", "independence"),
    ("empty", "tail", "independence"),
    ("zeros", "growing", "repeatability"),
]


@pytest.mark.parametrize(("make", "use"), RIGHT, ids=["-".join(pair) for pair in RIGHT])
def test_right_kernels_may_keep_memory(make: str, use: str) -> None:
    """Tables, semaphores and rewritten scratch raise no alarm, on the first audit or on later ones."""
    arena, kernel = Arena(), Cached(make, use)
    for _ in range(3):
        assert run_audit(kernel, arena=arena).findings == ()


@pytest.mark.parametrize(("make", "use", "clause"), WRONG, ids=["-".join(row) for row in WRONG])
def test_a_kept_workspace_that_is_read_before_it_is_written_is_found(make: str, use: str, clause: str) -> None:
    """What a cached workspace held before the call must not reach the output."""
    assert clauses(run_audit(Cached(make, use))) == {clause}


def test_a_kept_workspace_is_poisoned_on_later_problems_too() -> None:
    """A kernel that misbehaves only once its cache is warm is found by the audits that follow."""
    arena, kernel = Arena(), Cached("empty", "rewriting")
    assert run_audit(kernel, arena=arena).findings == ()
    kernel.use = "accumulating"
    assert clauses(run_audit(kernel, arena=arena)) == {"independence"}


def test_memory_that_is_freed_is_forgotten() -> None:
    """The arena holds on to nothing that the kernel has let go."""
    arena, kernel = Arena(), Cached("empty", "rewriting")
    run_audit(kernel, arena=arena)
    assert len(arena.kept.scratches) == 1
    kernel.workspace = None
    arena.kept.begin()
    assert arena.kept.scratches == []


@pytest.mark.parametrize("zeroed", [False, True], ids=["poisoned", "zeroed"])
def test_a_declared_workspace_is_poisoned_unless_it_is_promised_zeroed(zeroed: bool) -> None:
    """A kernel that accumulates into its workspace needs, and may declare, that it is zeroed."""
    workspace = torch.zeros(ROWS, COLUMNS)

    def kernel(t: dict[str, Tensor]) -> None:
        workspace.add_(t["x"])
        t["out"].copy_(workspace * 2)

    result = run_audit(kernel, workspaces=lambda: [workspace], zeroed_workspace=zeroed)
    assert clauses(result) == (set() if zeroed else {"independence"})


def test_a_workspace_that_is_rewritten_is_right() -> None:
    """Poison in a workspace that is written first changes nothing."""
    workspace = torch.zeros(ROWS, COLUMNS)

    def kernel(t: dict[str, Tensor]) -> None:
        torch.mul(t["x"], 2, out=workspace)
        t["out"].copy_(workspace)

    checked: Kernel = kernel
    assert run_audit(checked, workspaces=lambda: [workspace]).findings == ()
