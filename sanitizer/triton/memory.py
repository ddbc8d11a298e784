"""Known memory, byte by byte: what may be stored to, what is secret, what each program of a launch has stored."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from sanitizer.fences import Strip
from sanitizer.geometry import extent_of, gap_mask, narrowed, preceding_element
from sanitizer.indices import index_text
from sanitizer.interception import Scratch
from sanitizer.plan import Element, TensorPlan
from sanitizer.triton.floats import Array

__all__ = [
    "FOREIGN",
    "SECRET",
    "STORED",
    "WRITABLE",
    "Block",
    "Region",
    "argument_block",
    "blocks_of",
    "scratch_block",
    "spread",
]

SECRET: Final = 1  # holds what is no input, and nothing has been stored since
STORED: Final = 2  # by a program of this run
WRITABLE: Final = 4  # part of an output or of scratch
FOREIGN: Final = 8  # written by other means than a recorded program, such as a torch operator

_ONES: Final = {1: 0x01, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}
_WORDS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def spread(flag: int, size: int) -> Any:
    """`flag` in every byte of a word of `size` bytes."""
    return _WORDS[size](flag * _ONES[size])


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A tensor's place: [start, end) of absolute addresses, and how its elements lie in it."""

    name: str
    start: int
    end: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def words(self, address: int) -> str:
        """Where `address` is, seen from this tensor: an element, a stride gap, or so many bytes outside."""
        name = self.name.split(" (", 1)[0]  # a scratch is told apart by its number
        if address >= self.end:
            return f"{address - self.end} bytes past the end of {name}"
        if address < self.start:
            return f"{self.start - address} bytes before the beginning of {name}"
        place = (address - self.start) // self.itemsize
        beside = index_text(name, preceding_element(self.shape, self.strides, place))
        gaps = gap_mask(self.shape, self.strides, torch.device("cpu"))
        return f"the stride gap behind {beside}" if bool(gaps[place]) else beside


