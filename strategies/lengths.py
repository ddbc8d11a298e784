"""Lengths of requests beside the boundaries of pages and splits, said without knowing the page size yet.

Page size and split count are drawn beside the lengths, so that each can shrink alone.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

__all__ = ["LENGTHS", "Length", "keys_in"]

Unit = Literal["keys", "pages", "splits", "pages in every split"]


class Length(NamedTuple):
    """So many units and so many keys more or fewer."""

    unit: Unit
    times: int
    delta: int = 0


def _around(unit: Unit, times: int) -> tuple[Length, ...]:
    return (Length(unit, times), Length(unit, times, 1), Length(unit, times, -1))


# Plain numbers of keys first: a failure that has nothing to do with a boundary shrinks to one of them. 513 is one more
# than a capacity that kernels like.
LENGTHS: Final[tuple[Length, ...]] = (
    *(Length("keys", times) for times in (1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 65, 129, 513, 513)),
    *(length for times in (1, 1, 2, 3, 4) for length in _around("pages", times)),
    *(length for times in (1, 2, 3) for length in _around("splits", times)),
    *_around("pages in every split", 1),
    *(Length("keys", 0),) * 3,
)


def keys_in(length: Length, *, page_size: int, num_kv_splits: int) -> int:
    """How many keys a length is, once its units are known."""
    unit = {
        "keys": 1,
        "pages": page_size,
        "splits": num_kv_splits,
        "pages in every split": page_size * num_kv_splits,
    }[length.unit]
    return max(0, unit * length.times + length.delta)
