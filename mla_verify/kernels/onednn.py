"""What is wrong with oneDNN's bfloat16 matrix multiplication, which torch.bmm runs on CPUs with AMX."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import torch

from mla_verify.kernel import KnownDeviation
from strategies.problems import UpProjectionProblem

__all__ = ["AMX_DIVIDES_BY_STRIDE", "AMX_SPREADS_INFINITY"]

_TILE_ROWS: Final = 16  # rows of an AMX tile; one tile alone is right
_SMALLEST: Final = 16**3  # torch hands smaller products to a loop of its own


@lru_cache(maxsize=1)
def _has_amx() -> bool:
    """Whether torch can use AMX here; taken for true where this torch cannot tell."""
    tell: Callable[[], bool] = getattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    return tell()


def _takes_amx(problem: UpProjectionProblem) -> bool:
    size = problem.num_heads * problem.num_tokens * problem.kv_lora_rank * problem.v_head_dim
    return problem.dtype == "bfloat16" and size > _SMALLEST and _has_amx()


def _may_spread(problem: UpProjectionProblem) -> bool:
    """The problems in which it was seen: infinities are drawn in the special regime only."""
    return (
        problem.regime == "special"
        and problem.invalid is None
        and problem.num_tokens > _TILE_ROWS
        and problem.kv_lora_rank % 4 != 0
        and _takes_amx(problem)
    )


def _divides_by_0(problem: UpProjectionProblem) -> bool:
    return problem.invalid == "out_stride_0" and _takes_amx(problem)


# Seen with torch 2.13.0 for odd sums from 3 on, and above 32 also for twice an odd number; never with
# ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16. Rows end inside a tile there, whose rest is filled from the next row and
# multiplied by zeros: 0 times infinity. What lies behind the last row is not read.
AMX_SPREADS_INFINITY: Final = KnownDeviation(
    clause="agreement",
    problems=_may_spread,
    reason=(
        "oneDNN's AMX kernels multiply the elements behind the end of a row by 0 instead of leaving them out: an "
        "infinity in one token turns finite results of another into NaN"
    ),
)

# Seen with torch 2.13.0 at every size above the smallest, where x and the weight lie as oneDNN takes them; never with
# ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16.
AMX_DIVIDES_BY_STRIDE: Final = KnownDeviation(
    clause="survival",
    problems=_divides_by_0,
    reason="oneDNN's AMX kernels divide by the stride of the output's rows: where it is 0 the process dies of SIGFPE",
)
