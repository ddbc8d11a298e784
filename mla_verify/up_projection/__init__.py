"""The contract of the up-projection: out[t, h] = x[t, h] @ w_uv[h], written in place.

Here belong its tensors, its oracle, the bound around the oracle's answer and the zero-filled copy baseline.
"""

from __future__ import annotations

from typing import Final

from hypothesis.strategies import SearchStrategy

from mla_verify.contract import Contract
from mla_verify.kernel import Kernel, limits_of
from mla_verify.up_projection.baseline import baseline
from mla_verify.up_projection.expectation import expect
from mla_verify.up_projection.tensors import place
from strategies.describe import describe
from strategies.invalid import UP_PROJECTION_INVALID
from strategies.limits import UpProjectionLimits
from strategies.problems import UpProjectionProblem
from strategies.up_projection import invalid_up_projection_problems, up_projection_problems

__all__ = ["CONTRACT"]


def _limits(kernel: Kernel) -> UpProjectionLimits:
    """What may be drawn for a kernel, its preconditions obeyed."""
    limits = limits_of(kernel)
    if not isinstance(limits, UpProjectionLimits):
        got = type(limits).__name__
        raise TypeError(f"{kernel.name}: limits of an up-projection are UpProjectionLimits, got {got}")
    return limits


def _problems(kernel: Kernel) -> SearchStrategy[UpProjectionProblem]:
    return up_projection_problems(_limits(kernel))


def _invalid_problems(kernel: Kernel) -> SearchStrategy[UpProjectionProblem]:
    kinds = tuple(kind for kind, needs in UP_PROJECTION_INVALID.items() if needs in kernel.validates)
    return invalid_up_projection_problems(_limits(kernel), kinds=kinds)


CONTRACT: Final = Contract(
    name="up-projection",
    outputs=("out",),
    problems=_problems,
    invalid_problems=_invalid_problems,
    place=place,
    expect=expect,
    baseline=baseline,
    describe=describe,
)
