"""Cuts the history of a process down to the fewest problems after which another one still goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["shortened"]


def shortened(
    history: Sequence[Any], breaks: Callable[[Sequence[Any]], bool], *, is_over: Callable[[], bool]
) -> list[Any] | None:
    """The fewest of `history`, in their order, with which `breaks` holds; None where it does not even with all of them.

    No single one of them can be left out, unless `is_over` has ended the search early. What came last is tried first:
    a culprit is seldom far away.
    """
    left = _suffix(history, breaks, is_over)
    if left is None:
        return None
    size = max(1, len(left) // 2)
    while left and not is_over():
        left, removed = _without_chunks(left, size, breaks, is_over)
        if size == 1 and not removed:
            return left
        size = max(1, min(size // 2, len(left) // 2))
    return left


def _suffix(
    history: Sequence[Any], breaks: Callable[[Sequence[Any]], bool], is_over: Callable[[], bool]
) -> list[Any] | None:
    """The shortest of the suffixes of 1, 2, 4, … problems that breaks; None where none does or the time is up."""
    length = 1
    while history and not is_over():
        suffix = list(history[-length:])
        if breaks(suffix):
            return suffix
        if length >= len(history):
            return None
        length *= 2
    return None


def _without_chunks(
    problems: list[Any], size: int, breaks: Callable[[Sequence[Any]], bool], is_over: Callable[[], bool]
) -> tuple[list[Any], bool]:
    """`problems` without every chunk of `size` that is not needed, and whether there was one."""
    removed, end = False, len(problems)
    while end > 0 and not is_over():
        start = max(0, end - size)
        fewer = problems[:start] + problems[end:]
        if breaks(fewer):
            problems, removed = fewer, True
        end = start
    return problems, removed
