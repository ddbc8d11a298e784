"""A complete decode in the calling convention: pages, ragged lengths, several query rows, empty rows, lse."""

import torch


def my_decode(q, kv_buffer, o, lse, qo_indptr, block_table, seq_lens, page_size, sm_scale, **_):
    for request, kv_len in enumerate(seq_lens.tolist()):
        first, last = int(qo_indptr[request]), int(qo_indptr[request + 1])
        pages = block_table[request, : -(-kv_len // page_size)].long()
        kv = kv_buffer[pages].flatten(0, 2)[:kv_len].float()  # [kv_len, kv_lora_rank + qk_rope_head_dim]
        for row in range(first, last):
            seen = kv[: max(0, kv_len - (last - 1 - row))]  # the last row sees every key, the one before one less
            scores = q[row].float() @ seen.T * sm_scale  # [num_heads, keys]
            o[row] = scores.softmax(-1) @ seen[:, : o.shape[-1]] if len(seen) else 0
            if lse is not None:
                lse[row] = scores.logsumexp(-1) if len(seen) else -torch.inf
