"""The up-projection's oracle: the definition itself, whatever the inputs hold."""

from __future__ import annotations

from fractions import Fraction
from math import inf, isnan, nan

import pytest
import torch
from torch import Tensor

from mla_verify.up_projection import CONTRACT, oracle
from mla_verify.up_projection.oracle import up_project
from strategies.problems import UpProjectionProblem
from tests.contracts.no_false_alarm_up_projection import laid_out, registered

DIRECT = registered("direct")


def _row(values: list[float]) -> Tensor:
    return torch.tensor([[values]])  # one token, one head


def _column(values: list[float]) -> Tensor:
    return torch.tensor([[[value] for value in values]])  # one head, one output column


def test_the_oracle_is_the_sum_of_products() -> None:
    """Every element is Σ x·w over the latent columns of its head, compared here in exact rational numbers."""
    problem = UpProjectionProblem(num_tokens=2, num_heads=3, kv_lora_rank=5, v_head_dim=4, regime="gaussian")
    tensors = laid_out(problem, DIRECT)
    x, w_uv = tensors["x"], tensors["w_uv"]
    out = up_project(x, w_uv)
    for token, head, column in ((0, 0, 0), (1, 2, 3), (1, 0, 2)):
        factors = zip(x[token, head].tolist(), w_uv[head, :, column].tolist(), strict=True)
        exact = sum((Fraction(one) * Fraction(other) for one, other in factors), Fraction(0))
        assert float(out[token, head, column]) == pytest.approx(float(exact), rel=1e-14)


def test_heads_are_tiled_without_changing_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiles that keep memory small are not seen in the answer."""
    problem = UpProjectionProblem(num_tokens=3, num_heads=7, kv_lora_rank=9, v_head_dim=2, regime="gaussian")
    tensors = laid_out(problem, DIRECT)
    whole = up_project(tensors["x"], tensors["w_uv"])
    monkeypatch.setattr(oracle, "_TILE_BYTES", 1000)
    assert len(list(oracle.head_blocks(tensors["x"], tensors["w_uv"]))) > 1
    assert torch.equal(up_project(tensors["x"], tensors["w_uv"]), whole)


@pytest.mark.parametrize("width", [1, 2, 40, 600])
def test_nothing_is_scrubbed(width: int) -> None:
    """NaN in is NaN out, an infinity times zero is NaN, and so is one infinity less another, at any size."""
    ones = [1.0] * width
    assert isnan(up_project(_row([nan, *ones]), _column([0.0, *ones])))
    assert isnan(up_project(_row([inf, *ones]), _column([0.0, *ones])))
    assert isnan(up_project(_row([inf, -inf, *ones]), _column([1.0, 1.0, *ones])))
    assert float(up_project(_row([inf, *ones]), _column([-1.0, *ones]))) == -inf


def test_a_sum_of_nothing_is_zero() -> None:
    """kv_lora_rank 0 leaves zeros, not whatever the output held."""
    problem = UpProjectionProblem(num_tokens=2, kv_lora_rank=0, v_head_dim=3)
    tensors = laid_out(problem, DIRECT)
    expectation = CONTRACT.expect(problem, DIRECT, tensors)
    assert not expectation.judge({"out": torch.zeros(2, 1, 3)}, skip={}).disagreements
    assert expectation.judge({"out": torch.ones(2, 1, 3)}, skip={}).disagreements


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_baseline_is_the_oracle_rounded_and_shares_no_memory(dtype: str) -> None:
    """The baseline computes into memory of its own and is exact where the regime is."""
    problem = UpProjectionProblem(num_tokens=3, num_heads=2, kv_lora_rank=33, v_head_dim=5, dtype=dtype)
    tensors = laid_out(problem, DIRECT)
    (name,), (out,) = zip(*CONTRACT.baseline(problem, DIRECT, tensors).items(), strict=True)
    assert name == "out"
    assert out.is_contiguous()
    assert tensors["out"].isnan().all()  # untouched
    assert torch.equal(out, up_project(tensors["x"], tensors["w_uv"]).to(out.dtype))


def test_the_baseline_keeps_an_infinity_in_its_row() -> None:
    """A row must not be spoilt by an infinity in the next, as it is in a library's bfloat16 product."""
    x = torch.ones(63, 1, 3, dtype=torch.bfloat16)
    x[5, 0, 0] = inf
    problem = UpProjectionProblem(num_tokens=63, kv_lora_rank=3, v_head_dim=16, dtype="bfloat16")
    tensors = {"x": x, "w_uv": torch.ones(1, 3, 16, dtype=torch.bfloat16)}
    out = CONTRACT.baseline(problem, DIRECT, tensors)["out"]
    assert out[5].isinf().all()
    assert (out[torch.arange(63) != 5] == 3).all()
