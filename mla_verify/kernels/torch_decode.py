"""A two-stage split-KV decode in plain torch, with scratch from `torch.empty` and again from `torch.zeros`.

Stage 1 attends to one range of keys per split and leaves a normalised partial result and its log-sum-exp in scratch;
stage 2 merges the splits. This is how AITER's `mla_decode_fwd` and most decode kernels for GPUs are built.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mla_verify.kernels.decode_arguments import refuse_contradictions

__all__ = ["decode_split_kv_empty", "decode_split_kv_zeros"]


def decode_split_kv_empty(
    q: Tensor,  # [num_rows, num_heads, kv_lora_rank + qk_rope_head_dim]
    kv_buffer: Tensor,  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
    o: Tensor,  # [num_rows, num_heads, kv_lora_rank]
    lse: Tensor | None,  # [num_rows, num_heads] float32, natural logarithm
    qo_indptr: Tensor,  # int32 [batch + 1]
    kv_indptr: Tensor,  # int32 [batch + 1], counted in pages
    kv_indices: Tensor,  # int32 [pages in use, and a tail that is never read]
    kv_last_page_lens: Tensor,  # int32 [batch]
    page_size: int,
    sm_scale: float,
    num_kv_splits: int,
    q_scale: Tensor | None = None,  # float32 [1]: what q's codes are multiplied by, None where q holds numbers
    kv_scale: Tensor | None = None,  # float32 [1], the same for the cache
    **_: Any,
) -> None:
    """Decode with scratch from `torch.empty`, writing every row of every request straight into `o` and `lse`.

    A row that sees no key gets `o` = 0 and `lse` = −inf; padding rows stay as they are. Raises ValueError, before
    anything is written, for shapes, dtypes, overlapping memory or index tables that contradict each other.
    """
    refuse_contradictions(
        q=q, kv_buffer=kv_buffer, o=o, lse=lse, page_size=page_size, q_scale=q_scale, kv_scale=kv_scale
    )
    batch = _requests(kv_buffer, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens, page_size)
    shape = (q.shape[0], num_kv_splits, q.shape[1])
    scratch = _Scratch(
        torch.empty((*shape, o.shape[2]), dtype=torch.float32, device=q.device),
        torch.empty((*shape, 1), dtype=torch.float32, device=q.device),
    )
    cache = _Cache(kv_buffer, kv_scale)
    for request in batch:
        queries = _numbers(q[request.rows], q_scale)
        splits = _attend_splits(queries, cache, scratch, request, sm_scale, num_kv_splits)
        _merge_splits(scratch, request, splits, o, lse)


def decode_split_kv_zeros(
    q: Tensor,  # [num_rows, num_heads, kv_lora_rank + qk_rope_head_dim]
    kv_buffer: Tensor,  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
    o: Tensor,  # [num_rows, num_heads, kv_lora_rank]
    lse: Tensor | None,  # [num_rows, num_heads] float32, natural logarithm
    qo_indptr: Tensor,  # int32 [batch + 1]
    kv_indptr: Tensor,  # int32 [batch + 1], counted in pages
    kv_indices: Tensor,  # int32 [pages in use, and a tail that is never read]
    kv_last_page_lens: Tensor,  # int32 [batch]
    page_size: int,
    sm_scale: float,
    num_kv_splits: int,
    q_scale: Tensor | None = None,  # float32 [1]: what q's codes are multiplied by, None where q holds numbers
    kv_scale: Tensor | None = None,  # float32 [1], the same for the cache
    **_: Any,
) -> None:
    """Decode with zero-filled scratch and results, copied into `o` and `lse` at the end.

    Keeps every promise of `decode_split_kv_empty` and depends on less: what it forgets to write is zero.
    """
    refuse_contradictions(
        q=q, kv_buffer=kv_buffer, o=o, lse=lse, page_size=page_size, q_scale=q_scale, kv_scale=kv_scale
    )
    batch = _requests(kv_buffer, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens, page_size)
    shape = (q.shape[0], num_kv_splits, q.shape[1])
    scratch = _Scratch(
        torch.zeros((*shape, o.shape[2]), dtype=torch.float32, device=q.device),
        torch.zeros((*shape, 1), dtype=torch.float32, device=q.device),
    )
    o_copy = torch.zeros(o.shape, dtype=o.dtype, device=o.device)
    lse_copy = None if lse is None else torch.zeros(lse.shape, dtype=lse.dtype, device=lse.device)
    cache = _Cache(kv_buffer, kv_scale)
    for request in batch:
        queries = _numbers(q[request.rows], q_scale)
        splits = _attend_splits(queries, cache, scratch, request, sm_scale, num_kv_splits)
        _merge_splits(scratch, request, splits, o_copy, lse_copy)
    live = batch[-1].rows.stop if batch else 0  # padding rows belong to the caller
    o[:live].copy_(o_copy[:live])
    if lse is not None and lse_copy is not None:
        lse[:live].copy_(lse_copy[:live])


@dataclass(frozen=True, slots=True, eq=False)
class _Scratch:
    """What stage 1 leaves for stage 2, under AITER's names."""

    logits: Tensor  # float32 [num_rows, num_kv_splits, num_heads, kv_lora_rank]: normalised partial outputs
    attn_lse: Tensor  # float32 [num_rows, num_kv_splits, num_heads, 1]


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """Where one request lies: its rows of q and o, its page ids, and how many keys they hold."""

    rows: slice
    pages: Tensor  # int32 [pages of the request]
    kv_len: int


