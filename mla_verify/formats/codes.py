"""From codes to numbers and from numbers to codes, to nearest even, on any device."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mla_verify.formats.definitions import E8M0, FORMATS, Format, table_of

__all__ = ["decode", "encode", "exponent_codes", "midpoints_of", "pack_pairs", "unpack_pairs"]


def decode(codes: Tensor, name: str, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """The numbers that codes stand for, NaN and infinities included; exact in float32 too.

    codes: integers below 256 (16 for e2m1), or a tensor of the format's own one-byte dtype. Pairs of e2m1 have
    to be unpacked first.
    """
    if codes.is_floating_point():
        codes = codes.view(torch.uint8)
    return table_of(name, codes.device).to(dtype)[codes.long()]


def encode(values: Tensor, name: str, *, saturate: bool) -> Tensor:
    """The uint8 code nearest to each number; halfway between two, the one that is even.

    saturate: what exceeds the largest number becomes it, infinities too. Otherwise it becomes an infinity, or
    NaN where the format has none. e2m1 has neither and always saturates; NaN becomes its largest number.
    A negative number that rounds to zero keeps its sign, but in the formats that have no −0.
    """
    form = FORMATS[name]
    if values.dtype != torch.float64:
        values = values.to(torch.float64)
    magnitude = values.abs().contiguous()
    midpoints = midpoints_of(name, values.device)
    code = torch.bucketize(magnitude, midpoints)  # midpoints less than the number: a tie stays below
    tie = midpoints[code.clamp(max=midpoints.numel() - 1)] == magnitude
    code = code + (tie & (code % 2 == 1))
    largest = form.largest_code
    overflow = largest
    if not saturate and form.specials != "none":
        overflow = _stands_for_overflow(form)
    code = torch.where(code > largest, overflow, code)
    # The NaN of the fnuz formats is their −0: neither takes a sign.
    signed = values.signbit() & ((code != 0) | (form.specials != "nan for -0")) & (code < form.sign_bit)
    code = code | signed.to(code.dtype) * form.sign_bit
    nan = form.nan_code if form.nan_code is not None else largest
    return torch.where(values.isnan(), nan, code).to(torch.uint8)


def exponent_codes(exponents: Tensor) -> Tensor:
    """The e8m0 codes of 2**exponent, clamped to what the format holds: 2**−127 to 2**127."""
    return (exponents + 127).clamp(0, 254).to(torch.uint8)


def pack_pairs(codes: Tensor) -> Tensor:
    """Two 4-bit codes to a byte along the last dimension, the earlier one in the low half. Its size must be even."""
    if codes.shape[-1] % 2:
        raise ValueError(f"pairs need an even last dimension, got {tuple(codes.shape)}")
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)


def unpack_pairs(packed: Tensor) -> Tensor:
    """The 4-bit codes of packed bytes: the last dimension doubles, low halves first."""
    pairs = torch.stack((packed & 0xF, packed >> 4), dim=-1)
    return pairs.flatten(-2)


def midpoints_of(name: str, device: torch.device) -> Tensor:
    """Halfway between each code's number and the next, ascending, the last being where overflow begins.

    All of them are exact in float64, and the number at place i lies between midpoints i − 1 and i.
    """
    return _midpoints(name, device)


@lru_cache(maxsize=64)
def _midpoints(name: str, device: torch.device) -> Tensor:
    if name == E8M0:
        raise ValueError("e8m0 holds exponents: use exponent_codes")
    form = FORMATS[name]
    finite = table_of(form)[: form.largest_code + 1]
    step = finite[-1] - finite[-2]
    beyond = torch.cat((finite, (finite[-1] + step).reshape(1)))
    return ((beyond[:-1] + beyond[1:]) / 2).to(device)


def _stands_for_overflow(form: Format) -> int:
    code = form.infinity_code if form.infinity_code is not None else form.nan_code
    if code is None:
        raise ValueError(f"{form.name} can only saturate")
    return code
