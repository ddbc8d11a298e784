"""The contract of paged decode: o[row, head] = softmax(scale · q kᵀ) v over the keys that the row sees.

Here belong its tensors, what they hold in each regime, its oracle, the bound around the oracle's answer and the
zero-filled baseline.
"""

from __future__ import annotations

from typing import Final

from hypothesis.strategies import SearchStrategy

from mla_verify.contract import Contract
from mla_verify.decode.baseline import baseline
from mla_verify.decode.expectation import expect
from mla_verify.decode.rules import real_rows
from mla_verify.decode.tensors import OUTPUTS, place
from mla_verify.kernel import Kernel, limits_of
from strategies.decode import decode_problems, invalid_decode_problems
from strategies.invalid import DECODE_INVALID
from strategies.limits import DecodeLimits
from strategies.problems import DecodeProblem

__all__ = ["CONTRACT"]


def _limits(kernel: Kernel) -> DecodeLimits:
    """What may be drawn for a kernel, its preconditions obeyed."""
    limits = limits_of(kernel)
    if not isinstance(limits, DecodeLimits):
        raise TypeError(f"{kernel.name}: limits of a decode are DecodeLimits, got {type(limits).__name__}")
    return limits


def _problems(kernel: Kernel) -> SearchStrategy[DecodeProblem]:
    return decode_problems(_limits(kernel))


def _invalid_problems(kernel: Kernel) -> SearchStrategy[DecodeProblem]:
    kinds = tuple(kind for kind, needs in DECODE_INVALID.items() if needs in kernel.validates)
    return invalid_decode_problems(_limits(kernel), kinds=kinds)


def _describe(problem: DecodeProblem) -> str:
    from strategies.describe import describe

    return describe(problem)


CONTRACT: Final = Contract(
    name="decode",
    outputs=OUTPUTS,
    problems=_problems,
    invalid_problems=_invalid_problems,
    place=place,
    expect=expect,
    baseline=baseline,
    describe=_describe,
    real_rows=real_rows,
)
