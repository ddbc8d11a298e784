"""The scale of an fp8 weight: what each regime makes of a problem's seed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import pytest
import torch

from mla_verify.formats.definitions import FORMATS
from mla_verify.up_projection.quantised_values import weight_of
from strategies.problems import UpProjectionProblem

PROBLEM: Final = UpProjectionProblem(
    kv_lora_rank=4, v_head_dim=2, weight_format="fp8", fp8_format="e4m3fn", dtype="bfloat16", regime="gaussian"
)
SEEDS: Final = range(200)


def _scale(problem: UpProjectionProblem, seed: int) -> float:
    return float(weight_of(replace(problem, seed=seed), torch.device("cpu"), limit=1 << 24).scale)


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2"])
def test_an_ordinary_scale_is_no_power_of_two(name: str) -> None:
    """It brings the largest code to between 4 and 8: a kernel that rounds it to a power of two shows."""
    for seed in SEEDS:
        reached = _scale(replace(PROBLEM, fp8_format=name), seed) * FORMATS[name].largest
        assert 4 < reached < 8
        assert math.frexp(reached)[0] != 0.5


@pytest.mark.parametrize(("dtype", "reach"), [("float16", 4), ("bfloat16", 20), ("float32", 20)])
def test_an_extreme_scale_reaches_as_far_as_the_dtype_allows(dtype: str, reach: int) -> None:
    """Every power of two within, times a number between one and two; float16 would overflow beyond."""
    problem = replace(PROBLEM, dtype=dtype, regime="extreme")
    exponents = {math.floor(math.log2(_scale(problem, seed) * FORMATS["e4m3fn"].largest)) for seed in SEEDS}
    assert exponents == set(range(-reach, reach + 1))


def test_an_exact_scale_is_a_power_of_two() -> None:
    """One of four, none above one: sums stay on the grid."""
    exact = replace(PROBLEM, regime="exact")
    assert [_scale(exact, seed) for seed in range(8)] == [1.0, 0.5, 0.25, 0.125] * 2


def test_a_special_scale_is_zero_in_every_fourth_problem() -> None:
    """And an ordinary one in the others."""
    special = replace(PROBLEM, regime="special")
    assert [seed for seed in range(16) if _scale(special, seed) == 0] == [2, 6, 10, 14]
