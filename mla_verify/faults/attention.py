"""Paged attention in plain torch, one request at a time: the right computation that the faults spoil."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Request", "attend", "requests", "split_bounds"]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request: which rows of q and o are its own, what they ask, and the keys they ask it of.

    query: [q_len, num_heads, width] float32. keys: [kv_len, width] float32. pages: the same keys and whatever
    else lies in their pages, [pages * page_size, width] float32. visible: [q_len], the keys each row sees.
    """

    rows: slice
    query: Tensor
    keys: Tensor
    pages: Tensor
    visible: Tensor


def requests(
    *,
    q: Tensor,
    kv_buffer: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    seq_lens: Tensor,
    **_: object,
) -> Iterator[Request]:
    """Gather each request's keys by the page lists."""
    rows, starts = qo_indptr.tolist(), kv_indptr.tolist()
    for index, kv_len in enumerate(seq_lens.tolist()):
        own = slice(rows[index], rows[index + 1])
        page_ids = kv_indices[starts[index] : starts[index + 1]].long()
        pages = kv_buffer[page_ids].reshape(-1, kv_buffer.shape[-1]).float()
        behind = torch.arange(own.stop - own.start - 1, -1, -1, device=q.device)
        yield Request(own, q[own].float(), pages[:kv_len], pages, kv_len - behind)


def attend(
    query: Tensor,  # [q_len, num_heads, width]
    keys: Tensor,  # [keys, width]
    visible: Tensor,  # [q_len]
    *,
    sm_scale: float,
    kv_lora_rank: int,
    sums: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Softmax attention of each row over its first `visible` keys: o [q_len, num_heads, kv_lora_rank], lse.

    A row that sees no key gives 0 and minus infinity. sums: the dtype in which the sum of weights is kept.
    """
    if keys.shape[0] == 0:
        nothing = query.new_zeros(query.shape[:2])
        return nothing[..., None].expand(-1, -1, kv_lora_rank), nothing - torch.inf
    logits = torch.einsum("ihd,kd->ihk", query, keys) * sm_scale
    hidden = torch.arange(keys.shape[0], device=keys.device) >= visible[:, None]  # [q_len, keys]
    logits = logits.masked_fill(hidden[:, None], -torch.inf)
    largest = logits.amax(-1, keepdim=True)
    largest = torch.where(largest == -torch.inf, 0.0, largest)
    weights = (logits - largest).exp()
    total = weights.sum(-1).to(sums).float()
    summed = torch.einsum("ihk,kd->ihd", weights, keys[:, :kv_lora_rank])
    o = torch.where(total[..., None] > 0, summed / total[..., None], 0.0)
    return o, total.log() + largest[..., 0]


def split_bounds(kv_len: int, num_kv_splits: int) -> list[tuple[int, int]]:
    """First and last key of every split; splits behind the last key are empty."""
    step = max(1, -(-kv_len // num_kv_splits))
    return [(min(kv_len, s * step), min(kv_len, (s + 1) * step)) for s in range(num_kv_splits)]
