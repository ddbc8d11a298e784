"""Records every load and store of an interpreted kernel against the memory that it was given.

Note [Accesses]: an access that lies in known memory happens, its guards included, so that the secrets see its effect
too. One that lies nowhere does not: a store is dropped, and a load gives the current secret instead of what a raw
pointer would find.

Note [Order]: programs run one after the other here and in no order on a GPU. A program that has executed an atomic may
have waited for others, so what it stores or loads afterwards is never called a race.
"""

from __future__ import annotations

import contextlib
import importlib
from bisect import bisect_right
from collections.abc import Generator, Sequence
from typing import Final

import numpy as np
from torch import Tensor

from sanitizer.finding import Finding
from sanitizer.observing import Scene
from sanitizer.secrets import Secret
from sanitizer.triton.events import Events, Kind, Program, joined, program_text
from sanitizer.triton.floats import Array
from sanitizer.triton.hooks import hooked
from sanitizer.triton.memory import (
    FOREIGN,
    SECRET,
    STORED,
    WRITABLE,
    Block,
    argument_block,
    blocks_of,
    scratch_block,
    spread,
)

__all__ = ["Recorder", "Recording"]

# Runs under this secret are recorded; in the others accesses are only kept within known memory. Under the others,
# zeros and small integers that a torch operator wrote look like memory that nobody touched.
_RECORDED: Final = Secret.A


