"""Economy: what a trace says that a call spent, and that a kernel is held to what it declares."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from rich.console import Console
from torch import Tensor

from mla_verify.bench_economy import EconomyRow, answers, compared, economy_json, print_economy, through_itself
from mla_verify.economy import allocated_between, exceeding, measure
from mla_verify.loading import open_bench
from mla_verify.registry import resolve
from mla_verify.traces import Spending, spending_of
from strategies.layouts import Layout
from strategies.problems import UpProjectionProblem
from tests.gpu.fakes.fake_cuda_trace import FakeCudaTrace

RECORDED: Final = Path(__file__).parent / "recorded"
CPU: Final = torch.device("cpu")


def recorded(name: str) -> dict[str, Any]:
    """A trace that was recorded on a CPU: 3 tokens, 4 heads, 64 × 16 in bf16, the weight as it lies in vLLM."""
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


def test_copies_inside_a_product_are_seen() -> None:
    """bmm into the view copies both operands in bf16, holds its sums in a third piece, and gives all of it back."""
    spent = spending_of(recorded("cpu_direct"), gpu=False)
    assert (spent.launches, spent.fills) == (3, 0)  # the product, and a copy of either operand
    assert (spent.allocations, spent.temporaries) == (3, 3)
    assert spent.allocated_bytes == spent.temporary_bytes == spent.peak_bytes
    assert spent.largest_temporary >= 4 * 64 * 16 * 2  # the weight


def test_the_zero_filled_form_costs_a_fill_a_copy_and_an_allocation_more() -> None:
    """Beside the direct form: one fill, one copy, and the temporary, which outlives every operator."""
    direct = spending_of(recorded("cpu_direct"), gpu=False)
    copied = spending_of(recorded("cpu_copy"), gpu=False)
    assert copied.launches == direct.launches + 2
    assert copied.fills == direct.fills + 1
    assert copied.allocations == direct.allocations + 1
    assert copied.allocated_bytes == direct.allocated_bytes + 4 * 3 * 16 * 2
    assert copied.temporaries == direct.temporaries


def test_a_result_is_no_temporary() -> None:
    """What an operator allocates and hands back to its caller counts as allocated, and not as a temporary."""
    spent = spending_of(recorded("cpu_functional"), gpu=False)
    direct = spending_of(recorded("cpu_direct"), gpu=False)
    assert spent.allocations == direct.allocations + 1
    assert spent.temporaries == direct.temporaries


def test_a_gpu_s_work_is_counted_apart_from_the_host_s() -> None:
    """Kernels, copies and fills of a GPU count once each; neither the calls that launched them nor operators do."""
    trace = FakeCudaTrace()
    trace.operator("aten::zeros", 0.0, 40.0)
    trace.operator("aten::zero_", 20.0, 18.0)
    trace.memory(5.0, 512, 0xA000)
    trace.memset(22.0, 512)
    trace.operator("aten::bmm", 50.0, 60.0)
    trace.memory(55.0, 4096, 0xB000)
    trace.memory(56.0, 64, 0xB000, on_gpu=False)
    trace.kernel("ampere_bf16_s16816gemm_bf16_128x64", 70.0)
    trace.kernel("void splitKreduce_kernel<32, 16>", 80.0)
    trace.memory(105.0, -4096, 0xB000)
    trace.operator("aten::copy_", 120.0, 10.0)
    trace.memcpy(122.0, 512)
    trace.operator("aten::fill_", 140.0, 10.0)
    trace.kernel("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", 142.0)
    spent = spending_of(trace.written(), gpu=True)
    assert (spent.launches, spent.fills) == (5, 2)
    assert (spent.allocations, spent.allocated_bytes) == (2, 512 + 4096)
    assert (spent.temporaries, spent.temporary_bytes) == (1, 4096)
    assert spent.peak_bytes == 512 + 4096
    host = spending_of(trace.written(), gpu=False)
    assert (host.allocations, host.allocated_bytes) == (1, 64)


def test_the_allocator_s_statistics_are_subtracted() -> None:
    """Two readings of the allocator give what lies between them, also when it had not been used before the first."""
    before = {"allocation.all.allocated": 17, "requested_bytes.all.allocated": 1_000}
    after = {"allocation.all.allocated": 20, "requested_bytes.all.allocated": 1_700}
    assert allocated_between(before, after) == (3, 700)
    assert allocated_between({}, after) == (20, 1_700)


NOTHING: Final = Spending(0, 0, 0, 0, 0, 0, 0, 0)


def test_a_kernel_is_held_to_what_it_declares() -> None:
    """More allocations or launches than declared are a finding, as many are none, and nothing declared is none."""
    spent = replace(NOTHING, launches=3, fills=1, allocations=2, allocated_bytes=96)
    (found,) = exceeding(spent, allocations=1, launches=3)
    assert (found.clause, found.elements) == ("economy", 2)
    assert found.detail == "one call allocates 2 pieces of memory (96 bytes), 1 declared"
    (found,) = exceeding(spent, allocations=2, launches=2)
    assert found.detail == "one call launches 3 kernels and copies, 1 of them to fill memory; 2 declared"
    assert exceeding(spent, allocations=2, launches=3) == []
    assert exceeding(spent, allocations=None, launches=None) == []


def test_a_call_on_this_machine_is_measured() -> None:
    """The profiler of the installed torch writes what is read: a fill, a product and a copy, with one piece."""
    left, right = torch.ones(2, 8, 8), torch.ones(2, 8, 8)
    out = torch.empty(2, 8, 8)

    def call() -> None:
        product = torch.zeros(2, 8, 8)
        torch.bmm(left, right, out=product)
        out.copy_(product)

    call()
    spent = measure(call, CPU)
    assert (spent.launches, spent.fills, spent.allocations) == (3, 1, 1)
    assert spent.allocated_bytes == 2 * 8 * 8 * 4


PROBLEM: Final = UpProjectionProblem(
    num_tokens=3, num_heads=4, kv_lora_rank=64, v_head_dim=16, regime="gaussian", dtype="bfloat16"
)


@pytest.fixture(scope="module")
def rows() -> list[EconomyRow]:
    """Both forms that torch.bmm(out=) replaced beside it, on a small problem with vLLM's weight."""
    bench, baseline = (open_bench(resolve(name)) for name in ("up_projection_direct", "up_projection_copy"))
    return compared(bench, baseline, "B=3 N=4, vLLM's weight", replace(PROBLEM, w_layout=Layout("vllm_weight", 16)))


