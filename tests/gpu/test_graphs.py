"""Graphs: a replay gives the bits of an eager call, whatever the memory around it and the pool held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
import torch

from mla_verify.check import check
from mla_verify.examine import Bench, kernel_call
from mla_verify.faults.captured import CAPTURED_RIGHT, GRAPH_FAULTS, UNCAPTURED
from mla_verify.graphs import Replayed, replayed_from_graphs, variants
from mla_verify.kernel import Kernel, KnownDeviation
from mla_verify.loading import open_bench
from mla_verify.registry import resolve
from sanitizer.cuda_graphs import blocks_of_pool
from sanitizer.graphs import FROM_A_GRAPH
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem
from tests.gpu.fakes.fake_cuda_graphs import FakeCudaGraphs

DECODE: Final = DecodeProblem(
    kv_lens=(9, 3, 6, 5),
    q_lens=(1, 1, 2, 1),
    num_heads=2,
    kv_lora_rank=8,
    qk_rope_head_dim=4,
    page_size=4,
    num_kv_splits=2,
    regime="gaussian",
    padding_rows=1,
    page_order="shuffled",
)
UP: Final = UpProjectionProblem(num_tokens=5, num_heads=2, kv_lora_rank=8, v_head_dim=4, regime="gaussian")


def replayed(kernel: Kernel, problem: Problem) -> Replayed:
    """Replays of a kernel, captured by the fake."""
    bench: Bench = open_bench(kernel)
    return replayed_from_graphs(
        problem,
        kernel=bench.kernel,
        contract=bench.contract,
        call=lambda placement: kernel_call(bench, placement, state=None),
        arena=bench.arena,
        backend=FakeCudaGraphs(),
    )


@pytest.mark.parametrize("kernel", CAPTURED_RIGHT, ids=lambda kernel: kernel.name)
def test_right_kernels_that_can_be_captured_are_right_when_called(kernel: Kernel) -> None:
    """The controls of this file keep the whole contract in eager calls: what replays show is about graphs."""
    assert check(kernel, examples=15, seed=0, isolation="none").findings == ()


@pytest.mark.parametrize("kernel", [fault for fault, _ in GRAPH_FAULTS], ids=lambda kernel: kernel.name)
def test_faults_of_graphs_are_right_when_called(kernel: Kernel) -> None:
    """No eager check finds these: replaying is what does."""
    assert check(kernel, examples=15, seed=0, isolation="none", sequences=False).findings == ()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", CAPTURED_RIGHT, ids=lambda kernel: kernel.name)
def test_a_right_kernel_replays_what_it_computes(kernel: Kernel, dtype: str) -> None:
    """Bit for bit, on other inputs and on a batch with fewer requests than were captured."""
    shown = replayed(kernel, replace(DECODE, dtype=dtype))
    assert shown.findings == ()
    (note,) = shown.notes
    assert note.endswith("replayed on the same inputs, other inputs, fewer requests than were captured")


@pytest.mark.parametrize(("kernel", "clause"), GRAPH_FAULTS, ids=lambda value: getattr(value, "name", value))
def test_a_graph_that_remembers_its_capture_is_found(kernel: Kernel, clause: str) -> None:
    """A workspace that the pool keeps, padding counted at capture, lengths read at capture: each under its clause."""
    shown = replayed(kernel, DECODE if kernel.contract == "decode" else UP)
    assert clause in {finding.clause for finding in shown.findings}
    assert all(finding.detail.startswith(FROM_A_GRAPH) for finding in shown.findings)


def test_padding_rows_of_a_padded_batch_are_held_to_the_declaration() -> None:
    """A kernel that declares padding untouched and zeroes it is found on the padded batch, as containment."""
    zeroing = next(kernel for kernel in CAPTURED_RIGHT if kernel.padding_rows == "zero")
    shown = replayed(replace(zeroing, padding_rows="untouched"), replace(DECODE, padding_rows=0))
    assert {finding.clause for finding in shown.findings} == {"containment"}
    assert "fewer requests" in shown.findings[0].detail


def test_a_kernel_that_reads_on_the_host_cannot_be_captured_and_says_so() -> None:
    """No finding and no claim: graphs are not checked, with what the driver said first."""
    shown = replayed(UNCAPTURED, DECODE)
    assert shown.findings == ()
    (note,) = shown.notes
    assert note.startswith("graphs not checked: cannot be captured: RuntimeError: CUDA error: operation not permitted")


def test_up_projections_are_replayed_on_fewer_tokens_too() -> None:
    """Both forms of the up-projection replay on other inputs, and where half of the tokens are padding."""
    for name in ("up_projection_direct", "up_projection_copy"):
        shown = replayed(resolve(name), UP)
        assert shown.findings == ()
        assert shown.notes[0].endswith("the same inputs, other inputs, fewer tokens than were captured")


def test_a_kernel_that_returns_its_output_is_replayed_into_it() -> None:
    """Outputs that a kernel allocates belong to the graph: what it returned at capture is what a replay writes."""

    def returned(x: torch.Tensor, w_uv: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.bmm(x.transpose(0, 1), w_uv).transpose(0, 1)

    def remembers(x: torch.Tensor, w_uv: torch.Tensor, **_: Any) -> torch.Tensor:
        product = torch.bmm(x.transpose(0, 1), w_uv).transpose(0, 1)
        return product if len(x) != 5 else torch.cat([product[:2], torch.empty_like(product[2:])])

    kernel = Kernel(name="returned", contract="up-projection", load=lambda: returned)
    assert replayed(kernel, UP).findings == ()
    shown = replayed(replace(kernel, load=lambda: remembers), UP)
    # Nothing can be said of replays where eager calls do not agree with each other.
    assert shown.notes == ("graphs not checked: eager calls do not agree with each other",)


def test_a_kernel_that_plans_ahead_is_replayed_on_its_own_problem_alone() -> None:
    """A plan that the host has made belongs to one problem, and so does the graph."""

    def prepare(**_: Any) -> None: ...

    planning = replace(CAPTURED_RIGHT[0], prepare=prepare)
    assert [name for name, _ in variants(DECODE, planning)] == ["the same inputs"]


def test_variants_have_the_shapes_of_the_captured_problem() -> None:
    """Shorter requests and fewer of them lie in tables and pools of the same sizes."""
    kernel = CAPTURED_RIGHT[0]
    contract = open_bench(kernel).contract
    shapes = {
        name: [
            (plan.name, plan.shape, plan.strides) for plan in contract.place(one, kernel, torch.device("cpu")).tensors
        ]
        for name, one in variants(DECODE, kernel)
    }
    assert list(shapes) == ["the same inputs", "other inputs", "fewer requests than were captured"]
    assert len({tuple(one) for one in shapes.values()}) == 1


def test_variants_stay_within_what_a_kernel_promises() -> None:
    """No replay on problems outside the kernel's limits, nor on those with a known deviation."""
    kernel = CAPTURED_RIGHT[0]
    known = KnownDeviation(clause="coverage", problems=lambda problem: 0 in problem.kv_lens, reason="known")
    names = [name for name, _ in variants(DECODE, replace(kernel, known_deviations=(known,)))]
    assert names == ["the same inputs", "other inputs"]


