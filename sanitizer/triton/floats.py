"""Conversions between float formats as the hardware does them, on arrays of raw bits."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

__all__ = ["FP8", "Array", "converted", "narrowed", "widened"]

Array = np.ndarray[Any, np.dtype[Any]]

# Triton's name of an fp8 format → torch's. Triton's fp8e4b15 has no counterpart and is left alone.
FP8: Final = {
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
    "fp8e4b8": "float8_e4m3fnuz",
    "fp8e5b16": "float8_e5m2fnuz",
}
_NUMPY: Final = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}


def widened(bits: Array) -> Array:
    """The float32 numbers that bfloat16 `bits` (uint16) stand for."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrowed(numbers: Array, *, to_zero: bool = False) -> Array:
    """The bfloat16 bits (uint16) nearest to float32 `numbers`, ties to even; any NaN stays one."""
    exact = np.ascontiguousarray(numbers, dtype=np.float32)
    bits = exact.view(np.uint32).reshape(exact.shape)
    rounding = np.uint32(0) if to_zero else np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = (bits + rounding) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)  # a NaN whose payload rounding would carry away
    return np.where((bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000), quiet, rounded).astype(np.uint16)


def converted(bits: Array, source: str, target: str, *, to_zero: bool = False) -> Array | None:
    """`bits` of the format that Triton calls `source`, as bits of `target`; None for formats unknown here.

    Rounds to nearest even, or to zero. Overflow saturates in fp8 (`cvt.rn.satfinite`), infinities included, and goes
    to infinity elsewhere; NaN stays NaN.
    """
    numbers = _numbers(bits, source)
    return None if numbers is None else _bits(numbers, target, to_zero=to_zero)


def _numbers(bits: Array, source: str) -> Array | None:
    """What `bits` stand for, in a format that numpy has."""
    if source == "bf16":
        return widened(bits)
    if source in _NUMPY:
        return np.ascontiguousarray(bits).view(_NUMPY[source]).reshape(bits.shape)
    if source in FP8:
        return _fp8_values(source)[np.ascontiguousarray(bits).view(np.uint8).reshape(bits.shape)]
    return None


def _bits(numbers: Array, target: str, *, to_zero: bool) -> Array | None:
    if target == "bf16":
        return narrowed(numbers.astype(np.float32), to_zero=to_zero)
    if target in _NUMPY:
        wanted = np.dtype(_NUMPY[target])
        with np.errstate(over="ignore", under="ignore"):
            return numbers.astype(wanted).view(f"uint{8 * wanted.itemsize}")
    if target in FP8 and not to_zero:
        dtype: torch.dtype = getattr(torch, FP8[target])
        largest = torch.finfo(dtype).max
        exact = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32))
        return exact.clamp(-largest, largest).to(dtype).view(torch.uint8).numpy().reshape(numbers.shape)
    return None


def _fp8_values(name: str) -> Array:
    """[256] what each byte stands for."""
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    return every.view(getattr(torch, FP8[name])).to(torch.float32).numpy()