def test_optimised_forms_stand_beside_what_they_replaced(rows: list[EconomyRow]) -> None:
    """Whether bmm copies the weight is the machine's affair, but every form does alike; a fill and a copy are saved."""
    direct, copied, before = rows
    assert [row.role for row in rows] == ["optimised", "baseline", "before #42561"]
    assert len({row.weight_copied for row in rows}) == 1
    assert len({row.temporary_bytes for row in rows}) == 1
    assert copied.launches - direct.launches == 2
    assert copied.fills - direct.fills == 1
    assert before.launches - direct.launches == 1
    assert before.allocations == direct.allocations
    assert direct.ratio == 1.0
    assert all(row.milliseconds > 0 and 0.1 < row.ratio < 10 for row in rows)


def test_the_table_answers_both_questions(rows: list[EconomyRow]) -> None:
    """Printed as a table and as two sentences, and the same as plain data."""
    copying = [replace(row, weight_copied=True, temporaries=3) for row in rows]
    others = [replace(row, weight_copied=False, temporaries=0, dtype="float32") for row in rows]
    temporaries, launches = answers([*copying, *others])
    where = "with vLLM's weight"
    assert temporaries.endswith(f"here? a copy of the weight: bfloat16 {where}; none: float32 {where}")
    assert launches.endswith("2 a call beside the zero-filled form, 1 of them fills")
    stream = StringIO()
    print_economy(rows, to=Console(file=stream, width=150))
    assert "economy of one call, up-projection, on cpu" in stream.getvalue()
    assert json.loads(json.dumps(economy_json(rows))) == [asdict(row) for row in rows]


def test_a_packed_weight_is_not_copied() -> None:
    """In float32, with a weight as bmm wants it, the product has no temporary at all."""
    bench, baseline = (open_bench(resolve(name)) for name in ("up_projection_direct", "up_projection_copy"))
    direct, *_ = compared(bench, baseline, "packed", replace(PROBLEM, dtype="float32"))
    assert (direct.weight_copied, direct.temporaries) == (False, 0)


def test_the_form_that_is_timed_beside_is_right() -> None:
    """The form before #42561 that is timed computes what the direct one does: it is no straw man."""
    x = torch.arange(24.0).view(2, 3, 4)
    w_uv = torch.arange(24.0).view(3, 4, 2)
    out: Tensor = torch.full((2, 3, 2), float("nan"))
    through_itself({"x": x, "w_uv": w_uv, "out": out})
    assert torch.equal(out, torch.einsum("tnl,nlv->tnv", x, w_uv))
