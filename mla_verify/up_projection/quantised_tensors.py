"""The tensors of a quantised weight: w_q and w_scale, and w_uv dequantised."""

from __future__ import annotations

import torch

from mla_verify.formats import decode, dtype_of_format, pack_pairs
from mla_verify.kernel import Kernel
from mla_verify.placement import plan
from mla_verify.up_projection.quantised_values import Weight, weight_of
from sanitizer.plan import TensorPlan
from strategies.layout_menus import CUBE_KINDS
from strategies.layouts import CONTIGUOUS, Layout
from strategies.problems import UpProjectionProblem

__all__ = ["quantised_plans"]


def quantised_plans(
    problem: UpProjectionProblem,
    kernel: Kernel,
    device: torch.device,
    *,
    limit: int,  # of a sum in an exact problem, in units
    wrong_dtype: torch.dtype,  # of w_q where the problem's fault is its dtype
) -> tuple[TensorPlan, ...]:
    """Plan w_uv, w_q and w_scale; unused memory among the codes holds NaN codes under secret A.

    mxfp4 comes in bytes, as kernels take it: torch's own dtypes for its codes and scales cannot be computed with.
    """
    longer = 0
    if problem.invalid == "inner_sizes_differ":
        longer = 2 if problem.weight_format == "mxfp4" else 1
    weight = weight_of(problem, device, limit=limit, extra=longer)
    layout = _layout_of_codes(problem)
    codes = weight.codes.view(dtype_of_format(problem.fp8_format))
    scale_layout = CONTIGUOUS
    if problem.weight_format == "mxfp4":
        codes, scale_layout = pack_pairs(weight.codes), layout
    if problem.invalid == "w_dtype_differs":
        codes = _numbers(weight, problem).to(wrong_dtype)
    w_uv = plan(
        "w_uv",
        tuple(weight.dequantised.shape),
        CONTIGUOUS,
        torch.float32,
        "input",
        kernel=kernel,
        values=weight.dequantised,
    )
    w_q = plan("w_q", tuple(codes.shape), layout, codes.dtype, "input", kernel=kernel, values=codes)
    shape = tuple(weight.scale.shape)
    w_scale = plan(
        "w_scale", shape, scale_layout, weight.scale.dtype, "input", kernel=kernel, group="w_q", values=weight.scale
    )
    return w_uv, w_q, w_scale


def _layout_of_codes(problem: UpProjectionProblem) -> Layout:
    """As drawn, unless codes would share memory: a case that was changed by hand may say so."""
    layout = problem.w_layout
    return layout if layout.kind in CUBE_KINDS else Layout(offset=layout.offset)


def _numbers(weight: Weight, problem: UpProjectionProblem) -> torch.Tensor:
    """What the codes mean, in the shape that they are stored in."""
    if problem.weight_format == "fp8":
        return decode(weight.codes, problem.fp8_format)
    return decode(weight.codes, "e2m1")[..., ::2]
