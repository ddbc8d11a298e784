"""Input values are the same bits everywhere, whatever was cut before them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from torch import Tensor

from mla_verify import values
from mla_verify.placement import DTYPES
from mla_verify.values import MAGNITUDES, cut, integers

CPU = torch.device("cpu")

GOLDEN = {
    ("integers_4095", "float32"): "e4b07ac4aea46154",
    ("integers_4095", "float16"): "0fcb80cce97cbff9",
    ("integers_4095", "bfloat16"): "e69a9ba0aa9a619c",
    ("integers_31", "float32"): "0563270885e93711",
    ("integers_31", "float16"): "2ca4528f8bd25603",
    ("integers_31", "bfloat16"): "818e443f93a9d33e",
    ("integers_15", "float32"): "112e9aeb507f2eec",
    ("integers_15", "float16"): "d2dd0f3b291a510d",
    ("integers_15", "bfloat16"): "9e32e3c276de86d8",
    ("integers_1", "float32"): "dd1407fed98e4a88",
    ("integers_1", "float16"): "166d462bc1b5e0bb",
    ("integers_1", "bfloat16"): "aba55c5f6b71a5a1",
    ("gaussian", "float32"): "9206edc756f80dc5",
    ("gaussian", "float16"): "780d8cea041a9031",
    ("gaussian", "bfloat16"): "61f0fc17f08c8328",
    ("extreme", "float32"): "52960cd2a0f28d11",
    ("extreme", "float16"): "4f07a7364fc21459",
    ("extreme", "bfloat16"): "97786a1f33ca92c9",
    ("special", "float32"): "57ee3f0998f84eae",
    ("special", "float16"): "57fcdb035b4c9036",
    ("special", "bfloat16"): "5684b0ae59f05b1b",
}


def _bits(tensor: Tensor) -> bytes:
    wide = tensor.dtype == torch.float32
    array = tensor.contiguous().view(torch.int32 if wide else torch.int16).numpy()
    return array.astype("<i4" if wide else "<i2").tobytes()


@pytest.mark.parametrize(("pool", "dtype"), sorted(GOLDEN))
def test_the_bits_of_a_cut_never_change(pool: str, dtype: str) -> None:
    """A saved case replays with the very numbers it was found with."""
    digest = hashlib.sha256(_bits(cut(pool, (3, 5, 700), DTYPES[dtype], CPU, seed=3, tensor="x")))
    assert digest.hexdigest()[:16] == GOLDEN[pool, dtype]


def test_a_pool_that_grows_keeps_what_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a small problem is given does not depend on a large one that came before it."""
    monkeypatch.setattr(values, "_pools", {})
    before = cut("gaussian", (1000,), torch.float32, CPU, seed=1, tensor="x").clone()
    cut("gaussian", (100_000,), torch.float32, CPU, seed=1, tensor="x")
    assert torch.equal(before, cut("gaussian", (1000,), torch.float32, CPU, seed=1, tensor="x"))


def test_two_tensors_of_a_problem_differ() -> None:
    """A kernel that confuses two inputs of one shape must not be right by accident."""
    x = cut("gaussian", (64,), torch.float32, CPU, seed=0, tensor="x")
    assert not torch.equal(x, cut("gaussian", (64,), torch.float32, CPU, seed=0, tensor="w_uv"))
    assert not torch.equal(x, cut("gaussian", (64,), torch.float32, CPU, seed=1, tensor="x"))


def test_a_cut_longer_than_the_period_does_not_repeat_at_a_power_of_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Heads that lie a power of two apart hold different numbers, however large the tensor."""
    monkeypatch.setattr(values, "_pools", {})
    monkeypatch.setattr(values, "_PERIOD", 1021)
    rows = cut("gaussian", (8, 1024), torch.float32, CPU, seed=0, tensor="x")
    assert all(not torch.equal(rows[0], row) for row in rows[1:])


def test_a_cut_copies_nothing() -> None:
    """Drawing a large problem costs no memory traffic once its pool is there."""
    one = cut("gaussian", (10,), torch.float16, CPU, seed=0, tensor="x")
    other = cut("gaussian", (2, 5), torch.float16, CPU, seed=0, tensor="x")
    assert one.data_ptr() == other.data_ptr()


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_integers_reach_their_magnitude_and_no_further(magnitude: int) -> None:
    """Exact regimes rest on how large their integers are."""
    drawn = cut(integers(magnitude), (50_000,), torch.float32, CPU, seed=0, tensor="x")
    assert torch.equal(drawn, drawn.round())
    assert int(drawn.min()) == -magnitude
    assert int(drawn.max()) == magnitude


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_special_values_are_zeros_of_both_signs_subnormals_and_ordinary_numbers(dtype: str) -> None:
    """The special regime holds what arithmetic treats differently, in the dtype's own range."""
    drawn = cut("special", (4000,), DTYPES[dtype], CPU, seed=0, tensor="x").to(torch.float64)
    smallest_normal = torch.finfo(DTYPES[dtype]).smallest_normal
    zero, small = drawn == 0, (drawn != 0) & (drawn.abs() < smallest_normal)
    assert 0.2 < zero.double().mean() < 0.3
    assert 0.04 < small.double().mean() < 0.08
    assert zero.logical_and(drawn.signbit()).any()
    assert zero.logical_and(~drawn.signbit()).any()
    assert drawn.isfinite().all()


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_products_of_extreme_values_stay_in_range(dtype: str) -> None:
    """Every exponent of a wide range occurs, and a sum of two thousand products still fits."""
    drawn = cut("extreme", (50_000,), DTYPES[dtype], CPU, seed=0, tensor="x").to(torch.float64).abs()
    limits = torch.finfo(DTYPES[dtype])
    assert float(drawn.min()) >= limits.smallest_normal
    assert float(drawn.max()) ** 2 * (1 if dtype == "float16" else 2000) < limits.max
    assert float(drawn.max() / drawn.min()) > 2.0**18


def test_float32_values_use_all_their_bits() -> None:
    """Rounding the inputs to fewer bits must change them, or a kernel that does so goes unseen."""
    drawn = cut("gaussian", (10_000,), torch.float32, CPU, seed=0, tensor="x")
    last_bits = drawn.numpy().view(np.uint32) & 1
    assert 0.1 < last_bits.mean() < 0.6


def test_asking_for_other_integers_is_refused() -> None:
    """The message names what there is."""
    with pytest.raises(ValueError, match=r"no pool of integers up to 16, only up to .*15"):
        integers(16)
