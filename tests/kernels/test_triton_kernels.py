"""Our own Triton kernels, interpreted: few examples of each, and what they refuse."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Final

import pytest
import torch

from mla_verify.check import check
from mla_verify.kernels.triton_launch import block, overlap, overlaps_itself
from mla_verify.registry import resolve
from strategies.limits import DecodeLimits, UpProjectionLimits

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

_EXAMPLES: Final = 6  # whole runs are `mla-verify check triton_decode --examples 200`
# Sizes that one small launch covers: the interpreter takes milliseconds for every program.
_LIMITS: Final = {
    "triton_up_projection": UpProjectionLimits(num_heads=(1, 3), kv_lora_rank=(1, 17, 65), v_head_dim=(1, 5)),
    "triton_up_projection_fp8": UpProjectionLimits(
        num_heads=(1, 2), kv_lora_rank=(1, 17, 129), v_head_dim=(1, 5), weight_formats=("fp8",)
    ),
    "triton_up_projection_mxfp4": UpProjectionLimits(
        num_heads=(1, 2), kv_lora_rank=(2, 34, 64), v_head_dim=(1, 5), weight_formats=("mxfp4",)
    ),
    "triton_decode": DecodeLimits(
        num_heads=(1, 3), kv_lora_rank=(1, 17), qk_rope_head_dim=(0, 2), max_num_kv_splits=3, max_batch=2, max_kv_len=9
    ),
}


@pytest.mark.parametrize("name", sorted(_LIMITS))
@pytest.mark.parametrize("form", ["optimised", "zero-filled"])
def test_our_triton_kernels_keep_their_contract(name: str, form: str) -> None:
    """Both forms of both kernels show no finding on any clause."""
    kernel = resolve(name)
    if form == "zero-filled":
        assert kernel.baseline is not None
        kernel = resolve(kernel.baseline)
    report = check(replace(kernel, limits=_LIMITS[name]), examples=_EXAMPLES, seed=2)
    assert report.unavailable is None
    assert [finding.detail for finding in report.findings] == []


def test_a_stride_that_reaches_into_the_next_row_is_an_overlap() -> None:
    """Rows that share an element overlap; padded, transposed and sliced ones do not, nor do sizes of 1 and 0."""
    base = torch.zeros(64)
    assert overlaps_itself(base.as_strided((4, 3), (0, 1)))
    assert overlaps_itself(base.as_strided((4, 3), (2, 1)))
    assert not overlaps_itself(base.as_strided((4, 3), (5, 1)))
    assert not overlaps_itself(base.as_strided((4, 3), (1, 4)))
    assert not overlaps_itself(base.as_strided((1, 3), (0, 1)))
    assert not overlaps_itself(base.as_strided((0, 3), (0, 0)))


def test_tensors_overlap_where_their_addresses_meet() -> None:
    """Adjacent tensors do not overlap, shifted views do, and nothing overlaps an empty tensor."""
    base = torch.zeros(8)
    assert overlap(base[:4], base[3:])
    assert not overlap(base[:4], base[4:])
    assert not overlap(base, base[4:4])


def test_a_block_is_a_power_of_two_that_a_matrix_product_takes() -> None:
    """Blocks hold their size, are at least 16 and no larger than asked."""
    assert [block(size, most=64) for size in (0, 1, 16, 17, 64, 65)] == [16, 16, 16, 32, 64, 64]
