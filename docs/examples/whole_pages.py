"""A decode that reads whole pages and masks the scores of keys past kv_len, but not their values."""

import torch

from mla_verify import register


@register(contract="decode", lse="never", uniform_q=True, max_q_len=1)
def whole_pages(q, kv_buffer, o, block_table, seq_lens, page_size, sm_scale, **_):
    for request, kv_len in enumerate(seq_lens.tolist()):
        pages = block_table[request, : -(-kv_len // page_size)].long()
        keys = kv_buffer[pages].flatten(0, 2).float()
        scores = torch.einsum("hd,kd->hk", q[request].float(), keys) * sm_scale
        unused = torch.arange(len(keys)) >= kv_len
        weights = scores.masked_fill(unused, -torch.inf).softmax(-1).nan_to_num()
        o[request] = (weights @ keys[:, : o.shape[-1]]).to(o.dtype)  # 0 × what the last page's end holds
