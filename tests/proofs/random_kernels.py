"""Small affine kernels at random, each as Triton source and as plain arithmetic, which brute force evaluates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from mla_verify.proofs import Layout, Proof

__all__ = ["Recipe", "Truth", "brute_force", "proof_of", "recipes", "source_of"]

_LARGEST: Final = 20  # brute force tries all sizes up to it


@dataclass(frozen=True, slots=True)
class Recipe:
    """A tiled store of an [M, N] output: how tiles follow from the program id, and what bounds them."""

    rows: int  # of a tile
    columns: int
    order: str  # "row major", "column major", "two axes"
    counted_by: str  # "ceiling", "floor", "ceiling + 1": tiles along each axis, in the grid and in the order
    row_shift: int
    column_factor: int  # columns that neighbouring tiles are apart, in tiles times 2
    row_limit: int  # added to M in the mask
    column_limit: int
    loops: bool  # tiles along N in a loop of each program instead
    skips: bool  # a branch that leaves out the programs of the first row of tiles

    @property
    def apart(self) -> int:
        """Columns between the starts of neighbouring tiles."""
        return max(1, self.columns * self.column_factor // 2)


@dataclass(frozen=True, slots=True)
class Truth:
    """What a launch at one pair of sizes does."""

    covered: bool
    contained: bool
    alone: bool  # no element is stored by two programs, or by two lanes of one store


_ODD: Final = st.sampled_from([0, 0, 0, 0, 1, -1])

recipes = st.builds(
    Recipe,
    rows=st.sampled_from([1, 2, 4]),
    columns=st.sampled_from([2, 4, 8]),
    order=st.sampled_from(["row major", "column major", "two axes"]),
    counted_by=st.sampled_from(["ceiling", "ceiling", "ceiling", "floor", "ceiling + 1"]),
    row_shift=st.sampled_from([0, 0, 0, 1]),
    column_factor=st.sampled_from([2, 2, 2, 1, 3]),
    row_limit=_ODD,
    column_limit=_ODD,
    loops=st.booleans(),
    skips=st.sampled_from([False, False, False, True]),
)


def _count(recipe: Recipe, size: str, tile: int) -> str:
    ceiling = f"({size} + {tile - 1}) // {tile}"
    return {"ceiling": ceiling, "floor": f"{size} // {tile}", "ceiling + 1": f"{ceiling} + 1"}[recipe.counted_by]


def source_of(recipe: Recipe, name: str) -> str:
    """The kernel in Triton."""
    down, across = _count(recipe, "M", recipe.rows), _count(recipe, "N", recipe.columns)
    if recipe.loops:
        tile = ["    tm = tl.program_id(0)"]
    elif recipe.order == "two axes":
        tile = ["    tm = tl.program_id(0)", "    tn = tl.program_id(1)"]
    elif recipe.order == "row major":
        tile = ["    tm = tl.program_id(0) // across", "    tn = tl.program_id(0) % across"]
    else:
        tile = ["    tm = tl.program_id(0) % down", "    tn = tl.program_id(0) // down"]
    body = [
        f"rm = tm * {recipe.rows} + tl.arange(0, {recipe.rows}) + {recipe.row_shift}",
        f"rn = tn * {recipe.apart} + tl.arange(0, {recipe.columns})",
        f"mask = (rm[:, None] < M + {recipe.row_limit}) & (rn[None, :] < N + {recipe.column_limit})",
        "at = C + rm[:, None] * sm + rn[None, :] * sn",
        f"tl.store(at, tl.zeros(({recipe.rows}, {recipe.columns}), tl.float32), mask)",
    ]
    if recipe.skips:
        body = ["if tm > 0:", *(f"    {line}" for line in body)]
    if recipe.loops:
        body = ["for tn in range(0, across):", *(f"    {line}" for line in body)]
    lines = ["@triton.jit", f"def {name}(C, M, N, sm, sn):", f"    down = {down}", f"    across = {across}", *tile]
    return "\n".join([*lines, *(f"    {line}" for line in body), ""])


def proof_of(recipe: Recipe, kernel: str) -> Proof:
    """Its declaration."""
    down, across = _count(recipe, "M", recipe.rows), _count(recipe, "N", recipe.columns)
    grid = (f"({down}) * ({across})",)
    if recipe.loops:
        grid = (down,)
    elif recipe.order == "two axes":
        grid = (down, across)
    layout = Layout("C", ("M", "N"), ("sm", "sn"), output=True)
    return Proof(kernel.rpartition(":")[2], kernel, {"C": "fp32"}, ({},), grid, (layout,))


def brute_force(recipe: Recipe, rows: int, columns: int) -> Truth:
    """Every program and lane at one pair of sizes, by numpy alone."""
    tiles_down, tiles_across = (
        _tiles(recipe, size, tile) for size, tile in ((rows, recipe.rows), (columns, recipe.columns))
    )
    tm, tn = np.meshgrid(np.arange(max(tiles_down, 0)), np.arange(max(tiles_across, 0)), indexing="ij")
    owner = tm if recipe.loops else tm * max(tiles_across, 1) + tn
    lanes_m, lanes_n = np.arange(recipe.rows), np.arange(recipe.columns)
    rm = (tm[..., None, None] * recipe.rows + lanes_m[:, None] + recipe.row_shift) + 0 * lanes_n
    rn = (tn[..., None, None] * recipe.apart + lanes_n) + 0 * lanes_m[:, None]
    live = (rm < rows + recipe.row_limit) & (rn < columns + recipe.column_limit)
    if recipe.skips:
        live &= tm[..., None, None] > 0
    owners = np.broadcast_to(owner[..., None, None], live.shape)[live]
    return _truth(rm[live], rn[live], owners, rows, columns)


def _tiles(recipe: Recipe, size: int, tile: int) -> int:
    ceiling = -(-size // tile)
    return {"ceiling": ceiling, "floor": size // tile, "ceiling + 1": ceiling + 1}[recipe.counted_by]


def _truth(rm: NDArray[np.int64], rn: NDArray[np.int64], owners: NDArray[np.int64], rows: int, columns: int) -> Truth:
    inside = (rm >= 0) & (rm < rows) & (rn >= 0) & (rn < columns)
    # By address in a layout whose gaps are wider than any overshoot, so that two indices never share one.
    places = rm * 1000 + rn
    stored = {int(place) for place in places[inside]}
    pairs = {(int(place), int(owner)) for place, owner in zip(places, owners, strict=True)}
    return Truth(
        covered=len(stored) == rows * columns,
        contained=bool(inside.all()),
        alone=len(pairs) == len({place for place, _ in pairs}),
    )


def all_sizes() -> list[tuple[int, int]]:
    """Every pair of sizes that brute force tries."""
    return [(rows, columns) for rows in range(_LARGEST + 1) for columns in range(_LARGEST + 1)]
