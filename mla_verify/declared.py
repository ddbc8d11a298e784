"""What a kernel declares, in the words that stand beside its verdict."""

from __future__ import annotations

from dataclasses import fields

from mla_verify.kernel import LIMITS, Arithmetic, Kernel

__all__ = ["declarations_of"]

_DEFAULT = Arithmetic()
_ARITHMETIC = ("accumulate", "multiply", "probabilities", "partials", "subnormals", "normalise", "dequantise")


def declarations_of(kernel: Kernel) -> tuple[str, ...]:
    """What the caller has to know: limits, rows that no key or request decides, arithmetic other than the default."""
    words = _limits(kernel)
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
    if kernel.consumers:
        words.append(f"consumers={'/'.join(kernel.consumers)}")
    if not kernel.deterministic:
        words.append("non-deterministic")
    return tuple(words)


def _limits(kernel: Kernel) -> list[str]:
    """The limits that a kernel declares: a verdict says nothing about problems beyond them."""
    plain = LIMITS[kernel.contract]()
    limits = kernel.limits or plain
    declared = [(one.name, getattr(limits, one.name)) for one in fields(plain)]
    return [f"{name}={_short(value)}" for name, value in declared if value != getattr(plain, name)]


def _short(value: object) -> str:
    if isinstance(value, (tuple, frozenset)):
        return "/".join(map(str, sorted(value, key=str) if isinstance(value, frozenset) else value))
    return str(value)
