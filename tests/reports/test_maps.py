"""Element maps: what they show of a kernel, on a terminal and as images; what a Triton program stored."""

from __future__ import annotations

import importlib.util
import struct
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from mla_verify import examine as examining
from mla_verify.check import check
from mla_verify.examine import examine
from mla_verify.interpreting import recorder
from mla_verify.kernel import Kernel
from mla_verify.loading import open_bench
from mla_verify.maps import ElementMap, State, counts_of, program_of
from mla_verify.reports.colours import STATE_COLOURS, png_of
from mla_verify.reports.pictures import Picture, element_picture, memory_picture, shrunk
from mla_verify.reports.terminal import CHARACTERS, map_lines
from mla_verify.table import print_reports
from strategies.limits import UpProjectionLimits
from tests.reports.made import finding, map_of, report


def tail_unwritten(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Writes the first three columns of any token but the first."""
    result = torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1)
    out[:1].copy_(result[:1])
    out[1:, :, :3].copy_(result[1:, :, :3])


def kernel(function: Any) -> Kernel:
    """An up-projection with small sizes."""
    limits = UpProjectionLimits(num_heads=(1, 2), kv_lora_rank=(1, 4), v_head_dim=(5,), max_num_tokens=9)
    return Kernel(name=function.__name__, contract="up-projection", load=lambda: function, limits=limits)


def printed(width: int, *, colour: bool = False) -> str:
    """A report with one map as a terminal of that width shows it."""
    stream = StringIO()
    console = Console(file=stream, width=width, force_terminal=colour, highlight=False, legacy_windows=False)
    print_reports([report("k", finding(maps=(map_of(columns=64, unwritten=16),)))], to=console)
    return stream.getvalue()


def test_a_check_keeps_the_map_of_its_smallest_problem() -> None:
    """A finding of a check has the map of its problem, and how it was shrunk to it."""
    (found,) = check(kernel(tail_unwritten), examples=20, seed=2).findings
    (element_map,) = found.maps
    assert element_map.shape == (2, 1, 5)
    assert list(element_map.codes) == [State.RIGHT] * 8 + [State.UNWRITTEN] * 2
    assert found.history[-1] == found.problem_text
    assert len(found.history) > 1


def test_a_map_is_the_same_after_json() -> None:
    """What a worker sends is what it has drawn."""
    element_map = map_of()
    assert ElementMap.from_json(element_map.to_json()) == element_map


@pytest.mark.parametrize(
    "change",
    [{"shape": [3, 1, 7]}, {"programs": map_of().to_json()["codes"]}, {"codes": "AAAA"}, {"values": [[0, "1"]]}],
)
def test_half_a_map_is_refused(change: dict[str, Any]) -> None:
    """A map whose parts do not fit each other raises what its reader expects."""
    with pytest.raises((ValueError, KeyError, TypeError)):
        ElementMap.from_json({**map_of().to_json(), **change})


def test_the_worst_state_in_a_block_wins() -> None:
    """One unwritten element among a thousand right ones is to be seen however small the picture."""
    cells = np.full((100, 100), State.RIGHT, dtype=np.uint8)
    cells[57, 31] = State.UNWRITTEN
    small = shrunk(Picture("o", cells, str), rows=7, columns=9)
    assert small.cells.shape == (7, 9)
    assert int((small.cells == State.UNWRITTEN).sum()) == 1
    assert small.cells[57 // small.step[0], 31 // small.step[1]] == State.UNWRITTEN


def test_memory_is_laid_out_by_rows_of_the_tensor() -> None:
    """The first element begins a row, and a stray write behind the end lies in the row after the last."""
    picture = memory_picture(map_of(rows=3, columns=8))
    assert picture is not None
    assert picture.cells[1, 0] == State.RIGHT
    assert picture.row_name(1) == "+0"
    assert picture.cells[4, 0] == State.STRAY


@pytest.mark.parametrize("width", [40, 60, 150])
def test_a_map_fits_the_terminal(width: int) -> None:
    """No line of a map is wider than the terminal, and characters tell states apart without colour."""
    lines = [line.plain for line in map_lines((map_of(columns=512, unwritten=100),), "out", width=width)]
    assert max(len(line) for line in lines[1:-1]) <= width
    assert any(CHARACTERS[State.UNWRITTEN] in line for line in lines[1:-1])
    assert "the worst of them shown" in lines[0]
    assert "U unwritten 300" in lines[-1]


def test_colour_only_where_there_is_colour() -> None:
    """A terminal gets colours; a log gets none, and the same characters."""
    assert "\x1b[" not in printed(100)
    assert "\x1b[" in printed(100, colour=True)
    assert "U" * 16 in printed(100)


def test_one_element_needs_no_map() -> None:
    """Where the finding itself says all, nothing is drawn below it."""
    lone = ElementMap(tensor="out", shape=(1, 1, 1), codes=bytes([State.UNWRITTEN]))
    assert map_lines((lone,), "out", width=80) == []


def test_a_png_holds_one_pixel_per_cell() -> None:
    """Width, height, palette and pixels are those of the picture."""
    import zlib

    picture = element_picture(map_of(rows=3, columns=8))
    png = png_of(picture.cells, [STATE_COLOURS[state] for state in State])
    assert struct.unpack(">II", png[16:24]) == (8, 3)
    at = png.index(b"IDAT")
    pixels = zlib.decompress(png[at + 4 : at + 4 + struct.unpack(">I", png[at - 4 : at])[0]])
    assert np.array_equal(np.frombuffer(pixels, np.uint8).reshape(3, 9)[:, 1:], picture.cells)


def test_images_are_drawn_for_every_map(tmp_path: Path) -> None:
    """PNG and SVG, of whatever a kernel is called."""
    pytest.importorskip("matplotlib")
    from mla_verify.reports.folder import write_report
    from mla_verify.reports.images import write_images

    odd = report("<k> $x_{1}$ ../..", finding(detail="$\\frac{1}$ [bold]"))
    write_report([odd], [None], tmp_path)
    files = write_images(tmp_path)
    assert {file.suffix for file in files} == {".png", ".svg"}
    assert all(file.parent == tmp_path / "images" and file.stat().st_size > 1000 for file in files)


def test_a_map_of_a_triton_kernel_is_what_the_recorder_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unwritten are the elements that no program stored, and each other one names the program that stored it."""
    if importlib.util.find_spec("triton") is None:  # importing it here would decide that it compiles
        pytest.skip("triton is not installed")
    from mla_verify.faults.fault import kernel_of
    from mla_verify.faults.triton import SEEDED
    from sanitizer.triton.recorder import Recorder

    kept: list[Recorder] = []

    def keeping(*, triton: bool) -> Any:
        made = recorder(triton=triton)
        assert isinstance(made, Recorder)
        kept.append(made)
        return made

    monkeypatch.setattr(examining, "recorder", keeping)
    seeded = [one for one in SEEDED if one.fault.clauses[0] == "coverage" and not one.hidden]
    assert seeded
    for one in seeded:
        shown = examine(one.problem, open_bench(kernel_of(one.fault)), maps=True)
        recording = kept[-1].recording
        assert recording is not None
        bad = [element_map for element_map in shown.maps if State.UNWRITTEN in counts_of(element_map)]
        assert bad
        for element_map in bad:
            codes = np.frombuffer(element_map.codes, np.uint8)
            stored = (recording.stored(element_map.tensor) | recording.foreign(element_map.tensor)).ravel()
            assert np.array_equal(codes == State.UNWRITTEN, ~stored), one.fault.name
            _, owners = recording.written(element_map.tensor)
            names = [recording.who(int(owner)) if owner else "" for owner in owners.ravel()]
            assert [program_of(element_map, place) for place in range(len(names))] == names
