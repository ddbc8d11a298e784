"""The recorder's maps: who stored what and how often, what was read too early, what lay outside, what raced."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.audit import Audit, audit
from sanitizer.fences import Fence
from sanitizer.plan import TensorPlan
from sanitizer.running import Runner
from sanitizer.secrets import Secret
from sanitizer.stopwatch import Stopwatch
from sanitizer.triton.mends import mended
from sanitizer.triton.recorder import Recorder

kernels: Any = importlib.import_module("tests.triton.kernels")

Body = Callable[[dict[str, Tensor]], None]


def plans(count: int = 20, dtype: torch.dtype = torch.int32, stride: int = 1) -> list[TensorPlan]:
    """A source that holds 0, 1, 2, … and a target."""
    values = torch.arange(count).to(dtype)
    return [
        TensorPlan(name="source", shape=(count,), strides=(1,), dtype=dtype, role="input", values=values),
        TensorPlan(name="target", shape=(count,), strides=(stride,), dtype=dtype, role="output"),
    ]


def recorded(body: Body, loaded: list[TensorPlan], *, fence: Fence | None = None) -> tuple[Audit, Recorder]:
    """Audit `body` on an arena of its own, watched by a recorder."""
    arena, recorder = Arena(), Recorder()
    arena.load(loaded, fence=fence)

    def call(tensors: dict[str, Tensor], /) -> None:
        body(tensors)

    with mended():
        return audit(call, arena, observer=recorder), recorder


def copying(*, count: int = 20, shift: int = 0, grid: int = 3) -> Body:
    """Copies, eight elements to a program."""

    def body(tensors: dict[str, Tensor]) -> None:
        kernels.copy_kernel[(grid,)](tensors["source"], tensors["target"], count, shift, SIZE=8)

    return body


def test_every_element_has_its_program_and_count() -> None:
    """A right copy: each element stored once, by the program whose tile it is in; no finding, no note."""
    found, recorder = recorded(copying(), plans())
    assert found.findings == ()
    assert found.notes == ()
    assert recorder.recording is not None
    counts, owners = recorder.recording.written("target")
    assert counts.tolist() == [1] * 20
    assert [recorder.recording.who(int(number)) for number in owners[[0, 8, 19]]] == [
        "copy_kernel program (0, 0, 0)",
        "copy_kernel program (1, 0, 0)",
        "copy_kernel program (2, 0, 0)",
    ]


def test_a_missing_tile_is_told_by_its_neighbour() -> None:
    """What no program stored is a coverage finding that names the program before it."""
    found, recorder = recorded(copying(grid=2), plans())
    assert [finding.clause for finding in found.findings] == ["coverage"]
    assert "copy_kernel program (1, 0, 0)" in found.findings[0].detail
    assert recorder.recording is not None
    assert np.flatnonzero(recorder.recording.written("target")[0] == 0).tolist() == [16, 17, 18, 19]


def test_a_load_beside_a_tensor_is_a_note_where_it_has_no_effect() -> None:
    """Reading a guard and not using it breaks no clause; the note says who, what and where."""

    def body(tensors: dict[str, Tensor]) -> None:
        kernels.copy_kernel[(1,)](tensors["source"], torch.empty(8, dtype=torch.int32), 8, 16, SIZE=8)
        copying()(tensors)

    found, _ = recorded(body, plans())
    assert found.findings == ()
    (note,) = found.notes
    assert note.startswith("copy_kernel loads memory of source that is no input, without effect: ")
    assert "program (0, 0, 0) loads 4 elements" in note
    assert "0 bytes past the end of source" in note


def test_a_load_beside_a_tensor_that_reaches_the_output_is_independence() -> None:
    """The same load with an effect: the finding of the secrets names the program."""
    found, _ = recorded(copying(shift=1), plans())
    assert [finding.clause for finding in found.findings] == ["independence"]
    assert "copy_kernel program (2, 0, 0) loads 1 element of source" in found.findings[0].detail
    assert found.notes == ()


def test_a_load_from_nowhere_gives_the_secret_and_is_a_survival_finding() -> None:
    """An address that belongs to no tensor is not read: the process lives, and the distance is told."""
    found, _ = recorded(copying(shift=1 << 28), plans())
    by_clause = {finding.clause: finding.detail for finding in found.findings}
    assert set(by_clause) == {"independence", "survival"}
    assert "20 elements from memory that belongs to no tensor" in by_clause["survival"]
    assert "bytes past the end of" in by_clause["survival"]


def test_a_store_to_nowhere_is_dropped_and_is_a_containment_finding() -> None:
    """Nothing is written through a wild pointer."""

    def body(tensors: dict[str, Tensor]) -> None:
        copying()(tensors)
        kernels.shifted_kernel[(1,)](tensors["target"], 1 << 34)

    found, _ = recorded(body, plans())
    assert [finding.clause for finding in found.findings] == ["containment"]
    assert "shifted_kernel program (0, 0, 0) stores 4 elements to memory that belongs to no tensor" in (
        found.findings[0].detail
    )


@pytest.mark.parametrize(("varied", "clauses"), [(True, {"repeatability"}), (False, set[str]())])
def test_two_programs_on_one_element_race_where_their_values_differ(varied: bool, clauses: set[str]) -> None:
    """Different values are a repeatability finding with both programs; the same value is a note."""

    def body(tensors: dict[str, Tensor]) -> None:
        kernels.twice_kernel[(3,)](tensors["target"], VARIED=varied)

    found, _ = recorded(body, plans(4))
    assert {finding.clause for finding in found.findings} == clauses
    said = found.findings[0].detail if varied else found.notes[0]
    assert "programs (1, 0, 0), (2, 0, 0) store" in said
    assert "(0, 0, 0)" in said


@pytest.mark.parametrize(("ordered", "clauses"), [(False, {"repeatability"}), (True, set[str]())])
def test_reading_what_another_program_stored_needs_an_atomic(ordered: bool, clauses: set[str]) -> None:
    """A program may rely on another's stores only if an atomic can have made it wait."""

    def body(tensors: dict[str, Tensor]) -> None:
        lock = torch.zeros(1, dtype=torch.int32)
        kernels.chain_kernel[(4,)](tensors["target"], lock, ORDERED=ordered)

    found, _ = recorded(body, plans(4))
    assert {finding.clause for finding in found.findings} == clauses


