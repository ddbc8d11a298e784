"""Writes a problem's values and secrets into memory: which bytes hold which, as few whole-block operations as it takes.

Note [Image]: beside the arena, which the kernel sees, lies an image of what the arena holds before a run. Small
problems keep one image per secret and copy it over the arena. Large ones keep a single image and rewrite, in both,
only the bytes that hold secrets: each such set of bytes is a `Layer`. After a run the outputs are put back, and one
comparison of arena and image decides about every byte at once; details are worked out only when it fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from sanitizer.fences import Fencing
from sanitizer.geometry import Box, gap_boxes, rows_overlap, run_boxes
from sanitizer.placed import Placed, strided_view
from sanitizer.secrets import PERIOD, Secret, carrier_view, rows_of

__all__ = ["Layer", "Memory", "as_wide_words", "lay_large", "lay_small"]

_RUN: Final = PERIOD // 2  # longest run laid at once; leaves room for the phase


@dataclass(slots=True)
class Memory:
    """A buffer of bytes that only grows, and views of the whole of it as any dtype.

    fencing: whose pages it is made of, so that access to whole ones can be forbidden; None: torch's own memory.
    """

    device: torch.device
    fencing: Fencing | None = None
    data: Tensor = field(init=False)  # [bytes] uint8
    _views: dict[torch.dtype, Tensor] = field(init=False, default_factory=dict[torch.dtype, Tensor])

    def __post_init__(self) -> None:
        self.data = torch.empty(0, dtype=torch.uint8, device=self.device)

    def reserve(self, size: int) -> None:
        """Hold at least `size` bytes; what they hold is lost when that takes new memory."""
        if self.data.numel() < size:
            self.renew(size)

    def renew(self, size: int) -> None:
        """Take new memory of `size` bytes."""
        if self.fencing is None:
            self.data = torch.empty(size, dtype=torch.uint8, device=self.device)
        else:
            self.data = self.fencing.own_pages(size)
        self._views = {}

    def typed(self, dtype: torch.dtype) -> Tensor:
        """[elements] all of the memory as `dtype`."""
        view = self._views.get(dtype)
        if view is None:
            whole = self.data.numel() // dtype.itemsize * dtype.itemsize
            view = self._views[dtype] = self.data[:whole].view(dtype)
        return view


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Bytes that hold secrets, in image and arena, and what they hold under each secret."""

    image: Tensor
    arena: Tensor
    rows: Tensor  # [3, …] broadcastable to what it is written to
    index: tuple[Tensor, ...] | None = None  # which elements of the two views; None: all of them

    def lay(self, row: int, *, into_arena: bool) -> None:
        """Write secret `row` into the image and, unless the whole image is copied anyway, into the arena."""
        for target in (self.image, self.arena) if into_arena else (self.image,):
            if self.index is None:
                target.copy_(self.rows[row])
            else:
                target.index_put_(self.index, self.rows[row])


