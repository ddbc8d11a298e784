"""The up-projection with a quantised weight in Triton: split along the rank, into the caller's output or copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import torch
from torch import Tensor

from mla_verify.formats import dtype_of_format
from mla_verify.kernels.quantised_arguments import refuse_fp8, refuse_mxfp4
from mla_verify.kernels.triton_launch import block, jitted, programs

__all__ = ["load_triton_quantised", "load_triton_quantised_copy"]

Weight = Literal["fp8", "mxfp4"]

_GROUP: Final[dict[Weight, int]] = {"fp8": 128, "mxfp4": 32}  # columns of x that share a scale
_SPLITS: Final = 4
_NEW: Final[dict[str, Callable[..., Tensor]]] = {"empty": torch.empty, "zeros": torch.zeros}


def load_triton_quantised(weight: Weight, formats: tuple[str, ...] = ()) -> Callable[..., None]:
    """x @ w_q straight into `out`, whatever the strides; partial sums in scratch from `torch.empty`.

    formats: the fp8 formats that are taken; any other is refused.
    """
    launch = _launcher(weight, formats, new="empty")

    def triton_quantised(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: Any) -> None:
        launch(x, out, w_q, w_scale)

    return triton_quantised


def load_triton_quantised_copy(weight: Weight, formats: tuple[str, ...] = ()) -> Callable[..., None]:
    """The same by way of zero-filled scratch and a zero-filled product that is copied into `out`."""
    refuse = _refusal(weight, formats)
    launch = _launcher(weight, formats, new="zeros")

    def triton_quantised_copy(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: Any) -> None:
        refuse(x, out, w_q)
        product = torch.zeros(out.shape, dtype=out.dtype, device=out.device)
        launch(x, product, w_q, w_scale)
        out.copy_(product)

    return triton_quantised_copy


def _refusal(weight: Weight, formats: tuple[str, ...]) -> Callable[[Tensor, Tensor, Tensor], None]:
    if weight == "mxfp4":
        return refuse_mxfp4
    codes = tuple(dtype_of_format(name) for name in formats)

    def refuse(x: Tensor, out: Tensor, w_q: Tensor) -> None:
        refuse_fp8(x, out, w_q, codes=codes)

    return refuse


def _launcher(weight: Weight, formats: tuple[str, ...], *, new: str) -> Callable[..., None]:
    module = jitted("quantised")
    refuse, group, fresh = _refusal(weight, formats), _GROUP[weight], _NEW[new]

    def launch(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor) -> None:
        refuse(x, out, w_q)
        num_tokens, num_heads, kv_lora_rank = x.shape
        v_head_dim = out.shape[2]
        tokens, value = block(num_tokens, most=32), block(v_head_dim, most=64)
        tiles = num_heads * -(-num_tokens // tokens) * -(-v_head_dim // value)
        if tiles == 0:
            return  # nothing to write, and a grid may not be empty
        groups = -(-kv_lora_rank // group)
        per_split = max(1, -(-groups // _SPLITS))
        splits = max(1, -(-groups // per_split))
        partials = fresh((splits, num_heads, num_tokens, v_head_dim), dtype=torch.float32, device=x.device)
        sizes = (num_tokens, num_heads, kv_lora_rank, v_head_dim, splits, per_split * group)
        blocks = {"BLOCK_TOKENS": tokens, "BLOCK_VALUE": value}
        grid = programs(tiles * splits)
        if weight == "fp8":
            largest = torch.finfo(w_q.dtype).max
            module.fp8_partials_kernel[grid](
                x, w_q, partials, *sizes, *x.stride(), *w_q.stride(), GROUP=group, LARGEST=largest, **blocks
            )
        else:
            strides = (*x.stride(), *w_q.stride(), *w_scale.stride())
            module.mxfp4_partials_kernel[grid](x, w_q, w_scale, partials, *sizes, *strides, GROUP=group, **blocks)
        module.sum_partials_kernel[programs(tiles)](
            partials,
            w_scale,
            out,
            num_tokens,
            num_heads,
            v_head_dim,
            splits,
            *out.stride(),
            SCALED=weight == "fp8",
            **blocks,
        )

    return launch
