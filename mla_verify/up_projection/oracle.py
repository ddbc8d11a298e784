"""The up-projection's oracle: one float64 product per head, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

__all__ = ["head_blocks", "up_project"]

_TILE_BYTES: Final = 16 << 20  # float64 bytes of one block of heads: small enough to stay in a cache


def up_project(x: Tensor, w_uv: Tensor) -> Tensor:
    """out[t, h, v] = Σ_k x[t, h, k] · w_uv[h, k, v] in float64. NaN in, NaN out; an infinity times 0 is NaN.

    x is [num_tokens, num_heads, kv_lora_rank], w_uv [num_heads, kv_lora_rank, v_head_dim], of any dtype.
    """
    tokens, heads, _ = x.shape
    out = torch.empty(tokens, heads, w_uv.shape[2], dtype=torch.float64, device=x.device)
    for block in head_blocks(x, w_uv):
        rows = x[:, block].transpose(0, 1).to(torch.float64)  # [block, num_tokens, kv_lora_rank]
        out[:, block] = torch.bmm(rows, w_uv[block].to(torch.float64)).transpose(0, 1)
    return out


def head_blocks(x: Tensor, w_uv: Tensor) -> Iterator[slice]:
    """Cut the heads into blocks whose operands and answer, in float64, stay small."""
    tokens, heads, latent = x.shape
    width = w_uv.shape[2]
    bytes_per_head = 8 * (tokens * latent + latent * width + tokens * width)
    step = max(1, _TILE_BYTES // max(bytes_per_head, 1))
    for first in range(0, heads, step):
        yield slice(first, first + step)
