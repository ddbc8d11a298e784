"""The maps of a report as PNG and SVG, to be put beside a line in an issue or a pull request."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from mla_verify.cases import file_stem, make_folder
from mla_verify.errors import UsageError
from mla_verify.maps import STATE_WORDS, ElementMap, State, counts_of, flagged
from mla_verify.reports.colours import STATE_COLOURS
from mla_verify.reports.folder import read_report
from mla_verify.reports.page_facts import FindingFacts, facts_of
from mla_verify.reports.pictures import Picture, element_picture, memory_picture, shrunk

__all__ = ["IMAGES", "write_images"]

IMAGES: Final = "images"
_FORMATS: Final = ("png", "svg")
_MOST_ROWS: Final = 512
_MOST_COLUMNS: Final = 1024
_MOST_LABELS: Final = 12  # along either side
_MOST_FINDINGS: Final = 200  # drawing one takes half a second


def write_images(folder: Path) -> list[Path]:
    """Draw the map of every failure into `folder`/images; the files. Raises UsageError where that cannot be done."""
    drawing = _matplotlib()
    drawn = [finding for kernel in facts_of(read_report(folder)) for finding in kernel.findings if finding.maps]
    if not drawn:
        return []
    into = folder / IMAGES
    make_folder(into)
    done: list[Path] = []
    for finding in drawn[:_MOST_FINDINGS]:
        for element_map, picture in _pictures(finding):
            stem = f"{finding.number:03d}-{file_stem(finding.kernel_name)}-{finding.clause}-{file_stem(picture.title)}"
            done += _draw(drawing, into / stem, finding, element_map, picture)
    return done


def _pictures(finding: FindingFacts) -> Iterator[tuple[ElementMap, Picture]]:
    """What a finding is about: its tensor's memory where something beside it was hit, else its elements."""
    bad = [one for one in finding.maps if flagged(one)]
    for one in [one for one in bad if one.tensor == finding.tensor] or bad:
        picture = memory_picture(one) or element_picture(one)
        if picture.cells.size:
            yield one, shrunk(picture, rows=_MOST_ROWS, columns=_MOST_COLUMNS)


def _draw(drawing: Any, path: Path, finding: FindingFacts, element_map: ElementMap, picture: Picture) -> Iterator[Path]:
    rows, columns = picture.cells.shape
    wide = min(12.0, max(5.0, columns * 0.22 + 1.5))
    high = min(8.0, max(1.2, rows * 0.22 + 0.6)) + 1.2
    figure = drawing.figure.Figure(figsize=(wide, high), layout="constrained")
    axes = figure.add_subplot()
    colours = drawing.colors.ListedColormap([STATE_COLOURS[state] for state in State])
    axes.imshow(picture.cells, cmap=colours, vmin=-0.5, vmax=State.STRAY + 0.5, aspect="auto", interpolation="nearest")
    _label(axes, picture)
    words = textwrap.fill(f"{finding.clause}: {finding.detail}", int(wide * 11))
    axes.set_title(_plain(f"{words}\n{finding.problem} [{finding.kernel_name}]"), fontsize=9, loc="left", wrap=True)
    patches = [
        drawing.patches.Patch(color=STATE_COLOURS[state], label=f"{STATE_WORDS[state]} {count}")
        for state, count in counts_of(element_map).items()
        if state != State.SLACK
    ]
    figure.legend(handles=patches, loc="outside lower left", ncols=4, fontsize=8, frameon=False)
    for kind in _FORMATS:
        file = path.with_name(f"{path.name}.{kind}")
        try:
            figure.savefig(file, dpi=150)
        except OSError as error:
            raise UsageError(f"cannot write {file}: {error.strerror}") from error
        yield file


def _label(axes: Any, picture: Picture) -> None:
    """Indices along the sides, as many as can be read."""
    rows, columns = picture.cells.shape
    every_row, every_column = -(-rows // _MOST_LABELS), -(-columns // _MOST_LABELS)
    down = range(0, rows, every_row)
    across = range(0, columns, every_column)
    axes.set_yticks(list(down), [picture.row_name(row * picture.step[0]) for row in down], fontsize=7)
    axes.set_xticks(list(across), [str(column * picture.step[1]) for column in across], fontsize=7)
    axes.set_ylabel(_plain(picture.title), fontsize=8)


def _plain(text: str) -> str:
    """Text in which matplotlib sees no formula, and XML nothing that it cannot say."""
    return "".join(one if one.isprintable() or one == "\n" else "\N{REPLACEMENT CHARACTER}" for one in text).replace(
        "$", r"\$"
    )


def _matplotlib() -> Any:
    """The library, without a window system."""
    try:
        from matplotlib import colors, figure, patches
    except ImportError as error:
        wanted = "images are drawn with matplotlib, which is not installed: pip install 'mla-verify[report]'"
        raise UsageError(wanted) from error
    return SimpleNamespace(colors=colors, figure=figure, patches=patches)
