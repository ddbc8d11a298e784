"""Mends of the interpreter's conversions: rounding to bfloat16, fp8, casts from other types, constants."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sanitizer.triton.floats import FP8, Array, converted, narrowed, widened
from sanitizer.triton.patching import Patches

__all__ = [
    "casts_to_bfloat16",
    "converts_fp8",
    "makes_bfloat16",
    "mend_bfloat16",
    "mend_casts",
    "mend_constants",
    "mend_fp8",
    "rounds_to_bfloat16",
]

# Ties in both directions, subnormals, both zeros, the largest numbers that round to finite ones.
_NUMBERS: Final = np.array(
    [0.0, -0.0, 1.0, -1.5, 1.00390625, 1.01171875, 3.14159, 1e-40, -2e-39, 65504.0, 3.3895e38, 0.1, 240.0, -17.0],
    dtype=np.float32,
)


def rounds_to_bfloat16(interpreter: Any) -> bool:
    """Whether float32 becomes the nearest bfloat16, and bfloat16 the float32 it stands for; NaN stays NaN."""
    tl = interpreter.tl
    got = interpreter._convert_float(_NUMBERS, tl.float32, tl.bfloat16, None).view(np.uint16)
    back = interpreter._convert_float(got, tl.bfloat16, tl.float32, None).view(np.float32)
    special = np.array([np.nan, np.inf, -np.inf], dtype=np.float32)
    specials = interpreter._convert_float(special, tl.float32, tl.bfloat16, None).view(np.uint16)
    return bool(
        np.array_equal(got, narrowed(_NUMBERS))
        and np.array_equal(back, widened(got))
        and np.array_equal(widened(specials), special, equal_nan=True)
    )


def converts_fp8(interpreter: Any) -> bool:
    """Whether every fp8 number widens to what it stands for, and numbers go to the nearest fp8, NaN to NaN.

    Overflow may saturate or go to infinity or NaN here: the hardware has both, and neither is held against Triton.
    """
    return all(_converts(interpreter, _triton_type(interpreter, name)) for name in FP8)


def _triton_type(interpreter: Any, name: str) -> Any:
    return getattr(interpreter.tl, name.replace("fp8", "float8"))


def _converts(interpreter: Any, fp8: Any) -> bool:
    tl, every = interpreter.tl, np.arange(256, dtype=np.uint8)
    values = _as_numbers(converted(every, fp8.name, "fp32"))
    wide = interpreter._convert_float(every, fp8, tl.float32, None).view(np.float32)
    half = interpreter._convert_float(every, fp8, tl.float16, None).view(np.float16)
    if not (np.array_equal(wide, values, equal_nan=True) and np.array_equal(half, values, equal_nan=True)):
        return False
    finite = np.unique(values[np.isfinite(values)])
    numbers = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2, finite[1:] * np.float32(0.97)])
    nearest = interpreter._ir.ROUNDING_MODE.RTNE
    got = interpreter._convert_float(numbers, tl.float32, fp8, nearest).view(np.uint8)
    nan = interpreter._convert_float(np.array([np.nan], dtype=np.float32), tl.float32, fp8, nearest).view(np.uint8)
    return np.array_equal(got, _known(converted(numbers, "fp32", fp8.name))) and bool(np.isnan(values[nan]).all())


def _as_numbers(bits: Array | None) -> Array:
    return _known(bits).view(np.float32)


def _known(bits: Array | None) -> Array:
    if bits is None:
        raise ValueError("a float format that floats.py does not know")
    return bits


def mend_bfloat16(interpreter: Any, patches: Patches) -> None:
    """Convert to and from bfloat16 by `floats`."""
    _mend_convert(interpreter, patches, {"bf16"})


def mend_fp8(interpreter: Any, patches: Patches) -> None:
    """Convert to and from fp8 by `floats`."""
    _mend_convert(interpreter, patches, set(FP8))


def _mend_convert(interpreter: Any, patches: Patches, formats: set[str]) -> None:
    stock = interpreter._convert_float
    to_zero = interpreter._ir.ROUNDING_MODE.RTZ

    def convert(bits: Array, source: Any, target: Any, rounding: Any) -> Array:
        done = None
        if source.name in formats or target.name in formats:
            done = converted(bits, source.name, target.name, to_zero=rounding == to_zero)
        return stock(bits, source, target, rounding) if done is None else done

    patches.set(interpreter, "_convert_float", convert)


def casts_to_bfloat16(interpreter: Any) -> bool:
    """Whether integers, booleans, float16 and float64 become bfloat16 numbers and not bit patterns."""
    tl, handle = interpreter.tl, interpreter.TensorHandle
    builder = interpreter.InterpreterBuilder()
    for data, dtype in (
        (np.array([3, -7], dtype=np.int32), tl.int32),
        (np.array([True, False]), tl.int1),
        (np.array([0.5, -2.0], dtype=np.float64), tl.float64),
        (np.array([0.5, -2.0], dtype=np.float16), tl.float16),
    ):
        cast = builder.cast_impl(handle(data, dtype), tl.bfloat16)
        if not np.array_equal(cast.data, narrowed(data.astype(np.float32))):
            return False
    back = builder.cast_impl(handle(narrowed(np.array([3.0, -7.0])), tl.bfloat16), tl.int32)
    return np.array_equal(back.data, [3, -7])


def mend_casts(interpreter: Any, patches: Patches) -> None:
    """Cast to and from bfloat16 through float32."""
    tl, handle = interpreter.tl, interpreter.TensorHandle
    stock = interpreter.InterpreterBuilder.cast_impl

    def cast_impl(builder: Any, source: Any, dtype: Any) -> Any:
        wide, wanted = source, dtype.scalar
        if source.dtype.scalar == tl.bfloat16 and source.data.dtype == np.uint16 and wanted != tl.bfloat16:
            wide = handle(widened(source.data), tl.float32)
        if wanted == tl.bfloat16 and source.dtype.scalar != tl.bfloat16:
            return handle(narrowed(wide.data.astype(np.float32)), tl.bfloat16)
        return wide if wide is not source and wanted == tl.float32 else stock(builder, wide, dtype)

    patches.set(interpreter.InterpreterBuilder, "cast_impl", cast_impl)


def makes_bfloat16(interpreter: Any) -> bool:
    """Whether a Python number can become a bfloat16 constant."""
    return bool(interpreter.InterpreterBuilder().get_bf16(1.5).data[0] == 0x3FC0)


def mend_constants(interpreter: Any, patches: Patches) -> None:
    """Make bfloat16 constants."""

    def get_bf16(_: Any, value: float) -> Any:
        return interpreter.TensorHandle(narrowed(np.array([value], dtype=np.float32)), interpreter.tl.bfloat16)

    patches.set(interpreter.InterpreterBuilder, "get_bf16", get_bf16)
