"""The same checks on a GPU: right kernels pass, seeded faults are found, the sanitizer stays on the device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import torch

from mla_verify.check import check
from mla_verify.economy import measure
from mla_verify.examine import kernel_call
from mla_verify.faults.captured import CAPTURED_RIGHT, GRAPH_FAULTS, UNCAPTURED
from mla_verify.faults.corpus import controls, faults
from mla_verify.faults.fault import Fault, kernel_of
from mla_verify.faults.streamed import STREAM_FAULTS, STREAMED_RIGHT
from mla_verify.graphs import Replayed, replayed_from_graphs
from mla_verify.kernel import Kernel
from mla_verify.loading import open_bench
from mla_verify.registry import registered
from sanitizer.arena import Arena
from sanitizer.plan import TensorPlan
from sanitizer.secrets import Secret
from sanitizer.streams import StreamAudit, audit_streams
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

ROOT: Final = Path(__file__).resolve().parents[2]
FAULTS: Final = faults(triton=False)
DECODE: Final = DecodeProblem(
    kv_lens=(9, 3, 6, 5),
    q_lens=(1, 1, 2, 1),
    num_heads=2,
    kv_lora_rank=16,
    qk_rope_head_dim=8,
    page_size=4,
    regime="gaussian",
    padding_rows=1,
)
UP: Final = UpProjectionProblem(num_tokens=16, num_heads=4, kv_lora_rank=64, v_head_dim=32, regime="gaussian")


@pytest.mark.parametrize("kernel", registered(), ids=lambda kernel: kernel.name)
def test_registered_kernels_hold_on_a_gpu(kernel: Kernel) -> None:
    """Every registered kernel that runs on CUDA or ROCm keeps its contract there."""
    report = check(kernel, examples=30, seed=0, device="cuda")
    if report.verdict == "unavailable":
        pytest.skip(f"{report.kernel}: {report.unavailable}")
    assert report.findings == ()


@pytest.mark.parametrize("kernel", controls(triton=False), ids=lambda kernel: kernel.name)
def test_right_kernels_are_not_blamed_on_a_gpu(kernel: Kernel) -> None:
    """Right kernels of unusual make pass on the device too."""
    report = check(kernel, examples=20, seed=0, device="cuda")
    assert report.findings == ()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_seeded_faults_are_found_on_a_gpu(fault: Fault) -> None:
    """Each seeded fault is found on the device under a clause that it declares."""
    report = check(kernel_of(fault), examples=100, seed=0, device="cuda")
    assert {finding.clause for finding in report.findings} & set(fault.clauses)


def test_the_arena_lies_on_the_device() -> None:
    """Tensors, secrets and comparison are on the GPU: nothing of a problem is copied to the host."""
    arena = Arena("cuda")
    values = torch.arange(12, dtype=torch.float32, device="cuda").view(3, 4)
    arena.load(
        [
            TensorPlan(name="x", shape=(3, 4), strides=(5, 1), dtype=torch.float32, role="input", values=values),
            TensorPlan(name="out", shape=(3, 4), strides=(6, 1), dtype=torch.float16, role="output"),
        ]
    )
    for secret in Secret:
        arena.poison(secret)
        tensors = arena.tensors()
        assert all(tensor.is_cuda for tensor in tensors.values())
        assert torch.equal(tensors["x"], values)
        assert arena.stray() == []
    tensors = arena.tensors()
    tensors["x"][1, 2] = 0
    (finding,) = arena.stray()
    assert finding.clause == "containment"
    assert finding.tensor == "x"


def replayed(kernel: Kernel, problem: Problem) -> Replayed:
    """Replays of a kernel from real graphs."""
    from sanitizer.cuda_graphs import CudaGraphs

    bench = open_bench(kernel, device="cuda")
    return replayed_from_graphs(
        problem,
        kernel=bench.kernel,
        contract=bench.contract,
        call=lambda placement: kernel_call(bench, placement, state=None),
        arena=bench.arena,
        backend=CudaGraphs(bench.device),
    )


@pytest.mark.parametrize("kernel", CAPTURED_RIGHT, ids=lambda kernel: kernel.name)
def test_right_kernels_replay_what_they_compute(kernel: Kernel) -> None:
    """Bit for bit, on other inputs and on a padded batch."""
    shown = replayed(kernel, DECODE)
    assert shown.findings == ()
    assert shown.notes[0].startswith("graphs: captured")


@pytest.mark.parametrize(("kernel", "clause"), GRAPH_FAULTS, ids=lambda value: getattr(value, "name", value))
def test_faults_of_graphs_are_found(kernel: Kernel, clause: str) -> None:
    """What a graph remembers of its capture, or of what its pool held, is found."""
    shown = replayed(kernel, DECODE if kernel.contract == "decode" else UP)
    assert clause in {finding.clause for finding in shown.findings}


def test_what_cannot_be_captured_says_so() -> None:
    """A kernel that reads on the host: no finding, and the driver's word for it."""
    shown = replayed(UNCAPTURED, DECODE)
    assert shown.findings == ()
    assert shown.notes[0].startswith("graphs not checked: cannot be captured")


