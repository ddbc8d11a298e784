"""What a decode kernel of ours refuses before it writes anything: arguments that contradict each other.

Nothing here reads a tensor's contents: that would stop the host until the device has caught up, once for every layer.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from mla_verify.kernels.triton_launch import overlap, overlaps_itself

__all__ = ["refuse_contradictions"]

_WIDE: Final = (torch.float32, torch.float16, torch.bfloat16)
_CODES: Final = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2)


def refuse_contradictions(
    *,
    q: Tensor,  # [num_rows, num_heads, kv_lora_rank + qk_rope_head_dim]
    kv_buffer: Tensor,  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
    o: Tensor,  # [num_rows, num_heads, kv_lora_rank]
    lse: Tensor | None,  # [num_rows, num_heads]
    page_size: int,
    q_scale: Tensor | None,  # float32 [1] where q holds codes
    kv_scale: Tensor | None,  # float32 [1] where the cache holds codes
) -> None:
    """Raise ValueError for shapes, dtypes, scales or overlapping memory that cannot be meant."""
    num_rows, num_heads, width = q.shape
    if tuple(kv_buffer.shape[1:]) != (page_size, 1, width):
        raise ValueError(f"pages of kv_buffer have shape {tuple(kv_buffer.shape[1:])}, wanted {(page_size, 1, width)}")
    if tuple(o.shape[:2]) != (num_rows, num_heads) or o.shape[2] > width:
        raise ValueError(f"o has shape {tuple(o.shape)}, which does not fit q of shape {tuple(q.shape)}")
    if lse is not None and tuple(lse.shape) != (num_rows, num_heads):
        raise ValueError(f"lse has shape {tuple(lse.shape)}, wanted {(num_rows, num_heads)}")
    if lse is not None and lse.dtype != torch.float32:
        raise ValueError(f"lse is {lse.dtype}, wanted torch.float32")
    if o.dtype not in _WIDE:
        raise ValueError(f"o is {o.dtype}, wanted one of {', '.join(map(str, _WIDE))}")
    _refuse_dtype("q", q, q_scale, o)
    _refuse_dtype("kv_buffer", kv_buffer, kv_scale, o)
    for name, output in (("o", o), ("lse", lse)):
        if output is None:
            continue
        for source_name, source in (("q", q), ("kv_buffer", kv_buffer)):
            if overlap(output, source):
                raise ValueError(f"{name} overlaps {source_name}: it would be overwritten while it is still read")
        if overlaps_itself(output):
            raise ValueError(f"{name} overlaps itself: shape {tuple(output.shape)}, strides {output.stride()}")


def _refuse_dtype(name: str, tensor: Tensor, scale: Tensor | None, o: Tensor) -> None:
    """A tensor has the dtype of o and no scale, or holds codes and has one."""
    if scale is None:
        if tensor.dtype != o.dtype:
            raise ValueError(f"{name} is {tensor.dtype} and has no scale, wanted {o.dtype} as o")
        return
    if tensor.dtype not in _CODES:
        raise ValueError(f"{name} is {tensor.dtype} and has a scale, wanted one of {', '.join(map(str, _CODES))}")
    if scale.dtype != torch.float32 or scale.numel() != 1:
        raise ValueError(f"the scale of {name} is {scale.dtype} {tuple(scale.shape)}, wanted torch.float32 (1,)")
