"""The right answer to a decode problem: softmax(scale · q kᵀ) v in float64, one request at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from mla_verify.decode.geometry import Geometry, Request, cache_rows
from mla_verify.decode.quantised import decoded

__all__ = ["Answer", "Attention", "Cache", "Keys", "answer", "logits_of", "tiles_of"]

_TILE: Final = 1 << 22  # float64 elements of one array: 32 MiB, of which at most five are alive
_HELD: Final = 1 << 18  # float64 elements of keys and logits that are kept for the bound: more costs page faults


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """The whole cache as it is stored, in any dtype or as codes that stand for themselves times a scale."""

    stored: Tensor  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
    format: str = "plain"
    scale: str = "1"

    def numbers(self, stored: Tensor) -> Tensor:
        """What a piece of it stands for, float64."""
        return decoded(stored, self.format, self.scale)


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """The keys of one request, float64. Small ones are held, others converted tile by tile."""

    cache: Cache
    request: Request
    held: Tensor | None  # [kv_len, kv_lora_rank + qk_rope_head_dim]


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """One request's part of the answer. A lane is a (row, head) pair of its seeing rows, row by row."""

    request: Request
    keys: Keys
    queries: Tensor  # float64 [lanes, kv_lora_rank + qk_rope_head_dim], times scale
    scale: float
    visible: Tensor  # int64 [lanes]
    logits: Tensor | None  # float64 [lanes, kv_len], −inf where a key is not seen; None if too large to keep
    o: Tensor  # float64 [lanes, kv_lora_rank]
    lse: Tensor  # float64 [lanes]
    total: Tensor  # float64 [lanes]: Σ exp(logit − largest logit)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The whole answer; rows that see no key have `o` = 0 and `lse` = −inf."""

    o: Tensor  # float64 [num_rows, num_heads, kv_lora_rank]
    lse: Tensor  # float64 [num_rows, num_heads]
    peak: Tensor  # float64 [num_rows, num_heads]: the largest logit
    total: Tensor  # float64 [num_rows, num_heads]: Σ exp(logit − largest logit)
    top: Tensor  # float64 [num_rows, num_heads, kv_lora_rank]: what the likeliest key alone gives to o
    attentions: tuple[Attention, ...]


def answer(geometry: Geometry, q: Tensor, cache: Cache, *, kv_lora_rank: int, scale: float) -> Answer:
    """Answer every request, one after the other. A quantised q is dequantised by the caller."""
    rows, num_heads, _ = q.shape
    o = torch.zeros(rows, num_heads, kv_lora_rank, dtype=torch.float64, device=q.device)
    lse = o.new_full((rows, num_heads), -torch.inf)
    whole = Answer(o, lse, torch.zeros_like(lse), torch.ones_like(lse), torch.zeros_like(o), ())
    left = _HELD
    found: list[Attention] = []
    for request in geometry.requests:
        if request.visible:
            attention = _attend(request, q, cache, whole, scale=scale, keep=left)
            left -= sum(held.numel() for held in (attention.keys.held, attention.logits) if held is not None)
            found.append(attention)
    return replace(whole, attentions=tuple(found))


def _attend(request: Request, q: Tensor, cache: Cache, whole: Answer, *, scale: float, keep: int) -> Attention:
    """Naive attention: every logit, then exp(logit − largest) · v / sum, by blocks of lanes."""
    rows, num_heads, kv_len = request.seeing, q.shape[1], request.kv_len
    lanes = len(request.visible) * num_heads
    keys = Keys(cache, request, None)
    if kv_len * q.shape[2] <= _TILE:
        keys = replace(keys, held=cache.numbers(cache_rows(cache.stored, request, 0, kv_len)))
    queries = (q[rows].to(torch.float64) * scale).reshape(lanes, q.shape[2])
    visible = torch.from_numpy(np.repeat(np.array(request.visible), num_heads)).to(q.device)
    o, top = (part[rows].view(lanes, whole.o.shape[2]) for part in (whole.o, whole.top))
    lse, peak, total = (part[rows].view(lanes) for part in (whole.lse, whole.peak, whole.total))
    block, logits = max(1, _TILE // kv_len), None
    for start in range(0, lanes, block):
        part = slice(start, start + block)
        logits = logits_of(keys, queries[part], visible[part])
        peak[part], likeliest = logits.max(1)
        weights = (logits - peak[part].unsqueeze(1)).exp_()
        total[part] = weights.sum(1)
        lse[part] = peak[part] + total[part].log()
        o[part] = _product(keys, weights, o.shape[1]).div_(total[part].unsqueeze(1))
        top[part] = _values_at(keys, likeliest, o.shape[1]) / total[part].unsqueeze(1)
    if keys.held is not None and keys.held.numel() > keep:
        keys = replace(keys, held=None)
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
    stored = keys.cache.stored
    page_size, width = stored.shape[1], stored.shape[3]
    step = max(1, _TILE // max(1, width * page_size)) * page_size
    for start in range(0, kv_len, step):
        stop = min(kv_len, start + step)
        yield slice(start, stop), keys.cache.numbers(cache_rows(stored, keys.request, start, stop))


def _values_at(keys: Keys, numbers: Tensor, kv_lora_rank: int) -> Tensor:
    """The values of some keys, float64 [lanes, kv_lora_rank]; numbers: int64 [lanes], a key's place in its request."""
    if keys.held is not None:
        return keys.held.index_select(0, numbers)[:, :kv_lora_rank]
    stored = keys.cache.stored
    page_size = stored.shape[1]
    pages = torch.from_numpy(keys.request.pages).to(numbers.device)
    at = pages[numbers // page_size], numbers % page_size
    if stored.itemsize == 1:  # see cache_rows
        stored = stored.view(torch.uint8)
    return keys.cache.numbers(stored[:, :, 0, :kv_lora_rank][at])


def _product(keys: Keys, weights: Tensor, kv_lora_rank: int) -> Tensor:
    """weights [lanes, kv_len] · values [kv_len, kv_lora_rank]."""
    product = weights.new_zeros(weights.shape[0], kv_lora_rank)
    for at, rows in tiles_of(keys):
        product.addmm_(weights[:, at], rows[:, :kv_lora_rank])
    return product
