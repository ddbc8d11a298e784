"""Which sizes are worth drawing: mostly tiny, often beside a multiple of a tile, rarely a model's.

A menu is a tuple to sample from. It shrinks towards its first entry, so 1 comes first and 0, which hides more
than it shows, last. How often an entry stands in a menu is its weight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from hypothesis.errors import InvalidArgument

from strategies.vocabulary import DTYPES

__all__ = [
    "HEADS",
    "LATENT",
    "PAGE_SIZES",
    "QUERY_ROWS",
    "ROPE",
    "SEEDS",
    "SPLITS",
    "TOKENS",
    "VALUE",
    "at_most",
    "check_dtypes",
    "check_limit",
    "check_maximum",
    "check_names",
    "fitted",
    "menu_within",
    "rarely",
]

_TILE_EDGES: Final = (15, 16, 17, 31, 32, 33, 63, 64, 65)  # kernels cut their work in tiles of 16, 32 or 64


def _menu(weights: dict[int, int], *, rare: Iterable[int] = ()) -> tuple[int, ...]:
    """Every size as often as its weight says, ascending, 0 last."""
    sizes = [size for size, weight in weights.items() for _ in range(weight)]
    return tuple(sorted([*sizes, *rare], key=lambda size: (size == 0, size)))


TOKENS: Final = _menu({1: 4, 2: 4, 3: 3, 4: 2, 5: 2}, rare=(6, 7, 8, 9, *_TILE_EDGES, 0))
HEADS: Final = _menu({1: 6, 2: 5, 3: 4, 4: 3, 5: 2, 8: 2, 16: 2}, rare=(6, 7, 9, 15, 17, 31, 33, 64, 128, 0))
LATENT: Final = _menu({1: 3, 2: 3, 3: 3, 4: 2, 5: 2, 8: 2, 0: 2}, rare=(6, 7, 9, *_TILE_EDGES, 127, 128, 129, 512))
VALUE: Final = _menu({1: 3, 2: 3, 3: 3, 4: 2, 5: 2, 8: 2}, rare=(6, 7, 9, *_TILE_EDGES, 127, 128, 129, 0))
# The rope half shrinks to nothing at all: 0 is its plainest size.
ROPE: Final = (0, 0, 0, 1, 1, 2, 2, 3, 4, 5, 8, 15, 16, 17, 64)
PAGE_SIZES: Final = _menu({1: 4, 2: 2, 3: 2, 4: 2, 16: 3, 64: 3}, rare=(5, 7, 8, 12, 17, 24, 32, 33, 48, 63))
# 129 is more than a signed byte holds; one request alone gets as many.
SPLITS: Final = _menu({1: 4, 2: 4, 3: 3, 4: 2, 8: 2, 129: 2}, rare=(5, 7, 16, 33))
QUERY_ROWS: Final = _menu({1: 9, 2: 3, 4: 2}, rare=(3, 5, 7, 8))
SEEDS: Final = range(1024)


def menu_within(menu: tuple[int, ...], allowed: tuple[int, ...] | None) -> tuple[int, ...]:
    """The menu itself where nothing is prescribed, else what is allowed, in the same order of simplicity."""
    if allowed is None:
        return menu
    return tuple(sorted(set(allowed), key=lambda size: (size == 0, size)))


def at_most(menu: tuple[int, ...], maximum: int | None) -> tuple[int, ...]:
    """The menu up to a ceiling, and the ceiling itself."""
    if maximum is None:
        return menu
    kept = [size for size in menu if size <= maximum]
    if maximum <= max(menu):
        kept.append(maximum)
    return tuple(sorted(kept, key=lambda size: (size == 0, size)))


def rarely(
    shapes: tuple[tuple[int, ...], ...], allowed: tuple[tuple[int, ...] | None, ...]
) -> tuple[tuple[int, ...] | None, ...]:
    """Mostly None, and every shape whose sizes are all permitted: one or two in a hundred."""
    permitted = [
        shape
        for shape in shapes
        if all(sizes is None or size in sizes for size, sizes in zip(shape, allowed, strict=True))
    ]
    return (*(None,) * (60 * len(shapes)), *permitted)


def fitted(size: int, ceiling: int, allowed: tuple[int, ...] | None) -> int:
    """`size`, or the largest permitted one up to `ceiling`; the smallest of all where none is."""
    if size <= ceiling:
        return size
    if allowed is None:
        return max(1, ceiling)
    return max((other for other in allowed if other <= ceiling), default=min(allowed))


def check_limit(name: str, allowed: tuple[int, ...] | None, *, minimum: int) -> None:
    """A prescribed tuple of sizes must hold at least one, all of them ints of at least `minimum`."""
    if allowed is None:
        return
    if not isinstance(allowed, tuple) or not allowed:  # pyright: ignore[reportUnnecessaryIsInstance]  limits come from users
        raise InvalidArgument(f"{name}={allowed!r}: wanted a tuple of at least one size, or None")
    for size in allowed:
        if type(size) is not int or size < minimum:
            raise InvalidArgument(f"{name}={allowed!r}: wanted sizes of at least {minimum}, got {size!r}")


def check_maximum(name: str, maximum: int | None) -> None:
    """A ceiling is an int of at least 1: below that nothing is left to draw."""
    if maximum is not None and (type(maximum) is not int or maximum < 1):
        raise InvalidArgument(f"{name}={maximum!r}: wanted an int of at least 1, or None")


def check_names(name: str, got: Collection[str], known: Collection[str], *, empty: bool = False) -> None:
    """Names must be known ones, and at least one unless `empty`."""
    if isinstance(got, str) or not (got or empty):
        raise InvalidArgument(f"{name}={got!r}: wanted at least one of {', '.join(known)}")
    for word in got:
        if word not in known:
            raise InvalidArgument(f"{name}: unknown {word!r}, wanted some of {', '.join(known)}")


def check_dtypes(dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """The dtypes in the order in which problems shrink: float32 first."""
    check_names("dtypes", dtypes, DTYPES)
    return tuple(dtype for dtype in DTYPES if dtype in dtypes)