def as_wide_words(layer: Layer) -> tuple[Tensor, Tensor]:
    """Image and arena of a layer as int64 where they divide into such words: four times fewer comparisons for bf16."""
    view = layer.image
    factor = torch.int64.itemsize // view.itemsize
    sizes, strides, first = view.shape, view.stride(), int(view.storage_offset())
    if factor == 1 or first % factor or sizes[-1] % factor or any(stride % factor for stride in strides[:-1]):
        return layer.image, layer.arena
    wide: list[Tensor] = []
    for narrow in (layer.image, layer.arena):
        whole = torch.empty(0, dtype=torch.int64, device=view.device)
        wide.append(
            whole.set_(
                narrow.untyped_storage(),
                first // factor,
                (*sizes[:-1], sizes[-1] // factor),
                (*(stride // factor for stride in strides[:-1]), 1),
            )
        )
    return wide[0], wide[1]


def lay_small(placed: Placed, image: Memory, size: int) -> None:
    """Lay one tensor into all three images: its secret over its whole region, its live values on top."""
    words = image.typed(placed.carrier)
    step = size // placed.carrier.itemsize
    if placed.plan.over is None:
        for box in run_boxes(_region(placed), _RUN):
            length = box.sizes[-1] * placed.words
            rows = _rows(placed, box.sizes[-1], image.device)
            target = words.as_strided(
                (*box.sizes[:-1], len(Secret), length),
                (*(stride * placed.words for stride in box.strides[:-1]), step, 1),
                placed.low // placed.carrier.itemsize + box.offset * placed.words,
            )
            target.copy_(rows)
    _write_values(placed, words, step, len(Secret))


def lay_large(placed: Placed, image: Memory, arena: Memory) -> list[Layer]:
    """Lay one tensor's values into the single image, and return what has to be rewritten for every secret."""
    _write_values(placed, image.typed(placed.carrier), 0, 1)
    if placed.plan.over is not None:
        return []
    if placed.plan.role != "input":
        return _box_layers(placed, placed.low, _region(placed), image, arena)
    front = Box(0, ((placed.start - placed.low) // placed.itemsize,), (1,))
    behind = Box(0, ((placed.high - placed.end) // placed.itemsize,), (1,))
    layers = _box_layers(placed, placed.low, front, image, arena)
    layers += _box_layers(placed, placed.end, behind, image, arena)
    if _shares_memory(placed):
        return layers + _dead_places(placed, image, arena)
    for box in gap_boxes(placed.plan.shape, placed.plan.strides) or ():
        layers += _box_layers(placed, placed.start, box, image, arena)
    if placed.plan.live is not None and placed.extent:
        layers += _dead_elements(placed, placed.plan.live, image, arena)
    return layers


def _region(placed: Placed) -> Box:
    return Box(0, ((placed.high - placed.low) // placed.itemsize,), (1,))


def _write_values(placed: Placed, words: Tensor, step: int, rows: int) -> None:
    """Put an input's values into every image. With one row all elements, with several the live ones."""
    if placed.plan.values is None or placed.extent == 0:
        return
    values = carrier_view(placed.plan.values.to(words.device))
    first = placed.start // placed.carrier.itemsize
    if _shares_memory(placed):
        flat = words.as_strided((rows, placed.extent, placed.words), (step, placed.words, 1), first)
        _write_by_place(placed, flat, values)
        return
    image = words.as_strided((rows, *placed.word_shape), (step, *placed.word_strides), first)
    for dim, (count, stride) in enumerate(zip(placed.word_shape, placed.word_strides, strict=True)):
        if stride == 0 and count > 1:
            # torch refuses to write through a stride of 0: of elements that share memory the last one stays.
            image, values = image.narrow(dim + 1, count - 1, 1), values.narrow(dim, count - 1, 1)
    live = placed.plan.live
    if live is None or rows == 1:
        image.copy_(values)
    else:
        live = live.to(words.device).expand(placed.plan.shape)
        image.copy_(torch.where(live.unsqueeze(-1) if placed.words > 1 else live, values, image))


def _shares_memory(placed: Placed) -> bool:
    """Whether elements share memory in a way that only a look at each of them can sort out."""
    shape, strides = placed.plan.shape, placed.plan.strides
    if placed.plan.live is not None and any(
        size > 1 and not stride for size, stride in zip(shape, strides, strict=True)
    ):
        return True
    return rows_overlap(shape, strides)


def _live_places(placed: Placed, device: torch.device) -> tuple[Tensor, Tensor]:
    """The live elements: [*shape] bool, and [live elements] where each lies, counted from the first element."""
    shape = placed.plan.shape
    live = torch.ones((), dtype=torch.bool, device=device) if placed.plan.live is None else placed.plan.live.to(device)
    live = live.expand(shape)
    return live, torch.arange(placed.extent, device=device).as_strided(shape, placed.plan.strides)[live]


def _write_by_place(placed: Placed, flat: Tensor, values: Tensor) -> None:
    """Write live elements that share memory, among each other or with dead ones, into flat [rows, extent, words]."""
    live, places = _live_places(placed, flat.device)
    wanted = values[live].view(-1, placed.words)
    # Which of several values for one place stays is undefined, and must be the same in every row: so decide it first.
    decided = torch.empty(placed.extent, placed.words, dtype=flat.dtype, device=flat.device)
    decided[places] = wanted
    flat[:, places] = decided[places]


def _box_layers(placed: Placed, origin: int, box: Box, image: Memory, arena: Memory) -> list[Layer]:
    """Layers for the elements of `box`, which counts elements from byte `origin`."""
    layers: list[Layer] = []
    for piece in run_boxes(box, _RUN):
        length = piece.sizes[-1] * placed.words
        rows = _rows(placed, piece.sizes[-1], image.device)
        sizes = (*piece.sizes[:-1], length)
        strides = (*(stride * placed.words for stride in piece.strides[:-1]), 1)
        offset = origin // placed.carrier.itemsize + piece.offset * placed.words
        targets = [memory.typed(placed.carrier).as_strided(sizes, strides, offset) for memory in (image, arena)]
        layers.append(Layer(targets[0], targets[1], rows))
    return layers


def _dead_places(placed: Placed, image: Memory, arena: Memory) -> list[Layer]:
    """What lies in the extent and belongs to no live element, by index: for elements that share memory."""
    dead = torch.ones(placed.extent, dtype=torch.bool, device=image.device)
    dead[_live_places(placed, image.device)[1]] = False
    index = dead.nonzero().flatten()
    if index.numel() == 0:
        return []
    sizes, strides = (placed.extent, placed.words), (placed.words, 1)
    offset = placed.start // placed.carrier.itemsize
    targets = [memory.typed(placed.carrier).as_strided(sizes, strides, offset) for memory in (image, arena)]
    rows = _long_rows(placed, index.numel(), image.device).view(len(Secret), -1, placed.words)
    return [Layer(targets[0], targets[1], rows, (index,))]


def _dead_elements(placed: Placed, live: Tensor, image: Memory, arena: Memory) -> list[Layer]:
    """Elements of an input that are not declared, addressed by as few leading dimensions as tell them apart."""
    shape = placed.plan.shape
    if not shape:
        return [] if bool(live) else _box_layers(placed, placed.start, Box(0, (1,), (1,)), image, arena)
    mask = live.to(image.device).expand(shape)
    telling = [dim for dim, stride in enumerate(mask.stride()) if stride and shape[dim] > 1]
    leading = max(telling, default=0) + 1
    dead = ~mask[(..., *(0 for _ in shape[leading:]))]
    index = dead.nonzero(as_tuple=True)
    count = index[0].numel()
    if count == 0:
        return []
    inner = shape[leading:]
    # Rows of dead elements hold the same numbers each; single dead elements a number per place.
    rows = _long_rows(placed, math.prod(inner) if inner else count, image.device)
    rows = rows.view(len(Secret), *(() if inner else (count,)), *placed.word_shape[leading:])
    targets = [strided_view(memory.typed(placed.carrier), placed) for memory in (image, arena)]
    return [Layer(targets[0], targets[1], rows, index)]


def _rows(placed: Placed, count: int, device: torch.device) -> Tensor:
    """[3, count elements in words], for runs that are no longer than _RUN."""
    first, words = placed.phase * placed.words, count * placed.words
    return rows_of(placed.plan.dtype, placed.plan.fills, placed.phase + count, device)[:, first : first + words]


def _long_rows(placed: Placed, count: int, device: torch.device) -> Tensor:
    """[3, count elements in words], repeated where that is more than a run."""
    rows = _rows(placed, min(count, _RUN), device)
    words = count * placed.words
    return rows if rows.shape[1] == words else rows.repeat(1, -(-words // rows.shape[1]))[:, :words]
