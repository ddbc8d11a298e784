"""Finds which operations of the installed Triton's interpreter are wrong, and mends just those for a while."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sanitizer.triton import arithmetic, conversions, probes, shortcuts, syntax
from sanitizer.triton.patching import Patches

__all__ = ["MENDS", "Mend", "active_mends", "mended", "needed"]


@dataclass(frozen=True, slots=True)
class Mend:
    """One operation that some Triton's interpreter gets wrong.

    right: whether the interpreter gets it right by itself; raising counts as wrong.
    apply: puts the right operation in its place.
    """

    name: str
    right: Callable[[Any], bool]
    apply: Callable[[Any, Patches], None]


MENDS: Final = (
    Mend(
        "scalars as Python integers",
        lambda interpreter: probes.agrees_with_triton(interpreter, probes.counted),
        syntax.mend_integers,
    ),
    Mend("rounding to bfloat16", conversions.rounds_to_bfloat16, conversions.mend_bfloat16),
    Mend("conversions of fp8", conversions.converts_fp8, conversions.mend_fp8),
    Mend("casts to bfloat16", conversions.casts_to_bfloat16, conversions.mend_casts),
    Mend("bfloat16 constants", conversions.makes_bfloat16, conversions.mend_constants),
    Mend("binary operations on bfloat16", arithmetic.binary_is_right, arithmetic.mend_binary),
    Mend("unary operations on bfloat16", arithmetic.unary_is_right, arithmetic.mend_unary),
    Mend("ternary operations on bfloat16", arithmetic.ternary_is_right, arithmetic.mend_ternary),
    Mend("dot of bfloat16", arithmetic.dot_is_right, arithmetic.mend_dot),
    Mend("reductions and scans of bfloat16", arithmetic.reductions_are_right, arithmetic.mend_reductions),
    Mend(
        "not of a block",
        lambda interpreter: probes.agrees_with_triton(interpreter, probes.negated),
        lambda interpreter, patches: _mend_syntax(interpreter, patches, "visit_UnaryOp"),
    ),
    Mend(
        "and, or of blocks",
        lambda interpreter: probes.agrees_with_triton(interpreter, probes.both_and_either),
        lambda interpreter, patches: _mend_syntax(interpreter, patches, "visit_BoolOp"),
    ),
    Mend(
        "chained comparison of blocks",
        lambda interpreter: probes.agrees_with_triton(interpreter, probes.chained),
        lambda interpreter, patches: _mend_syntax(interpreter, patches, "visit_Compare"),
    ),
)

# Whatever an operation that does not work may raise; an error of any other kind is not the interpreter's.
_REFUSALS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

_found: tuple[Mend, ...] | None = None
_depth = 0
# Kernels rewritten by the mended transformer, kept apart from those that the stock one rewrote.
_rewritten: dict[Any, Any] = {}


@contextlib.contextmanager
def mended() -> Generator[tuple[str, ...], None, None]:
    """Interpreted kernels compute as compiled ones do within this context; yields the names of the active mends.

    Raises ImportError without Triton. Contexts may be nested; what was there before comes back with the outermost.
    """
    global _depth  # noqa: PLW0603 - the interpreter is one per process, and so is its state
    interpreter = importlib.import_module("triton.runtime.interpreter")
    mends = _needed_here(interpreter)
    with Patches() if _depth == 0 else contextlib.nullcontext() as patches:
        if patches is not None:
            for mend in mends:
                mend.apply(interpreter, patches)
            shortcuts.shorten(interpreter, patches)
        _depth += 1
        try:
            yield tuple(mend.name for mend in mends)
        finally:
            _depth -= 1


def active_mends() -> tuple[str, ...]:
    """Names of the mends that the installed Triton needs, for reports. Raises ImportError without Triton."""
    return tuple(mend.name for mend in _needed_here(importlib.import_module("triton.runtime.interpreter")))


def needed(interpreter: Any) -> tuple[Mend, ...]:
    """The mends of operations that `interpreter` gets wrong; those it gets right are left alone."""
    return tuple(mend for mend in MENDS if not _is_right(mend, interpreter))


def _needed_here(interpreter: Any) -> tuple[Mend, ...]:
    global _found  # noqa: PLW0603 - looked for once per process
    if _found is None:
        _found = needed(interpreter)
    return _found


def _is_right(mend: Mend, interpreter: Any) -> bool:
    try:
        with np.errstate(all="ignore"):
            return bool(mend.right(interpreter))
    except (*_REFUSALS, interpreter.InterpreterError):
        return False


def _mend_syntax(interpreter: Any, patches: Patches, visitor: str) -> None:
    for name, helper in syntax.HELPERS.items():
        patches.set(interpreter, name, helper)
    patches.set(interpreter.ASTTransformer, visitor, getattr(syntax, visitor))
    patches.set(interpreter.InterpretedFunction, "rewritten_fn", _rewritten)
