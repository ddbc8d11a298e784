"""Quantised queries and caches: which format they are stored in, what a code stands for, how numbers become codes.

A code stands for its number times a float32 scale: one scale for all of q, one for all of the cache.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from mla_verify.formats import FORMATS, decode, dtype_of_format
from mla_verify.placement import dtype_of
from strategies.problems import DecodeProblem

__all__ = [
    "decoded",
    "dtype_of_kv",
    "dtype_of_q",
    "encoded",
    "is_power_of_two",
    "is_round",
    "largest_exponent",
    "single",
]

_ROUND_BITS: Final = 4  # with the four of a code they fit into bfloat16's eight


def dtype_of_q(problem: DecodeProblem) -> torch.dtype:
    """What q is stored in."""
    return _stored(problem, problem.q_format)


def dtype_of_kv(problem: DecodeProblem) -> torch.dtype:
    """What the cache is stored in."""
    return _stored(problem, problem.kv_format)


def decoded(stored: Tensor, name: str, scale: str) -> Tensor:
    """The float64 numbers that a tensor of the format `name` ("plain": of any dtype) stands for."""
    if name == "plain":
        return stored.to(torch.float64)
    return decode(stored, name).mul_(single(scale))


def encoded(numbers: Tensor, name: str) -> Tensor:
    """The nearest codes of float32 `numbers`, ties to even; what lies outside goes to the largest of its sign."""
    largest = FORMATS[name].largest
    return numbers.clamp(-largest, largest).to(dtype_of_format(name))


@lru_cache(maxsize=64)
def single(scale: str) -> float:
    """The float32 that a scale's decimals mean."""
    return float(torch.tensor(float(scale), dtype=torch.float32))


def is_round(scale: str) -> bool:
    """Whether a scale has so few bits that every code times it fits into any dtype of o."""
    return (math.frexp(single(scale))[0] * 2**_ROUND_BITS).is_integer()


def is_power_of_two(scale: str) -> bool:
    """Whether multiplying by a scale rounds nowhere."""
    return math.frexp(single(scale))[0] == 0.5


def largest_exponent(name: str) -> int:
    """e of the largest power of two, 2**e, that is a code."""
    return math.frexp(FORMATS[name].largest)[1] - 1


def _stored(problem: DecodeProblem, name: str) -> torch.dtype:
    return dtype_of(problem.dtype) if name == "plain" else dtype_of_format(name)
