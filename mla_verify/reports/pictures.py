"""Element maps as pictures: rows and columns of states, small enough for where they are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mla_verify.maps import ElementMap

__all__ = ["Picture", "element_picture", "memory_picture", "pictures_of", "program_picture", "shrunk"]


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A map laid out. `row_name` names a row by its number; `step` says how many rows and columns a cell stands for."""

    title: str
    cells: npt.NDArray[Any]  # [rows, columns]
    row_name: Callable[[int], str]
    step: tuple[int, int] = (1, 1)


def element_picture(element_map: ElementMap) -> Picture:
    """The elements: one row for each combination of the leading indices, one column for each last index."""
    cells = np.frombuffer(element_map.codes, dtype=np.uint8)
    return _of_elements(element_map, cells, "")


def program_picture(element_map: ElementMap) -> Picture | None:
    """Which program stored each element last, by its place in the list of programs; None where nobody watched."""
    if not element_map.programs:
        return None
    cells = np.frombuffer(element_map.programs, dtype="<i4")
    return _of_elements(element_map, cells, ", by program")


def memory_picture(element_map: ElementMap) -> Picture | None:
    """The tensor as it lies in memory, guards and gaps included; None where nothing beside its elements was written."""
    strip = element_map.memory
    if strip is None:
        return None
    many, width = len(strip.codes), strip.width
    in_front = -strip.first % width  # empty places, so that the first element begins a row
    rows = -(-(many + in_front) // width)
    cells = np.zeros(rows * width, dtype=np.uint8)
    cells[in_front : in_front + many] = np.frombuffer(strip.codes, dtype=np.uint8)
    begin = strip.first + in_front  # the place of the first element

    def row_name(row: int) -> str:
        return f"{row * width - begin:+d}"

    return Picture(f"memory around {element_map.tensor}", cells.reshape(rows, width), row_name)


def pictures_of(element_map: ElementMap) -> list[Picture]:
    """What there is to see of a map's states: its memory where something beside the elements was hit, the elements."""
    memory = memory_picture(element_map)
    return [*([memory] if memory is not None else []), element_picture(element_map)]


def shrunk(picture: Picture, *, rows: int, columns: int) -> Picture:
    """The picture with at most so many rows and columns; in each block the worst state wins."""
    height, width = picture.cells.shape
    step = (max(1, -(-height // max(rows, 1))), max(1, -(-width // max(columns, 1))))
    if step == (1, 1):
        return picture
    padded = np.zeros((-(-height // step[0]) * step[0], -(-width // step[1]) * step[1]), dtype=picture.cells.dtype)
    padded[:height, :width] = picture.cells
    blocks = padded.reshape(padded.shape[0] // step[0], step[0], padded.shape[1] // step[1], step[1])
    return Picture(picture.title, blocks.max(axis=(1, 3)), picture.row_name, step)


def _of_elements(element_map: ElementMap, cells: npt.NDArray[Any], words: str) -> Picture:
    shape = element_map.shape
    leading, last = shape[:-1], (shape[-1] if shape else 1)
    rows = int(np.prod(leading, dtype=np.int64))
    title = f"{element_map.tensor} {list(shape)}{words}"
    return Picture(title, cells.reshape(rows, last), lambda row: _row_name(row, leading))


def _row_name(row: int, leading: Sequence[int]) -> str:
    return ",".join(str(int(part)) for part in np.unravel_index(row, tuple(leading))) if leading else ""
