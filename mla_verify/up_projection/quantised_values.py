"""What x and the codes of a quantised problem hold: on a grid that quantisation leaves as it is, or off it.

Note [On the grid]
    In the exact regime every group of x has one element as large as the format's largest number, times a power of
    two: its scale is that power of two then, whichever way it is worked out, and the other elements, small multiples
    of a unit, are codes themselves. The scale of the weight is a power of two as well. All partial sums, counted in
    units, stay integers that the accumulator holds exactly, so every right kernel gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from mla_verify.formats import E8M0, FORMATS, decode, encode, exponent_codes, table_of
from mla_verify.values import cut, integers
from strategies.problems import UpProjectionProblem
from strategies.vocabulary import QUANTISED_GROUPS

__all__ = ["Weight", "weight_of", "x_values"]

_MXFP4_LARGEST: Final = FORMATS["e2m1"].largest


@dataclass(frozen=True, slots=True)
class _Grid:
    """How large integers may be in an exact problem, in units: 1 in fp8, a half in mxfp4.

    small: of x, beside the largest element of each group. weight: of the weight. spread: how many powers of two the
    scales span, of x's groups and of mxfp4's blocks.
    """

    small: int
    weight: int
    spread: int


_GRIDS: Final = {
    "fp8": (_Grid(7, 7, 2), _Grid(3, 3, 2), _Grid(3, 3, 0), _Grid(1, 1, 0)),
    "mxfp4": (_Grid(12, 12, 2), _Grid(12, 12, 0), _Grid(2, 2, 0)),
}
_LARGEST_ALONE: Final = _Grid(0, 1, 0)  # a unit is then what every group's largest element has as its odd part


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A quantised weight, unpacked. scale: float32 [1] in fp8, e8m0 codes [num_heads, v_head_dim, blocks] in mxfp4."""

    codes: Tensor  # uint8 [num_heads, v_head_dim, kv_lora_rank]
    scale: Tensor
    dequantised: Tensor  # [num_heads, kv_lora_rank, v_head_dim] float32


def x_values(
    problem: UpProjectionProblem, dtype: torch.dtype, device: torch.device, *, limit: int
) -> Tensor:  # [num_tokens, num_heads, kv_lora_rank]
    """The activations. limit: how large a sum may be in an exact problem, in units."""
    if problem.regime == "exact":
        return _x_on_grid(problem, device, limit=limit).to(dtype)
    shape = (problem.num_tokens, problem.num_heads, problem.kv_lora_rank)
    values = cut(problem.regime, shape, dtype, device, seed=problem.seed, tensor="x")
    groups = _Groups(problem, device)
    if problem.regime == "gaussian" and problem.seed % 3 == 1:  # one element decides the scale of all others
        values = torch.where(groups.is_chosen(), values * 64, values)
    if problem.seed % 2 == 0:
        values = torch.where(groups.is_zero(), torch.zeros_like(values), values)
    return values


def weight_of(problem: UpProjectionProblem, device: torch.device, *, limit: int, extra: int = 0) -> Weight:
    """The weight. extra: how much larger its kv_lora_rank is than x's, in an invalid problem."""
    shape = (problem.num_heads, problem.v_head_dim, problem.kv_lora_rank + extra)
    if problem.weight_format == "fp8":
        name = problem.fp8_format
        codes = _codes(problem, name, shape, device, limit=limit)
        scale = torch.tensor([_fp8_scale(problem)], dtype=torch.float32, device=device)
        value = decode(codes, name) * scale
    else:
        name = "e2m1"
        codes = _codes(problem, name, shape, device, limit=limit)
        scale = _block_scales(problem, shape, device, limit=limit)
        scales = decode(scale, E8M0).repeat_interleave(QUANTISED_GROUPS["mxfp4"], dim=-1)[..., : shape[2]]
        value = decode(codes, name) * scales
    return Weight(codes, scale, value.transpose(1, 2).to(torch.float32))


