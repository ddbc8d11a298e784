"""AITER's batched products with a quantised weight, in the forms that vLLM's `_v_up_proj` calls them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.kernels.aiter_kernels import triton_part
from mla_verify.kernels.foreign import member

__all__ = [
    "SPLITS",
    "copied_from_zeros",
    "load_a16wfp4_bmm",
    "load_a16wfp4_bmm_zeros",
    "load_a16wfp4_split_bmm",
    "load_fp8_bmm",
    "load_fp8_bmm_zeros",
]

SPLITS: Final = 4
"""Parts of K in the split form. The shipped configurations do not split weights as small as an up-projection's."""

_WHAT: Final = "AITER (ROCm/aiter, a checkout on PYTHONPATH)"
_FP8: Final = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"
_FP4: Final = "batched_gemm_a16wfp4"

_Call = Callable[..., None]


def load_fp8_bmm() -> _Call:
    """The fp8 product into `out` itself; x is quantised in the kernel, per token and head in groups of 128."""
    multiply = member(triton_part(f"gemm.batched.{_FP8}"), _FP8, what=_WHAT)

    def aiter_fp8_bmm(
        *,
        x: Tensor,  # [num_tokens, num_heads, kv_lora_rank]
        w_q: Tensor,  # fp8 [num_heads, v_head_dim, kv_lora_rank]
        w_scale: Tensor,  # float32 [1]
        out: Tensor,  # [num_tokens, num_heads, v_head_dim]
        **_: object,
    ) -> None:
        if out.numel():
            multiply(x.transpose(0, 1), w_q, w_scale, group_size=128, dtype=out.dtype, YQ=out, transpose_bm=True)

    return aiter_fp8_bmm


def load_fp8_bmm_zeros() -> _Call:
    """The same into an output from `torch.zeros`, copied."""
    return copied_from_zeros(load_fp8_bmm())


def load_a16wfp4_bmm() -> _Call:
    """The MXFP4 product into `out` itself, as the shipped configurations run it: K in one piece."""
    return _a16wfp4(splits=1)


def load_a16wfp4_bmm_zeros() -> _Call:
    """The same into an output from `torch.zeros`, copied."""
    return copied_from_zeros(load_a16wfp4_bmm())


def load_a16wfp4_split_bmm() -> _Call:
    """The MXFP4 product with K in `SPLITS` parts: partial sums in scratch from `torch.empty`, and a second kernel."""
    return _a16wfp4(splits=SPLITS)


def copied_from_zeros(call: _Call) -> _Call:
    """The form that writing into `out` replaced: into zeros, then copied."""

    def from_zeros(*, out: Tensor, **tensors: Any) -> None:
        zeros = torch.zeros(out.shape, dtype=out.dtype, device=out.device)
        call(out=zeros, **tensors)
        out.copy_(zeros)

    return from_zeros


def _a16wfp4(*, splits: int) -> _Call:
    module = triton_part(f"gemm.batched.{_FP4}")
    multiply = member(module, _FP4, what=_WHAT)
    configuration = member(module, "_get_config", what=_WHAT)

    def aiter_a16wfp4_bmm(
        *,
        x: Tensor,  # [num_tokens, num_heads, kv_lora_rank]
        w_q: Tensor,  # uint8 [num_heads, v_head_dim, kv_lora_rank / 2]
        w_scale: Tensor,  # uint8 [num_heads, v_head_dim, kv_lora_rank / 32]
        out: Tensor,  # [num_tokens, num_heads, v_head_dim]
        **_: object,
    ) -> None:
        if out.numel() == 0:
            return
        chosen, _tuned = configuration(x.shape[0], w_q.shape[1], w_q.shape[2])
        config = {**chosen, "NUM_KSPLIT": splits} if splits > 1 else None
        multiply(x.transpose(0, 1), w_q, w_scale, out.dtype, out, config=config, transpose_bm=True, prequant=True)

    return aiter_a16wfp4_bmm
