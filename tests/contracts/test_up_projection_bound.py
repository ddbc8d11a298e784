"""The bound passes right up-projections of every make, and wrong arithmetic does not fit into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from mla_verify.kernel import Arithmetic, Kernel
from mla_verify.up_projection import CONTRACT, bound
from mla_verify.up_projection.bound import Sums
from mla_verify.up_projection.expectation import expect
from strategies.problems import UpProjectionProblem
from tests.contracts.no_false_alarm_up_projection import (
    RIGHT,
    judged,
    laid_out,
    registered,
    up_projection_kernel,
)

DIRECT = registered("direct")
SIZES = ((1, 1, 40, 17), (3, 2, 130, 33), (5, 4, 512, 64))  # tokens, heads, kv_lora_rank, v_head_dim


def _problem(size: tuple[int, int, int, int], dtype: str, regime: str) -> UpProjectionProblem:
    tokens, heads, latent, width = size
    return UpProjectionProblem(
        num_tokens=tokens,
        num_heads=heads,
        kv_lora_rank=latent,
        v_head_dim=width,
        dtype=dtype,
        regime=regime,
        seed=10,  # even: in the exact regime the weight has the wide integers
    )


@pytest.mark.parametrize("kernel", RIGHT, ids=lambda kernel: kernel.name)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(problem=CONTRACT.problems(DIRECT))
def test_right_kernels_of_every_make_agree(kernel: Kernel, problem: UpProjectionProblem) -> None:
    """No kernel whose arithmetic is as declared is ever accused, by the oracle or beside the baseline."""
    torch.set_num_threads(1)
    known = any(deviation.problems(problem) for deviation in kernel.known_deviations)
    for judgement in judged(problem, kernel):
        assert known or not judgement.disagreements
        assert known or judgement.worst <= 1.0


def narrow_accumulator(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Adds in float16, or in bfloat16 for the other dtypes."""
    narrow = torch.float16 if x.dtype == torch.float16 else torch.bfloat16
    total = torch.zeros(out.shape, dtype=narrow)
    for column in range(x.shape[2]):
        total += (x[..., column, None].float() * w_uv[None, :, column].float()).to(narrow)
    out.copy_(total)


