"""What a kernel declares, in the words that stand beside its verdict."""

from __future__ import annotations

from mla_verify.kernel import Arithmetic, Kernel

__all__ = ["declarations_of"]

_DEFAULT = Arithmetic()
_ARITHMETIC = ("accumulate", "multiply", "probabilities", "partials", "subnormals", "normalise")


def declarations_of(kernel: Kernel) -> tuple[str, ...]:
    """What the caller has to know: rows that no key or request decides, and arithmetic other than the default."""
    words: list[str] = []
    if kernel.contract == "decode":
        words += [
            f"empty_rows={kernel.empty_rows}",
            f"empty_lse={kernel.empty_lse}",
            f"padding_rows={kernel.padding_rows}",
        ]
    words += [
        f"{name}={getattr(kernel.arithmetic, name)}"
        for name in _ARITHMETIC
        if getattr(kernel.arithmetic, name) != getattr(_DEFAULT, name)
    ]
    if not kernel.deterministic:
        words.append("non-deterministic")
    return tuple(words)
