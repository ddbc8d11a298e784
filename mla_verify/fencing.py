"""Which problems are run between fences, and on which side of their tensors."""

from __future__ import annotations

from typing import Any, Final, Literal

from mla_verify.kernel import Kernel, limits_of
from sanitizer.fences import Fence

__all__ = ["fence_of"]

# By the problem's seed: free to be drawn and to shrink whatever the sizes are. One problem in three has guards instead,
# which show what a stray write hits and spare neither offsets nor outputs with a storage of their own.
_SIDES: Final[tuple[Literal["after", "before"] | None, ...]] = ("after", "before", None)
_ALIGNED_BYTES: Final = 16
# A declared deviation under one of these may reach for a fence, and would come out as another clause.
_SEEN_BY_GUARDS: Final = frozenset({"containment", "independence"})


def fence_of(problem: Any, kernel: Kernel) -> Fence | None:
    """The fence around every tensor of `problem`; the same problem always has the same. None: guards only.

    Invalid problems have none: what a kernel that accepts one does to its neighbours belongs to `refusal`.
    """
    side = _SIDES[problem.seed % len(_SIDES)]
    if side is None or problem.invalid is not None or _deviates(problem, kernel):
        return None
    return Fence(side, _ALIGNED_BYTES if limits_of(kernel).aligned else 1)


def _deviates(problem: Any, kernel: Kernel) -> bool:
    """Whether a known deviation at this problem concerns memory outside of tensors."""
    return any(known.clause in _SEEN_BY_GUARDS and known.problems(problem) for known in kernel.known_deviations)