def last_tile_dropped(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Forgets the latent columns behind the last whole tile of 16."""
    whole = (x.shape[2] - 1) // 16 * 16
    out.copy_(torch.einsum("thk,hkv->thv", x[..., :whole].float(), w_uv[:, :whole].float()))


def scaled(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Multiplies by a scale that is off by one in a thousand."""
    out.copy_(torch.einsum("thk,hkv->thv", x.float(), w_uv.float()) * 1.001)


def rounded_weight(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Keeps the weight in bfloat16."""
    out.copy_(torch.einsum("thk,hkv->thv", x.float(), w_uv.bfloat16().float()))


def truncated_output(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Cuts a float32 sum off where it should round it to 16 bits."""
    exact = torch.einsum("thk,hkv->thv", x.float(), w_uv.float())
    nearest = exact.to(out.dtype)
    away = nearest.float().abs() > exact.abs()
    out.copy_((nearest.view(torch.int16) - away.to(torch.int16)).view(out.dtype))


FAULTS: tuple[tuple[Callable[..., None], str, str], ...] = (
    (narrow_accumulator, "float32", "exact"),
    (narrow_accumulator, "float32", "gaussian"),
    (narrow_accumulator, "float16", "exact"),
    (narrow_accumulator, "float16", "gaussian"),
    (narrow_accumulator, "bfloat16", "exact"),
    (narrow_accumulator, "bfloat16", "gaussian"),
    *(
        (last_tile_dropped, dtype, regime)
        for dtype in ("float32", "float16", "bfloat16")
        for regime in ("exact", "gaussian", "extreme", "special")
    ),
    (scaled, "float32", "exact"),
    (scaled, "float32", "gaussian"),
    (scaled, "float16", "exact"),
    (scaled, "bfloat16", "exact"),
    (rounded_weight, "float32", "exact"),
    (rounded_weight, "float32", "gaussian"),
    (truncated_output, "float16", "exact"),
    (truncated_output, "bfloat16", "exact"),
)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize(
    ("fault", "dtype", "regime"), FAULTS, ids=[f"{fault.__name__}-{d}-{r}" for fault, d, r in FAULTS]
)
def test_wrong_arithmetic_is_caught_at_every_size(
    fault: Callable[..., None], dtype: str, regime: str, size: tuple[int, int, int, int]
) -> None:
    """Each seeded fault leaves its elements outside the bound, and the baseline shows the same difference."""
    torch.set_num_threads(1)
    by_oracle, by_baseline = judged(_problem(size, dtype, regime), up_projection_kernel("wrong", fault))
    assert by_oracle.disagreements
    assert by_oracle.worst > 1.0
    assert "the baseline agrees with the oracle" in by_baseline.disagreements[0].detail


@pytest.mark.parametrize(
    ("name", "dtype", "regime"),
    [("tf32", "float32", "exact"), ("tf32", "float32", "gaussian"), ("split", "bfloat16", "exact")],
)
def test_arithmetic_must_be_declared(name: str, dtype: str, regime: str) -> None:
    """What a kernel that declares its arithmetic may do is wrong in one that does not."""
    problem = _problem(SIZES[1], dtype, regime)
    kernel = registered(name)
    assert not judged(problem, kernel)[0].disagreements
    assert judged(problem, replace(kernel, arithmetic=Arithmetic()))[0].disagreements


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("partials", ["fp32", "output dtype"])
@pytest.mark.parametrize("latent", [1, 7, 255, 256, 300, 2048, 5000])
@pytest.mark.parametrize("seed", [0, 1])
def test_exact_problems_fit_what_is_summed_in(dtype: str, partials: str, latent: int, seed: int) -> None:
    """Σ|x||w| stays within the integers that the accumulator, or the dtype of the partial sums, holds exactly."""
    arithmetic = Arithmetic(partials="output dtype" if partials == "output dtype" else "fp32")
    kernel = replace(DIRECT, arithmetic=arithmetic)
    problem = UpProjectionProblem(num_tokens=2, num_heads=2, kv_lora_rank=latent, v_head_dim=3, dtype=dtype, seed=seed)
    tensors = laid_out(problem, kernel)
    sums = torch.bmm(tensors["x"].double().abs().transpose(0, 1), tensors["w_uv"].double().abs())
    limits = {"float32": 2**24, "float16": 2**11, "bfloat16": 2**8}
    assert 0 < float(sums.max()) <= limits[dtype if partials == "output dtype" else "float32"]
    if latent > 200:  # no stretch of latent columns is left out
        assert all(bool(part.any()) for part in tensors["x"].tensor_split(8, dim=2))


def test_the_lower_limit_never_exceeds_the_bound() -> None:
    """What is accepted without working the bound out would have been accepted with it."""
    for regime in ("gaussian", "extreme", "special"):
        for kernel in RIGHT:
            problem = _problem(SIZES[1], "bfloat16", regime)
            tensors = laid_out(problem, kernel)
            reference = expect(problem, kernel, tensors).kernel
            everything = tuple(torch.nonzero(torch.ones(reference.value.shape), as_tuple=True))
            limit, _ = reference.bound(everything)
            lower = reference.relative * reference.value.abs().flatten() + reference.absolute
            assert (lower <= limit).all()


@pytest.mark.parametrize("regime", ["gaussian", "special", "extreme"])
@pytest.mark.parametrize("seed", [2, 3])
def test_sums_are_the_same_gathered_and_dense(regime: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which way is cheaper is not seen in the bound."""
    problem = replace(_problem(SIZES[1], "float32", regime), seed=seed)
    tensors = laid_out(problem, DIRECT)
    everything = tuple(torch.nonzero(torch.ones(3, 2, 33), as_tuple=True))
    dense = Sums(tensors["x"], tensors["w_uv"])
    expected = dense.total(everything), dense.flushable(everything)
    monkeypatch.setattr(bound, "_DENSE_WORK", 0)
    monkeypatch.setattr(bound, "_DENSE_SHARE", 0)
    monkeypatch.setattr(bound, "_GATHER_ELEMENTS", 1000)
    gathered = Sums(tensors["x"], tensors["w_uv"])
    torch.testing.assert_close(gathered.total(everything), expected[0], rtol=1e-13, atol=0)
    torch.testing.assert_close(gathered.flushable(everything), expected[1], rtol=1e-13, atol=0)


def test_a_sum_that_may_overflow_on_the_way_is_not_judged() -> None:
    """Two products near the end of float32's range may leave it before they cancel, so even NaN is excused."""
    problem = UpProjectionProblem(kv_lora_rank=2, regime="extreme")
    x = torch.tensor([[[2.0**64, 2.0**64]]])
    w_uv = torch.tensor([[[2.0**63], [-(2.0**63)]]])
    expectation = CONTRACT.expect(problem, DIRECT, {"x": x, "w_uv": w_uv})
    found = expectation.judge({"out": torch.full((1, 1, 1), torch.nan)}, skip={})
    assert found.disagreements == ()
    assert found.not_judged == 1


def test_a_spread_infinity_is_caught() -> None:
    """NaN in a row whose inputs are finite is wrong even beside a row that rightly holds an infinity."""

    def spreading(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
        product = torch.einsum("thk,hkv->thv", x.float(), w_uv.float())
        out.copy_(product + 0 * product.sum(0))

    problem = UpProjectionProblem(num_tokens=3, kv_lora_rank=8, v_head_dim=4, regime="special", seed=1)
    assert judged(problem, up_projection_kernel("wrong", spreading))[0].disagreements
