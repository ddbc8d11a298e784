"""The tensors of an up-projection problem: x, w_uv (w_q and w_scale) and out, as they lie and with what they hold."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.contract import Placement
from mla_verify.kernel import Kernel
from mla_verify.placement import dtype_of, plan
from mla_verify.up_projection.quantised_tensors import quantised_plans
from mla_verify.up_projection.quantised_values import x_values
from mla_verify.values import cut, integers
from sanitizer.plan import TensorPlan
from strategies.layouts import CONTIGUOUS, strides_of
from strategies.limits import UpProjectionLimits
from strategies.problems import UpProjectionProblem

__all__ = ["exact_limit", "infinities", "place"]

# Integers up to these are exact in the dtype, so every partial sum up to them is.
_EXACT_INTEGERS: Final = {"float32": 2**24, "float16": 2**11, "bfloat16": 2**8}
_NARROW: Final = (31, 15, 7, 3, 1)  # magnitudes of the integers in the exact regime, falling
_SHIFT: Final = 8  # elements by which `out_shifted_over_x` lies behind x, where x is long enough


def place(problem: UpProjectionProblem, kernel: Kernel, device: torch.device) -> Placement:
    """Plan x, the weight and out; an invalid problem gets the tensors that have its fault."""
    tokens, heads = problem.num_tokens, problem.num_heads
    latent, width = problem.kv_lora_rank, problem.v_head_dim
    dtype = dtype_of(problem.dtype)
    fault = problem.invalid
    other = torch.float16 if dtype == torch.float32 else torch.float32
    x = plan(
        "x",
        (tokens, heads, latent),
        problem.x_layout,
        dtype,
        "input",
        kernel=kernel,
        values=_x_values(problem, kernel, dtype, device),
    )
    w_dtype = other if fault == "w_dtype_differs" else dtype
    if problem.weight_format == "plain":
        weight = (_plain_weight(problem, kernel, w_dtype, device),)
    else:
        weight = quantised_plans(problem, kernel, device, limit=exact_limit(problem, kernel), wrong_dtype=other)
    rows = tokens + {"out_has_fewer_rows": -1, "out_has_more_rows": 1}.get(fault or "", 0)
    out = plan(
        "out",
        (rows, heads, width),
        problem.out_layout,
        other if fault == "out_dtype_differs" else dtype,
        "output",
        kernel=kernel,
        form=problem.out_form,
    )
    return Placement((x, *weight, _overlapping(problem, x, out)), _format_arguments(problem, kernel))


def _plain_weight(problem: UpProjectionProblem, kernel: Kernel, dtype: torch.dtype, device: torch.device) -> TensorPlan:
    longer = problem.invalid == "inner_sizes_differ"
    shape = (problem.num_heads, problem.kv_lora_rank + longer, problem.v_head_dim)
    _, pool = _pools(problem, kernel)
    values = cut(pool, shape, dtype, device, seed=problem.seed, tensor="w_uv")
    return plan("w_uv", shape, problem.w_layout, dtype, "input", kernel=kernel, values=values)


def _format_arguments(problem: UpProjectionProblem, kernel: Kernel) -> dict[str, Any]:
    """What a kernel that takes a quantised weight is told beside the tensors; any other is told nothing."""
    limits = kernel.limits
    if not isinstance(limits, UpProjectionLimits) or limits.weight_formats == ("plain",):
        return {}
    absent = {"w_q": None, "w_scale": None} if problem.weight_format == "plain" else {}
    return {"weight_format": problem.weight_format, **absent}


def exact_limit(problem: UpProjectionProblem, kernel: Kernel) -> int:
    """How large Σ|x||w| may be in the exact regime: every sum of some products is then free of rounding.

    They live in the float32 accumulator, or in the output's dtype where the kernel rounds partial sums to it.
    """
    in_output = kernel.arithmetic.partials == "output dtype"
    return _EXACT_INTEGERS[problem.dtype if in_output else "float32"]


def infinities(problem: UpProjectionProblem) -> dict[tuple[int, int, int], float]:
    """Where x holds ±inf: (token, head, latent column) → which. One or two in every other special problem.

    Each touches one row of out and leaves the others finite.
    """
    tokens, heads, latent = problem.num_tokens, problem.num_heads, problem.kv_lora_rank
    elements = tokens * heads * latent
    if problem.regime != "special" or problem.weight_format != "plain" or problem.seed % 2 == 0 or elements == 0:
        return {}
    places = {problem.seed * 7919 % elements: math.inf}
    if problem.seed % 4 == 3:
        places[(problem.seed * 104729 + elements // 2) % elements] = -math.inf
    return {
        (place // (heads * latent), place // latent % heads, place % latent): value for place, value in places.items()
    }


def _pools(problem: UpProjectionProblem, kernel: Kernel) -> tuple[str, str]:
    """Where the values of x and of w_uv are cut from."""
    if problem.regime != "exact":
        return problem.regime, problem.regime
    each = exact_limit(problem, kernel) // max(problem.kv_lora_rank, 1)
    wide = _wide(problem, kernel)
    for narrow in _NARROW:
        if wide is not None and narrow * wide <= each:
            # Either operand may be the one that a kernel rounds.
            chosen = (narrow, wide) if problem.seed % 2 == 0 else (wide, narrow)
            return integers(chosen[0]), integers(chosen[1])
    fitting = next((size for size in _NARROW if size * size <= each), _NARROW[-1])
    return integers(fitting), integers(fitting)


def _wide(problem: UpProjectionProblem, kernel: Kernel) -> int | None:
    """Integers that bfloat16 (8 bits) cannot hold, nor TF32 (11 bits) unless the kernel declares it.

    With small ones alone a float32 kernel could round its operands unseen. A 16-bit output would overflow.
    """
    if problem.dtype != "float32":
        return None
    return 1023 if kernel.arithmetic.multiply == "tf32" else 4095


def _x_values(
    problem: UpProjectionProblem, kernel: Kernel, dtype: torch.dtype, device: torch.device
) -> Tensor:  # [num_tokens, num_heads, kv_lora_rank]
    if problem.weight_format != "plain":
        return x_values(problem, dtype, device, limit=exact_limit(problem, kernel))
    shape = (problem.num_tokens, problem.num_heads, problem.kv_lora_rank)
    pool, _ = _pools(problem, kernel)
    values = cut(pool, shape, dtype, device, seed=problem.seed, tensor="x")
    if problem.regime == "exact" and problem.kv_lora_rank > exact_limit(problem, kernel):
        return _thinned(values, exact_limit(problem, kernel))
    infinite = infinities(problem)
    if infinite:
        values = values.clone()
        for place, value in infinite.items():
            values[place] = value
    return values


def _thinned(values: Tensor, limit: int) -> Tensor:
    """Leave at most `limit` elements of each row, others in each: ±1 everywhere would sum to too much."""
    tokens, heads, latent = values.shape
    step = -(-latent // limit)
    first = torch.arange(tokens, device=values.device)[:, None] + torch.arange(heads, device=values.device)
    column = torch.arange(latent, device=values.device)
    return torch.where((column + first[..., None]) % step == 0, values, 0)


def _overlapping(problem: UpProjectionProblem, x: TensorPlan, out: TensorPlan) -> TensorPlan:
    """Lay an invalid problem's out over x or over itself; any other stays as it is."""
    if problem.invalid == "out_is_x":
        if problem.kv_lora_rank != problem.v_head_dim:
            raise ValueError(
                "out can only be x where kv_lora_rank equals v_head_dim, got "
                f"{problem.kv_lora_rank} and {problem.v_head_dim}"
            )
        return replace(out, strides=x.strides, offset=0, over="x", form="view")
    if problem.invalid == "out_shifted_over_x":
        last = sum((size - 1) * stride for size, stride in zip(x.shape, x.strides, strict=True))
        packed, _ = strides_of(out.shape, CONTIGUOUS)
        return replace(out, strides=packed, offset=max(0, min(_SHIFT, last)), over="x", form="view")
    row = problem.num_heads * problem.v_head_dim
    if problem.invalid == "out_stride_0":
        return replace(out, strides=(0, problem.v_head_dim, 1))
    if problem.invalid == "out_rows_overlap":
        return replace(out, strides=(row // 2, problem.v_head_dim, 1))
    return out
