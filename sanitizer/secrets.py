"""What undeclared memory holds during a run: a secret pattern for every dtype, made bit by bit.

Patterns are built on integer views, so no conversion can round, refuse or repair them: NaN stays the NaN that was
meant, and formats without conversions (fp4, e8m0) are filled like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, Literal

import torch
from torch import Tensor

from sanitizer.plan import Fills

__all__ = ["PERIOD", "Fill", "Secret", "carrier_of", "carrier_view", "fill_with_secret", "rows_of", "secret_pattern"]

Fill = float | Literal["nan", "ordinary", "ordinary2", "marked"]

PERIOD: Final = 1 << 16  # elements after which a pattern repeats; small enough to stay in a cache
_CACHED: Final = 512  # patterns kept: page ids are constants too, and there are many of them
_SMALLEST: Final = 1024  # elements that a pattern is made for at least


class Secret(Enum):
    """The three states that undeclared memory is put into."""

    A = "a"
    B = "b"
    Z = "z"

    @property
    def row(self) -> int:
        """Where `rows_of` keeps this secret's pattern."""
        return _ROWS[self]

    def fill(self, fills: Fills) -> Fill:
        """What `fills` puts into memory under this secret."""
        return getattr(fills, self.value)


_ROWS: Final = {Secret.A: 0, Secret.B: 1, Secret.Z: 2}


