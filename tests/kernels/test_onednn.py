"""What oneDNN gets wrong on CPUs with AMX is excused there, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mla_verify.isolation import Sandboxed
from mla_verify.kernels.onednn import AMX_DIVIDES_BY_STRIDE
from mla_verify.registry import resolve
from strategies.problems import UpProjectionProblem

DIVIDES = UpProjectionProblem(
    num_tokens=2, num_heads=4, kv_lora_rank=33, v_head_dim=16, dtype="bfloat16", invalid="out_stride_0"
)


@pytest.mark.parametrize(
    "problem",
    [DIVIDES, replace(DIVIDES, kv_lora_rank=32), replace(DIVIDES, dtype="float32")],
    ids=lambda one: one.dtype,
)
def test_a_stride_of_0_ends_the_process_where_it_is_said_to(problem: UpProjectionProblem) -> None:
    """SIGFPE at every bfloat16 product above the smallest where torch uses AMX, and nowhere else."""
    examiner = Sandboxed(resolve("up_projection_direct"), device="cpu")
    try:
        findings = examiner(problem).findings
    finally:
        examiner.close()
    died = [finding for finding in findings if finding.clause == "survival"]
    assert bool(died) is AMX_DIVIDES_BY_STRIDE.problems(problem)
    assert all("SIGFPE" in finding.detail for finding in died)
    if not torch.cpu._is_amx_tile_supported():  # pyright: ignore[reportPrivateUsage]  torch has no public way to ask
        assert not AMX_DIVIDES_BY_STRIDE.problems(problem)
