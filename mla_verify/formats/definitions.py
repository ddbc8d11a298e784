"""The formats themselves: how their bits are divided, and which codes are no numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import torch
from torch import Tensor

__all__ = ["E8M0", "FLOATS_8", "FORMATS", "Format", "dtype_of_format", "format_of_dtype", "table_of"]

Specials = Literal["ieee", "one nan per sign", "nan for -0", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One sign bit, then exponent, then mantissa; exponent 0 holds zeros and subnormals.

    specials: "ieee" gives the largest exponent to infinities and NaN; "one nan per sign" gives them only the
    code with all bits set; "nan for -0" has one NaN, where −0 would be, and no −0; "none" has numbers alone.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials

    @property
    def bits(self) -> int:
        """Bits of one code."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def sign_bit(self) -> int:
        """The code's sign bit, as a mask."""
        return 1 << (self.bits - 1)

    @property
    def largest_code(self) -> int:
        """The code of the largest finite number."""
        reserved = {"ieee": 1 << self.mantissa_bits, "one nan per sign": 1, "nan for -0": 0, "none": 0}
        return self.sign_bit - 1 - reserved[self.specials]

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return float(table_of(self)[self.largest_code])

    @property
    def smallest(self) -> float:
        """The smallest positive number, a subnormal: what codes are apart near 0."""
        return 2.0 ** (1 - self.bias - self.mantissa_bits)

    @property
    def nan_code(self) -> int | None:
        """The NaN that conversions give, None in a format without one."""
        return {"ieee": self.sign_bit - 1, "one nan per sign": self.sign_bit - 1, "nan for -0": self.sign_bit}.get(
            self.specials
        )

    @property
    def infinity_code(self) -> int | None:
        """The code of +inf, None in a format without infinities."""
        return self.largest_code + 1 if self.specials == "ieee" else None


FORMATS: Final[dict[str, Format]] = {
    form.name: form
    for form in (
        Format(name="e4m3fn", exponent_bits=4, mantissa_bits=3, bias=7, specials="one nan per sign"),
        Format(name="e4m3fnuz", exponent_bits=4, mantissa_bits=3, bias=8, specials="nan for -0"),
        Format(name="e5m2", exponent_bits=5, mantissa_bits=2, bias=15, specials="ieee"),
        Format(name="e5m2fnuz", exponent_bits=5, mantissa_bits=2, bias=16, specials="nan for -0"),
        Format(name="e2m1", exponent_bits=2, mantissa_bits=1, bias=1, specials="none"),
    )
}
FLOATS_8: Final = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")

E8M0: Final = "e8m0"
"""The format of block scales: no sign, no mantissa, no zero. Code c is 2**(c - 127), and 255 is NaN."""

_DTYPES: Final = {
    **{name: f"float8_{name}" for name in FLOATS_8},
    "e2m1": "float4_e2m1fn_x2",  # two codes to an element
    E8M0: "float8_e8m0fnu",
}


@lru_cache(maxsize=64)
def _table(name: str, device: torch.device) -> Tensor:
    if name == E8M0:
        values = torch.ldexp(torch.ones(256, dtype=torch.float64), torch.arange(256) - 127)
        values[255] = torch.nan
        return values.to(device)
    form = FORMATS[name]
    codes = torch.arange(1 << form.bits)
    mantissa = codes & ((1 << form.mantissa_bits) - 1)
    exponent = (codes & (form.sign_bit - 1)) >> form.mantissa_bits
    significand = torch.where(exponent > 0, mantissa + (1 << form.mantissa_bits), mantissa).to(torch.float64)
    values = torch.ldexp(significand, exponent.clamp(min=1) - form.bias - form.mantissa_bits)
    values = torch.where(codes >= form.sign_bit, -values, values)
    magnitude = codes & (form.sign_bit - 1)
    if form.specials == "ieee":
        top = 1 << form.mantissa_bits
        infinite = magnitude == form.sign_bit - top
        values[infinite] = values[infinite].sign() * torch.inf
        values[magnitude > form.sign_bit - top] = torch.nan
    elif form.specials == "one nan per sign":
        values[magnitude == form.sign_bit - 1] = torch.nan
    elif form.specials == "nan for -0":
        values[form.sign_bit] = torch.nan
    return values.to(device)


def table_of(form: Format | str, device: torch.device | str = "cpu") -> Tensor:
    """What every code of a format means, float64 [256] ([16] for e2m1); shared, so not to be written."""
    return _table(form if isinstance(form, str) else form.name, torch.device(device))


def dtype_of_format(name: str) -> torch.dtype:
    """torch's dtype for a format. Raises ValueError where this torch has none."""
    dtype = getattr(torch, _DTYPES[name], None) if name in _DTYPES else None
    if dtype is None:
        raise ValueError(f"torch {torch.__version__} has no dtype for {name!r}; formats are {', '.join(_DTYPES)}")
    return dtype


def format_of_dtype(dtype: torch.dtype) -> str:
    """The name of the format that a torch dtype holds. Raises ValueError for a dtype that is none of ours."""
    for name, attribute in _DTYPES.items():
        if getattr(torch, attribute, None) == dtype:
            return name
    raise ValueError(f"{dtype} holds none of the formats {', '.join(_DTYPES)}")
