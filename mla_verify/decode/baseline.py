"""The zero-filled baseline: attention in plain float32 torch, computed into temporaries and copied into zeros."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from mla_verify.decode.geometry import cache_rows, geometry_of
from mla_verify.decode.quantised import single
from mla_verify.kernel import Arithmetic, Kernel
from mla_verify.placement import dtype_of
from strategies.problems import DecodeProblem

__all__ = ["BASELINE_ARITHMETIC", "EMPTY_LSE", "baseline"]

BASELINE_ARITHMETIC: Final = Arithmetic(probabilities="fp32", subnormals="flushed", normalise="division")
"""How the baseline rounds. Whether a matrix product flushes subnormals is the platform's choice."""

EMPTY_LSE: Final = {"-inf": -torch.inf, "+inf": torch.inf, "unspecified": -torch.inf}
"""The lse of a row without keys, by what a kernel declares."""


def baseline(problem: DecodeProblem, kernel: Kernel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Softmax of q·kᵀ times v for every request, codes dequantised first.

    Rows without keys, padding among them, keep `o` = 0.

    Returns `o` [num_rows, num_heads, kv_lora_rank] and, where the problem has one, `lse` [num_rows, num_heads].
    """
    geometry = geometry_of(problem)
    q, kv_buffer, dtype = tensors["q"], tensors["kv_buffer"], dtype_of(problem.dtype)
    shape = (problem.num_rows, problem.num_heads)
    o = torch.zeros((*shape, problem.kv_lora_rank), dtype=dtype, device=q.device)
    lse = torch.full(shape, EMPTY_LSE[kernel.empty_lse], dtype=torch.float32, device=q.device)
    for request in geometry.requests:
        rows = request.seeing
        if not request.visible:
            continue
        keys = _numbers(cache_rows(kv_buffer, request, 0, request.kv_len), problem.kv_scale)
        queries = _numbers(q[rows], problem.q_scale)
        logits = (queries @ keys.T).mul_(2.0**problem.softmax_scale)  # [rows, num_heads, kv_len]
        if len(request.visible) > 1:
            position = torch.arange(request.kv_len, device=q.device)
            visible = torch.arange(request.visible.start, request.visible.stop, device=q.device)
            logits.masked_fill_(position >= visible.view(-1, 1, 1), -torch.inf)
        peak = logits.amax(-1, keepdim=True)
        weights = (logits - peak).exp_()
        total = weights.sum(-1, keepdim=True)
        # One division at the end, as the exact uniform regime needs it; torch.softmax divides first.
        o[rows] = (weights @ keys[:, : problem.kv_lora_rank]).div_(total).to(dtype)
        lse[rows] = (peak + total.log_()).squeeze(-1)
    return {"o": o, "lse": lse} if problem.with_lse else {"o": o}


def _numbers(stored: Tensor, scale: str) -> Tensor:
    """What a plain or a quantised tensor stands for, in float32."""
    numbers = stored.float()
    return numbers if scale == "1" else numbers * single(scale)