class Recorder:
    """Watches the runs of one audit (an `Observer`). Triton has to be importable."""

    def __init__(self) -> None:
        self.events = Events()
        self._runs = 0
        self.recording: Recording | None = None  # of the last recorded run

    @contextlib.contextmanager
    def watching(self, scene: Scene) -> Generator[Recording, None, None]:
        """Record one call; launches within it are seen, whatever started them."""
        interpreter = importlib.import_module("triton.runtime.interpreter")
        recorded = scene.interceptor.secret is _RECORDED and not scene.interceptor.marked
        self._runs += 1
        recording = Recording(scene, self.events, run=self._runs, recorded=recorded)
        with hooked(interpreter, recording):
            yield recording
        if recorded:
            self.recording = recording

    def joined(self, findings: Sequence[Finding]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
        """Findings with program ids, and notes."""
        neighbours: dict[str, str] = {}
        if self.recording is not None:
            for finding in findings:
                if finding.clause == "coverage":
                    neighbours[finding.tensor] = self.recording.beside_missing(finding.tensor)
        return joined(findings, self.events.all(), neighbours={name: text for name, text in neighbours.items() if text})


class Recording:
    """The maps of one run: every block of memory, and who stored what in it."""

    def __init__(self, scene: Scene, events: Events, *, run: int, recorded: bool) -> None:
        self.secret = scene.interceptor.secret
        self.recorded = recorded
        self._scene = scene
        self._events = events
        self._run = run
        self._blocks: list[Block] = []
        self._starts: list[int] = []
        self._last: Block | None = None
        self._of_launch: list[Block] = []
        self._kernel = ""
        self._running: Program = (0, 0, 0)
        self._grid: Program = (1, 1, 1)
        self._launches: list[tuple[int, str, Program]] = []  # first number, kernel, grid
        self._base = 0  # programs of the running launch have numbers above it
        self._synchronised: set[int] = set()
        # Between fences a storage begins with pages that are no part of any block.
        self._given = {tensor.untyped_storage().data_ptr() for tensor in scene.tensors.values()}
        for block in blocks_of(scene.tensors, scene.plans, scene.strips):
            self._add(block)
        for number, workspace in enumerate(scene.workspaces):
            if workspace.numel() and self._find(workspace.data_ptr()) is None:
                self._add(argument_block(f"workspace {number}", workspace, secret=not scene.zeroed_workspace))
        for scratch in scene.kept:
            self._add(scratch_block(scratch, known=True))

    # Blocks

    def _add(self, block: Block) -> None:
        at = bisect_right(self._starts, block.base)
        self._starts.insert(at, block.base)
        self._blocks.insert(at, block)

    def _find(self, address: int) -> Block | None:
        at = bisect_right(self._starts, address) - 1
        return self._blocks[at] if at >= 0 and address < self._blocks[at].end else None

    # Launches

    def launch(self, kernel: str, arguments: dict[str, Tensor]) -> None:
        """A launch begins: learn what memory it can reach."""
        self._kernel = kernel
        self._synchronised.clear()
        for scratch in self._scene.interceptor.scratches:
            if self._find(scratch.buffer.data_ptr()) is None:
                self._add(scratch_block(scratch, known=False))
        for name, tensor in arguments.items():
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage.data_ptr() not in self._given and self._find(storage.data_ptr()) is None:
                block = argument_block(f"argument {name}", tensor)
                self._of_launch.append(block)
                self._add(block)
        if self.recorded:
            for block in self._blocks:
                block.refresh()

    def landed(self, grid: Program) -> None:
        """The launch is over; memory that came with it may be freed now."""
        self._launches.append((self._base, self._kernel, grid))
        self._base += grid[0] * grid[1] * grid[2]
        for block in self._of_launch:
            at = self._blocks.index(block)
            del self._blocks[at], self._starts[at]
        self._of_launch.clear()
        self._last = None

    def _program(self, number: int) -> tuple[str, Program]:
        """Kernel and program id of a number."""
        base, kernel, grid = self._base, self._kernel, self._grid
        if number <= base:
            base, kernel, grid = next(launch for launch in reversed(self._launches) if launch[0] < number)
        rest = number - base - 1
        return kernel, (rest % grid[0], rest // grid[0] % grid[1], rest // (grid[0] * grid[1]))

    # Accesses. Each returns which lanes lie in known memory, None for all.

    def load(self, addresses: Array, size: int, *, program: Program, grid: Program, atomic: bool) -> Array | None:
        """A program loads elements of `size` bytes from `addresses`."""
        me = self._enter(program, grid)
        if atomic:
            self._synchronised.add(me)
        block = self._only(addresses, size)
        if block is None:
            return self._split(addresses, size, me, load=True)
        if self.recorded:
            self._loaded(block, addresses, size, me)
        return None

    def store(
        self, addresses: Array, size: int, values: Array | None, *, program: Program, grid: Program
    ) -> Array | None:
        """A program stores `values` (None: by an atomic), elements of `size` bytes, to `addresses`."""
        me = self._enter(program, grid)
        if values is None:
            self._synchronised.add(me)
        block = self._only(addresses, size)
        if block is None:
            return self._split(addresses, size, me, load=False, values=values)
        if self.recorded:
            self._stored(block, addresses, size, me, values)
        return None

    def _enter(self, program: Program, grid: Program) -> int:
        """The number of the program that is running now."""
        self._running, self._grid = program, grid
        return self._base + 1 + program[0] + grid[0] * (program[1] + grid[1] * program[2])

    def _only(self, addresses: Array, size: int) -> Block | None:
        """The one block that all addresses lie in; None where there is no such block."""
        low, high = int(addresses.min()), int(addresses.max()) + size
        block = self._last
        if block is None or low < block.base or high > block.end:
            block = self._find(low)
            if block is None or high > block.end:
                return None
            self._last = block
        return block

    def _split(self, addresses: Array, size: int, me: int, *, load: bool, values: Array | None = None) -> Array:
        """Sort an access that is spread over several blocks, or lies outside of all."""
        starts = np.array(self._starts, dtype=np.int64)
        ends = np.array([block.end for block in self._blocks], dtype=np.int64)
        at = np.searchsorted(starts, addresses, side="right") - 1
        inside = (at >= 0) & (addresses + size <= ends[at])
        for index in np.unique(at[inside]) if self.recorded else ():
            part, block = inside & (at == index), self._blocks[index]
            if load:
                self._loaded(block, addresses[part], size, me)
            else:
                self._stored(block, addresses[part], size, me, None if values is None else values[part])
        if not inside.all():
            outside = addresses[~inside]
            tensor, place = self._nearest(outside)
            self._events.add(
                "load nowhere" if load else "store nowhere",
                kernel=self._kernel,
                tensor=tensor,
                place=place,
                elements=outside.size,
                program=self._running,
                run=self._run,
            )
        return inside

    def assumed(self, place: str, *, program: Program) -> None:
        """A program assumes something that does not hold."""
        self._events.add(
            "assumption",
            kernel=f"{self._kernel} ({place})",
            tensor="",
            place=place,
            elements=0,
            program=program,
            run=self._run,
        )

    def _nearest(self, outside: Array) -> tuple[str, str]:
        """The tensor nearest to any of the addresses, and how far away it is."""
        best: tuple[int, str, str] | None = None
        for block in self._blocks:
            for region in block.regions:
                distances = np.maximum(outside - region.end, region.start - outside)
                where = int(distances.argmin())
                candidate = (int(distances[where]), region.name, region.words(int(outside[where])))
                best = candidate if best is None else min(best, candidate)
        return ("", "unknown") if best is None else best[1:]

    def _loaded(self, block: Block, addresses: Array, size: int, me: int) -> None:
        held = _held(block, addresses, size)[0]
        if not held.any():
            return
        word = held.itemsize
        secret = held & spread(SECRET, word) != 0
        if secret.any():
            self._tell("secret", block, addresses, _lanes(secret, addresses))
        if me not in self._synchronised and (held & spread(STORED, word)).any():
            owners = block.owner[addresses - block.base]
            others = (owners > self._base) & (owners != me)
            if others.any():
                self._tell("unordered", block, addresses, others, owners=owners)

    def _stored(self, block: Block, addresses: Array, size: int, me: int, values: Array | None) -> None:
        held, index = _held(block, addresses, size)
        word = held.itemsize
        wanted = spread(WRITABLE, word)
        stray = held & wanted != wanted
        if stray.any():
            self._tell("stray", block, addresses, _lanes(stray, addresses))
        offsets = addresses - block.base
        owners = block.owner[offsets]
        others = (owners > self._base) & (owners != me)
        if values is not None and me not in self._synchronised and others.any():
            self._clash(block, addresses, size, values, others, owners)
        block.owner[offsets] = me
        block.counts[offsets] += 1
        block.words(word)[index] = (held | spread(STORED, word)) & ~spread(SECRET, word)

    def _clash(self, block: Block, addresses: Array, size: int, values: Array, others: Array, owners: Array) -> None:
        """Two programs stored to one element: a race if the values differ."""
        now = block.memory()[(addresses - block.base)[others, None] + np.arange(size)]
        new = np.ascontiguousarray(values[others]).view(np.uint8).reshape(now.shape)
        differ = others.copy()
        differ[others] = (now != new).any(axis=1)
        same = others & ~differ
        if differ.any():
            self._tell("race", block, addresses, differ, owners=owners)
        if same.any():
            self._tell("twice", block, addresses, same, owners=owners)

    def _tell(self, kind: Kind, block: Block, addresses: Array, lanes: Array, *, owners: Array | None = None) -> None:
        """Count an event for each tensor that it touches."""
        hit = addresses[lanes]
        regions = block.nearest(hit)
        others = [] if owners is None else [self._program(int(number))[1] for number in np.unique(owners[lanes])]
        for index in np.unique(regions):
            region, mine = block.regions[index], hit[regions == index]
            told = self._events.has(kind, self._kernel, region.name)  # its place is known then, and costs to find out
            self._events.add(
                kind,
                kernel=self._kernel,
                tensor=region.name,
                place="" if told else region.words(int(mine.min())),
                elements=mine.size,
                program=self._running,
                run=self._run,
                others=others,
            )

    # Maps

    def written(self, name: str) -> tuple[Array, Array]:
        """[*shape] how often each element of a tensor was stored, and the number of the program that did so last."""
        tensor = self._scene.tensors[name]
        block = self._find(tensor.data_ptr())
        if block is None:
            return np.zeros(tuple(tensor.shape), dtype=np.uint32), np.zeros(tuple(tensor.shape), dtype=np.int32)
        return _elements(block.counts, tensor, block), _elements(block.owner, tensor, block)

    def stored(self, name: str) -> Array:
        """[*shape] bool: elements whose first byte a program has stored."""
        return self._flagged(name, STORED)

    def foreign(self, name: str) -> Array:
        """[*shape] bool: elements that something other than a recorded program wrote."""
        return self._flagged(name, FOREIGN)

    def _flagged(self, name: str, flag: int) -> Array:
        tensor = self._scene.tensors[name]
        block = self._find(tensor.data_ptr())
        if block is None:
            return np.zeros(tuple(tensor.shape), dtype=np.bool_)
        return np.not_equal(_elements(block.flags, tensor, block) & flag, 0)

    def who(self, number: int) -> str:
        """The program with that number, in words."""
        kernel, program = self._program(number)
        return f"{kernel} {program_text([program])}"

    def programs(self, name: str) -> tuple[Array, dict[int, str]] | None:
        """[*shape] the number of the program that stored each element last, 0 for none, and the numbers' meanings.

        None for a tensor that the kernel was not given, and where no program stored any of it.
        """
        if name not in self._scene.tensors:
            return None
        _, owners = self.written(name)
        numbers = [int(number) for number in np.unique(owners) if number]
        return (owners.astype(np.int32), {number: self.who(number) for number in numbers}) if numbers else None

    def beside_missing(self, name: str) -> str:
        """Which program stored just before the first element of an output that no program stored; empty if none."""
        if name not in self._scene.tensors:
            return ""
        counts, owners = (part.ravel() for part in self.written(name))
        missing = np.flatnonzero((counts == 0) & ~self.foreign(name).ravel())
        if missing.size == 0:
            return ""
        stored = np.flatnonzero(owners)
        if stored.size == 0:
            return f"no program stored anything to {name}"
        before = stored[stored < missing[0]]
        nearest = int(before[-1] if before.size else stored[0])
        side = "before" if before.size else "after"
        return f"no program stored it; the last element {side} it was stored by {self.who(int(owners[nearest]))}"


def _held(block: Block, addresses: Array, size: int) -> tuple[Array, Array]:
    """The flags accessed, and their places among the block's words: bytes, where the access is not aligned."""
    offsets = addresses - block.base
    if (offsets & (size - 1)).any():
        offsets, size = (offsets[:, None] + np.arange(size)).ravel(), 1
    index = offsets >> (size.bit_length() - 1)
    return block.words(size)[index], index


def _lanes(flagged: Array, addresses: Array) -> Array:
    """[lanes] bool from flags per word, which are bytes where an access was not aligned."""
    return flagged if flagged.size == addresses.size else np.asarray(flagged.reshape(addresses.size, -1).any(axis=1))


def _elements(shadow: Array, tensor: Tensor, block: Block) -> Array:
    """[*shape] the shadow at the first byte of each element."""
    if tensor.numel() == 0:
        return np.zeros(tuple(tensor.shape), dtype=shadow.dtype)
    first = tensor.data_ptr() - block.base
    strides = tuple(stride * tensor.itemsize * shadow.itemsize for stride in tensor.stride())
    return np.ndarray(tuple(tensor.shape), shadow.dtype, shadow, first * shadow.itemsize, strides)
