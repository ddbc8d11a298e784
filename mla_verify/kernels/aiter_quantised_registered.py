"""Registrations of AITER's batched products with a quantised weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from mla_verify.kernel import Arithmetic, Kernel, KnownDeviation
from mla_verify.kernels import aiter_quantised
from mla_verify.kernels.aiter_kernels import MODELLED
from mla_verify.registry import add
from strategies.layouts import strides_of
from strategies.limits import UpProjectionLimits
from strategies.problems import UpProjectionProblem

__all__ = ["AITER_QUANTISED_KERNELS", "FP8_DECLARATIONS", "MXFP4_DECLARATIONS"]

_TILE: Final = 256  # columns of K at a time in every shipped configuration of the MXFP4 product


def _is_interpreted(_: UpProjectionProblem) -> bool:
    """Only the interpreter tells that an assumption does not hold."""
    return MODELLED


def _has_stride_0(problem: UpProjectionProblem) -> bool:
    tokens, heads = problem.num_tokens, problem.num_heads
    x, _ = strides_of((tokens, heads, problem.kv_lora_rank), problem.x_layout)
    out, _ = strides_of((tokens, heads, problem.v_head_dim), problem.out_layout)
    return MODELLED and min(*x, *out) <= 0


def _is_masked(problem: UpProjectionProblem) -> bool:
    """Whether K is no multiple of the tile: the next power of two, or 256 where that is more."""
    latent = problem.kv_lora_rank
    return latent % _TILE != 0 if latent > _TILE else latent & (latent - 1) != 0


def _is_split(problem: UpProjectionProblem) -> bool:
    """Whether K is cut in parts and the output has rows that the swapped strides confuse."""
    return problem.kv_lora_rank == 2 * _TILE and problem.num_heads * problem.num_tokens > 1


def _left_out(clause: str, reason: str) -> KnownDeviation:
    return KnownDeviation(clause=clause, problems=_is_masked, reason=reason)


def _swapped(clause: str) -> KnownDeviation:
    return KnownDeviation(
        clause=clause,
        problems=_is_split,
        reason="the sum of the parts is handed the strides of tokens and heads in the wrong order, and stores unmasked",
    )


_NO_BIAS: Final = KnownDeviation(
    clause="refusal",
    problems=_is_interpreted,
    reason="it assumes (tl.assume) that the stride of the bias is positive, which is 0 where there is none",
)
_POSITIVE_STRIDES: Final = KnownDeviation(
    clause="refusal",
    problems=_has_stride_0,
    reason="it assumes (tl.assume) that every stride is positive, also of x that is broadcast",
)
_MASKS: Final = (
    _left_out("agreement", "x is masked by the number of packed pairs: its second half is left out"),
    _left_out("independence", "scales behind the last are loaded, and a NaN there reaches the sum"),
    _left_out("survival", "scales behind the last are loaded, also past the end of the tensor"),
)

_OF_SPLIT: Final = ("coverage", "containment", "agreement", "repeatability")
FP8_DECLARATIONS: Final[dict[str, Any]] = {
    "contract": "up-projection",
    "arithmetic": Arithmetic(subnormals="flushed"),
    "preconditions": ("contiguous_w_q",),
    "triton": True,
    "known_deviations": (_NO_BIAS,),
    "limits": UpProjectionLimits(
        dtypes=("bfloat16", "float16"),
        num_heads=(1, 2, 3),
        kv_lora_rank=(16, 128, 192, 512),
        v_head_dim=(1, 16, 64),
        max_num_tokens=17,
        weight_formats=("fp8",),
        fp8_formats=("e4m3fn",),
    ),
}
MXFP4_DECLARATIONS: Final[dict[str, Any]] = {
    "contract": "up-projection",
    "arithmetic": Arithmetic(subnormals="flushed"),
    "preconditions": ("contiguous_w_q",),
    "triton": True,
    "known_deviations": (_POSITIVE_STRIDES, *_MASKS),
    "limits": UpProjectionLimits(
        dtypes=("bfloat16",),
        num_heads=(1, 2, 3),
        kv_lora_rank=(32, 64, 128, 320, 512),
        v_head_dim=(1, 16, 64),
        max_num_tokens=17,
        weight_formats=("mxfp4",),
    ),
}

_FP4_BMM: Final = Kernel(
    name="aiter_a16wfp4_bmm",
    load=aiter_quantised.load_a16wfp4_bmm,
    summary="AITER batched MXFP4 product straight into the transposed view of out",
    baseline="aiter_a16wfp4_bmm_zeros",
    **MXFP4_DECLARATIONS,
)

AITER_QUANTISED_KERNELS: Final = (
    Kernel(
        name="aiter_fp8_bmm",
        load=aiter_quantised.load_fp8_bmm,
        summary="AITER batched fp8 product straight into the transposed view of out",
        baseline="aiter_fp8_bmm_zeros",
        **FP8_DECLARATIONS,
    ),
    Kernel(
        name="aiter_fp8_bmm_zeros",
        load=aiter_quantised.load_fp8_bmm_zeros,
        summary="the same into torch.zeros, copied",
        **FP8_DECLARATIONS,
    ),
    _FP4_BMM,
    replace(
        _FP4_BMM,
        name="aiter_a16wfp4_bmm_zeros",
        load=aiter_quantised.load_a16wfp4_bmm_zeros,
        summary="the same into torch.zeros, copied",
        baseline=None,
    ),
    replace(
        _FP4_BMM,
        name="aiter_a16wfp4_split_bmm",
        load=aiter_quantised.load_a16wfp4_split_bmm,
        summary="AITER batched MXFP4 product, K in four parts",
        known_deviations=(*_FP4_BMM.known_deviations, *(_swapped(clause) for clause in _OF_SPLIT)),
    ),
)

for _kernel in AITER_QUANTISED_KERNELS:
    add(_kernel)
