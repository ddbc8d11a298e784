"""Rare properties of a decode problem: it has a few of them at once, and loses each one alone as it shrinks.

Hypothesis draws four slots. A slot is empty or names one field and its value, so that a failure which needs
one quirk keeps exactly that one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from strategies.layout_menus import PLANE_KINDS, TABLE_KINDS, kinds_for
from strategies.limits import DecodeLimits

__all__ = ["MANY_REQUESTS", "NO_REQUESTS", "SLOTS", "Quirk", "quirks_within"]

Quirk: TypeAlias = "tuple[str, int | str | bool]"

SLOTS: Final = 4
NO_REQUESTS: Final = "none"
MANY_REQUESTS: Final = "many"


def quirks_within(limits: DecodeLimits) -> tuple[Quirk | None, ...]:
    """The slots' menu: nothing first, then field by field. How often a field stands in it is its weight."""
    fields: list[Iterable[Quirk]] = [
        _values("out_form", "owner", times=6),
        _values("page_order", "descending", "shuffled", times=4),
        _values("foreign_pages", 2, 3, 4, times=2),
        _values("table_slack", 1, 2, 5, times=2),
        _values("index_tail", 1, 2, 5, times=2),
    ]
    if limits.lse == "optional":
        fields.append(_values("with_lse", False, times=5))
    if limits.lse != "never":
        kinds = kinds_for(PLANE_KINDS, packed="lse" in limits.packed)
        fields.append(_values("lse_kind", *kinds[1:], times=3))
    if limits.padding_rows:
        fields.append(_values("padding_rows", 1, 2, 3, 5, times=2))
    if "cache" not in limits.packed:
        fields.append(_values("page_pad", 1, 3, 8, times=2))
    if not limits.aligned:
        fields.append(_values("cache_offset", 1, 2, 3, times=2))
    if "tables" not in limits.packed:
        fields.append(_values("table_kind", *TABLE_KINDS[1:], times=4))
    fields.append(_values("requests", MANY_REQUESTS, NO_REQUESTS, times=1))
    menu = [quirk for values in fields for quirk in values]
    return (*(None,) * (len(menu) // 10), *menu)


def _values(field: str, *values: int | str | bool, times: int) -> list[Quirk]:
    return [(field, value) for value in values for _ in range(times)]
