"""The up-projection with a quantised weight in plain torch: split along the rank into `out` itself, or copied.

x is quantised by every call, as the fp8 and FP4 branches of vLLM's `_v_up_proj` do it: in fp8 per token and head in
groups of 128 columns, in mxfp4 in blocks of 32. The split forms sum in scratch from `torch.empty`, the copied ones in
a zero-filled temporary.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.kernels.quantised_arguments import refuse_fp8, refuse_mxfp4

__all__ = [
    "up_projection_fp8_copy",
    "up_projection_fp8_split",
    "up_projection_mxfp4_copy",
    "up_projection_mxfp4_split",
]

_GROUP: Final = 128
_BLOCK: Final = 32
_SPLITS: Final = 4
_SMALLEST_AMAX: Final = 1e-10  # keeps the scale of a group of zeros from being zero
_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def up_projection_fp8_split(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: Any) -> None:
    """Sum up to four parts of the rank in scratch of their own, and merge them through the transposed view of `out`.

    x: [num_tokens, num_heads, kv_lora_rank]; out: [num_tokens, num_heads, v_head_dim];
    w_q: fp8 [num_heads, v_head_dim, kv_lora_rank]; w_scale: float32 [1], for all of it.
    Raises ValueError for shapes, dtypes or overlapping memory that cannot be meant, having written nothing.
    """
    refuse_fp8(x, out, w_q)
    partials = _partials(_rounded_to_fp8(x, w_q.dtype), w_q.to(torch.float32), _GROUP)
    torch.mul(partials.sum(0), w_scale, out=out.transpose(0, 1))


def up_projection_fp8_copy(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: Any) -> None:
    """The same product into a zero-filled temporary that is copied into `out`."""
    refuse_fp8(x, out, w_q)
    weight = w_q.to(torch.float32) * w_scale
    _copy_product(_rounded_to_fp8(x, w_q.dtype), weight, out)


def up_projection_mxfp4_split(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: Any) -> None:
    """Sum up to four parts of the rank in scratch of their own, and merge them through the transposed view of `out`.

    x: [num_tokens, num_heads, kv_lora_rank]; out: [num_tokens, num_heads, v_head_dim];
    w_q: uint8 [num_heads, v_head_dim, kv_lora_rank / 2], pairs of e2m1 codes, the earlier one in the low half;
    w_scale: uint8 [num_heads, v_head_dim, ceil(kv_lora_rank / 32)], e8m0 codes.
    Raises ValueError for shapes, dtypes or overlapping memory that cannot be meant, having written nothing.
    """
    refuse_mxfp4(x, out, w_q)
    partials = _partials(_rounded_to_mxfp4(x), _mxfp4_weight(w_q, w_scale), _BLOCK)
    torch.add(partials[0], partials[1:].sum(0), out=out.transpose(0, 1))


def up_projection_mxfp4_copy(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: Any) -> None:
    """The same product into a zero-filled temporary that is copied into `out`."""
    refuse_mxfp4(x, out, w_q)
    _copy_product(_rounded_to_mxfp4(x), _mxfp4_weight(w_q, w_scale), out)


def _partials(x: Tensor, weight: Tensor, group: int) -> Tensor:  # [splits, num_heads, num_tokens, v_head_dim] float32
    """The product over each part of the rank; a part is whole groups. One of nothing where there is no rank."""
    tokens, heads, latent = x.shape
    groups = -(-latent // group)
    step = max(1, -(-groups // _SPLITS)) * group
    splits = max(1, -(-latent // step))
    partials = torch.empty(splits, heads, tokens, weight.shape[1], dtype=torch.float32, device=x.device)
    for split in range(splits):
        part = slice(split * step, (split + 1) * step)
        torch.bmm(x[..., part].transpose(0, 1), weight[..., part].transpose(1, 2), out=partials[split])
    return partials


def _copy_product(x: Tensor, weight: Tensor, out: Tensor) -> None:
    tokens, heads, _ = x.shape
    product = torch.zeros(heads, tokens, weight.shape[1], dtype=torch.float32, device=x.device)
    torch.baddbmm(product, x.transpose(0, 1), weight.transpose(1, 2), out=product)
    out.copy_(product.transpose(0, 1))


def _rounded_to_fp8(x: Tensor, codes: torch.dtype) -> Tensor:  # [num_tokens, num_heads, kv_lora_rank] float32
    """x as codes and back, each group of a token by its own scale."""
    groups = _grouped(x, _GROUP)
    largest = torch.finfo(codes).max
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=_SMALLEST_AMAX) / largest
    rounded = (groups / scale).clamp(-largest, largest).to(codes).to(torch.float32) * scale
    return rounded.flatten(-2)[..., : x.shape[-1]]


def _rounded_to_mxfp4(x: Tensor) -> Tensor:  # [num_tokens, num_heads, kv_lora_rank] float32
    """x as codes and back, each block by its own power of two."""
    blocks = _grouped(x, _BLOCK)
    # A quarter of a power of two carries an amax of 1.75 of it and more into the next; 2 is the exponent of 4.
    bits = blocks.abs().amax(-1, keepdim=True).view(torch.int32) + 0x200000
    exponent = ((bits >> 23) - 127 - 2).clamp(min=-127)
    magnitude = torch.ldexp(blocks.abs(), -exponent)
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    rounded = (torch.round(magnitude / step) * step).clamp(max=6.0)
    rounded = torch.ldexp(torch.copysign(rounded, blocks), exponent)
    return rounded.flatten(-2)[..., : x.shape[-1]]


def _mxfp4_weight(w_q: Tensor, w_scale: Tensor) -> Tensor:  # [num_heads, v_head_dim, kv_lora_rank] float32
    numbers = torch.tensor([*_E2M1, *(-number for number in _E2M1)], dtype=torch.float32, device=w_q.device)
    pairs = torch.stack((w_q & 0xF, w_q >> 4), dim=-1).flatten(-2).long()
    # Bits of a float32: code 0 is a subnormal there, and 255 would be an infinity without a bit of its mantissa.
    bits = w_scale.to(torch.int32) << 23
    bits = bits.masked_fill(w_scale == 0, 0x400000).masked_fill(w_scale == 255, 0x7FC00000)
    scales = bits.contiguous().view(torch.float32).repeat_interleave(_BLOCK, dim=-1)
    return numbers[pairs] * scales[..., : pairs.shape[-1]]


def _grouped(x: Tensor, size: int) -> Tensor:
    """x in float32, its last dimension cut into [groups, size], zeros behind its end."""
    padded = torch.nn.functional.pad(x.to(torch.float32), (0, -x.shape[-1] % size))
    return padded.unflatten(-1, (padded.shape[-1] // size, size))
