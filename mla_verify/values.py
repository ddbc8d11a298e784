"""The numbers that inputs hold: cut from one fixed pool per kind of value, the same bits on every platform.

A pool is a stream of 64-bit words from numpy's PCG64, each turned into one value by integer arithmetic and
exact scaling alone: no logarithm, sine or square root, whose last bit differs between mathematical libraries.
A value depends on its own word only, so a pool that grows keeps what it held. Tensors are cut from a pool
without copying, at an offset that follows from the problem's seed and the tensor's name.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mla_verify.formats import FLOATS_8, table_of

__all__ = ["MAGNITUDES", "POOLS", "Maker", "cut", "integers"]

Words = npt.NDArray[np.uint64]
Float32s = npt.NDArray[np.float32]
Maker = Callable[[Words, torch.dtype], Float32s]
"""Turns words into values, one each, exact in float32 and within the range of a dtype."""

_STREAM: Final = 0x4D4C41  # the seed of every pool; another number would change every golden digest
_OFFSETS: Final = 4093  # cuts begin at one of so many places: few enough that a pool stays small
# The largest prime below 2**22, so that no shape of powers of two sees its rows repeat.
_PERIOD: Final = 4_194_301
# A product of two stays below 2**116, and a sum of 2**11 such products within float32's range.
_LARGEST_EXPONENT: Final = 57
_LARGEST_CODE: Final = 1024.0


def _integers(words: Words, _dtype: torch.dtype, *, magnitude: int) -> Float32s:
    """Whole numbers from −magnitude to magnitude."""
    span = np.uint64(2 * magnitude + 1)
    picked = ((words >> np.uint64(32)) * span) >> np.uint64(32)
    return (picked.astype(np.int64) - magnitude).astype(np.float32)


def _gaussian(words: Words, _dtype: torch.dtype) -> Float32s:
    """Nearly normal, deviation 1.15, at most 4: a sum of four 16-bit uniforms, and twelve more bits."""
    total = np.zeros(words.shape, np.int64)
    for shift in (0, 16, 32, 48):
        total += ((words >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
    centred = total - 2 * 0xFFFF  # 18 bits and a sign
    # The sum alone would leave float32's last bits zero, and a kernel that drops them unseen.
    low = ((words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(52)).astype(np.int64)
    return ((centred << 12) + low).astype(np.float32) * np.float32(2.0**-27)


def _extreme(words: Words, dtype: torch.dtype) -> Float32s:
    """Every exponent of a wide range equally often; sums of products seldom leave the dtype's range."""
    limits = torch.finfo(dtype)
    largest = math.frexp(limits.max)[1] - 1
    # A dtype as wide as the float32 accumulator needs room for a sum; a narrow one for a product of two.
    highest = _LARGEST_EXPONENT if largest >= 127 else largest // 3
    lowest = max(-_LARGEST_EXPONENT, math.frexp(limits.smallest_normal)[1] - 1)
    span = np.uint64(highest - lowest + 1)
    level = (((words >> np.uint64(32)) & np.uint64(0xFFFF)) * span) >> np.uint64(16)
    exponent = level.astype(np.int64) + lowest
    bits = ((words >> np.uint64(63)) << np.uint64(31)) | (words & np.uint64(0x7FFFFF))
    bits |= (exponent + 127).astype(np.uint64) << np.uint64(23)
    return bits.astype(np.uint32).view(np.float32)


