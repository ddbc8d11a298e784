"""The up-projection with a quantised weight and one fault at a time, each as somebody has or could have written it."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.faults.fault import TARGETS, Fault
from mla_verify.faults.stray import read_beside
from mla_verify.kernel import Kernel
from strategies.limits import UpProjectionLimits

__all__ = ["FAULTS", "RIGHT"]

_GROUP: Final = 128
_BLOCK: Final = 32
_SPLITS: Final = 4
_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _cut(x: Tensor, size: int) -> Tensor:
    """x in float32 as [..., groups, size], zeros behind its end."""
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[-1] % size))
    return padded.unflatten(-1, (padded.shape[-1] // size, size))


def _joined(groups: Tensor, x: Tensor) -> Tensor:
    return groups.flatten(-2)[..., : x.shape[-1]]


def _rounded(groups: Tensor, scale: Tensor, codes: torch.dtype) -> Tensor:
    """Right, given the scales: to fp8 and back."""
    largest = torch.finfo(codes).max
    return (groups / scale).clamp(-largest, largest).to(codes).float() * scale


def _fp8(x: Tensor, codes: torch.dtype) -> Tensor:
    """Right: x rounded to fp8, each group of 128 by its own scale."""
    groups = _cut(x, _GROUP)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / torch.finfo(codes).max
    return _joined(_rounded(groups, scale, codes), x)


def _block_scales(blocks: Tensor) -> Tensor:
    """Right: the power of two of each block."""
    amax = blocks.abs().amax(-1, keepdim=True)
    amax = ((amax.view(torch.int32) + 0x200000) & 0x7F800000).view(torch.float32)
    return torch.exp2((torch.log2(amax).floor() - 2).clamp(-127, 127))


def _to_e2m1(quotient: Tensor) -> Tensor:
    """Right: to nearest even among the sixteen numbers."""
    magnitude = quotient.abs()
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    return (torch.round(magnitude / step) * step).clamp(max=6).copysign(quotient)


def _mxfp4(x: Tensor) -> Tensor:
    """Right: x rounded to e2m1, each block of 32 by its own power of two."""
    blocks = _cut(x, _BLOCK)
    scale = _block_scales(blocks)
    return _joined(_to_e2m1(blocks / scale) * scale, x)


def _numbers(w_q: Tensor) -> Tensor:
    """Right: what packed codes mean, [num_heads, v_head_dim, kv_lora_rank]."""
    table = torch.tensor([*_E2M1, *(-number for number in _E2M1)], device=w_q.device)
    return table[torch.stack((w_q & 15, w_q >> 4), -1).flatten(-2).long()]


def _scales(w_scale: Tensor) -> Tensor:
    """Right: what e8m0 codes mean, a scale for each block."""
    table = torch.ldexp(torch.ones(256, dtype=torch.float64), torch.arange(256) - 127)
    table[255] = torch.nan
    return table.float().to(w_scale.device)[w_scale.long()]


def _per_column(scales: Tensor, rank: int) -> Tensor:
    return scales.repeat_interleave(_BLOCK, -1)[..., :rank]


def _mxfp4_weight(w_q: Tensor, w_scale: Tensor) -> Tensor:
    """Right: the weight in float32, [num_heads, v_head_dim, kv_lora_rank]."""
    numbers = _numbers(w_q)
    return numbers * _per_column(_scales(w_scale), numbers.shape[-1])


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """Right: [num_tokens, num_heads, v_head_dim] float32."""
    return torch.einsum("tnl,nvl->tnv", x, weight)


# fp8


def right_by_reciprocals(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """No fault: both divisions are multiplications, and the scales come last."""
    groups, largest = _cut(x, _GROUP), torch.finfo(w_q.dtype).max
    scale = groups.abs().amax(-1).clamp(min=1e-10) * (1.0 / largest)
    codes = (groups * (1.0 / scale)[..., None]).clamp(-largest, largest).to(w_q.dtype).float()
    total = torch.zeros(out.shape, device=out.device)
    for index, part in enumerate(w_q.float().split(_GROUP, -1)):
        if part.shape[-1]:
            summed = _product(codes[..., index, : part.shape[-1]], part)
            total += summed * scale[..., index, None]
    out.copy_(total * w_scale)


def weight_read_as_fnuz(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """One flag of the device decides for every tensor."""
    out.copy_(_product(_fp8(x, w_q.dtype), w_q.view(torch.float8_e4m3fnuz).float()) * w_scale)


def fnuz_scaled_as_fn(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """The largest number of e4m3fn stands in for that of the weight's encoding; what is larger is cut off."""
    groups = _cut(x, _GROUP)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448.0
    out.copy_(_product(_joined(_rounded(groups, scale, w_q.dtype), x), w_q.float()) * w_scale)


