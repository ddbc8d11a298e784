"""Registrations of the kernels that come with the suite: both optimised paths and the forms they replaced."""

from __future__ import annotations

from typing import Final

from mla_verify.kernel import Arithmetic, Kernel, KnownDeviation
from mla_verify.kernels import torch_decode, torch_quantised, torch_up_projection
from mla_verify.kernels.onednn import AMX_DIVIDES_BY_STRIDE, AMX_SPREADS_INFINITY
from mla_verify.registry import add
from strategies.limits import DecodeLimits, UpProjectionLimits

__all__ = ["SHIPPED"]

# torch.bmm(out=) checks inner sizes and dtypes only; the rest it accepts, and computes something else.
_BMM_ACCEPTS: Final = (
    KnownDeviation(
        clause="refusal",
        problems=lambda problem: problem.invalid in ("out_has_fewer_rows", "out_has_more_rows"),
        reason="torch.bmm(out=) resizes an output of another size with a warning: wrong values, also past the view",
        issue="vllm-project/vllm#42561",
    ),
    KnownDeviation(
        clause="refusal",
        problems=lambda problem: problem.invalid in ("out_is_x", "out_shifted_over_x"),
        reason="torch.bmm(out=) does not check that its output overlaps an input",
        issue="vllm-project/vllm#42561",
    ),
    KnownDeviation(
        clause="refusal",
        problems=lambda problem: problem.invalid in ("out_stride_0", "out_rows_overlap"),
        reason="torch.bmm(out=) does not check that the rows of its output overlap one another",
        issue="vllm-project/vllm#42561",
    ),
)

# The CPU's bf16 product treats subnormals as zero for some shapes (8 of 15 measured); fp16 and fp32 keep them.
_CPU_BMM: Final = Arithmetic(subnormals="flushed")

_CODES: Final = DecodeLimits(kv_formats=("e4m3fn", "e4m3fnuz", "e5m2"), quantised_q="optional")

_FP8_WEIGHT: Final = UpProjectionLimits(weight_formats=("fp8",), fp8_formats=("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"))
_MXFP4_WEIGHT: Final = UpProjectionLimits(weight_formats=("mxfp4",))

SHIPPED: Final = (
    Kernel(
        name="up_projection_direct",
        contract="up-projection",
        load=lambda: torch_up_projection.up_projection_direct,
        summary="torch.bmm straight into the transposed view of out",
        arithmetic=_CPU_BMM,
        validates=("shapes", "dtypes", "overlap"),
        known_deviations=(*_BMM_ACCEPTS, AMX_SPREADS_INFINITY, AMX_DIVIDES_BY_STRIDE),
        baseline="up_projection_copy",
    ),
    Kernel(
        name="up_projection_copy",
        contract="up-projection",
        load=lambda: torch_up_projection.up_projection_copy,
        summary="torch.bmm into a temporary, copied into out: the form that was replaced",
        arithmetic=_CPU_BMM,
        validates=("shapes",),
        known_deviations=(AMX_SPREADS_INFINITY,),
    ),
    Kernel(
        name="up_projection_fp8_split",
        contract="up-projection",
        load=lambda: torch_quantised.up_projection_fp8_split,
        summary="fp8 weight, x quantised per group of 128, split along the rank into the transposed view of out",
        limits=_FP8_WEIGHT,
        validates=("shapes", "dtypes", "overlap"),
        baseline="up_projection_fp8_copy",
    ),
    Kernel(
        name="up_projection_fp8_copy",
        contract="up-projection",
        load=lambda: torch_quantised.up_projection_fp8_copy,
        summary="the same into zeros, copied into out",
        limits=_FP8_WEIGHT,
        validates=("shapes", "dtypes", "overlap"),
    ),
    Kernel(
        name="up_projection_mxfp4_split",
        contract="up-projection",
        load=lambda: torch_quantised.up_projection_mxfp4_split,
        summary="mxfp4 weight, x quantised per block of 32, split along the rank into the transposed view of out",
        limits=_MXFP4_WEIGHT,
        validates=("shapes", "dtypes", "overlap"),
        baseline="up_projection_mxfp4_copy",
    ),
    Kernel(
        name="up_projection_mxfp4_copy",
        contract="up-projection",
        load=lambda: torch_quantised.up_projection_mxfp4_copy,
        summary="the same into zeros, copied into out",
        limits=_MXFP4_WEIGHT,
        validates=("shapes", "dtypes", "overlap"),
    ),
    Kernel(
        name="decode_split_kv_empty",
        contract="decode",
        load=lambda: torch_decode.decode_split_kv_empty,
        summary="two-stage split-KV decode, output and scratch from torch.empty",
        arithmetic=Arithmetic(probabilities="fp32", normalise="division"),
        validates=("shapes", "dtypes", "overlap", "tables"),
        baseline="decode_split_kv_zeros",
    ),
    Kernel(
        name="decode_split_kv_zeros",
        contract="decode",
        load=lambda: torch_decode.decode_split_kv_zeros,
        summary="the same from torch.zeros, copied into o: the form that was replaced",
        arithmetic=Arithmetic(probabilities="fp32", normalise="division"),
        validates=("shapes", "dtypes", "overlap", "tables"),
    ),
    Kernel(
        name="decode_split_kv_fp8",
        contract="decode",
        load=lambda: torch_decode.decode_split_kv_empty,
        summary="decode_split_kv_empty on fp8 codes: of the cache, or of q and the cache",
        limits=_CODES,
        arithmetic=Arithmetic(probabilities="fp32", normalise="division"),
        validates=("shapes", "dtypes", "overlap", "tables"),
        baseline="decode_split_kv_fp8_zeros",
    ),
    Kernel(
        name="decode_split_kv_fp8_zeros",
        contract="decode",
        load=lambda: torch_decode.decode_split_kv_zeros,
        summary="the same from torch.zeros, copied into o: the form that was replaced",
        limits=_CODES,
        arithmetic=Arithmetic(probabilities="fp32", normalise="division"),
        validates=("shapes", "dtypes", "overlap", "tables"),
    ),
)

for _kernel in SHIPPED:
    add(_kernel)
