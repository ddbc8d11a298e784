"""Streams: whoever waits for the stream that a kernel was given finds its results, and the kernel finds its inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
import torch

from mla_verify.examine import kernel_call
from mla_verify.faults.streamed import FORKED_AND_JOINED, NEVER_FORKED, NEVER_JOINED
from mla_verify.kernel import Kernel
from mla_verify.loading import open_bench
from mla_verify.registry import resolve
from sanitizer.streams import ON_A_STREAM, StreamAudit, audit_streams
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem
from tests.gpu.fakes.fake_cuda_streams import FakeCudaStreams

UP: Final = UpProjectionProblem(num_tokens=3, num_heads=2, kv_lora_rank=8, v_head_dim=4, regime="gaussian")
LARGE: Final = replace(UP, num_tokens=32, num_heads=16, kv_lora_rank=128, v_head_dim=32)
DECODE: Final = DecodeProblem(
    kv_lens=(9, 3), q_lens=(1, 1), num_heads=2, kv_lora_rank=8, page_size=4, num_kv_splits=2, regime="gaussian"
)


def audited(kernel: Kernel, problem: Problem, **declared: Any) -> StreamAudit:
    """The audit of a kernel on fake streams."""
    bench = open_bench(replace(kernel, devices=("cpu",)))
    placement = bench.contract.place(problem, bench.kernel, bench.device)
    bench.arena.load(placement.tensors)
    backend = FakeCudaStreams()
    with backend.installed():
        return audit_streams(kernel_call(bench, placement, state=None), bench.arena, backend, **declared)


@pytest.mark.parametrize("problem", [UP, LARGE], ids=["small", "large"])
def test_work_that_is_forked_and_joined_is_in_order(problem: Problem) -> None:
    """A kernel may use streams of its own, as long as they wait and are waited for."""
    shown = audited(FORKED_AND_JOINED, problem)
    assert (shown.findings, shown.why_not) == ((), "")


@pytest.mark.parametrize("problem", [UP, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("fault", [NEVER_JOINED, NEVER_FORKED], ids=lambda kernel: kernel.name)
def test_work_that_nobody_waits_for_is_found(fault: Kernel, problem: Problem) -> None:
    """Neither a result that comes too late nor inputs that are read too early pass, at any size."""
    (finding,) = audited(fault, problem).findings
    assert finding.clause == "repeatability"
    assert finding.detail.startswith(ON_A_STREAM)
    assert finding.tensor == "out"


def test_a_result_that_comes_too_late_is_found_without_determinism_too() -> None:
    """A kernel whose bits may differ still has to have written by then."""
    (finding,) = audited(NEVER_JOINED, UP, deterministic=False).findings
    assert finding.elements == 3 * 2 * 4


@pytest.mark.parametrize("name", ["up_projection_direct", "up_projection_copy"])
def test_kernels_that_use_the_stream_they_are_given_pass(name: str) -> None:
    """Our own kernels launch on the current stream alone."""
    assert audited(resolve(name), UP).findings == ()


def test_a_kernel_that_reads_on_the_host_passes() -> None:
    """Waiting for the device on the host is in order, if slow."""
    assert audited(resolve("decode_split_kv_empty"), DECODE).findings == ()


def test_an_exception_on_a_side_stream_says_so() -> None:
    """A kernel that raises there has not been checked, and breaks no clause by it."""

    def kernel(x: torch.Tensor, **_: Any) -> None:
        if torch.cuda.current_stream() is not _default:
            raise RuntimeError("only on the default stream")

    bench = open_bench(resolve("up_projection_direct"))
    bench.arena.load(bench.contract.place(UP, bench.kernel, bench.device).tensors)
    backend = FakeCudaStreams()
    with backend.installed():
        _default = torch.cuda.current_stream()
        shown = audit_streams(lambda tensors: kernel(**tensors), bench.arena, backend)
    assert shown.findings == ()
    assert shown.why_not == "raised on a side stream: RuntimeError: only on the default stream"


def test_the_fake_orders_what_waits_and_nothing_else() -> None:
    """What this file rests on: a stream that is waited for has run, one that is not runs after the reader."""
    fake = FakeCudaStreams()
    with fake.installed():
        for joined in (True, False):
            memory, side = torch.zeros(2), torch.cuda.Stream()
            with fake.producer():
                with torch.cuda.stream(side):
                    memory.add_(1)
                if joined:
                    torch.cuda.current_stream().wait_stream(side)
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    memory.add_(10)
            fake.hand_over()
            with fake.consumer():
                read = memory.clone()
            assert memory.tolist() == [11, 11]
            fake.finish()
            assert read.tolist() == [1, 1]
            assert memory.tolist() == [11, 11]