def test_launches_are_told_apart() -> None:
    """The second launch may read and overwrite what the first stored: that is no race."""

    def body(tensors: dict[str, Tensor]) -> None:
        kernels.twice_kernel[(1,)](tensors["target"], VARIED=True)
        kernels.twice_kernel[(1,)](tensors["target"], VARIED=False)

    found, recorder = recorded(body, plans(4))
    assert found.findings == ()
    assert found.notes == ()
    assert recorder.recording is not None
    assert recorder.recording.written("target")[0].tolist() == [2] * 4


@pytest.mark.parametrize("cleared", [True, False])
def test_memory_that_torch_wrote_is_known(cleared: bool) -> None:
    """Atomics on an output that a torch operator has cleared are right; on what was there before they are not."""

    def body(tensors: dict[str, Tensor]) -> None:
        if cleared:
            tensors["target"].zero_()
        kernels.add_atomically[(3,)](tensors["target"], SIZE=4)

    found, recorder = recorded(body, plans(4, torch.float32))
    assert [finding.clause for finding in found.findings] == ([] if cleared else ["independence"])
    assert found.notes == ()
    assert recorder.recording is not None
    assert recorder.recording.written("target")[0].tolist() == [3] * 4


def test_scratch_that_torch_wrote_is_known() -> None:
    """torch.empty filled by an operator, or by an earlier launch, is read without a word."""

    def body(tensors: dict[str, Tensor]) -> None:
        filled = torch.empty(20, dtype=torch.int32)
        filled.copy_(tensors["source"])
        kernels.copy_kernel[(3,)](filled, tensors["target"], 20, 0, SIZE=8)

    found, _ = recorded(body, plans())
    assert found.findings == ()
    assert found.notes == ()


def test_scratch_that_nobody_wrote_is_named_with_its_line() -> None:
    """Reading torch.empty is told with the call that made it."""

    def body(tensors: dict[str, Tensor]) -> None:
        kernels.copy_kernel[(3,)](torch.empty(20, dtype=torch.int32), tensors["target"], 20, 0, SIZE=8)

    found, _ = recorded(body, plans())
    (finding,) = [finding for finding in found.findings if finding.clause == "independence"]
    assert "of scratch 0 (torch.empty [20] at test_recorder.py:" in finding.detail