def zero_group_divided(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Divides by the scale of a group of zeros, which is zero."""
    groups = _cut(x, _GROUP)
    scale = groups.abs().amax(-1, keepdim=True) / torch.finfo(w_q.dtype).max
    out.copy_(_product(_joined(_rounded(groups, scale, w_q.dtype), x), w_q.float()) * w_scale)


def weight_scale_truncated(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Keeps the exponent of the weight's scale alone."""
    truncated = (w_scale.view(torch.int32) & 0x7F800000).view(torch.float32)
    out.copy_(_product(_fp8(x, w_q.dtype), w_q.float()) * truncated)


def group_scale_truncated(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Keeps the exponent of each group's scale alone, so that the group's largest elements saturate."""
    groups = _cut(x, _GROUP)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / torch.finfo(w_q.dtype).max
    scale = (scale.view(torch.int32) & 0x7F800000).view(torch.float32)
    out.copy_(_product(_joined(_rounded(groups, scale, w_q.dtype), x), w_q.float()) * w_scale)


def saturates_early(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Takes every number with the largest exponent for one that is too large."""
    groups, largest = _cut(x, _GROUP), torch.finfo(w_q.dtype).max
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / largest
    quotient = groups / scale
    quotient = torch.where(quotient.abs() >= largest / 1.75, quotient.sign() * largest, quotient)
    out.copy_(_product(_joined(_rounded(quotient * scale, scale, w_q.dtype), x), w_q.float()) * w_scale)


def underflows_to_sign(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Sets the sign bit of a negative number that has become zero: NaN in the fnuz formats."""
    groups = _cut(x, _GROUP)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / torch.finfo(w_q.dtype).max
    bits = (groups / scale).abs().clamp(max=torch.finfo(w_q.dtype).max).to(w_q.dtype).view(torch.uint8)
    bits = bits | (groups < 0).to(torch.uint8) << 7
    rounded = bits.view(w_q.dtype).float() * scale
    out.copy_(_product(_joined(rounded, x), w_q.float()) * w_scale)


def nan_codes_read_as_zero(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Decodes 0x80 to −0, as in the formats that have one."""
    weight = w_q.float().nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    out.copy_(_product(_fp8(x, w_q.dtype), weight) * w_scale)


def one_scale_per_token(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Takes amax over the whole row in place of each group."""
    groups = _cut(x, _GROUP)
    amax = groups.abs().flatten(-2).amax(-1) if groups.shape[-2] else groups.new_zeros(x.shape[:2])
    scale = (amax.clamp(min=1e-10) / torch.finfo(w_q.dtype).max)[..., None, None]
    out.copy_(_product(_joined(_rounded(groups, scale, w_q.dtype), x), w_q.float()) * w_scale)


def amax_over_all_heads(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Shares the scale of a group among the heads of a token."""
    groups = _cut(x, _GROUP)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / torch.finfo(w_q.dtype).max
    if x.shape[1]:
        scale = scale.amax(1, keepdim=True).expand_as(scale)
    out.copy_(_product(_joined(_rounded(groups, scale, w_q.dtype), x), w_q.float()) * w_scale)


def _summed_in_splits(x: Tensor, weight: Tensor, splits: int) -> Tensor:
    """Partial sums of the splits that have columns, in scratch for all of them; the others stay as they were."""
    step = max(_GROUP, -(-x.shape[-1] // (splits * _GROUP)) * _GROUP)
    partials = torch.empty(splits, x.shape[0], x.shape[1], weight.shape[1], device=x.device)
    for split in range(-(-x.shape[-1] // step)):
        part = slice(split * step, (split + 1) * step)
        partials[split] = _product(x[..., part], weight[..., part])
    return partials


def empty_splits_unwritten(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Sums the scratch of every split, and splits behind the end of the rank left theirs alone."""
    partials = _summed_in_splits(_fp8(x, w_q.dtype), w_q.float(), _SPLITS)
    out.copy_(partials.sum(0) * w_scale)


def reduced_by_swapped_strides(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """The merge of splits is handed the strides of tokens and heads the wrong way round."""
    result = (_product(_fp8(x, w_q.dtype), w_q.float()) * w_scale).to(out.dtype)
    tokens, heads, width = out.shape
    strides = (out.stride(1), out.stride(0), out.stride(2))
    reach = 1 + sum(max(size - 1, 0) * stride for size, stride in zip(out.shape, strides, strict=True))
    if out.storage_offset() + reach <= out.untyped_storage().nbytes() // out.element_size():
        out.as_strided((tokens, heads, width), strides).copy_(result)
    else:  # an output that ends with its storage: what would lie behind it is not stored
        most = min(tokens, heads)
        out[:most, :most].copy_(result.transpose(0, 1)[:most, :most])


# mxfp4


def right_in_blocks(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """No fault: codes are multiplied, and the two scales of a block afterwards."""
    blocks = _cut(x, _BLOCK)
    scale = _block_scales(blocks)
    codes, numbers, scales = _to_e2m1(blocks / scale), _cut(_numbers(w_q), _BLOCK), _scales(w_scale)
    summed = torch.einsum("tnbl,nvbl->tnvb", codes, numbers)
    out.copy_((summed * scales * scale[..., 0].unsqueeze(2)).sum(-1))


def rank_masked_in_packed_units(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Where the last tile of 64 is not whole, columns are compared with the number of bytes."""
    columns = x.shape[-1] if x.shape[-1] % 64 == 0 else w_q.shape[-1]
    weight = _mxfp4_weight(w_q, w_scale)
    out.copy_(_product(_mxfp4(x)[..., :columns], weight[..., :columns]))


def halves_swapped(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Takes the earlier code of a pair from the high half."""
    out.copy_(_product(_mxfp4(x), _mxfp4_weight((w_q >> 4) | (w_q << 4), w_scale)))


def scale_of_the_next_block(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Multiplies each block of the weight by the scale behind its own."""
    following = torch.cat((w_scale[..., 1:], w_scale[..., -1:]), -1)
    out.copy_(_product(_mxfp4(x), _mxfp4_weight(w_q, following)))


def scale_tail_unmasked(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Loads the scales of a tile of two blocks where one is left; the other's columns are zeros."""
    numbers, scales = _numbers(w_q), _scales(w_scale)
    value = _product(_mxfp4(x), numbers * _per_column(scales, numbers.shape[-1]))
    if w_scale.shape[-1] % 2:
        shape, strides = tuple(w_scale.shape[:2]), w_scale.stride()[:2]
        behind = w_scale.storage_offset() + w_scale.shape[-1] * w_scale.stride(-1)
        last = behind + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if 0 not in shape and last < w_scale.untyped_storage().nbytes():
            value = value + 0.0 * _scales(w_scale.as_strided(shape, strides, behind))
        else:
            read_beside(w_scale, behind=True)
    out.copy_(value)


def ties_away_from_zero(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Adds half a step and truncates."""
    blocks = _cut(x, _BLOCK)
    scale = _block_scales(blocks)
    magnitude = (blocks / scale).abs()
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    rounded = (torch.floor(magnitude / step + 0.5) * step).clamp(max=6).copysign(blocks) * scale
    out.copy_(_product(_joined(rounded, x), _mxfp4_weight(w_q, w_scale)))


def halves_flushed(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Takes the one subnormal of e2m1 for zero."""
    numbers = _numbers(w_q)
    numbers = torch.where(numbers.abs() == 0.5, 0.0, numbers)
    out.copy_(_product(_mxfp4(x), numbers * _per_column(_scales(w_scale), numbers.shape[-1])))


def splits_in_16_bits(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: object) -> None:
    """Keeps the partial sums of blocks in the output's dtype without declaring it."""
    total = torch.zeros(out.shape, device=out.device)
    weight = _mxfp4_weight(w_q, w_scale)
    for x_part, w_part in zip(_mxfp4(x).split(_BLOCK, -1), weight.split(_BLOCK, -1), strict=True):
        total += _product(x_part, w_part).to(torch.float16).float()
    out.copy_(total)


_FP8: Final = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")


def _declares(weight_format: str, encodings: tuple[str, ...] = ("e4m3fn",)) -> dict[str, Any]:
    return {"limits": UpProjectionLimits(weight_formats=(weight_format,), fp8_formats=encodings)}


def _fp8_fault(
    call: Any, clauses: tuple[str, ...], what: str, reports: str = "", *, encodings: tuple[str, ...] = _FP8
) -> Fault:
    name = f"up_projection_fp8_{call.__name__}"
    return Fault(name, "up-projection", call, clauses, what, tuple(reports.split()), _declares("fp8", encodings))


def _mxfp4_fault(call: Any, clauses: tuple[str, ...], what: str, reports: str = "") -> Fault:
    name = f"up_projection_mxfp4_{call.__name__}"
    return Fault(name, "up-projection", call, clauses, what, tuple(reports.split()), _declares("mxfp4"))


def _right(call: Any, weight_format: str) -> Kernel:
    name = f"up_projection_{weight_format}_{call.__name__}"
    declares = _declares(weight_format, _FP8 if weight_format == "fp8" else ("e4m3fn",))
    return Kernel(name=name, contract="up-projection", load=lambda: call, target=f"{TARGETS}:{name}", **declares)


FAULTS: Final[tuple[Fault, ...]] = (
    _fp8_fault(
        weight_read_as_fnuz, ("agreement",), "an e4m3fn weight is read as e4m3fnuz", "B106 B108", encodings=("e4m3fn",)
    ),
    _fp8_fault(
        fnuz_scaled_as_fn,
        ("agreement",),
        "an e4m3fnuz x is scaled by e4m3fn's largest number",
        "B106 B108",
        encodings=("e4m3fnuz",),
    ),
    _fp8_fault(zero_group_divided, ("agreement",), "a group of zeros is divided by its scale of 0", "B109 B111 B112"),
    _fp8_fault(weight_scale_truncated, ("agreement",), "the weight's scale is cut down to a power of two"),
    _fp8_fault(group_scale_truncated, ("agreement",), "the scales of x are cut down to powers of two"),
    _fp8_fault(saturates_early, ("agreement",), "numbers with the largest exponent saturate", "B107"),
    _fp8_fault(
        underflows_to_sign,
        ("agreement",),
        "a negative number that underflows becomes 0x80, which is NaN",
        "B106",
        encodings=("e4m3fnuz", "e5m2fnuz"),
    ),
    _fp8_fault(
        nan_codes_read_as_zero,
        ("agreement",),
        "0x80 is decoded to -0",
        "B105",
        encodings=("e4m3fnuz", "e5m2fnuz"),
    ),
    _fp8_fault(one_scale_per_token, ("agreement",), "x has one scale per token and head, not one per group"),
    _fp8_fault(amax_over_all_heads, ("agreement",), "the heads of a token share their scales"),
    _fp8_fault(empty_splits_unwritten, ("independence",), "scratch of splits without columns is summed unwritten"),
    _fp8_fault(
        reduced_by_swapped_strides,
        ("coverage", "containment"),
        "splits are merged with the strides of tokens and heads swapped",
        "B042",
    ),
    _mxfp4_fault(
        rank_masked_in_packed_units, ("agreement",), "columns are masked by the number of packed bytes", "B081"
    ),
    _mxfp4_fault(halves_swapped, ("agreement",), "the two codes of a byte are swapped"),
    _mxfp4_fault(scale_of_the_next_block, ("agreement",), "the weight's scales are off by one block"),
    _mxfp4_fault(
        scale_tail_unmasked,
        ("independence", "survival"),
        "a scale behind the last block is loaded, and multiplied by 0",
        "B065",
    ),
    _mxfp4_fault(ties_away_from_zero, ("agreement",), "ties of x go away from zero", "B107"),
    _mxfp4_fault(halves_flushed, ("agreement",), "the subnormal of e2m1 is taken for 0"),
    _mxfp4_fault(splits_in_16_bits, ("agreement",), "partial sums are kept in float16", "B114"),
)

RIGHT: Final[tuple[Kernel, ...]] = (_right(right_by_reciprocals, "fp8"), _right(right_in_blocks, "mxfp4"))
