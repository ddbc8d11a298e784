"""A model in torch of the assembly that is stage 1 of AITER's MLA decode, for machines that cannot run it."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["model_stage1"]

_KEYS_PER_SPLIT: Final = 64  # the coarsest granule by which stage 2 bounds the number of splits that it reads


def model_stage1(
    q: Tensor,  # [num_rows, num_heads, kv_lora_rank + qk_rope_head_dim]
    kv_buffer: Tensor,  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    kv_last_page_lens: Tensor,
    num_kv_splits_indptr: Tensor,
    work_meta_data: Tensor | None,
    work_indptr: Tensor | None,
    work_info_set: Tensor | None,
    max_seqlen_q: int,
    page_size: int,
    nhead_kv: int,
    sm_scale: float,
    logits: Tensor,  # float32 [num_rows, num_kv_splits, num_heads, kv_lora_rank]
    attn_lse: Tensor,  # float32 [num_rows, num_kv_splits, num_heads, 1]
    o: Tensor,
    final_lse: Tensor | None,
    q_scale: Tensor | None,
    kv_scale: Tensor | None,
    g_kv_indptr: Tensor | None,
    cp_world_size: int,
    cp_rank: int,
    valid_split_count: Tensor,  # int32 [batch]
    *_: Any,
) -> None:
    """Write the normalised partial outputs, their log-sum-exps and how many splits of each request there are.

    Rows of no request and splits without keys stay unwritten. Where there is one split for every request, the caller
    may take the result as finished: out of `o` itself, which `logits` then is a view of, or by way of `logits` in the
    output's dtype, which stage 2 copies. Only in the first case does this model fill `final_lse`: it is charitable
    where no other stage could, and the same for rows without keys.
    """
    num_kv_splits, num_heads, latent = logits.shape[1:]
    in_place = logits.data_ptr() == o.data_ptr()
    tiny = num_heads in (8, 16) and max_seqlen_q == 1
    finished = None
    if in_place:
        finished = o
    elif num_kv_splits == 1 and not tiny:
        finished = logits.view(-1).view(o.dtype)[: o.numel()].view(o.shape)
    rows, pages = qo_indptr.tolist(), kv_indptr.tolist()
    for request, last_len in enumerate(kv_last_page_lens.tolist()):
        mine = slice(rows[request], rows[request + 1])
        ids = kv_indices[pages[request] : pages[request + 1]]
        kv_len = (len(ids) - 1) * page_size + last_len if len(ids) else 0
        if kv_len == 0:
            valid_split_count[request] = 0
            if finished is not None:
                finished[mine] = 0
            if in_place and final_lse is not None:
                final_lse[mine] = -torch.inf
            continue
        keys = kv_buffer.index_select(0, ids.long()).flatten(0, 2)[:kv_len].float()
        scores = torch.einsum("mhd,kd->mhk", q[mine].float(), keys) * sm_scale
        q_len = mine.stop - mine.start
        visible = torch.arange(kv_len - q_len + 1, kv_len + 1, device=q.device)
        hidden = torch.arange(kv_len, device=q.device) >= visible[:, None]
        scores.masked_fill_(hidden[:, None, :], -torch.inf)
        per_split = -(-kv_len // min(num_kv_splits, -(-kv_len // _KEYS_PER_SPLIT)))
        valid_split_count[request] = -(-kv_len // per_split)
        for split, start in enumerate(range(0, kv_len, per_split)):
            part = scores[..., start : start + per_split]
            lse = torch.logsumexp(part, -1, keepdim=True)
            weights = (part - lse.nan_to_num(neginf=0.0)).exp()
            result = torch.einsum("mhk,kd->mhd", weights, keys[start : start + per_split, :latent])
            if finished is not None:
                finished[mine] = result.to(o.dtype)
                if in_place and final_lse is not None:
                    final_lse[mine] = lse.squeeze(-1)
            else:
                logits[mine, split] = result
                attn_lse[mine, split] = lse
