"""Small kernels whose results say whether the interpreter reads Python's syntax as Triton's compiler does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["agrees_with_triton", "both_and_either", "chained", "counted", "negated", "wrapped"]

# Stands for triton.language from the first probe on: kernels read it as a global of their module.
tl: Any = None

Kernel = Callable[[Any, Any], None]


def negated(numbers: Any, out: Any) -> None:
    """`not` of a block: element by element."""
    lanes = tl.arange(0, 4)
    small = tl.load(numbers + lanes) < 2
    tl.store(out + lanes, tl.where(not small, 1, 0))


def both_and_either(numbers: Any, out: Any) -> None:
    """`and` and `or` of blocks: element by element."""
    lanes = tl.arange(0, 4)
    held = tl.load(numbers + lanes)
    tl.store(out + lanes, tl.where((held > 0 and held < 3) or held == 3, 1, 0))


def chained(numbers: Any, out: Any) -> None:
    """A chain of comparisons: both of them, element by element."""
    lanes = tl.arange(0, 4)
    held = tl.load(numbers + lanes)
    tl.store(out + lanes, tl.where(0 < held < 3, 1, 0))


def counted(numbers: Any, out: Any) -> None:
    """A loop as often as a loaded number says; NumPy 2.4 no longer takes an array of one for a number."""
    lanes = tl.arange(0, 4)
    total = tl.load(numbers + lanes) * 0
    for step in range(0, tl.load(numbers + 3)):
        total += step + 1
    tl.store(out + lanes, total)


def wrapped(numbers: Any, out: Any) -> None:
    """A sum that int32 does not hold: it wraps around, and nothing is raised."""
    lanes = tl.arange(0, 4)
    tl.store(out + lanes, tl.load(numbers + lanes) + 2147483646)


_WANTED: dict[Kernel, list[int]] = {
    negated: [0, 0, 1, 1],
    both_and_either: [0, 1, 1, 1],
    chained: [0, 1, 1, 0],
    counted: [6, 6, 6, 6],
    wrapped: [2147483646, 2147483647, -2147483648, -2147483647],
}


def agrees_with_triton(interpreter: Any, probe: Kernel) -> bool:
    """Whether `probe`, interpreted, computes what a compiled Triton kernel would."""
    global tl  # noqa: PLW0603 - an interpreted kernel finds triton.language among its module's globals
    import triton.language

    tl = triton.language
    numbers, out = torch.arange(4, dtype=torch.int32), torch.full((4,), -1, dtype=torch.int32)
    rewritten: dict[Any, Any] = interpreter.InterpretedFunction.rewritten_fn
    rewritten.pop(probe, None)  # rewritten anew, by the transformer that is in place now
    interpreter.InterpretedFunction(probe)[(1,)](numbers, out)
    rewritten.pop(probe, None)
    return out.tolist() == _WANTED[probe]
