"""vLLM's `_v_up_proj` through both of its quantised branches, with AITER's Triton kernels behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from torch import Tensor

from mla_verify.kernel import Kernel
from mla_verify.kernels.aiter_kernels import triton_part
from mla_verify.kernels.aiter_quantised_registered import FP8_DECLARATIONS, MXFP4_DECLARATIONS
from mla_verify.kernels.vllm_adapters import PLAIN_BRANCH, v_up_proj_method
from mla_verify.registry import add

__all__ = ["VLLM_QUANTISED_KERNELS", "load_vllm_v_up_proj_fp8", "load_vllm_v_up_proj_mxfp4"]


def load_vllm_v_up_proj_fp8() -> Callable[..., None]:
    """The branch that multiplies by an fp8 weight. Raises Unavailable without vLLM, AITER or Triton."""
    return _branch("is_aiter_triton_fp8_bmm_enabled")


def load_vllm_v_up_proj_mxfp4() -> Callable[..., None]:
    """The branch that multiplies by an MXFP4 weight. Raises Unavailable without vLLM, AITER or Triton."""
    return _branch("is_aiter_triton_fp4_bmm_enabled")


def _branch(switch: str) -> Callable[..., None]:
    triton_part("gemm.batched")  # first, as it says whether AITER can be had
    method = v_up_proj_method()

    def vllm_v_up_proj(
        *,
        x: Tensor,  # [num_tokens, num_heads, kv_lora_rank]
        w_q: Tensor,  # [num_heads, v_head_dim, kv_lora_rank], or half as many bytes
        w_scale: Tensor,
        out: Tensor,  # [num_tokens, num_heads, v_head_dim]
        **_: object,
    ) -> None:
        rows, heads, width = out.shape
        layer = SimpleNamespace(
            num_heads=heads,
            kv_lora_rank=x.shape[2],
            v_head_dim=width,
            W_V=w_q,
            W_V_scale=w_scale,
            **{**PLAIN_BRANCH, switch: True},
        )
        method(layer, x, out.view(rows, heads * width))

    return vllm_v_up_proj


def _called_by_vllm(declarations: dict[str, Any]) -> dict[str, Any]:
    """AITER's declarations, with heads of `out` adjacent and a token at least: the method infers their number."""
    return {**declarations, "limits": replace(declarations["limits"], flat_rows=True)}


VLLM_QUANTISED_KERNELS: Final = (
    Kernel(
        name="vllm_v_up_proj_fp8",
        load=load_vllm_v_up_proj_fp8,
        summary="vLLM MLAAttention._v_up_proj, fp8 branch (AITER)",
        baseline="aiter_fp8_bmm_zeros",
        **_called_by_vllm(FP8_DECLARATIONS),
    ),
    Kernel(
        name="vllm_v_up_proj_mxfp4",
        load=load_vllm_v_up_proj_mxfp4,
        summary="vLLM MLAAttention._v_up_proj, MXFP4 branch (AITER)",
        baseline="aiter_a16wfp4_bmm_zeros",
        **_called_by_vllm(MXFP4_DECLARATIONS),
    ),
)

for _kernel in VLLM_QUANTISED_KERNELS:
    add(_kernel)