@dataclass(frozen=True, slots=True)
class _FloatFormat:
    """A floating-point format: one sign bit if `signed`, then the exponent, then the mantissa."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    nan: int
    signed: bool = True


def _float_formats() -> dict[torch.dtype, _FloatFormat]:
    known = {
        "float64": _FloatFormat(11, 52, 1023, 0x7FF8 << 48),
        "float32": _FloatFormat(8, 23, 127, 0x7FC00000),
        "float16": _FloatFormat(5, 10, 15, 0x7E00),
        "bfloat16": _FloatFormat(8, 7, 127, 0x7FC0),
        "float8_e4m3fn": _FloatFormat(4, 3, 7, 0x7F),
        "float8_e5m2": _FloatFormat(5, 2, 15, 0x7F),
        "float8_e4m3fnuz": _FloatFormat(4, 3, 8, 0x80),  # the fnuz formats have one NaN, where −0 would be
        "float8_e5m2fnuz": _FloatFormat(5, 2, 16, 0x80),
        "float8_e8m0fnu": _FloatFormat(8, 0, 127, 0xFF, signed=False),
    }
    return {getattr(torch, name): form for name, form in known.items() if hasattr(torch, name)}


_FLOATS: Final = _float_formats()
_FP4_PAIR: Final[torch.dtype | None] = getattr(torch, "float4_e2m1fn_x2", None)
_COMPLEX_PARTS: Final = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
_CARRIERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}

# Exponents of the two ordinary patterns. They share none, so the patterns differ at every place; one in four is
# large, so that the maximum of a secret and a computed value is seen to be the secret somewhere.
_EXPONENTS: Final[dict[str, tuple[int, int, int, int]]] = {"ordinary": (-2, -1, 0, 5), "ordinary2": (1, 2, 3, 6)}
# Magnitudes of e2m1 numbers, as bit patterns: 0.5, 1, 1.5, 4 and 2, 3, 6, 3.
_FP4_MAGNITUDES: Final[dict[str, tuple[int, int, int, int]]] = {"ordinary": (1, 2, 3, 6), "ordinary2": (4, 5, 7, 5)}


def carrier_of(dtype: torch.dtype) -> tuple[torch.dtype, int]:
    """The integer dtype whose words carry the bits of `dtype`, and how many words one element takes."""
    return _CARRIERS[dtype.itemsize], 2 if dtype.itemsize == 16 else 1


def carrier_view(tensor: Tensor) -> Tensor:
    """The bits of `tensor`, any strides, as integers; a complex128 gets a last dimension of two words."""
    if tensor.dtype == torch.complex128:
        tensor = torch.view_as_real(tensor)
    return tensor.view(_CARRIERS[tensor.dtype.itemsize])


def secret_pattern(dtype: torch.dtype, fill: Fill, count: int, device: torch.device) -> Tensor:
    """[count] elements of `dtype` holding `fill`; shared with other callers, so not to be written."""
    words = carrier_of(dtype)[1]
    pattern = _grown(dtype, fill, min(count, PERIOD), device)[: count * words]
    if count > PERIOD:
        pattern = pattern.repeat(-(-count // PERIOD))[: count * words]
    return pattern.view(dtype)


def fill_with_secret(tensor: Tensor, fill: Fill) -> None:
    """Overwrite every element of `tensor`, any strides, with `fill`; what lies between its elements stays."""
    if tensor.numel() == 0:
        return
    pattern = carrier_view(secret_pattern(tensor.dtype, fill, tensor.numel(), tensor.device))
    target = carrier_view(tensor)
    target.copy_(pattern.view(target.shape))


_ROW_CACHE: Final[dict[tuple[torch.dtype, Fills, torch.device], Tensor]] = {}


def rows_of(dtype: torch.dtype, fills: Fills, count: int, device: torch.device) -> Tensor:
    """[3, at least min(count, PERIOD) elements] carrier words: one row per secret, shared with other callers."""
    key = (dtype, fills, device)
    rows = _ROW_CACHE.get(key)
    words = min(count, PERIOD) * carrier_of(dtype)[1]
    if rows is None or rows.shape[1] < words:
        if len(_ROW_CACHE) >= _CACHED:
            _ROW_CACHE.clear()
        rows = torch.stack([_grown(dtype, secret.fill(fills), count, device) for secret in Secret])
        _ROW_CACHE[key] = rows
    return rows


def _grown(dtype: torch.dtype, fill: Fill, count: int, device: torch.device) -> Tensor:
    """The cached pattern in carrier words, at least min(count, PERIOD) elements and a power of two of them."""
    size = min(PERIOD, max(_SMALLEST, 1 << max(count - 1, 0).bit_length()))
    return _made(dtype, fill, size, device)


@lru_cache(maxsize=_CACHED)
def _made(dtype: torch.dtype, fill: Fill, size: int, device: torch.device) -> Tensor:
    part = _COMPLEX_PARTS.get(dtype)
    if part is not None:
        parts = _made(part, fill, min(2 * size, PERIOD), device)
        return parts.repeat(2)[: 2 * size].view(carrier_of(dtype)[0])
    carrier, _ = carrier_of(dtype)
    if not isinstance(fill, str):
        return _constant(dtype, fill, device).expand(size).contiguous()
    bits = _bits_maker(dtype)(fill, _scattered(size, device))
    # Going through the low bits keeps the top bit of an unsigned pattern when the carrier is signed.
    return bits.view(torch.uint8).view(size, 8)[:, : carrier.itemsize].contiguous().view(carrier).flatten()


def _constant(dtype: torch.dtype, number: float, device: torch.device) -> Tensor:
    carrier, _ = carrier_of(dtype)
    if number == 0:
        return torch.zeros(1, dtype=carrier, device=device)
    if dtype == _FP4_PAIR:
        raise ValueError("a constant other than 0 cannot be put into float4_e2m1fn_x2: use 'ordinary'")
    return torch.tensor([number], dtype=torch.float64).to(dtype).view(carrier).to(device)


def _scattered(size: int, device: torch.device) -> Tensor:
    """[size] non-negative int64: a number per place that looks unrelated to its neighbours (Knuth's MMIX constants)."""
    place = torch.arange(1, size + 1, dtype=torch.int64, device=device)
    mixed = place * 6364136223846793005 + 1442695040888963407
    return ((mixed ^ (mixed >> 29)) * 2862933555777941757) & 0x7FFFFFFFFFFFFFFF


def _bits_maker(dtype: torch.dtype) -> Callable[[str, Tensor], Tensor]:
    form = _FLOATS.get(dtype)
    if form is not None:
        return lambda fill, scattered: _float_bits(form, fill, scattered)
    if dtype == _FP4_PAIR:
        return _fp4_bits
    if dtype == torch.bool:
        return _bool_bits
    return lambda fill, scattered: _integer_bits(8 * dtype.itemsize, fill, scattered)


def _float_bits(form: _FloatFormat, fill: str, scattered: Tensor) -> Tensor:
    payload_bits = form.mantissa_bits - 1
    if fill == "nan" or (fill == "marked" and payload_bits < 4):
        return torch.full_like(scattered, form.nan)
    if fill == "marked":  # a NaN whose payload names its place, so that a NaN which a kernel wrote is told from it
        return form.nan | ((scattered >> 8) & ((1 << payload_bits) - 1))
    choices = torch.tensor(_EXPONENTS[fill], dtype=torch.int64, device=scattered.device)
    exponent = choices[(scattered >> 40) & 3] + form.bias
    mantissa = (scattered >> 8) & ((1 << min(form.mantissa_bits, 30)) - 1)
    mantissa = mantissa << max(form.mantissa_bits - 30, 0)
    sign = ((scattered >> 50) & 1) << (form.exponent_bits + form.mantissa_bits) if form.signed else 0
    return (exponent << form.mantissa_bits) | mantissa | sign


def _fp4_bits(fill: str, scattered: Tensor) -> Tensor:
    if fill in ("nan", "marked"):  # fp4 has no NaN: −6 in both halves
        return torch.full_like(scattered, 0xFF)
    choices = torch.tensor(_FP4_MAGNITUDES[fill], dtype=torch.int64, device=scattered.device)
    low = choices[(scattered >> 40) & 3] | ((scattered >> 50) & 1) << 3
    high = choices[(scattered >> 44) & 3] | ((scattered >> 51) & 1) << 3
    return low | high << 4


def _bool_bits(fill: str, scattered: Tensor) -> Tensor:
    if fill == "nan":
        return torch.ones_like(scattered)
    alternating = (scattered >> 40) & 1
    return 1 - alternating if fill == "ordinary2" else alternating


def _integer_bits(width: int, fill: str, scattered: Tensor) -> Tensor:
    if fill == "nan":
        return torch.full_like(scattered, -1)
    if fill == "marked" and width > 8:  # negative and large: no table holds it at exactly this place
        return -1 - (1 << (width - 2)) // 2 - (scattered >> 8) % (1 << min(width - 3, 30))
    # Small positive numbers, which every width holds; the two patterns share none.
    return (3 if fill == "ordinary" else 64) + (scattered >> 40) % 60
