"""What a quantised up-projection prescribes: which numbers x and the weight stand for, in float64.

Note [Activations]
    Along kv_lora_rank, x is cut into groups that share a scale (the last one may be shorter), and each group is
    rounded as the weight's format asks. The product of what that gives with the dequantised weight is the answer.

    fp8, groups of 128: scale s = max(amax, 1e-10) / largest, code = x / s to nearest even, saturating, in the
    weight's own encoding; the code stands for itself times s. A group of zeros stands for zeros.
    mxfp4, blocks of 32: s is a power of two, 2**(floor(log2(amax')) − 2) with amax' being amax rounded to a power of
    two from 1.75 of one upwards, clamped to 2**±127; code = x / s as e2m1, to nearest even, saturating.
    The second is the rule of AITER's a16wfp4 kernels, the first that of its fp8 ones.

Note [What rounding may differ by]
    In mxfp4 nothing: dividing by a power of two is exact, so each x has one right code. In fp8 the scale and the
    quotient are float32, and a kernel may take them in several steps: s by one division (2 ulp in a GPU's fast
    division: 4u, u = 2⁻²⁴) or by a rounded reciprocal and a product (2u); x / s by another (4u), or by the
    reciprocal of s and a product (5u). That is 9u of the quotient, and 10u with all terms of second order. Where no
    midpoint between two codes lies that near, every kernel takes the same code; where one does, the other code is as
    right, and costs the distance between the two. The scale itself multiplies what is summed: its 4u count there.

    A group whose amax is below 1e-10 need not get that very floor. AITER's kernels round it to x's dtype, others
    floor elsewhere or guard zeros alone. Whatever the scale is there, it is at most 1.01e-10 / largest, and what a
    code stands for is then within half a step of x: x·2^−(mantissa bits + 1), or half a subnormal step of that scale.
    Two such answers differ by twice that at most. Zero stays zero: no scale makes anything else of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from mla_verify.formats import E8M0, FORMATS, decode, encode, neighbours, unpack_pairs
from strategies.problems import UpProjectionProblem
from strategies.vocabulary import QUANTISED_GROUPS

__all__ = ["Operands", "operands_of"]

_FLOOR: Final = 1e-10  # of a group's amax in fp8
_HIGHEST_FLOOR: Final = 1.01e-10  # the same rounded to bfloat16 is 1.0004e-10
_QUOTIENT_ERROR: Final = 10 * 2.0**-24
_SECOND_ORDER: Final = 1.0 + 2.0**-20
_TINY: Final = 2.0**-124  # in mxfp4, what may hang on a scale or an x that is a subnormal float32


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """The two factors as the contract prescribes them, and how far a right kernel's may be from that.

    slack: by how much the first factor may differ (Note [What rounding may differ by]), None where it may not.
    small_x, small_w: which elements vanish where subnormals are flushed.
    """

    x: Tensor  # [num_tokens, num_heads, kv_lora_rank] float64
    w_uv: Tensor  # [num_heads, kv_lora_rank, v_head_dim] float64
    slack: Tensor | None  # as x
    small_x: Tensor  # bool, as x
    small_w: Tensor  # bool, as w_uv


def operands_of(problem: UpProjectionProblem, tensors: Mapping[str, Tensor]) -> Operands:
    """Quantise x as the problem's format prescribes, and decode the weight from its codes and scales."""
    x, codes, scale = tensors["x"], tensors["w_q"], tensors["w_scale"]
    subnormal = (x != 0) & (x.abs() < torch.finfo(x.dtype).smallest_normal)
    if problem.weight_format == "fp8":
        value, slack = _in_fp8(x, problem.fp8_format)
        w_uv = (decode(codes, problem.fp8_format) * scale.to(torch.float64)).transpose(1, 2)
        return Operands(value, w_uv, slack, subnormal, torch.zeros_like(w_uv, dtype=torch.bool))
    value = _in_mxfp4(x)
    w_uv = _weight_in_mxfp4(codes, scale)
    return Operands(value, w_uv, None, subnormal | _tiny(value), _tiny(w_uv))


def _in_fp8(x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """What x stands for, and by how much a right kernel's may differ: two tensors of x's shape."""
    form = FORMATS[name]
    groups = _groups(x, QUANTISED_GROUPS["fp8"])
    amax = groups.abs().amax(-1, keepdim=True)
    scale = amax.clamp(min=_FLOOR) / form.largest
    quotient = groups / scale
    number = decode(encode(quotient, name, saturate=True), name)
    first, last = neighbours(quotient, name, relative=_QUOTIENT_ERROR)
    slack = torch.maximum(last - number, number - first) * scale
    half_step = (groups.abs() * 2.0 ** -(form.mantissa_bits + 1)).clamp(min=form.smallest / 2 * _FLOOR / form.largest)
    below_floor = 2 * half_step * (_HIGHEST_FLOOR / _FLOOR)
    slack = torch.where(amax < _HIGHEST_FLOOR, torch.where(groups != 0, below_floor, 0.0), slack)
    return _ungrouped(number * scale, x), _ungrouped(slack * _SECOND_ORDER, x)


def _in_mxfp4(x: Tensor) -> Tensor:
    groups = _groups(x, QUANTISED_GROUPS["mxfp4"])
    amax = groups.abs().amax(-1, keepdim=True)
    mantissa, exponent = torch.frexp(amax)  # the mantissa lies in [0.5, 1), and is 0 where amax is
    exponent = exponent - 1 + (mantissa >= 1.75 / 2).to(exponent.dtype) - 2
    exponent = torch.where(amax == 0, -127, exponent.clamp(-127, 127))
    codes = encode(torch.ldexp(groups, -exponent), "e2m1", saturate=True)
    return _ungrouped(torch.ldexp(decode(codes, "e2m1"), exponent), x)


def _weight_in_mxfp4(packed: Tensor, scale: Tensor) -> Tensor:  # [num_heads, kv_lora_rank, v_head_dim]
    numbers = decode(unpack_pairs(packed.view(torch.uint8)), "e2m1")
    scales = decode(scale.view(torch.uint8), E8M0).repeat_interleave(QUANTISED_GROUPS["mxfp4"], dim=-1)
    return (numbers * scales[..., : numbers.shape[-1]]).transpose(1, 2)


def _tiny(values: Tensor) -> Tensor:
    return (values != 0) & (values.abs() < _TINY)


def _groups(x: Tensor, size: int) -> Tensor:
    """x in float64, its last dimension cut into [groups, size], zeros behind its end; one short group stays short."""
    latent = x.shape[-1]
    size = min(size, max(latent, 1))
    padded = torch.nn.functional.pad(x.to(torch.float64), (0, -latent % size))
    return padded.unflatten(-1, (padded.shape[-1] // size, size))


def _ungrouped(groups: Tensor, x: Tensor) -> Tensor:
    return groups.flatten(-2)[..., : x.shape[-1]]
