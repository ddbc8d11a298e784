"""A kernel as a user asks for it: some of its dtypes only, or without excuse for its known deviations."""

from __future__ import annotations

from dataclasses import replace

from mla_verify.errors import UsageError
from mla_verify.kernel import Kernel, limits_of

__all__ = ["narrowed"]


def narrowed(kernel: Kernel, *, dtypes: tuple[str, ...], known_excused: bool) -> Kernel:
    """The same kernel, of whose dtypes only these are drawn (all where none is named).

    known_excused: whether its known deviations are excused. Raises UsageError for a dtype that it does not support.
    """
    limits = limits_of(kernel)
    for dtype in dtypes:
        if dtype not in limits.dtypes:
            raise UsageError(f"{kernel.name} does not support dtype {dtype!r}; it supports {', '.join(limits.dtypes)}")
    if dtypes:
        kernel = replace(kernel, limits=replace(limits, dtypes=dtypes))
    return kernel if known_excused else replace(kernel, known_deviations=())