@dataclass(slots=True, eq=False)
class Block:
    """Contiguous memory that a kernel can reach, [base, base + size), with a shadow of flags per byte.

    owner: [size] the number of the program that stored last at this address; 0: none. counts: [size] how many stores.
    expected: what secret memory held when the run began, where torch operators may since have written to it.
    """

    base: int
    size: int
    flags: Array
    regions: list[Region]
    expected: Array | None = None
    kept_alive: Any = None
    owner: Array = field(init=False)
    counts: Array = field(init=False)
    _flags: dict[int, Array] = field(init=False, default_factory=dict[int, Array])
    _starts: Array | None = None

    def __post_init__(self) -> None:
        self.owner = np.zeros(self.size, dtype=np.int32)
        self.counts = np.zeros(self.size, dtype=np.uint32)
        padded = np.zeros(-(-self.size // 8) * 8, dtype=np.uint8)
        padded[: self.size] = self.flags
        self._flags = {size: padded.view(word) for size, word in _WORDS.items()}
        self.flags = padded[: self.size]

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.base + self.size

    def words(self, size: int) -> Array:
        """The flags as words of `size` bytes, from the beginning of the block."""
        return self._flags[size]

    def memory(self) -> Array:
        """[size] the bytes themselves, as they are now."""
        return np.ctypeslib.as_array(ctypes.cast(self.base, ctypes.POINTER(ctypes.c_uint8)), (self.size,))

    def nearest(self, addresses: Array) -> Array:
        """For each address the index of the region that holds it or lies closest."""
        if len(self.regions) == 1:
            return np.zeros(addresses.shape, dtype=np.int64)
        if self._starts is None:
            self._starts = np.array([region.start for region in self.regions], dtype=np.int64)
        ends = np.array([region.end for region in self.regions], dtype=np.int64)
        left = np.clip(np.searchsorted(self._starts, addresses, side="right") - 1, 0, None)
        right = np.minimum(left + 1, len(self.regions) - 1)
        behind, before = addresses - ends[left], self._starts[right] - addresses
        return np.where((behind >= 0) & (before >= 0) & (before <= behind), right, left)

    def refresh(self) -> None:
        """Take what torch operators have written since the run began for known."""
        if self.expected is None:
            return
        memory = self.memory()
        for region in self.regions:
            low, high = region.start - self.base, region.end - self.base
            secret = self.flags[low:high] & (SECRET | STORED) == SECRET
            changed = (memory[low:high] != self.expected[low:high]) & secret
            if changed.any():
                # An element counts as written where any of its bytes changed: zeros share bytes with most secrets.
                whole = np.repeat(changed.reshape(-1, region.itemsize).any(axis=1), region.itemsize) & secret
                self.flags[low:high][whole] = (self.flags[low:high][whole] & ~np.uint8(SECRET)) | FOREIGN


def blocks_of(
    tensors: Mapping[str, Tensor], plans: Mapping[str, TensorPlan], strips: Sequence[Strip] = ()
) -> list[Block]:
    """One block per storage that the tensors lie in, guards and gaps included; cut where it is fenced."""
    storages: dict[int, list[tuple[str, Tensor]]] = {}
    for name, tensor in tensors.items():
        storages.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
    blocks = [_block(base, members, plans) for base, members in storages.items() if base]
    return [piece for block in blocks for piece in _cut(block, strips)]


def _cut(block: Block, strips: Sequence[Strip]) -> list[Block]:
    """What `strips`, pages that nobody may touch, leave of a block."""
    inside = sorted(strip for strip in strips if block.base <= strip[0] < block.end)
    if not inside:
        return [block]
    begins = [block.base, *(first + length for first, length in inside)]
    ends = [*(first for first, _ in inside), block.end]
    pieces: list[Block] = []
    for begin, end in zip(begins, ends, strict=True):
        regions = [region for region in block.regions if begin <= region.start and region.end <= end]
        if begin < end and regions:
            piece = slice(begin - block.base, end - block.base)
            expected = None if block.expected is None else block.expected[piece]
            pieces.append(Block(begin, end - begin, block.flags[piece], regions, expected))
    return pieces


def _block(base: int, members: Iterable[tuple[str, Tensor]], plans: Mapping[str, TensorPlan]) -> Block:
    members = list(members)
    size = members[0][1].untyped_storage().nbytes()
    flags = torch.full((size,), SECRET, dtype=torch.uint8)
    regions: list[Region] = []
    for name, tensor in members:
        if tensor.numel() == 0:
            continue
        regions.append(_region(name, tensor))
        _flag(flags, tensor, plans[name], first=tensor.data_ptr() - base)
    regions.sort(key=lambda region: region.start)
    block = Block(base, size, flags.numpy(), regions or [Region("memory", base, base + size, 1, (size,), (1,))])
    block.expected = block.memory().copy()
    return block


def _flag(flags: Tensor, tensor: Tensor, plan: TensorPlan, *, first: int) -> None:
    """Write into `flags` what the elements of one tensor are."""
    item, shape, strides = tensor.itemsize, tuple(tensor.shape), tensor.stride()
    bytes_of = flags.as_strided((*shape, item), (*(stride * item for stride in strides), 1), first)
    if plan.role != "input":
        narrowed(bytes_of).fill_(SECRET | WRITABLE)
        if plan.rules is not None:
            untouched = (plan.rules.cpu() == Element.UNTOUCHED).expand(shape)
            bytes_of.masked_fill_(untouched.unsqueeze(-1), SECRET)
    elif plan.live is None:
        narrowed(bytes_of).fill_(0)
    else:
        extent = extent_of(shape, strides)
        places = torch.arange(extent).as_strided(shape, strides)[plan.live.cpu().expand(shape)]
        flags[first : first + extent * item].view(extent, item)[places] = 0


def _region(name: str, tensor: Tensor) -> Region:
    shape, strides = tuple(tensor.shape), tensor.stride()
    start = tensor.data_ptr()
    return Region(name, start, start + extent_of(shape, strides) * tensor.itemsize, tensor.itemsize, shape, strides)


def scratch_block(scratch: Scratch, *, known: bool) -> Block:
    """An intercepted allocation between its guards. known: it holds what an earlier call left there."""
    base, size = scratch.buffer.data_ptr(), scratch.buffer.numel()
    start = scratch.words.data_ptr()
    flags = np.full(size, SECRET, dtype=np.uint8)
    first = start - base
    flags[first : first + scratch.nbytes] = WRITABLE if known else SECRET | WRITABLE
    item = scratch.dtype.itemsize
    name = f"scratch {scratch.number} ({scratch.origin})"
    region = Region(name, start, start + scratch.nbytes, item, (scratch.nbytes // item,), (1,))
    block = Block(base, size, flags, [region], kept_alive=scratch)
    if not known:
        held = block.memory().copy()
        held[first : first + scratch.nbytes] = scratch.pattern(scratch.fill).contiguous().view(torch.uint8).numpy()
        block.expected = held
    return block


def argument_block(name: str, tensor: Tensor, *, secret: bool = False) -> Block:
    """The storage of a tensor that came from elsewhere: a constant, a torch operator's result, a workspace."""
    storage = tensor.untyped_storage()
    base, size = storage.data_ptr(), storage.nbytes()
    flags = np.full(size, SECRET | WRITABLE if secret else WRITABLE, dtype=np.uint8)
    block = Block(base, size, flags, [Region(name, base, base + size, 1, (size,), (1,))], kept_alive=tensor)
    if secret:
        block.expected = block.memory().copy()
    return block