def on_streams(kernel: Kernel) -> StreamAudit:
    """The audit of a kernel on real streams."""
    from sanitizer.cuda_streams import CudaStreams

    bench = open_bench(kernel, device="cuda")
    placement = bench.contract.place(UP, bench.kernel, bench.device)
    bench.arena.load(placement.tensors)
    return audit_streams(kernel_call(bench, placement, state=None), bench.arena, CudaStreams(bench.device))


@pytest.mark.parametrize("kernel", STREAMED_RIGHT, ids=lambda kernel: kernel.name)
def test_work_that_is_forked_and_joined_is_in_order(kernel: Kernel) -> None:
    """Streams of a kernel's own are no fault."""
    shown = on_streams(kernel)
    assert (shown.findings, shown.why_not) == ((), "")


@pytest.mark.parametrize("kernel", STREAM_FAULTS, ids=lambda kernel: kernel.name)
def test_work_that_nobody_waits_for_is_found(kernel: Kernel) -> None:
    """A result that comes too late, and inputs that are read too early."""
    (finding,) = on_streams(kernel).findings
    assert finding.clause == "repeatability"


BESIDE: Final = """
import torch
from mla_verify.loading import open_bench
from mla_verify.registry import resolve
from sanitizer.audit import audit
from sanitizer.fences import Fence
from sanitizer.plan import TensorPlan

bench = open_bench(resolve("up_projection_copy"), device="cuda")
if bench.arena.fencing is None:
    print("no fences:", bench.no_fences)
    raise SystemExit(0)
values = torch.arange(7.0, device="cuda")
bench.arena.load(
    [
        TensorPlan(name="x", shape=(7,), strides=(1,), dtype=torch.float32, role="input", values=values),
        TensorPlan(name="out", shape=(3,), strides=(1,), dtype=torch.float32, role="output"),
    ],
    fence=Fence("after"),
)

def kernel(tensors):
    x = tensors["x"]
    beyond = torch.empty(0, device="cuda").set_(x.untyped_storage(), x.storage_offset() + {offset}, (1,))
    tensors["out"].copy_(beyond.expand(3))

print([finding.clause for finding in audit(kernel, bench.arena).findings])
"""


@pytest.mark.parametrize(("offset", "clauses"), [(6, "[]"), (7, "['survival']")], ids=["last", "one too far"])
def test_one_element_too_far_breaks_the_device(offset: int, clauses: str) -> None:
    """The element behind the last one is mapped to nothing; the last one is there."""
    done = subprocess.run(
        [sys.executable, "-c", BESIDE.format(offset=offset)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    said = (done.stdout.strip().splitlines() or [done.stderr[-300:]])[-1]
    if said.startswith("no fences"):
        pytest.skip(said)
    # ROCm ends the process where CUDA refuses whatever comes next.
    assert said == clauses or (clauses != "[]" and done.returncode < 0)


def test_launches_and_allocations_of_a_gpu_are_counted() -> None:
    """A fill, a product and a copy are three launches at least, and one allocation."""
    left, right, out = (torch.ones(2, 64, 64, device="cuda") for _ in range(3))

    def call() -> None:
        product = torch.zeros(2, 64, 64, device="cuda")
        torch.bmm(left, right, out=product)
        out.copy_(product)

    call()
    spent = measure(call, torch.device("cuda", torch.cuda.current_device()))
    assert spent.launches >= 3
    assert spent.fills == 1
    assert spent.allocations >= 1
    assert spent.allocated_bytes >= 2 * 64 * 64 * 4
