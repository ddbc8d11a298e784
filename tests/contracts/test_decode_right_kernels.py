"""Right kernels of every make are never blamed, and what is not judged is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mla_verify.kernel import Kernel
from sanitizer.arena import Arena
from strategies.layouts import Layout
from strategies.problems import DecodeProblem
from tests.contracts.no_false_alarm_decode import RIGHT, fuzz, run

MODEL = DecodeProblem(
    kv_lens=(300, 1),
    q_lens=(2, 1),
    num_heads=16,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    page_size=64,
    num_kv_splits=4,
    softmax_scale=-3,
    page_order="shuffled",
    with_lse=False,
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def arena() -> Arena:
    """One arena for all of them, as the check has it."""
    return Arena("cpu")


@pytest.mark.parametrize("kernel", RIGHT, ids=lambda kernel: kernel.name)
def test_a_right_kernel_is_never_blamed(kernel: Kernel, arena: Arena) -> None:
    """Whatever the problem, neither the oracle nor the baseline objects to a kernel that declares its arithmetic."""
    seen = fuzz(kernel, arena, examples=60, seed=3)
    assert len(seen) >= 50


@pytest.mark.parametrize("regime", ["retrieval", "uniform", "gaussian", "extreme", "special"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kernel", RIGHT, ids=lambda kernel: kernel.name)
def test_a_right_kernel_is_not_blamed_at_model_size(kernel: Kernel, dtype: str, regime: str, arena: Arena) -> None:
    """Sixteen heads of 512 + 64 columns, in every dtype and regime, are judged without an alarm and in full."""
    problem = replace(MODEL, dtype=dtype, regime=regime)
    judgement = run(problem, kernel, arena)
    assert not judgement.disagreements
    assert judgement.not_judged == 0


@pytest.mark.parametrize("kind", ["broadcast", "overlapping"])
@pytest.mark.parametrize("regime", ["retrieval", "uniform", "gaussian", "extreme", "special"])
def test_query_rows_that_share_memory_raise_no_alarm(kind: str, regime: str, arena: Arena) -> None:
    """The oracle answers what the rows hold after they were laid over one another, not what was drawn for them."""
    layout = Layout("broadcast") if kind == "broadcast" else Layout("overlapping")
    problem = DecodeProblem(
        kv_lens=(5, 3), q_lens=(3, 2), num_heads=3, kv_lora_rank=7, regime=regime, q_layout=layout, dtype="bfloat16"
    )
    for kernel in RIGHT[:2]:
        assert not run(problem, kernel, arena).disagreements
