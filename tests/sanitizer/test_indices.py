"""Elements are named the way a person writes an index."""

from __future__ import annotations

import pytest
import torch

from sanitizer.geometry import Box, extent_of, gap_boxes, gap_mask, preceding_element, run_boxes
from sanitizer.indices import describe_mask

SHAPE = (3, 4, 8)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ((2, 1, slice(2, 6)), "o[2, 1, 2:6]"),
        ((slice(None), 0, 7), "o[0:3, 0, 7]"),
        ((slice(0, 3, 2), 0, 0), "o[0:3, 0, 0] (2 of these 3 elements)"),
        ((0, 0, slice(0, 0)), "no element of o"),
    ],
    ids=["range", "column", "every-second", "none"],
)
def test_a_mask_is_described_by_ranges(where: tuple[int | slice, ...], words: str) -> None:
    """A box by its ranges, anything else by its bounding box and a count."""
    mask = torch.zeros(SHAPE, dtype=torch.bool)
    mask[where] = True
    assert describe_mask("o", mask) == words


def test_a_tensor_without_dimensions_is_its_name() -> None:
    """There is no index to give."""
    assert describe_mask("lse", torch.tensor(True)) == "lse"


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((3, 4), (4, 1)),
        ((3, 4), (7, 1)),
        ((3, 4), (1, 5)),
        ((2, 3, 4), (40, 12, 2)),
        ((2, 1, 4), (9, 99, 2)),
        ((128, 6, 4), (48, 1, 6)),
        ((0, 4), (7, 1)),
        ((), ()),
    ],
    ids=str,
)
def test_gap_boxes_cover_exactly_the_gaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Every element of the extent that belongs to nobody is in one box, and no other is."""
    covered = torch.zeros(extent_of(shape, strides), dtype=torch.int32)
    boxes = gap_boxes(shape, strides)
    assert boxes is not None
    for box in boxes:
        covered.as_strided(box.sizes, box.strides, box.offset).add_(1)
    assert torch.equal(covered, gap_mask(shape, strides, covered.device).to(torch.int32))


def test_overlapping_rows_have_no_gap_boxes() -> None:
    """Their gaps are found element by element."""
    assert gap_boxes((3, 4), (5, 2)) is None
    assert gap_mask((3, 4), (5, 2), torch.device("cpu")).nonzero().flatten().tolist() == [1, 3, 8, 13, 15]


def test_a_gap_is_named_by_the_element_before_it() -> None:
    """The element that a stray write came from, most likely."""
    assert preceding_element((3, 4), (7, 1), 12) == (1, 3)


@pytest.mark.parametrize("length", [0, 1, 4, 5, 8, 11])
def test_long_runs_are_cut_into_short_ones_that_cover_the_same(length: int) -> None:
    """No run is longer than the period, and no element is in two."""
    box = Box(2, (3, length), (20, 1))
    covered, wanted = torch.zeros(80, dtype=torch.int32), torch.zeros(80, dtype=torch.int32)
    for piece in run_boxes(box, 4):
        assert 0 < piece.sizes[-1] <= 4
        covered.as_strided(piece.sizes, piece.strides, piece.offset).add_(1)
    wanted.as_strided(box.sizes, box.strides, box.offset).add_(1)
    assert torch.equal(covered, wanted)
