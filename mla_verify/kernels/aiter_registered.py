"""Registrations of AITER's MLA decodes, and of the claim that one of them overwrites every output element."""

from __future__ import annotations

from typing import Any, Final

from mla_verify.kernel import Arithmetic, Kernel, KnownDeviation
from mla_verify.kernels import aiter_kernels
from mla_verify.registry import add
from strategies.limits import DecodeLimits
from strategies.problems import DecodeProblem

__all__ = ["AITER_KERNELS"]

_CLAIM: Final = "vllm-project/vllm#37539"
_MODELLED: Final = ("stage 1 modelled",) if aiter_kernels.MODELLED else ()


def _sees_no_key(problem: DecodeProblem) -> bool:
    return any(q_len > kv_len for q_len, kv_len in zip(problem.q_lens, problem.kv_lens, strict=True))


def _is_paged_and_empty(problem: DecodeProblem) -> bool:
    return problem.page_size > 1 and 0 in problem.kv_lens


def _finished_in_stage_1(problem: DecodeProblem) -> bool:
    """Whether stage 2 only copies what stage 1 has finished, and so writes no lse."""
    return (
        problem.num_kv_splits == 1
        and problem.with_lse
        and problem.num_heads == 16
        and max(problem.q_lens, default=0) in (2, 3)  # one row is reduced always, four are finished in place
    )


def _has_partial_page(problem: DecodeProblem) -> bool:
    return any(kv_len % problem.page_size for kv_len in problem.kv_lens)


def _has_padding(problem: DecodeProblem) -> bool:
    return problem.padding_rows > 0


_EMPTY: Final = KnownDeviation(
    clause="agreement",
    problems=_sees_no_key,
    reason="stage 2 divides a sum over no splits by 0: a row without keys is written with NaN",
    issue=_CLAIM,
)
_EMPTY_TRITON: Final = KnownDeviation(
    clause="agreement",
    problems=_sees_no_key,
    reason="a sum over no keys is divided by 0: a row without keys is written with NaN",
)
_LAST_KEY_OF_NONE: Final = KnownDeviation(
    clause="survival",
    problems=lambda problem: problem.kv_lens[:1] == (0,),
    reason="the last key of a first request without keys is looked up at kv_indices[-1], and loaded from there",
)
_WHOLE_PAGES: Final = KnownDeviation(
    clause="independence",
    problems=_has_partial_page,
    reason="the last page is read to its end: a NaN behind the last key reaches every element of the row",
)
_MLA_DECODE: Final[dict[str, Any]] = {
    "contract": "decode",
    "arithmetic": Arithmetic(probabilities="fp32", subnormals="flushed"),
    "preconditions": ("contiguous_q", "contiguous_o", "contiguous_cache"),
    "triton": True,
    "notes": _MODELLED,
}
_KNOWN: Final = (
    _EMPTY,
    KnownDeviation(
        clause="independence",
        problems=_is_paged_and_empty,
        reason="stage 2 adds kv_last_page_lens of a request without pages, which is arbitrary, to its length",
    ),
    KnownDeviation(
        clause="coverage",
        problems=_finished_in_stage_1,
        reason="with one split for every request stage 2 copies the result and leaves the returned lse unwritten",
    ),
)


_ROPE_DECODE: Final[dict[str, Any]] = {
    "contract": "decode",
    "limits": DecodeLimits(
        dtypes=("float16", "bfloat16"),
        kv_lora_rank=(64,),
        qk_rope_head_dim=(16,),
        num_heads=(1, 2, 8),
        page_sizes=(1,),
        max_batch=2,
        max_q_len=1,
        max_num_kv_splits=4,
        uniform_q=True,
        lse="never",
    ),
    "preconditions": ("contiguous_q", "contiguous_o", "contiguous_cache"),
    "triton": True,
}


def _limits(lse: str) -> DecodeLimits:
    return DecodeLimits(
        dtypes=("bfloat16",),
        kv_lora_rank=(512,),
        qk_rope_head_dim=(64,),
        num_heads=(8, 16),
        page_sizes=(1, 16, 64),
        max_q_len=4,
        uniform_q=True,
        lse=lse,
    )


AITER_KERNELS: Final = (
    Kernel(
        name="aiter_mla_decode",
        load=aiter_kernels.load_mla_decode,
        summary="AITER mla_decode_fwd, not persistent, output from torch.empty",
        limits=_limits("optional"),
        known_deviations=_KNOWN,
        baseline="aiter_mla_decode_zeros",
        **_MLA_DECODE,
    ),
    Kernel(
        name="aiter_mla_decode_zeros",
        load=aiter_kernels.load_mla_decode_zeros,
        summary="the same into torch.zeros, handed on whole: vLLM's form before #37539",
        limits=_limits("never"),
        known_deviations=(_EMPTY, _KNOWN[1]),
        padding_rows="zero",
        **_MLA_DECODE,
    ),
    Kernel(
        name="aiter_mla_decode_claim",
        load=aiter_kernels.load_mla_decode,
        summary='the claim "AITER decode overwrites every output element", padding included',
        limits=_limits("never"),
        empty_rows="unspecified",  # the claim is about writing, not about what is written
        padding_rows="written",
        known_deviations=(
            KnownDeviation(
                clause="coverage",
                problems=_has_padding,
                reason="the claim is false without persistent mode: rows past qo_indptr[-1] are never written",
                issue=_CLAIM,
            ),
        ),
        **_MLA_DECODE,
    ),
    Kernel(
        name="aiter_triton_mla_decode",
        contract="decode",
        load=aiter_kernels.load_triton_mla_decode,
        summary="AITER Triton MLA decode (ops/triton/attention/mla.py)",
        limits=DecodeLimits(
            dtypes=("float16", "bfloat16"),
            kv_lora_rank=(64,),
            qk_rope_head_dim=(16,),
            num_heads=(1, 2, 8),
            page_sizes=(16,),
            max_batch=2,
            max_q_len=4,
            uniform_q=True,
            lse="never",
        ),
        preconditions=("contiguous_q", "contiguous_o", "contiguous_cache"),
        known_deviations=(_EMPTY_TRITON, _WHOLE_PAGES),
        triton=True,
    ),
    Kernel(
        name="aiter_rope_decode",
        load=aiter_kernels.load_rope_decode,
        summary="AITER decode_attention_fwd_grouped_rope, rotation off",
        known_deviations=(_EMPTY_TRITON,),
        **_ROPE_DECODE,
    ),
    Kernel(
        name="aiter_rope_decode_rotating",
        load=aiter_kernels.load_rotating_rope_decode,
        summary="the same with its rotation on, by an angle of 0",
        known_deviations=(_EMPTY_TRITON, _LAST_KEY_OF_NONE),
        **_ROPE_DECODE,
    ),
)

for _kernel in AITER_KERNELS:
    add(_kernel)