def _special(words: Words, dtype: torch.dtype) -> Float32s:
    """A quarter zeros of either sign, a sixteenth subnormals of the dtype, the rest ordinary.

    More subnormals would show no more, and processors multiply them a hundred times slower.
    """
    limits = torch.finfo(dtype)
    step = limits.smallest_normal * limits.eps  # the smallest subnormal, exact as a Python float
    steps = np.uint64(round(1 / limits.eps))  # how many of them make the smallest normal number
    kind = words >> np.uint64(60)
    sign = 1.0 - 2.0 * ((words >> np.uint64(59)) & np.uint64(1)).astype(np.float64)
    count = 1 + ((words >> np.uint64(8)) & np.uint64(0xFFFFFFFF)) % (steps - np.uint64(1))
    small = count.astype(np.float64) * step  # below 2**24 steps: exact
    ordinary = _gaussian(words << np.uint64(5), dtype).astype(np.float64)
    value = np.where(kind < 4, sign * 0.0, np.where(kind == 4, sign * small, ordinary))
    return value.astype(np.float32)


def _codes(words: Words, _dtype: torch.dtype, *, name: str) -> Float32s:
    """Every finite code of an fp8 format equally often, but those so large that float16 could not sum them."""
    table = table_of(name)
    numbers = table[table.abs() <= _LARGEST_CODE].to(torch.float32).numpy()  # neither NaN nor infinities among them
    picked = ((words >> np.uint64(32)) * np.uint64(len(numbers))) >> np.uint64(32)
    return numbers[picked.astype(np.int64)]


MAGNITUDES: Final = (4095, 1023, 31, 15, 7, 3, 1)  # of the pools of integers, falling

POOLS: Final[dict[str, Maker]] = {
    **{f"integers_{magnitude}": partial(_integers, magnitude=magnitude) for magnitude in MAGNITUDES},
    "gaussian": _gaussian,
    "extreme": _extreme,
    "special": _special,
    **{f"codes_{name}": partial(_codes, name=name) for name in FLOATS_8},
}
"""Every pool by name. A contract that needs values of its own adds a maker here."""

_pools: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}


def integers(magnitude: int) -> str:
    """Name of the pool of whole numbers from −magnitude to magnitude (one of `MAGNITUDES`)."""
    if magnitude not in MAGNITUDES:
        raise ValueError(f"there is no pool of integers up to {magnitude}, only up to {MAGNITUDES}")
    return f"integers_{magnitude}"


def _rounded_to_bfloat16(values: Float32s) -> Tensor:
    """To nearest even on the bit patterns: some processors' own instruction flushes subnormals."""
    bits = values.view(np.uint32).astype(np.uint64)  # pools hold no NaN, whose payload this would carry over
    rounded = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return torch.from_numpy(rounded.astype(np.uint16).view(np.int16)).view(torch.bfloat16)


def _in_dtype(values: Float32s, dtype: torch.dtype) -> Tensor:
    if dtype == torch.bfloat16:
        return _rounded_to_bfloat16(values)
    if dtype == torch.float16:
        return torch.from_numpy(values.astype(np.float16))
    return torch.from_numpy(values).to(dtype)


def _made(pool: str, count: int, dtype: torch.dtype) -> Tensor:
    """The first `count` values of a pool; behind `_PERIOD` of them it begins again."""
    distinct = min(count, _PERIOD)
    words: Any = np.random.PCG64(_STREAM).random_raw(distinct)
    values = _in_dtype(POOLS[pool](words, dtype), dtype)
    if count <= distinct:
        return values
    return values.repeat(-(-count // distinct))[:count]


def _pool(pool: str, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    key = (pool, dtype, device)
    held = _pools.get(key)
    if held is None or held.numel() < count:
        # Powers of two, so that a run of ever larger problems makes a pool anew only a few times.
        held = _made(pool, 1 << max(count - 1, 1 << 14).bit_length(), dtype).to(device)
        _pools[key] = held
    return held


def cut(
    pool: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, seed: int, tensor: str
) -> Tensor:
    """Values of one tensor: a dense view of `shape` into a cached pool. Never write to it.

    `seed` and `tensor` (its name) decide where the cut begins, so that two tensors of a problem differ.
    """
    offset = zlib.crc32(f"{seed}:{tensor}".encode()) % _OFFSETS
    count = math.prod(shape)
    return _pool(pool, offset + count, dtype, device)[offset : offset + count].view(shape)
