"""AITER's persistent `mla_decode_fwd`, the form vLLM takes for one token a request: assembly, so on ROCm alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.errors import Unavailable
from mla_verify.kernel import Arithmetic, Kernel
from mla_verify.kernels.aiter_kernels import handed_on_whole
from mla_verify.kernels.foreign import find_source, imported, member
from mla_verify.registry import add
from strategies.limits import DecodeLimits

__all__ = [
    "AITER_PERSISTENT_KERNELS",
    "load_persistent_decode",
    "load_persistent_decode_zeros",
    "plan_persistent_decode",
]

_WHAT: Final = "AITER's persistent MLA decode"
_GRANULARITY: Final = 16  # keys that a split is a multiple of, as vLLM asks for
# The metadata, in the order in which `get_mla_metadata_info_v1` gives their sizes.
_METADATA: Final = (
    "work_meta_data",
    "work_indptr",
    "work_info_set",
    "reduce_indptr",
    "reduce_final_map",
    "reduce_partial_map",
)


def load_persistent_decode() -> Callable[..., tuple[Tensor, Tensor] | None]:
    """`mla_decode_fwd` with the metadata of `plan_persistent_decode`. Raises Unavailable without ROCm or AITER."""
    _rocm_here()
    forward = member(imported("aiter.mla", what=_WHAT), "mla_decode_fwd", what=_WHAT)

    def aiter_mla_decode_persistent(
        *,
        q: Tensor,  # [num_rows, num_heads, kv_lora_rank + qk_rope_head_dim]
        kv_buffer: Tensor,  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
        o: Tensor,  # [num_rows, num_heads, kv_lora_rank]
        lse: Tensor | None,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        kv_last_page_lens: Tensor,
        page_size: int,
        max_seqlen_q: int,
        sm_scale: float,
        state: dict[str, Tensor],
        **_: object,
    ) -> tuple[Tensor, Tensor] | None:
        if not state:
            return None
        _, own_lse = forward(
            q,
            kv_buffer,
            o,
            qo_indptr,
            kv_indptr,
            kv_indices,
            kv_last_page_lens,
            max_seqlen_q,
            page_size=page_size,
            sm_scale=sm_scale,
            return_lse=lse is not None,
            **state,
        )
        return None if lse is None else (o, own_lse)

    return aiter_mla_decode_persistent


def load_persistent_decode_zeros() -> Callable[..., None]:
    """The same into an output from `torch.zeros`, all of it handed on: vLLM's form before its change #37539."""
    return handed_on_whole(load_persistent_decode())


def plan_persistent_decode(
    *,
    q: Tensor,
    kv_buffer: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_last_page_lens: Tensor,
    page_size: int,
    max_seqlen_q: int,
    **_: object,
) -> dict[str, Tensor]:
    """How AITER cuts the work of one batch, as keyword arguments of `mla_decode_fwd`; nothing for an empty batch."""
    batch, heads = kv_last_page_lens.shape[0], q.shape[1]
    if batch == 0:
        return {}
    aiter = imported("aiter", what=_WHAT)
    sizes = member(aiter, "get_mla_metadata_info_v1", what=_WHAT)(
        batch, max_seqlen_q, heads, q.dtype, kv_buffer.dtype, is_sparse=False, fast_mode=True
    )
    plan = {
        name: torch.empty(size, dtype=dtype, device=q.device)
        for name, (size, dtype) in zip(_METADATA, sizes, strict=True)
    }
    member(aiter, "get_mla_metadata_v1", what=_WHAT)(
        qo_indptr,
        kv_indptr,
        kv_last_page_lens,
        heads,
        1,  # key heads: the latent is shared
        True,  # causal
        plan["work_meta_data"],
        plan["work_info_set"],
        plan["work_indptr"],
        plan["reduce_indptr"],
        plan["reduce_final_map"],
        plan["reduce_partial_map"],
        page_size=page_size,
        kv_granularity=_GRANULARITY,
        max_seqlen_qo=max_seqlen_q,
        uni_seqlen_qo=max_seqlen_q,
        fast_mode=True,
        dtype_q=q.dtype,
        dtype_kv=kv_buffer.dtype,
    )
    return plan


def _rocm_here() -> None:
    find_source("aiter", "__init__.py")
    if torch.version.hip is None or not torch.cuda.is_available():
        raise Unavailable(f"{_WHAT} is assembly: it needs an AMD GPU and a ROCm build of torch")


def _limits(lse: str) -> DecodeLimits:
    return DecodeLimits(
        dtypes=("bfloat16",),
        kv_lora_rank=(512,),
        qk_rope_head_dim=(64,),
        num_heads=(16, 128),
        page_sizes=(1,),
        max_q_len=1,
        uniform_q=True,
        lse=lse,
    )


# What the assembly writes for an empty range of keys is not documented: rows without keys, and rows of padding, which
# its metadata takes for requests, are held to nothing but leaving the others alone.
_PERSISTENT: Final[dict[str, Any]] = {
    "contract": "decode",
    "arithmetic": Arithmetic(probabilities="fp32", subnormals="flushed"),
    "preconditions": ("contiguous_q", "contiguous_o", "contiguous_cache"),
    "prepare": plan_persistent_decode,
    "devices": ("cuda",),
    "empty_rows": "unspecified",
    "empty_lse": "unspecified",
    "notes": ("never run on a GPU: the declarations are read from AITER's source, not measured",),
}

AITER_PERSISTENT_KERNELS: Final = (
    Kernel(
        name="aiter_mla_decode_persistent",
        load=load_persistent_decode,
        summary="AITER mla_decode_fwd, persistent, output from torch.empty",
        limits=_limits("optional"),
        padding_rows="unspecified",
        baseline="aiter_mla_decode_persistent_zeros",
        **_PERSISTENT,
    ),
    Kernel(
        name="aiter_mla_decode_persistent_zeros",
        load=load_persistent_decode_zeros,
        summary="the same into torch.zeros, handed on whole: vLLM's form before #37539",
        limits=_limits("never"),
        padding_rows="unspecified",
        **_PERSISTENT,
    ),
    Kernel(
        name="aiter_mla_decode_persistent_claim",
        load=load_persistent_decode,
        summary='the claim "AITER decode overwrites every output element", persistent, padding included',
        limits=_limits("never"),
        padding_rows="written",
        **_PERSISTENT,
    ),
)

for _kernel in AITER_PERSISTENT_KERNELS:
    add(_kernel)
