"""Element maps for a terminal: a character per block of elements, in colour where there is colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from mla_verify.maps import STATE_WORDS, ElementMap, State, counts_of, flagged
from mla_verify.reports.pictures import Picture, element_picture, memory_picture, shrunk

__all__ = ["CHARACTERS", "map_lines"]

CHARACTERS: Final = {
    State.SLACK: " ",
    State.KEPT: "'",
    State.FREE: ",",
    State.RIGHT: ".",
    State.NOT_JUDGED: "?",
    State.WRONG: "W",
    State.UNSTEADY: "R",
    State.DEPENDENT: "D",
    State.UNWRITTEN: "U",
    State.STRAY: "S",
}
_STYLES: Final = {
    State.RIGHT: "green",
    State.WRONG: "black on yellow",
    State.UNSTEADY: "black on cyan",
    State.DEPENDENT: "white on magenta",
    State.UNWRITTEN: "white on red",
    State.STRAY: "white on blue",
}
_MOST_ROWS: Final = 16
_FEWEST_COLUMNS: Final = 8
_MOST_MAPS: Final = 2


def map_lines(maps: Sequence[ElementMap], tensor: str, *, width: int) -> list[Text]:
    """The maps that a finding about `tensor` is about, at most `width` characters wide.

    Nothing where a map has one element and no surroundings: the finding itself says as much.
    """
    bad = [one for one in maps if flagged(one) and (len(one.codes) > 1 or one.memory is not None)]
    own = [one for one in bad if one.tensor == tensor]
    return [line for one in (own or bad)[:_MOST_MAPS] for line in _lines(one, width)]


def _lines(element_map: ElementMap, width: int) -> Iterator[Text]:
    picture = memory_picture(element_map) or element_picture(element_map)
    if picture.cells.size == 0:
        return
    height = picture.cells.shape[0]
    label = max(len(picture.row_name(row)) for row in {0, height - 1})
    small = shrunk(picture, rows=_MOST_ROWS, columns=max(width - label - 3, _FEWEST_COLUMNS))
    yield Text(f"map of {picture.title}{_scale(small)}")
    for row, cells in enumerate(small.cells.tolist()):
        line = Text(f"{picture.row_name(row * small.step[0]):>{label}} |")
        for state in map(State, cells):
            line.append(CHARACTERS[state], _STYLES.get(state, "dim"))
        line.append("|")
        yield line
    yield _legend(element_map, small)


def _scale(picture: Picture) -> str:
    rows, columns = picture.step
    if picture.step == (1, 1):
        return ""
    size = f"{rows} row{'s' * (rows > 1)} by {columns} column{'s' * (columns > 1)}"
    return f", one character for {size}, the worst of them shown"


def _legend(element_map: ElementMap, picture: Picture) -> Text:
    """The characters in use and what they mean, with how many elements are in that state."""
    counts = counts_of(element_map)
    shown = {State(int(code)) for code in set(picture.cells.ravel().tolist())} | counts.keys()
    line = Text()
    for state in sorted(shown - {State.SLACK}, reverse=True):
        line.append("  " if line.plain else "")
        line.append(CHARACTERS[state], _STYLES.get(state, "dim"))
        line.append(f" {STATE_WORDS[state]}{f' {counts[state]}' if state in counts else ''}")
    return line
