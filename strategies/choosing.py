"""Choices that Hypothesis keeps apart, so that each example differs from its neighbours in everything.

Note [Distinct labels]. After each example Hypothesis tries up to five mutations of it, which copy one span of
choices over another with the same label and keep the rest. The label of `sampled_from` is a hash of its
elements: two menus that are equal are the same to it. In a problem of twenty independent fields such a
mutation changes one of them and repeats nineteen: up to five of six decode problems were near-copies of their
neighbours, and 500 of 2,000 equalled an earlier one (10 do now). A choice therefore carries the name of its
field, and no two share a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

__all__ = ["Choice", "choice", "made_by", "several"]

Choice: TypeAlias = "tuple[str, Any]"
L = TypeVar("L")  # the limits
P = TypeVar("P")  # the problem


def choice(field: str, menu: Iterable[object]) -> SearchStrategy[Choice]:
    """The field's name and one entry of the menu. Shrinks towards the first entry."""
    return st.sampled_from(tuple((field, entry) for entry in menu))


@st.composite
def several(draw: DrawFn, field: str, count: SearchStrategy[Choice], items: Sequence[SearchStrategy[Any]]) -> Choice:
    """The field's name and as many of `items` as `count` says.

    When the count shrinks by one, Hypothesis tries to leave out each item in turn.
    """
    _, how_many = draw(count)
    return field, [draw(item) for item in items[:how_many]]


def made_by(
    make: Callable[[L, tuple[Choice, ...]], P], limits: L, choices: SearchStrategy[tuple[Choice, ...]]
) -> SearchStrategy[P]:
    """What `make` turns the choices into, under a name that fits on a line: the menus would fill pages."""

    @st.composite
    def problems(draw: DrawFn, limits: L) -> P:
        return make(limits, draw(choices))

    return problems(limits)
