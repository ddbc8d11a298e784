"""Atomics, declared workspaces and what torch operators wrote are recorded like any other access."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.audit import audit
from sanitizer.triton.mends import mended
from sanitizer.triton.recorder import Recorder
from tests.triton.test_recorder import copying, plans, recorded

kernels: Any = importlib.import_module("tests.triton.kernels")
atomics: Any = importlib.import_module("tests.triton.atomic_kernels")


def test_an_atomic_to_nowhere_is_dropped_lane_by_lane() -> None:
    """Lanes that lie somewhere are executed, the others withheld and told: the process lives."""

    def body(tensors: dict[str, Tensor]) -> None:
        tensors["target"].zero_()
        atomics.add_astray[(1,)](tensors["target"], 1 << 34, SIZE=4)

    found, _ = recorded(body, plans(4))
    assert [finding.clause for finding in found.findings] == ["containment"]
    assert "add_astray program (0, 0, 0) stores 2 elements to memory that belongs to no tensor" in (
        found.findings[0].detail
    )
    assert found.outputs["target"].tolist() == [10, 10, 0, 0]


def test_a_right_atomic_passes() -> None:
    """The same kernel where every lane is at home."""

    def body(tensors: dict[str, Tensor]) -> None:
        tensors["target"].zero_()
        atomics.add_astray[(1,)](tensors["target"], 0, SIZE=4)

    found, _ = recorded(body, plans(4))
    assert (found.findings, found.notes) == ((), ())
    assert found.outputs["target"].tolist() == [10] * 4


def test_a_load_of_a_declared_workspace_before_any_store_names_the_workspace() -> None:
    """Poisoned, it is no input; zeroed by promise, it may be read."""
    workspaces = [torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)]

    def body(tensors: dict[str, Tensor], /) -> None:
        kernels.copy_kernel[(1,)](workspaces[1], torch.empty(8, dtype=torch.int32), 8, 0, SIZE=8)
        copying()(tensors)

    for zeroed in (False, True):
        arena = Arena()
        arena.load(plans())
        with mended():
            found = audit(body, arena, observer=Recorder(), workspaces=lambda: workspaces, zeroed_workspace=zeroed)
        assert found.findings == ()
        if zeroed:
            assert found.notes == ()
        else:
            (note,) = found.notes
            assert note.startswith("copy_kernel loads memory of workspace 1 that is no input, without effect")


def test_what_a_torch_operator_wrote_is_known_and_what_it_left_alone_is_not() -> None:
    """Element by element, also where some bytes of what was written are those of the secret."""

    def body(tensors: dict[str, Tensor]) -> None:
        tensors["target"][:3] = 0
        kernels.copy_kernel[(1,)](tensors["target"], torch.empty(8, dtype=torch.int32), 8, 0, SIZE=8)
        copying()(tensors)

    found, _ = recorded(body, plans())
    assert found.findings == ()
    (note,) = found.notes
    assert note.startswith("copy_kernel loads memory of target that is no input, without effect: ")
    assert "loads 5 elements" in note
