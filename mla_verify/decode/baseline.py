"""The zero-filled baseline: attention in plain float32 torch, computed into temporaries and copied into zeros."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from mla_verify.decode.geometry import cache_rows, geometry_of
from mla_verify.kernel import Arithmetic, Kernel
from strategies.problems import DecodeProblem

__all__ = ["BASELINE_ARITHMETIC", "EMPTY_LSE", "baseline"]

BASELINE_ARITHMETIC: Final = Arithmetic(probabilities="fp32", subnormals="flushed", normalise="division")
"""How the baseline rounds. Whether a matrix product flushes subnormals is the platform's choice."""

EMPTY_LSE: Final = {"-inf": -torch.inf, "+inf": torch.inf, "unspecified": -torch.inf}
"""The lse of a row without keys, by what a kernel declares."""


def baseline(problem: DecodeProblem, kernel: Kernel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Softmax of q·kᵀ times v for every request. Rows without keys, padding among them, keep `o` = 0.

    Returns `o` [num_rows, num_heads, kv_lora_rank] and, where the problem has one, `lse` [num_rows, num_heads].
    """
    geometry = geometry_of(problem)
    q, kv_buffer = tensors["q"], tensors["kv_buffer"]
    shape = (problem.num_rows, problem.num_heads)
    o = torch.zeros((*shape, problem.kv_lora_rank), dtype=q.dtype, device=q.device)
    lse = torch.full(shape, EMPTY_LSE[kernel.empty_lse], dtype=torch.float32, device=q.device)
    for request in geometry.requests:
        rows = request.seeing
        if not request.visible:
            continue
        keys = cache_rows(kv_buffer, request, 0, request.kv_len).float()
        logits = (q[rows].float() @ keys.T).mul_(2.0**problem.softmax_scale)  # [rows, num_heads, kv_len]
        if len(request.visible) > 1:
            position = torch.arange(request.kv_len, device=q.device)
            visible = torch.arange(request.visible.start, request.visible.stop, device=q.device)
            logits.masked_fill_(position >= visible.view(-1, 1, 1), -torch.inf)
        peak = logits.amax(-1, keepdim=True)
        weights = (logits - peak).exp_()
        total = weights.sum(-1, keepdim=True)
        # One division at the end, as the exact uniform regime needs it; torch.softmax divides first.
        o[rows] = (weights @ keys[:, : problem.kv_lora_rank]).div_(total).to(o.dtype)
        lse[rows] = (peak + total.log_()).squeeze(-1)
    return {"o": o, "lse": lse} if problem.with_lse else {"o": o}
