"""Element maps for the page: an image that needs no script, and the data that a pointer over it is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mla_verify.maps import STATE_WORDS, ElementMap, State, counts_of, flagged
from mla_verify.reports.colours import STATE_COLOURS, data_uri, png_of, program_colours
from mla_verify.reports.pictures import Picture, element_picture, memory_picture, program_picture, shrunk

__all__ = ["PageMap", "Swatch", "island", "page_maps"]

_MOST_ROWS: Final = 256
_MOST_COLUMNS: Final = 1024
_MOST_RUNS: Final = 20_000  # of equal cells; what a picture costs on the page
_MOST_VALUES: Final = 400  # elements in numbers, per map
_WIDE: Final = 720  # pixels that a picture is meant to take
_HIGH: Final = 220
_LARGEST_CELL: Final = 24


@dataclass(frozen=True, slots=True)
class Swatch:
    """A colour and what it means."""

    colour: str
    words: str


@dataclass(frozen=True, slots=True)
class PageMap:
    """One picture with its legend. data: JSON for the script; the facts are in `title`, `legend` and `image`."""

    title: str
    remark: str
    image: str
    width: int
    height: int
    legend: tuple[Swatch, ...]
    data: dict[str, Any]


def page_maps(maps: Sequence[ElementMap], tensor: str) -> list[PageMap]:
    """The pictures of a finding about `tensor`: its memory where something beside it was hit, elements, programs."""
    bad = [one for one in maps if flagged(one)]
    return [page_map for one in [one for one in bad if one.tensor == tensor] or bad for page_map in _pictures(one)]


def island(data: Any) -> str:
    """JSON that may stand in a script element: no character in it can end the element or begin another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _pictures(element_map: ElementMap) -> list[PageMap]:
    counts = counts_of(element_map)
    legend = tuple(
        Swatch(STATE_COLOURS[state], f"{STATE_WORDS[state]} {count}")
        for state, count in counts.items()
        if state != State.SLACK
    )
    made: list[PageMap] = []
    memory = memory_picture(element_map)
    if memory is not None:
        slack = Swatch(STATE_COLOURS[State.SLACK], STATE_WORDS[State.SLACK])
        begin = _first_place(element_map, memory)
        made.append(_page_map(memory, {"kind": "memory", "begin": begin}, (*legend, slack), ""))
    elements = element_picture(element_map)
    if elements.cells.size:
        values = {str(value.place): list(value[1:]) for value in element_map.values[:_MOST_VALUES]}
        data: dict[str, Any] = {"kind": "elements", "shape": list(element_map.shape), "values": values}
        made.append(_page_map(elements, data, legend, element_map.remark))
    programs = program_picture(element_map)
    if programs is not None and programs.cells.size:
        made.append(_program_map(element_map, programs))
    return made


def _page_map(picture: Picture, data: dict[str, Any], legend: tuple[Swatch, ...], remark: str) -> PageMap:
    small = _small_enough(picture)
    colours = [STATE_COLOURS[state] for state in State]
    words = [STATE_WORDS[state] for state in State]
    return _drawn(small, small.cells, colours, {**data, "words": words}, legend, remark)


def _program_map(element_map: ElementMap, picture: Picture) -> PageMap:
    small = _small_enough(picture)
    colours = program_colours()
    names = ["no program", *element_map.program_names]
    folded = np.where(small.cells == 0, 0, (small.cells - 1) % (len(colours) - 1) + 1)
    shown = element_map.program_names[:8]
    legend = [Swatch(colours[number % len(colours)], name) for number, name in enumerate(shown, start=1)]
    if len(element_map.program_names) > len(shown):
        legend.append(Swatch(colours[0], f"{len(element_map.program_names) - len(shown)} more programs"))
    data = {"kind": "programs", "shape": list(element_map.shape), "words": names, "values": {}}
    return _drawn(small, folded, colours, data, tuple(legend), "")


def _drawn(
    picture: Picture,
    coloured: npt.NDArray[Any],  # [rows, columns] the place of each cell's colour
    colours: list[str],
    data: dict[str, Any],
    legend: tuple[Swatch, ...],
    remark: str,
) -> PageMap:
    rows, columns = picture.cells.shape
    scale = "" if picture.step == (1, 1) else f"; a cell is {picture.step[0]} rows by {picture.step[1]} columns"
    whole = {
        **data,
        "rows": rows,
        "columns": columns,
        "step": list(picture.step),
        "runs": _runs(picture.cells),
    }
    return PageMap(
        picture.title + scale,
        remark,
        data_uri(png_of(coloured, colours)),
        columns * max(1, min(_LARGEST_CELL, _WIDE // columns)),
        rows * max(1, min(_LARGEST_CELL, _HIGH // rows)),
        legend,
        whole,
    )


def _small_enough(picture: Picture) -> Picture:
    """The picture with as many cells as the page can bear."""
    rows, columns = _MOST_ROWS, _MOST_COLUMNS
    small = shrunk(picture, rows=rows, columns=columns)
    while _count_runs(small.cells) > _MOST_RUNS:
        rows, columns = max(rows // 2, 1), max(columns // 2, 1)
        small = shrunk(picture, rows=rows, columns=columns)
    return small


def _count_runs(cells: npt.NDArray[Any]) -> int:
    flat = cells.ravel()
    return 1 + int(np.count_nonzero(flat[1:] != flat[:-1]))


def _runs(cells: npt.NDArray[Any]) -> list[int]:
    """Cells, row-major, as pairs of what they hold and how often in a row."""
    flat = cells.ravel()
    begins = np.concatenate(([0], np.flatnonzero(flat[1:] != flat[:-1]) + 1))
    lengths = np.diff(np.concatenate((begins, [flat.size])))
    return np.column_stack((flat[begins].astype(np.int64), lengths)).ravel().tolist()


def _first_place(element_map: ElementMap, picture: Picture) -> int:
    """Where the tensor's first element is among the cells of its memory."""
    assert element_map.memory is not None
    width = picture.cells.shape[1]
    return element_map.memory.first + -element_map.memory.first % width