class _Groups:
    """The groups of x that share a scale: what a problem's seed makes of each."""

    def __init__(self, problem: UpProjectionProblem, device: torch.device) -> None:
        self._problem = problem
        self._device = device
        self._size = QUANTISED_GROUPS[problem.weight_format]
        self.count = -(-problem.kv_lora_rank // self._size)

    def cut(self, pool: str, tensor: str) -> Tensor:
        """A number for each group, [num_tokens, num_heads, groups]."""
        problem = self._problem
        shape = (problem.num_tokens, problem.num_heads, self.count)
        return cut(pool, shape, torch.float32, self._device, seed=problem.seed, tensor=tensor)

    def spread(self, per_group: Tensor) -> Tensor:
        """The same number for every element of a group, [num_tokens, num_heads, kv_lora_rank]."""
        return per_group.repeat_interleave(self._size, dim=-1)[..., : self._problem.kv_lora_rank]

    def is_zero(self) -> Tensor:
        """Which elements lie in a group of zeros: one group in seven."""
        return self.spread(self.cut(integers(3), "x's zero groups")) == 0

    def is_chosen(self) -> Tensor:
        """One element of each group."""
        column = torch.arange(self._problem.kv_lora_rank, device=self._device)
        first = torch.arange(self.count, device=self._device) * self._size
        length = (self._problem.kv_lora_rank - first).clamp(max=self._size)
        place = self.cut(integers(4095), "x's largest").to(torch.int64).abs() % length
        return self.spread(place + first) == column


def _grid(problem: UpProjectionProblem, *, limit: int) -> _Grid:
    """The widest grid on which no sum exceeds `limit` units."""
    mxfp4 = problem.weight_format == "mxfp4"
    largest = 12 if mxfp4 else int(FORMATS[problem.fp8_format].largest)
    latent = problem.kv_lora_rank
    count = -(-latent // QUANTISED_GROUPS[problem.weight_format])
    for grid in _GRIDS[problem.weight_format]:
        spread = grid.spread * (2 if mxfp4 else 1)
        if (largest * count + grid.small * latent) * grid.weight << spread <= limit:
            return grid
    return _LARGEST_ALONE


def _x_on_grid(problem: UpProjectionProblem, device: torch.device, *, limit: int) -> Tensor:
    grid, groups = _grid(problem, limit=limit), _Groups(problem, device)
    shape = (problem.num_tokens, problem.num_heads, problem.kv_lora_rank)
    values = torch.zeros(shape, dtype=torch.float32, device=device)
    if grid.small:
        pool = integers(7 if grid.small == 12 else 1 if grid.small == 2 else grid.small)
        values = cut(pool, shape, torch.float32, device, seed=problem.seed, tensor="x")
    if problem.weight_format == "mxfp4":
        largest, odd, base = _MXFP4_LARGEST if grid.small else 4.0, 1, 0
        values = _as_e2m1(values)
    else:
        largest = FORMATS[problem.fp8_format].largest
        odd = int(largest) // (int(largest) & -int(largest))
        base = odd / largest  # a power of two: the largest element is an odd number below 16
    sign = torch.where(groups.cut(integers(1), "x's signs") < 0, -1.0, 1.0)
    values = torch.where(groups.is_chosen(), groups.spread(sign * largest), values)
    if problem.weight_format == "fp8":
        values = values * base
    values = values * groups.spread(_powers(groups.cut(integers(1), "x's scales"), grid.spread))
    zero = groups.is_zero()
    if not grid.small:  # more groups than their largest elements may sum to
        zero = zero | (torch.arange(shape[2], device=device) >= limit // odd * QUANTISED_GROUPS[problem.weight_format])
    return torch.where(zero, torch.zeros_like(values), values)


def _powers(drawn: Tensor, spread: int) -> Tensor:
    """2**0, 2**1 or 2**2 for −1, 0 and 1; 1 where the scales span nothing."""
    return torch.exp2(drawn + 1.0) if spread else torch.ones_like(drawn)


def _as_e2m1(whole: Tensor) -> Tensor:
    """The e2m1 number of this rank, from 0 to 7, with its sign: ±1 becomes ±0.5 and ±7 becomes ±6."""
    magnitude = table_of("e2m1", whole.device).to(torch.float32)[whole.abs().long()]
    return magnitude * whole.sign()


def _codes(
    problem: UpProjectionProblem, name: str, shape: tuple[int, ...], device: torch.device, *, limit: int
) -> Tensor:
    """The codes of the weight."""
    seed, form = problem.seed, FORMATS[name]
    if problem.regime == "exact":
        weight = _grid(problem, limit=limit).weight
        pool = integers(7 if weight == 12 else 1 if weight == 2 else weight)
        whole = cut(pool, shape, torch.float32, device, seed=seed, tensor="w_uv")
        return encode(_as_e2m1(whole) if name == "e2m1" and weight == 12 else whole, name, saturate=True)
    if problem.regime == "extreme":
        return _any_code(cut(integers(4095), shape, torch.float32, device, seed=seed, tensor="w_uv"), name)
    # Values up to 4, stretched to the whole range.
    drawn = cut(problem.regime, shape, torch.float32, device, seed=seed, tensor="w_uv")
    codes = encode(drawn * (form.largest / 4), name, saturate=True)
    if problem.regime == "special":
        codes = _special_codes(problem, codes, drawn, name)
    return codes


def _any_code(whole: Tensor, name: str) -> Tensor:
    """Every finite code equally often."""
    codes = whole.to(torch.int64) & ((1 << FORMATS[name].bits) - 1)
    finite = table_of(name, whole.device).isfinite()
    return torch.where(finite[codes], codes, 1).to(torch.uint8)


def _special_codes(problem: UpProjectionProblem, codes: Tensor, drawn: Tensor, name: str) -> Tensor:
    """Zeros of both signs as drawn, the smallest code for what is subnormal, and now and then a code that is no number.

    A negative number that underflowed is among them: 0x80, or 0 in a format where 0x80 is NaN.
    """
    codes = torch.where((drawn != 0) & (drawn.abs() < 1e-30), torch.ones_like(codes), codes)
    if codes.numel() == 0:
        return codes
    flat, seed, form = codes.flatten(), problem.seed, FORMATS[name]
    place = seed * 7919 % flat.numel()
    if seed % 4 == 1 and form.infinity_code is not None:
        flat[place] = form.infinity_code
    elif seed % 2 == 1 and form.nan_code is not None:
        flat[place] = form.nan_code
    elif seed % 4 == 0:
        codes[seed % codes.shape[0], seed % codes.shape[1]] = 0  # a row of zeros among others
    return codes


def _fp8_scale(problem: UpProjectionProblem) -> float:
    """The one scale of an fp8 weight: a power of two on the grid, elsewhere none."""
    seed, largest = problem.seed, FORMATS[problem.fp8_format].largest
    if problem.regime == "exact":
        return 2.0 ** -(seed % 4)
    if problem.regime == "special" and seed % 4 == 2:
        return 0.0
    stretch = 1.0 + (seed % 61 + 1) / 64  # in (1, 2): never a power of two, whatever the power beside it
    if problem.regime == "extreme":
        reach = 4 if problem.dtype == "float16" else 20
        return stretch * 2.0 ** (seed % (2 * reach + 1) - reach) / largest
    return stretch * 4 / largest


def _block_scales(
    problem: UpProjectionProblem, shape: tuple[int, int, int], device: torch.device, *, limit: int
) -> Tensor:
    """The e8m0 codes of an mxfp4 weight, uint8 [num_heads, v_head_dim, blocks]."""
    heads, width, latent = shape
    blocks = (heads, width, -(-latent // QUANTISED_GROUPS["mxfp4"]))
    seed = problem.seed
    if problem.regime == "exact":
        drawn = cut(integers(1), blocks, torch.float32, device, seed=seed, tensor="w_scale")
        spread = _grid(problem, limit=limit).spread
        return exponent_codes(torch.where(torch.full_like(drawn, spread) > 0, drawn + 1, 0).to(torch.int64))
    wide = problem.regime == "extreme" and problem.dtype != "float16"
    drawn = cut(integers(15 if wide else 3), blocks, torch.float32, device, seed=seed, tensor="w_scale")
    codes = exponent_codes(drawn.to(torch.int64))
    if problem.regime == "special" and codes.numel():
        place = seed * 104729 % codes.numel()
        if seed % 4 == 1:
            codes.view(-1)[place] = 0  # 2**−127: the nearest to no scale at all
        elif seed % 4 == 3:
            codes.view(-1)[place] = 255  # NaN
    return codes
