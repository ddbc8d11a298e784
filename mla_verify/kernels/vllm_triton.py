"""vLLM's Triton decode attention as a kernel under test, interpreted where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.kernel import Arithmetic, Kernel, KnownDeviation
from mla_verify.kernels.foreign import find_source, imported, load_source, member, stand_in, triton_here
from mla_verify.registry import add
from strategies.limits import DecodeLimits
from strategies.problems import DecodeProblem

__all__ = ["VLLM_TRITON_KERNELS", "load_vllm_triton_decode", "load_vllm_triton_decode_zeros"]

_WHAT: Final = "vLLM's Triton decode attention"
_MODULE: Final = "vllm.v1.attention.ops.triton_decode_attention"

_New = Callable[..., Tensor]


def load_vllm_triton_decode() -> Callable[..., None]:
    """`decode_attention_fwd` with results and scratch from `torch.empty`. Raises Unavailable without vLLM or Triton."""
    return _adapted(torch.empty)


def load_vllm_triton_decode_zeros() -> Callable[..., None]:
    """The same with zero-filled scratch and results, copied into `o` and `lse`."""
    decode = _adapted(torch.zeros)

    def vllm_triton_decode_zeros(
        *, q: Tensor, o: Tensor, lse: Tensor | None, seq_lens: Tensor, **arguments: Any
    ) -> None:
        batch = seq_lens.shape[0]
        o_copy = torch.zeros(o.shape, dtype=o.dtype, device=o.device)
        lse_copy = torch.zeros(o.shape[:2], dtype=torch.float32, device=o.device)
        decode(q=q, o=o_copy, lse=lse_copy, seq_lens=seq_lens, **arguments)
        o[:batch].copy_(o_copy[:batch])
        if lse is not None:
            lse[:batch].copy_(lse_copy[:batch])

    return vllm_triton_decode_zeros


def _adapted(new: _New) -> Callable[..., None]:
    """vLLM's function in decode's calling convention; `new` makes the scratch between its two stages."""
    forward = member(_module(), "decode_attention_fwd", what=_WHAT)

    def vllm_triton_decode(
        *,
        q: Tensor,  # [num_rows, num_heads, kv_lora_rank + qk_rope_head_dim]
        kv_buffer: Tensor,  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
        o: Tensor,  # [num_rows, num_heads, kv_lora_rank]
        lse: Tensor | None,  # float32 [num_rows, num_heads]
        block_table: Tensor,  # int32 [batch, width]
        seq_lens: Tensor,  # int32 [batch]
        page_size: int,
        sm_scale: float,
        num_kv_splits: int,
        kv_scale: Tensor | None,  # float32 [1] where the cache holds codes
        **_: object,
    ) -> None:
        batch, heads, latent = seq_lens.shape[0], o.shape[1], o.shape[2]
        if batch == 0:
            return  # vLLM does not launch for an empty batch
        if lse is None:
            lse = new(o.shape[:2], dtype=torch.float32, device=o.device)
        # One slot more than values: the last one holds the split's log-sum-exp.
        partials = new((batch, heads, num_kv_splits, latent + 1), dtype=torch.float32, device=q.device)
        forward(
            q[:batch],
            kv_buffer,
            kv_buffer[..., :latent],
            o[:batch],
            lse[:batch],
            block_table,
            seq_lens,
            partials,
            num_kv_splits,
            sm_scale,
            page_size,
            k_scale=kv_scale,
            v_scale=kv_scale,
            is_mla=True,
        )

    return vllm_triton_decode


def _module() -> Any:
    """The real module on a GPU. vLLM switches Triton off on a CPU: there its file is loaded beside three stand-ins."""
    triton_here(_WHAT)
    path = find_source("vllm", "v1/attention/ops/triton_decode_attention.py")
    if torch.cuda.is_available():
        return imported(_MODULE, what=_WHAT)
    triton = imported("triton", what=_WHAT)
    platform = SimpleNamespace(is_rocm=lambda: False)
    return load_source(
        _MODULE,
        path,
        {
            "vllm": stand_in("vllm"),
            "vllm.platforms": stand_in("vllm.platforms", current_platform=platform),
            "vllm.triton_utils": stand_in("vllm.triton_utils", triton=triton, tl=triton.language),
        },
    )


def _sees_no_key(problem: DecodeProblem) -> bool:
    """Whether a request without keys has a row."""
    return any(q_len > 0 and kv_len == 0 for q_len, kv_len in zip(problem.q_lens, problem.kv_lens, strict=True))


_EMPTY_ROWS: Final = KnownDeviation(
    clause="agreement",
    problems=_sees_no_key,
    reason="a request without keys gets NaN: stage 2 divides a sum over no splits by 0 (its lse is right)",
    issue="vllm-project/vllm#57094",
)


def _one_head_of_16_bits(problem: DecodeProblem) -> bool:
    return problem.num_heads == 1 and problem.dtype != "float32"


_NARROW_SCORES: Final = KnownDeviation(
    clause="agreement",
    problems=_one_head_of_16_bits,
    reason=(
        "one head takes the ungrouped kernel, which multiplies q by k in their own 16 bits (and sums in float16) "
        "before the softmax: scores, and with them lse, are off in the third digit"
    ),
)
_LIMITS: Final = DecodeLimits(
    # Whole tiles, as the grouped kernel cuts k at the next power of two of the value's width (512 and 64 in models).
    # Few programs, as the interpreter needs milliseconds for each.
    kv_lora_rank=(16, 64, 512),
    qk_rope_head_dim=(16, 64),
    num_heads=(1, 2, 8, 16, 17),
    max_q_len=1,
    max_batch=3,
    max_num_kv_splits=4,
    uniform_q=True,
)
# On CUDA tl.dot multiplies float32 as TF32 unless it is told otherwise, and it is not.
_ARITHMETIC: Final = Arithmetic(multiply="tf32")
# What vLLM's own backend allows it: a cache of codes under a query of 16 or 32 bits. Codes times their scale are
# kept in the query's dtype.
_CODES: Final = replace(_LIMITS, kv_formats=("e4m3fn",))
_CODES_ARITHMETIC: Final = replace(_ARITHMETIC, dequantise="input dtype")
_CONSUMED: Final = KnownDeviation(
    clause="independence",
    problems=_sees_no_key,
    reason="the NaN of a request without keys becomes the largest magnitude of the whole output, and so of every row",
    issue="vllm-project/vllm#57094",
)
# Strides of rows and heads are taken; within a row the kernel assumes 1.
_PRECONDITIONS: Final = ("contiguous_q", "contiguous_o", "contiguous_lse")

VLLM_TRITON_KERNELS: Final = (
    Kernel(
        name="vllm_triton_decode",
        contract="decode",
        load=load_vllm_triton_decode,
        summary="vLLM decode_attention_fwd (Triton, split-KV), scratch from torch.empty",
        limits=_LIMITS,
        arithmetic=_ARITHMETIC,
        preconditions=_PRECONDITIONS,
        known_deviations=(_EMPTY_ROWS, _NARROW_SCORES),
        triton=True,
        baseline="vllm_triton_decode_zeros",
    ),
    Kernel(
        name="vllm_triton_decode_zeros",
        contract="decode",
        load=load_vllm_triton_decode_zeros,
        summary="the same from torch.zeros, copied into o and lse",
        limits=_LIMITS,
        arithmetic=_ARITHMETIC,
        preconditions=_PRECONDITIONS,
        known_deviations=(_EMPTY_ROWS, _NARROW_SCORES),
        triton=True,
    ),
    Kernel(
        name="vllm_triton_decode_fp8",
        contract="decode",
        load=load_vllm_triton_decode,
        summary="vLLM decode_attention_fwd on a cache of e4m3fn codes, scratch from torch.empty",
        limits=_CODES,
        arithmetic=_CODES_ARITHMETIC,
        preconditions=_PRECONDITIONS,
        known_deviations=(_EMPTY_ROWS, _NARROW_SCORES),
        triton=True,
        baseline="vllm_triton_decode_fp8_zeros",
    ),
    Kernel(
        name="vllm_triton_decode_fp8_zeros",
        contract="decode",
        load=load_vllm_triton_decode_zeros,
        summary="the same from torch.zeros, copied into o and lse",
        limits=_CODES,
        arithmetic=_CODES_ARITHMETIC,
        preconditions=_PRECONDITIONS,
        known_deviations=(_EMPTY_ROWS, _NARROW_SCORES),
        triton=True,
    ),
    Kernel(
        name="vllm_triton_decode_consumed",
        contract="decode",
        load=load_vllm_triton_decode,
        summary='the claim "a padded batch may be quantised whole", its padding being requests without keys',
        limits=replace(_LIMITS, padding_rows=False),
        arithmetic=_ARITHMETIC,
        preconditions=_PRECONDITIONS,
        known_deviations=(_EMPTY_ROWS, _NARROW_SCORES, _CONSUMED),
        triton=True,
        consumers=("per_tensor_fp8",),
    ),
)

for _kernel in VLLM_TRITON_KERNELS:
    add(_kernel)
