"""What a layout promises about the places of a tensor's elements."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
import torch

from strategies.extents import extent_of
from strategies.layouts import CONTIGUOUS, INPUT_ONLY, Layout, LayoutKind, layout_is_packed, strides_of

KINDS: tuple[LayoutKind, ...] = get_args(LayoutKind)
SHAPES = [
    *itertools.product((0, 1, 2, 3), repeat=3),
    *itertools.product((0, 1, 2, 5), repeat=2),
    (4,),
    (1,),
    (0,),
    (4, 3, 2),
    (2, 17, 5),
]


def _places(shape: tuple[int, ...], layout: Layout) -> torch.Tensor:
    """Where each element lies, counted from the aligned address: [shape] int64."""
    strides, lead = strides_of(shape, layout)
    places = torch.full(shape, lead, dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        along = [1] * len(shape)
        along[dim] = size
        places = places + (torch.arange(size) * stride).reshape(along)
    return places


@pytest.mark.parametrize("kind", sorted(set(KINDS) - INPUT_ONLY))
def test_no_two_elements_of_an_output_share_memory(kind: LayoutKind) -> None:
    """A layout that outputs may have gives each element a place of its own, at every size, 0 and 1 included."""
    for shape, pad, offset in itertools.product(SHAPES, (0, 1, 2, 5), (0, 3)):
        places = _places(shape, Layout(kind, pad, offset)).flatten()
        assert places.unique().numel() == places.numel(), (shape, pad)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_lies_between_its_offset_and_its_extent(kind: LayoutKind) -> None:
    """No element lies before the offset, and the last one ends the extent."""
    for shape, pad, offset in itertools.product(SHAPES, (0, 1, 4), (0, 2)):
        layout = Layout(kind, pad, offset)
        places = _places(shape, layout).flatten()
        if not places.numel():
            assert extent_of(shape, layout) == 0
            continue
        assert int(places.min()) >= offset
        assert int(places.max()) + 1 == extent_of(shape, layout)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_means_what_torch_calls_contiguous(kind: LayoutKind) -> None:
    """`layout_is_packed` agrees with `Tensor.is_contiguous` on a tensor of these strides."""
    for shape, pad in itertools.product(SHAPES, (0, 1, 3)):
        layout = Layout(kind, pad)
        strides, lead = strides_of(shape, layout)
        tensor = torch.empty(extent_of(shape, layout) + 1).as_strided(shape, strides, lead)
        assert layout_is_packed(shape, layout) == tensor.is_contiguous(), (shape, pad)


def test_layouts_are_what_their_names_say() -> None:
    """Each kind has the strides of the torch expression that a caller would write."""
    shape = (3, 4, 5)
    buffer = torch.empty(10_000)

    def strides(tensor: torch.Tensor) -> tuple[int, ...]:
        return tuple(tensor.stride())

    rows = buffer[: 3 * 22].view(3, 22)[:, :20].unflatten(1, (4, 5))
    cube = buffer[: 5 * 6 * 7].view(5, 6, 7)[1:4, 1:5, 1:6]
    expected: dict[Layout, tuple[int, ...]] = {
        CONTIGUOUS: strides(buffer[:60].view(shape)),
        Layout("padded_rows", 2): strides(rows),
        Layout("padded_heads", 2): strides(buffer[: 3 * 4 * 7].view(3, 4, 7)[:, :, :5]),
        Layout("transposed", 2): strides(buffer[: 4 * 3 * 7].view(4, 3, 7)[:, :, :5].transpose(0, 1)),
        Layout("reversed", 2): strides(buffer[: 5 * 4 * 5].view(5, 4, 5)[:, :, :3].permute(2, 1, 0)),
        Layout("sliced", 2): strides(cube),
        Layout("strided_inner"): strides(buffer[:120].view(3, 4, 10)[:, :, ::2]),
        Layout("broadcast"): strides(buffer[:20].view(4, 5).expand(3, 4, 5)),
        Layout("overlapping"): (10, 5, 1),
    }
    for layout, wanted in expected.items():
        assert strides_of(shape, layout)[0] == wanted, layout
    assert strides_of(shape, Layout("sliced", 2))[1] == cube.storage_offset()


def test_odd_singletons_leave_other_strides_alone() -> None:
    """Only dimensions of size 0 or 1 carry odd strides."""
    strides, _ = strides_of((1, 4, 1), Layout("odd_singletons"))
    assert strides[1] == 1
    assert strides[0] != 4
    assert strides[2] != 1
    assert strides_of((3, 4, 5), Layout("odd_singletons")) == strides_of((3, 4, 5), CONTIGUOUS)


@pytest.mark.parametrize(("heads", "nope", "latent", "value"), [(1, 1, 1, 1), (3, 2, 5, 4), (16, 128, 512, 128)])
def test_weights_lie_as_vllm_leaves_them(heads: int, nope: int, latent: int, value: int) -> None:
    """Both weight layouts equal the views that vLLM takes of kv_b_proj, the dequantised one included."""
    shape = (heads, latent, value)

    def w_uv(weight: torch.Tensor) -> torch.Tensor:
        # weight [latent, heads · (nope + value)]
        _, values = weight.view(latent, heads, nope + value).split([nope, value], dim=-1)
        return values.transpose(0, 1)

    projection = torch.empty(heads * (nope + value), latent)
    identity = torch.empty(latent, heads * (nope + value))
    weights: dict[LayoutKind, torch.Tensor] = {"vllm_weight": projection.T, "vllm_dequantised": identity}
    for kind, weight in weights.items():
        view = w_uv(weight)
        strides, first = strides_of(shape, Layout(kind, nope))
        assert view.shape == shape
        assert first == view.storage_offset()
        for size, stride, wanted in zip(shape, strides, view.stride(), strict=True):
            assert size == 1 or stride == wanted