def test_an_atomic_beside_a_tensor_is_seen() -> None:
    """Atomics are held to the same bounds, and one that lies nowhere changes nothing."""

    def body(tensors: dict[str, Tensor]) -> None:
        copying()(tensors)
        kernels.swap_kernel[(1,)](tensors["target"], 1 << 28)

    found, _ = recorded(body, plans())
    assert [finding.clause for finding in found.findings] == ["containment"]
    assert "swap_kernel program (0, 0, 0) stores 1 element to memory that belongs to no tensor" in (
        found.findings[0].detail
    )


@pytest.mark.parametrize(
    ("kernel", "needs"),
    [("described_copy", "create_make_tensor_descriptor"), ("blocked_copy", "create_make_block_ptr")],
)
def test_descriptors_and_block_pointers_are_recorded(kernel: str, needs: str) -> None:
    """Their loads and stores are seen like any other; older Tritons lack the one, newer the other."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    if not hasattr(interpreter.InterpreterBuilder, needs):
        pytest.skip(f"this Triton's interpreter has no {needs}")
    values = torch.arange(512.0).view(32, 16)
    loaded = [
        TensorPlan(name="source", shape=(32, 16), strides=(16, 1), dtype=torch.float32, role="input", values=values),
        TensorPlan(name="target", shape=(32, 16), strides=(16, 1), dtype=torch.float32, role="output"),
    ]

    def body(tensors: dict[str, Tensor]) -> None:
        getattr(kernels, kernel)[(2,)](tensors["source"], tensors["target"], 32, SIZE=16)

    found, recorder = recorded(body, loaded)
    assert found.findings == ()
    assert recorder.recording is not None
    counts, owners = recorder.recording.written("target")
    assert (counts == 1).all()
    assert recorder.recording.who(int(owners[31, 3])) == f"{kernel} program (1, 0, 0)"


def test_unaligned_stores_are_counted_by_the_byte() -> None:
    """A store across the boundaries of words marks exactly its bytes."""

    def body(tensors: dict[str, Tensor]) -> None:
        kernels.unaligned_kernel[(1,)](tensors["target"], SIZE=2)

    loaded = [TensorPlan(name="target", shape=(12,), strides=(1,), dtype=torch.uint8, role="output")]
    found, recorder = recorded(body, loaded)
    assert [finding.clause for finding in found.findings] == ["coverage"]
    assert recorder.recording is not None
    assert recorder.recording.stored("target").tolist() == [False] + [True] * 8 + [False] * 3


@pytest.mark.parametrize("side", ["after", "before"])
def test_a_fence_is_no_memory(side: Any) -> None:
    """Between fences one step outside is a finding with a program id, and the process lives."""
    found, _ = recorded(copying(shift=1 if side == "after" else -1), plans(), fence=Fence(side))
    survival = [finding for finding in found.findings if finding.clause == "survival"]
    assert len(survival) == 1
    assert "1 element from memory that belongs to no tensor" in survival[0].detail


def test_the_stock_interpreter_is_back_afterwards() -> None:
    """Outside of an audit nothing is hooked."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    before = dict(vars(interpreter.InterpreterBuilder)), interpreter.GridExecutor.__call__
    recorded(copying(), plans())
    assert (dict(vars(interpreter.InterpreterBuilder)), interpreter.GridExecutor.__call__) == before


def test_recording_costs_less_than_interpreting() -> None:
    """A recorded run takes at most twice the processor time of a plain one (1.05 to 1.2 times was measured)."""
    arena, body = Arena(), copying(count=4000, grid=500)
    arena.load(plans(4000))

    def seconds(recorder: Recorder | None) -> float:
        runner = Runner(body, arena, None, False, Stopwatch(), recorder)
        started = time.process_time()
        assert runner.run(Secret.A).error is None
        return time.process_time() - started

    with mended():
        plain, watched = (min(seconds(each) for _ in range(3)) for each in (None, Recorder()))
    assert watched <= 2 * plain