@dataclass(frozen=True, slots=True, eq=False)
class _Cache:
    """The pool of pages, and what its codes are multiplied by."""

    pool: Tensor  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
    scale: Tensor | None


def _numbers(stored: Tensor, scale: Tensor | None) -> Tensor:
    """What a tensor stands for, in float32."""
    numbers = stored.float()
    return numbers if scale is None else numbers * scale


def _picked(pool: Tensor, pages: Tensor) -> Tensor:
    """Pages of the pool. Codes are picked as bytes: not every device knows how to pick fp8 numbers."""
    if pool.element_size() > 1:
        return pool.index_select(0, pages)
    return pool.view(torch.uint8).index_select(0, pages).view(pool.dtype)


def _attend_splits(
    q: Tensor,  # float32 [q_len, num_heads, kv_lora_rank + qk_rope_head_dim]
    cache: _Cache,
    scratch: _Scratch,
    request: _Request,
    sm_scale: float,
    num_kv_splits: int,
) -> int:
    """Stage 1: fill the first splits of the request's scratch rows, and say how many of them there are.

    The splits are as even as whole keys allow. No scratch is written for splits without keys, none is read later.
    """
    kv_len, rows = request.kv_len, request.rows
    q_len = rows.stop - rows.start
    if kv_len == 0 or q_len == 0:
        return 0
    num_heads, width = q.shape[1:]
    chunk = -(-kv_len // num_kv_splits)
    splits = -(-kv_len // chunk)
    keys = q.new_zeros(splits * chunk, width)  # zeros behind the last key, masked below
    pages = _picked(cache.pool, request.pages)
    keys[:kv_len] = _numbers(pages.view(pages.shape[0] * pages.shape[1], width)[:kv_len], cache.scale)
    keys = keys.view(splits, chunk, width)
    queries = q.reshape(q_len * num_heads, width)
    scores = torch.matmul(queries, keys.transpose(1, 2)).mul_(sm_scale)  # [splits, q_len · num_heads, chunk]
    # The last row sees every key, each row before it one key less.
    visible = torch.arange(kv_len - q_len + 1, kv_len + 1, device=q.device).repeat_interleave(num_heads)
    position = torch.arange(splits * chunk, device=q.device).view(splits, 1, chunk)
    scores.masked_fill_(position >= visible.unsqueeze(1), -torch.inf)
    peak = scores.amax(2, keepdim=True)
    weights = scores.sub_(peak.nan_to_num(neginf=0.0)).exp_()  # all 0 where a row sees no key of a split
    total = weights.sum(2, keepdim=True)
    partial = torch.matmul(weights, keys[:, :, : scratch.logits.shape[3]])
    partial.div_(total.masked_fill(total == 0, 1.0))
    scratch.logits[rows, :splits] = partial.view(splits, q_len, num_heads, partial.shape[2]).transpose(0, 1)
    scratch.attn_lse[rows, :splits] = (peak + total.log_()).view(splits, q_len, num_heads, 1).transpose(0, 1)
    return splits


def _merge_splits(scratch: _Scratch, request: _Request, splits: int, o: Tensor, lse: Tensor | None) -> None:
    """Stage 2: weigh the splits by their share of the softmax and write every row of the request."""
    rows = request.rows
    if splits == 0:
        o[rows] = 0
        if lse is not None:
            lse[rows] = -torch.inf
        return
    parts, part_lse = scratch.logits[rows, :splits], scratch.attn_lse[rows, :splits]
    peak = part_lse.amax(1, keepdim=True)
    weights = (part_lse - peak.nan_to_num(neginf=0.0)).exp_()
    total = weights.sum(1)  # [q_len, num_heads, 1]; 0 for a row that sees no key
    o[rows] = ((parts * weights).sum(1) / total.masked_fill(total == 0, 1.0)).to(o.dtype)
    if lse is not None:
        lse[rows] = (peak.squeeze(1) + total.log()).squeeze(2)


def _requests(
    kv_buffer: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    kv_last_page_lens: Tensor,
    page_size: int,
) -> list[_Request]:
    """Read the index tables, and refuse what they cannot mean."""
    q_starts, page_starts = qo_indptr.tolist(), kv_indptr.tolist()
    last_lens = kv_last_page_lens.tolist()
    if any(end < start for start, end in pairwise(page_starts)):
        raise ValueError(f"kv_indptr falls: {page_starts}")
    if page_starts[-1] > kv_indices.shape[0]:
        raise ValueError(f"kv_indptr ends at {page_starts[-1]}, kv_indices holds {kv_indices.shape[0]} page ids")
    used = kv_indices[: page_starts[-1]]
    if page_starts[-1] and not 0 <= int(used.min()) <= int(used.max()) < kv_buffer.shape[0]:
        raise ValueError(f"kv_indices names pages outside the pool of {kv_buffer.shape[0]}")
    requests: list[_Request] = []
    for index, last_len in enumerate(last_lens):
        start, end = page_starts[index], page_starts[index + 1]
        kv_len = (end - start - 1) * page_size + last_len if end > start else 0  # last_len is arbitrary without pages
        requests.append(_Request(slice(q_starts[index], q_starts[index + 1]), used[start:end], kv_len))
    return requests
