"""The tensors of an up-projection problem lie and hold what the problem says, faults included."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from mla_verify.kernel import Kernel
from mla_verify.placement import cache_fills, dtype_of, table_fills
from mla_verify.up_projection import CONTRACT
from mla_verify.up_projection.tensors import place
from sanitizer.plan import TensorPlan
from strategies.invalid import UP_PROJECTION_INVALID
from strategies.layouts import Layout, strides_of
from strategies.limits import DecodeLimits
from strategies.problems import UpProjectionProblem
from tests.contracts.no_false_alarm_up_projection import registered

CPU = torch.device("cpu")
DIRECT = registered("direct")


def _kernel(*preconditions: str, validates: tuple[str, ...] = ()) -> Kernel:
    return replace(DIRECT, preconditions=preconditions, validates=validates)


def _plans(problem: UpProjectionProblem, kernel: Kernel = DIRECT) -> dict[str, TensorPlan]:
    return {plan.name: plan for plan in place(problem, kernel, CPU).tensors}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(problem=CONTRACT.problems(DIRECT))
def test_every_tensor_lies_as_the_problem_drew_it(problem: UpProjectionProblem) -> None:
    """Shapes, strides, dtype and form are the problem's; inputs hold values, every element of out is owed."""
    plans = _plans(problem)
    assert list(plans) == ["x", "w_uv", "out"]
    for name, layout in (
        ("x", problem.x_layout),
        ("w_uv", problem.w_layout),
        ("out", problem.out_layout),
    ):
        plan = plans[name]
        assert (plan.strides, plan.offset) == strides_of(plan.shape, layout)
        assert plan.dtype == dtype_of(problem.dtype)
        assert (plan.values is None) == (name == "out")
        assert plan.values is None or (plan.values.shape, plan.values.dtype) == (plan.shape, plan.dtype)
    assert plans["out"].shape == (problem.num_tokens, problem.num_heads, problem.v_head_dim)
    assert plans["out"].rules is None
    assert plans["out"].form == problem.out_form


def test_infinities_come_in_every_other_special_problem_and_stay_out_of_the_pool() -> None:
    """One or two infinities in x: enough to see what a kernel does with them, and most rows still finite."""
    for seed in range(8):
        problem = UpProjectionProblem(num_tokens=4, kv_lora_rank=9, regime="special", seed=seed)
        x, w_uv = _plans(problem)["x"].values, _plans(problem)["w_uv"].values
        assert x is not None
        assert w_uv is not None
        assert int(x.isinf().sum()) <= 2
        assert bool(x.isinf().any()) == (seed % 2 == 1)
        assert w_uv.isfinite().all()


def test_preconditions_overrule_what_was_drawn() -> None:
    """A kernel that declares contiguous or aligned tensors is given such, also when a case is replayed on it."""
    problem = UpProjectionProblem(
        num_tokens=2, num_heads=2, v_head_dim=3, out_layout=Layout("padded_rows", pad=2, offset=1)
    )
    out = _plans(problem, _kernel("contiguous_out", "aligned_16"))["out"]
    assert (out.strides, out.offset) == ((6, 3, 1), 4)
    assert _plans(problem)["out"].strides == (8, 3, 1)


def test_unused_memory_holds_what_the_preconditions_leave() -> None:
    """NaN and −1 under secret A, unless the kernel may expect finite slots and valid ids."""
    assert cache_fills(_kernel()).a == "nan"
    assert cache_fills(_kernel("finite_unused_slots")).a == "ordinary2"
    assert (table_fills(_kernel(), foreign=9).a, table_fills(_kernel(), foreign=9).b) == (-1, 9)
    assert table_fills(_kernel("valid_table_tails"), foreign=9, other=4).a == 4


def _addresses(plan: TensorPlan) -> torch.Tensor:
    """Where each element of a tensor lies, in elements from where its offset counts."""
    places = torch.tensor(plan.offset)
    for size, stride in zip(plan.shape, plan.strides, strict=True):
        places = places[..., None] + torch.arange(size) * stride
    return places


@pytest.mark.parametrize("kind", sorted(UP_PROJECTION_INVALID))
def test_invalid_problems_have_their_fault(kind: str) -> None:
    """What a kernel must refuse is really there, and nothing else is wrong."""
    problem = UpProjectionProblem(
        num_tokens=3, num_heads=2, kv_lora_rank=5, v_head_dim=5, dtype="bfloat16", invalid=kind
    )
    plans = _plans(problem)
    x, w_uv, out = plans["x"], plans["w_uv"], plans["out"]
    shared = set(_addresses(x).flatten().tolist()) & set(_addresses(out).flatten().tolist())
    places = _addresses(out).flatten()
    faults = {
        "out_has_fewer_rows": out.shape[0] == 2,
        "out_has_more_rows": out.shape[0] == 4,
        "inner_sizes_differ": w_uv.shape[1] == 6,
        "w_dtype_differs": w_uv.dtype != x.dtype,
        "out_dtype_differs": out.dtype != x.dtype,
        "out_is_x": out.over == "x" and (out.strides, out.offset) == (x.strides, 0),
        "out_shifted_over_x": out.over == "x" and out.offset > 0 and bool(shared),
        "out_stride_0": out.strides[0] == 0,
        "out_rows_overlap": out.strides[0] > 0 and len(places.unique()) < places.numel(),
    }
    assert {name for name, there in faults.items() if there} == {kind}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(problem=CONTRACT.invalid_problems(_kernel(validates=("shapes", "overlap"))))
def test_only_what_a_kernel_validates_is_drawn_and_can_be_placed(problem: UpProjectionProblem) -> None:
    """A kernel that does not validate dtypes is never given two."""
    assert problem.invalid is not None
    assert UP_PROJECTION_INVALID[problem.invalid] in ("shapes", "overlap")
    assert len(_plans(problem)) == 3


def test_limits_of_the_other_contract_are_refused_in_words() -> None:
    """The message names the kernel and what it should have been."""
    kernel = Kernel(name="mine", contract="up-projection", load=lambda: print, limits=DecodeLimits())
    with pytest.raises(TypeError, match="mine: limits of an up-projection are UpProjectionLimits, got Decode"):
        CONTRACT.problems(kernel)


def test_an_unknown_dtype_is_refused_in_words() -> None:
    """A case file from elsewhere may name anything."""
    with pytest.raises(ValueError, match="dtype 'float8' is not one of float32, float16, bfloat16"):
        dtype_of("float8")


def test_a_problem_is_described_by_what_is_not_plain_about_it() -> None:
    """The text beside a finding is short."""
    assert CONTRACT.describe(UpProjectionProblem(num_tokens=3, dtype="bfloat16")) == ("num_tokens=3, dtype=bfloat16")
