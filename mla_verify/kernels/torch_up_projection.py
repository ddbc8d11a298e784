"""The up-projection in plain torch: straight into the caller's output, and through a zero-filled temporary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["up_projection_copy", "up_projection_direct"]


def up_projection_direct(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Write x @ w_uv through a transposed view of `out`, without a temporary (the form of vLLM #42561).

    `torch.bmm` resizes or misplaces an `out` whose number of rows is not x's, with a warning at most, and accepts
    an `out` that overlaps `x` or itself: callers have to keep shapes and memory apart.

    x: [num_tokens, num_heads, kv_lora_rank]; w_uv: [num_heads, kv_lora_rank, v_head_dim];
    out: [num_tokens, num_heads, v_head_dim].
    """
    torch.bmm(x.transpose(0, 1), w_uv, out=out.transpose(0, 1))


def up_projection_copy(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Multiply into a zero-filled temporary and copy that into `out`: the safe form, right for any strides of `out`.

    vLLM's own older form multiplied into the output's memory and then copied it onto itself after a `resize_`,
    which is wrong where the rows of `out` are padded; this one shares its passes over memory, not that defect.

    x: [num_tokens, num_heads, kv_lora_rank]; w_uv: [num_heads, kv_lora_rank, v_head_dim];
    out: [num_tokens, num_heads, v_head_dim].
    """
    num_tokens, num_heads, _rank = x.shape
    product = x.new_zeros(num_heads, num_tokens, w_uv.shape[2])
    torch.bmm(x.transpose(0, 1), w_uv, out=product)
    # copy_ would broadcast a result of one token over more rows of `out`.
    if product.transpose(0, 1).shape != out.shape:
        raise ValueError(f"out has shape {tuple(out.shape)}, wanted {(num_tokens, num_heads, w_uv.shape[2])}")
    out.copy_(product.transpose(0, 1))
