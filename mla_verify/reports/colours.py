"""The colours of states and programs, the same on a page and in an image; and pictures as PNG without a library."""

from __future__ import annotations

import base64
import colorsys
import struct
import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mla_verify.maps import State

__all__ = ["STATE_COLOURS", "data_uri", "png_of", "program_colours"]

# Light for what is well and dark for what is not, so that the two differ without their hues as well.
STATE_COLOURS: Final = {
    State.SLACK: "#d5d5d5",
    State.KEPT: "#b9c9da",
    State.FREE: "#e4dcc8",
    State.RIGHT: "#8fc7b0",
    State.NOT_JUDGED: "#a09a8c",
    State.WRONG: "#e08a00",
    State.UNSTEADY: "#0b7285",
    State.DEPENDENT: "#8e1a86",
    State.UNWRITTEN: "#b00020",
    State.STRAY: "#1e3fae",
}
_GOLDEN: Final = 0.61803398875  # of the circle of hues from one program to the next: neighbours look different
_PROGRAM_COLOURS: Final = 255  # 0 is for "no program"


def program_colours() -> list[str]:
    """A colour for "no program" and for each of 255 programs; the 256th has the first one's again."""
    colours = [STATE_COLOURS[State.SLACK]]
    for number in range(_PROGRAM_COLOURS):
        red, green, blue = colorsys.hls_to_rgb(number * _GOLDEN % 1.0, 0.45 + 0.2 * (number % 2), 0.65)
        colours.append(f"#{int(red * 255):02x}{int(green * 255):02x}{int(blue * 255):02x}")
    return colours


def png_of(cells: npt.NDArray[Any], colours: list[str]) -> bytes:
    """A PNG with one pixel per cell. cells: [rows, columns], each the place of its colour."""
    rows, columns = cells.shape
    palette = b"".join(bytes.fromhex(colour[1:]) for colour in colours)
    lines = np.zeros((rows, columns + 1), dtype=np.uint8)  # each line begins with the number of its filter, none
    lines[:, 1:] = cells
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),
        (b"PLTE", palette),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def data_uri(png: bytes) -> str:
    """The PNG as a link that needs no file."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
