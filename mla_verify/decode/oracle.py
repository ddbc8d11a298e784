"""The right answer to a decode problem: softmax(scale · q kᵀ) v in float64, one request at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from mla_verify.decode.geometry import Geometry, Request, cache_rows

__all__ = ["Attention", "Keys", "answer", "logits_of", "tiles_of"]

_TILE: Final = 1 << 22  # float64 elements of one array: 32 MiB, of which at most five are alive
_HELD: Final = 1 << 22  # float64 elements of keys and logits that may be kept for the bound


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """The keys of one request, float64. Small ones are held, others converted tile by tile."""

    kv_buffer: Tensor
    request: Request
    held: Tensor | None  # [kv_len, kv_lora_rank + qk_rope_head_dim]


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """One request's attention. A lane is a (row, head) pair of its seeing rows, row by row."""

    request: Request
    keys: Keys
    queries: Tensor  # float64 [lanes, kv_lora_rank + qk_rope_head_dim], times scale
    scale: float
    visible: Tensor  # int64 [lanes]
    logits: Tensor | None  # float64 [lanes, kv_len], −inf where a key is not seen; None if too large to keep
    o: Tensor  # float64 [lanes, kv_lora_rank]
    lse: Tensor  # float64 [lanes]
    total: Tensor  # float64 [lanes]: Σ exp(logit − largest logit)


def answer(
    geometry: Geometry, q: Tensor, kv_buffer: Tensor, *, kv_lora_rank: int, scale: float
) -> tuple[Attention, ...]:
    """Attention of every request that has a row which sees a key."""
    left = _HELD
    found: list[Attention] = []
    for request in geometry.requests:
        if not request.visible:
            continue
        keys = _keys(kv_buffer, request, left)
        left -= 0 if keys.held is None else keys.held.numel()
        attention = _attend(request, keys, q, kv_lora_rank=kv_lora_rank, scale=scale, keep=left)
        left -= 0 if attention.logits is None else attention.logits.numel()
        found.append(attention)
    return tuple(found)


def _attend(request: Request, keys: Keys, q: Tensor, *, kv_lora_rank: int, scale: float, keep: int) -> Attention:
    """Naive attention: every logit, then exp(logit − largest) · v / sum, by blocks of lanes."""
    num_heads = q.shape[1]
    lanes, kv_len = len(request.visible) * num_heads, request.kv_len
    queries = (q[request.seeing].to(torch.float64) * scale).reshape(lanes, q.shape[2])
    visible = torch.arange(request.visible.start, request.visible.stop, device=q.device)
    visible = visible.repeat_interleave(num_heads)
    o, lse, total = queries.new_empty(lanes, kv_lora_rank), queries.new_empty(lanes), queries.new_empty(lanes)
    block, logits = max(1, _TILE // kv_len), None
    for start in range(0, lanes, block):
        part = slice(start, start + block)
        logits = logits_of(keys, queries[part], visible[part])
        peak = logits.amax(1, keepdim=True)
        weights = (logits - peak).exp_()
        total[part] = weights.sum(1)
        lse[part] = peak.squeeze(1) + total[part].log()
        o[part] = _product(keys, weights, kv_lora_rank).div_(total[part].unsqueeze(1))
    kept = logits if lanes <= block and lanes * kv_len <= keep else None
    return Attention(request, keys, queries, scale, visible, kept, o, lse, total)


def logits_of(keys: Keys, queries: Tensor, visible: Tensor) -> Tensor:
    """Logits of some lanes, float64 [lanes, kv_len]: −inf where a key is not seen.

    queries: [lanes, kv_lora_rank + qk_rope_head_dim], times scale; visible: [lanes].
    """
    kv_len = keys.request.kv_len
    logits = queries.new_empty(queries.shape[0], kv_len)
    for at, rows in tiles_of(keys):
        logits[:, at] = queries @ rows.T
    if len(keys.request.visible) > 1:  # a single row sees every key
        hidden = torch.arange(kv_len, device=queries.device) >= visible.unsqueeze(1)
        logits.masked_fill_(hidden, -torch.inf)
    return logits


def tiles_of(keys: Keys) -> Iterator[tuple[slice, Tensor]]:
    """The keys piece by piece: where a piece lies among them, and the piece, float64 [keys, width]."""
    kv_len = keys.request.kv_len
    if keys.held is not None:
        yield slice(0, kv_len), keys.held
        return
    page_size, width = keys.kv_buffer.shape[1], keys.kv_buffer.shape[3]
    step = max(1, _TILE // max(1, width * page_size)) * page_size
    for start in range(0, kv_len, step):
        stop = min(kv_len, start + step)
        yield slice(start, stop), cache_rows(keys.kv_buffer, keys.request, start, stop).to(torch.float64)


def _keys(kv_buffer: Tensor, request: Request, keep: int) -> Keys:
    held = None
    if request.kv_len * kv_buffer.shape[3] <= keep:
        held = cache_rows(kv_buffer, request, 0, request.kv_len).to(torch.float64)
    return Keys(kv_buffer, request, held)


def _product(keys: Keys, weights: Tensor, kv_lora_rank: int) -> Tensor:
    """weights [lanes, kv_len] · values [kv_len, kv_lora_rank]."""
    product = weights.new_zeros(weights.shape[0], kv_lora_rank)
    for at, rows in tiles_of(keys):
        product.addmm_(weights[:, at], rows[:, :kv_lora_rank])
    return product