def test_only_mapped_blocks_of_the_pool_are_poisoned() -> None:
    """Blocks of other pools are not touched, nor what an expandable segment has not mapped."""
    snapshot = [
        {
            "segment_pool_id": (0, 1),
            "address": 4096,
            "blocks": [
                {"size": 512, "state": "active_allocated"},
                {"size": 512, "state": "unmapped"},
                {"size": 1024, "state": "inactive"},
            ],
        },
        {"segment_pool_id": (0, 0), "address": 0, "blocks": [{"size": 64, "state": "inactive"}]},
    ]
    assert list(blocks_of_pool(snapshot, (0, 1))) == [(4096, 512), (5120, 1024)]


def test_the_fake_runs_nothing_while_it_captures() -> None:
    """What this file rests on: capturing has no effect, replaying does, and reading on the host is an error."""
    backend = FakeCudaGraphs()
    source, target = torch.ones(3), torch.zeros(3)
    graph = backend.capture(lambda: target.copy_(source * 2))
    assert target.tolist() == [0, 0, 0]
    source.fill_(3)
    graph.replay()
    assert target.tolist() == [6, 6, 6]
    with pytest.raises(RuntimeError, match="previous error during capture"):
        backend.capture(lambda: target.sum().item())
    with pytest.raises(RuntimeError, match="previous error during capture"):
        backend.capture(lambda: print(target.tolist()))
    assert target.tolist() == [6, 6, 6]
