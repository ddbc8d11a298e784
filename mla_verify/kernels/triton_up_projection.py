"""The up-projection in Triton: straight into the caller's output, and through a zero-filled temporary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mla_verify.kernels.triton_launch import block, jitted, overlap, overlaps_itself, programs

__all__ = ["load_triton_up_projection", "load_triton_up_projection_copy"]


def load_triton_up_projection() -> Callable[..., None]:
    """x @ w_uv written straight into `out`, whatever the strides of all three."""
    kernel = jitted("up_projection").up_projection_kernel

    def triton_up_projection(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
        _refuse(x, w_uv, out)
        _launch(kernel, x, w_uv, out)

    return triton_up_projection


def load_triton_up_projection_copy() -> Callable[..., None]:
    """The same product computed into zeros and copied into `out`: what the direct form saves."""
    kernel = jitted("up_projection").up_projection_kernel

    def triton_up_projection_copy(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
        _refuse(x, w_uv, out)
        product = torch.zeros(out.shape, dtype=out.dtype, device=out.device)
        _launch(kernel, x, w_uv, product)
        out.copy_(product)

    return triton_up_projection_copy


def _launch(kernel: Any, x: Tensor, w_uv: Tensor, out: Tensor) -> None:
    num_tokens, num_heads, kv_lora_rank = x.shape
    v_head_dim = w_uv.shape[2]
    tokens, rank, value = block(num_tokens, most=64), block(kv_lora_rank, most=64), block(v_head_dim, most=64)
    tiles = num_heads * -(-num_tokens // tokens) * -(-v_head_dim // value)
    if tiles == 0:
        return  # nothing to write, and a grid may not be empty
    kernel[programs(tiles)](
        x,
        w_uv,
        out,
        num_tokens,
        num_heads,
        kv_lora_rank,
        v_head_dim,
        *x.stride(),
        *w_uv.stride(),
        *out.stride(),
        BLOCK_TOKENS=tokens,
        BLOCK_RANK=rank,
        BLOCK_VALUE=value,
    )


def _refuse(x: Tensor, w_uv: Tensor, out: Tensor) -> None:
    """Raise ValueError for arguments that contradict each other: a launch would read and write out of bounds."""
    if not x.dim() == w_uv.dim() == out.dim() == 3:
        raise ValueError(f"x, w_uv and out have {x.dim()}, {w_uv.dim()} and {out.dim()} dimensions, wanted 3 each")
    num_tokens, num_heads, kv_lora_rank = x.shape
    if tuple(w_uv.shape[:2]) != (num_heads, kv_lora_rank):
        raise ValueError(f"w_uv has shape {tuple(w_uv.shape)}, which does not fit x of shape {tuple(x.shape)}")
    wanted = (num_tokens, num_heads, w_uv.shape[2])
    if tuple(out.shape) != wanted:
        raise ValueError(f"out has shape {tuple(out.shape)}, wanted {wanted}")
    if not x.dtype == w_uv.dtype == out.dtype:
        raise ValueError(f"x, w_uv and out are {x.dtype}, {w_uv.dtype} and {out.dtype}, wanted one dtype")
    for name, source in (("x", x), ("w_uv", w_uv)):
        if overlap(out, source):
            raise ValueError(f"out overlaps {name}: it would be overwritten while it is still read")
    if overlaps_itself(out):
        raise ValueError(f"out overlaps itself: shape {tuple(out.shape)}, strides {out.stride()}")
