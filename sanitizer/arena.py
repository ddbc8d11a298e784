"""One reused allocation that holds a problem's tensors among guards, and knows what every byte of it must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from sanitizer import faults
from sanitizer.containment import Strays, describe_strays, strays_of
from sanitizer.fences import Fence, Fencing, HostFences, Strip
from sanitizer.finding import Finding
from sanitizer.kept import KeptMemory
from sanitizer.laying import Layer, Memory, as_wide_words, lay_large, lay_small
from sanitizer.placed import Ground, Placed, place, strided_view
from sanitizer.plan import Element, TensorPlan
from sanitizer.secrets import Secret

__all__ = ["Arena"]

_SMALL: Final = 128 << 10  # bytes up to which three images cost less than rewriting one three times
_HUGE: Final = 8 << 20  # bytes from which it pays to look at declared bytes once in an audit instead of every run

_Metadata = tuple[int, torch.Size, tuple[int, ...], torch.dtype]


class Arena:
    """Lays problems out, poisons what is undeclared, and says which bytes a kernel changed that it must not.

    `load` once, then for every run: `poison`, `tensors`, the kernel, `layout_changes`, `output_bits`, `stray`.
    """

    def __init__(self, device: torch.device | str = "cpu", *, fencing: Fencing | None = None) -> None:
        """fencing: what puts tensors between fences; a CPU has its own."""
        self.device = torch.empty(0, device=device).device
        self.fencing: Fencing | None = fencing or (HostFences() if self.device.type == "cpu" else None)
        self._open = Memory(self.device)
        self._fenced = Memory(self.device, fencing=self.fencing)
        self._arena = self._open
        self._image = Memory(self.device)
        self.kept = KeptMemory()  # what kernels audited in this arena hold on to between calls
        self.fence: Fence | None = None  # what the loaded tensors lie between
        self._strips: list[Strip] = []
        self._plans: Sequence[TensorPlan] = ()
        self._placed: dict[str, Placed] = {}
        self._writable: list[Placed] = []
        self._untouched: dict[str, Tensor] = {}
        self._layers: list[Layer] = []
        self._wide: list[tuple[Tensor, Tensor]] = []
        self._owners: dict[str, Tensor] = {}
        self._expected: dict[str, _Metadata] = {}
        self._storage = (0, 0)
        self._size = 0
        self._small = True
        self._row: int | None = None  # the secret that the single image holds
        self._clean = False  # the arena is known to equal the image
        self._moved = False  # the kernel reallocated the arena's storage
        self._strayed: Tensor | None = None  # where strays were seen, for as long as somebody wants to know

    @property
    def plans(self) -> Sequence[TensorPlan]:
        """What is loaded."""
        return self._plans

    @property
    def huge(self) -> bool:
        """Whether `stray` can look at secret bytes alone, and whether that is worth it."""
        return bool(self._wide)

    @property
    def nbytes(self) -> int:
        """Bytes that arena and image take."""
        return self._open.data.numel() + self._fenced.data.numel() + self._image.data.numel()

    def load(self, plans: Sequence[TensorPlan], *, fence: Fence | None = None) -> None:
        """Lay `plans` out and put the inputs' values in. The arena grows where it must and never shrinks.

        fence: lay every tensor between pages that nobody may touch while `fences` holds. Offsets do not count then, and
        outputs with a storage of their own become views.
        """
        if fence is not None:
            if self.fencing is None:
                raise ValueError(f"there are no fences on {self.device}: load the problem without")
            fence = replace(fence, page=self.fencing.page)
        ground = place(plans, fence=fence)
        self._strayed = None
        places, self._size = ground.places, ground.size
        self._plans = plans
        self.fence, self._arena = fence, self._open if fence is None else self._fenced
        self._placed = {placed.plan.name: placed for placed in places}
        self._small = self._size <= _SMALL
        self._arena.reserve(self._size)
        self._image.reserve(self._size * (len(Secret) if self._small else 1))
        self._row, self._clean, self._moved = None, False, False
        self._layers = []
        for placed in sorted(places, key=lambda placed: placed.plan.over is not None):
            if self._small:
                lay_small(placed, self._image, self._size)
            else:
                self._layers += lay_large(placed, self._image, self._arena)
        regular = all(layer.index is None for layer in self._layers)
        self._wide = [as_wide_words(layer) for layer in self._layers] if self._size >= _HUGE and regular else []
        self._writable = [placed for placed in places if placed.plan.role != "input" and placed.extent]
        self._untouched = dict(self._untouched_masks())
        self._owners = {
            placed.plan.name: torch.empty(placed.end - placed.start, dtype=torch.uint8, device=self.device)
            for placed in places
            if placed.plan.form == "owner" and placed.plan.over is None and fence is None
        }
        self._expect()
        self._note_fences(ground)

    def _note_fences(self, ground: Ground) -> None:
        """Remember which pages to forbid, and let the fault report know what lies between them."""
        base = self._arena.data.data_ptr()
        self._strips = [(base + first, length) for first, length in ground.strips]
        if not self._strips or self.device.type != "cpu":
            return  # a device that faults does not say where
        roots = [placed for placed in ground.places if placed.plan.over is None]
        between = zip(roots, self._strips[:-1], self._strips[1:], strict=True)
        tensors = [
            faults.Fenced(
                placed.plan.name,
                front[0],
                base + placed.start,
                base + placed.end,
                behind[0] + behind[1],
                placed.itemsize,
            )
            for placed, front, behind in between
        ]
        faults.note(tensors + [kept.fenced for kept in self.kept.scratches if kept.fenced is not None], afresh=True)

    def _untouched_masks(self) -> list[tuple[str, Tensor]]:
        """Per output that must not be written everywhere: where not, in the shape of its words."""
        masks: list[tuple[str, Tensor]] = []
        for placed in self._writable:
            rules = placed.plan.rules
            if rules is None or placed.plan.role != "output":
                continue
            untouched = rules.to(self.device) == Element.UNTOUCHED
            if bool(untouched.any()):
                untouched = untouched.expand(placed.plan.shape)
                masks.append((placed.plan.name, untouched.unsqueeze(-1) if placed.words > 1 else untouched))
        return masks

    def _expect(self) -> None:
        self._expected = {name: _metadata(tensor) for name, tensor in self.tensors().items()}
        self._storage = _storage_of(self._arena.data)

    @property
    def strips(self) -> Sequence[Strip]:
        """The pages around the tensors that `fences` forbids; none where the arena has no fences."""
        return tuple(self._strips)

    def fences(self) -> AbstractContextManager[None]:
        """Forbids all access to the pages around the tensors, for as long as a kernel runs."""
        if self.fencing is None or not self._strips:
            return nullcontext()
        return self.fencing.forbidden(self._strips)

    @property
    def scratch_fence(self) -> Fence | None:
        """The fence for what a kernel allocates itself; on a device scratch is guarded, and not fenced."""
        return self.fence if self.device.type == "cpu" else None

    # Before a run

    def poison(self, secret: Secret) -> None:
        """Put every byte into its state under `secret`: inputs hold their values, everything undeclared the secret.

        A declared byte that a kernel damaged is repaired by `stray`, which therefore comes first.
        """
        row = secret.row
        if self._small:
            self._arena.data[: self._size].copy_(self._image_of(row))
        elif self._row is None:
            for layer in self._layers:
                layer.lay(row, into_arena=False)
            self._arena.data[: self._size].copy_(self._image_of(row))
        elif row != self._row or not self._clean:
            for layer in self._layers:
                layer.lay(row, into_arena=True)
        self._row, self._clean = row, False
        for name, storage in self._owners.items():
            storage.copy_(self._slot(name))

    def blank(self) -> None:
        """Zero everything, inputs too, until the next `poison` lays all of it: what comes before that finds nothing."""
        self._arena.data[: self._size].zero_()
        for storage in self._owners.values():
            storage.zero_()
        self._row, self._clean = None, False

    def tensors(self) -> dict[str, Tensor]:
        """Fresh tensor objects, at the same addresses on every call since `load`."""
        made: dict[str, Tensor] = {}
        for name, placed in self._placed.items():
            plan = placed.plan
            storage = self._owners.get(name)
            if storage is None:
                whole = self._arena.typed(plan.dtype)
                made[name] = whole.as_strided(plan.shape, plan.strides, placed.start // placed.itemsize)
            else:
                fresh = torch.empty(0, dtype=plan.dtype, device=self.device)
                made[name] = fresh.set_(storage.untyped_storage(), 0, plan.shape, plan.strides)
        return made

    def handed_out(self, tensor: Tensor) -> int:
        """How many bytes from the beginning of its storage `tensor` may reach: to the end of what it is a view of."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() != self._arena.data.untyped_storage().data_ptr():
            return int(storage.nbytes())
        first = int(tensor.storage_offset()) * tensor.itemsize
        ends = [placed.end for placed in self._placed.values() if placed.low <= first <= placed.end]
        return max(ends, default=first)

    # After a run

    def layout_changes(self, tensors: Mapping[str, Tensor]) -> list[Finding]:
        """Which of the `tensors` that a kernel was given are no longer what they were. Comes before `output_bits`.

        What an output then holds at its old place is not what the kernel computed.
        """
        self._moved = _storage_of(self._arena.data) != self._storage
        findings: list[Finding] = []
        for name, tensor in tensors.items():
            now, before = _metadata(tensor), self._expected[name]
            if (now[1:] != before[1:]) if self._moved and name not in self._owners else (now != before):
                findings.append(Finding("layout", name, tensor.numel(), _layout_words(name, before, now)))
        known = {finding.tensor for finding in findings}
        for name, storage in list(self._owners.items()):
            size, wanted = storage.untyped_storage().nbytes(), storage.numel()
            if size == wanted:
                self._slot(name).copy_(storage)
                continue
            self._owners[name] = torch.empty_like(storage)
            self._expect()
            if name not in known:
                detail = f"the storage of {name} was resized from {wanted} to {size} bytes"
                findings.append(Finding("layout", name, tensors[name].numel(), detail))
        if self._moved and not known:
            detail = "the storage that holds the caller's tensors was reallocated"
            findings += [Finding("layout", placed.plan.name, 0, detail) for placed in self._writable]
        if self._moved and self._arena.data.untyped_storage().nbytes() < self._size:
            self._renew()
        return findings

    def _renew(self) -> None:
        """Replace an arena whose storage the kernel reallocated, and lay everything out again."""
        row, strayed = self._row or 0, self._strayed
        self._arena.renew(max(self._size, self._arena.data.numel()))
        self.load(self._plans, fence=self.fence)
        self._strayed = strayed
        self.poison(list(Secret)[row])
        self._clean = True

    def output_bits(self, name: str) -> Tensor:
        """[*shape] (complex128: [*shape, 2]) a compact copy of what a tensor holds now, as carrier words."""
        placed = self._placed[name]
        words = strided_view(self._arena.typed(placed.carrier), placed)
        return words.clone(memory_format=torch.contiguous_format)

    def secret_bits(self, name: str) -> Tensor:
        """What `output_bits` gave for an output that nobody wrote, under the secret of the last `poison`."""
        placed = self._placed[name]
        first = (self._row or 0) * self._size if self._small else 0
        return strided_view(self._image.typed(placed.carrier), placed, first_byte=first).clone(
            memory_format=torch.contiguous_format
        )

    def same_place(self, name: str, tensor: Tensor) -> bool:
        """Whether `tensor` is the loaded tensor `name` itself: its address, shape, strides and dtype."""
        return _metadata(tensor) == self._expected.get(name)

    def storages(self) -> set[int]:
        """Identities of the storages that belong to the arena."""
        own = [self._arena.data, *self._owners.values()]
        return {StorageWeakRef(tensor.untyped_storage()).cdata for tensor in own}

    def arena_view(self, tensor: Tensor) -> Callable[[], Tensor] | None:
        """How to read, after a later `poison`, what lies where `tensor` does; None if that is not in the arena."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() != self._arena.data.untyped_storage().data_ptr():
            return None
        dtype, shape, strides, first = tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
        return lambda: self._arena.typed(dtype).as_strided(shape, strides, first)

    def stray(self, *, outputs: bool = True, declared: bool = True) -> list[Finding]:
        """Every byte that is not what it was and had to be, as `containment` findings; the arena is whole afterwards.

        Outputs and workspaces may have been written, untouched elements aside; with `outputs=False` they may not.
        With `declared=False`, where the arena is `huge`, only bytes that hold secrets are looked at.
        """
        if outputs:
            self.put_outputs_back()
        image, arena = self._image_of(self._row or 0), self._arena.data[: self._size]
        if declared or not self.huge:
            same = torch.equal(arena.view(torch.int64), image.view(torch.int64))
        else:
            same = all(torch.equal(kept, wanted) for wanted, kept in self._wide)
        findings: list[Finding] = []
        if not same:
            changed = arena != image
            findings = describe_strays(changed, list(self._placed.values()))
            if self._strayed is not None:
                self._strayed |= changed
            arena.copy_(image)
        self._clean = True
        if self._moved:
            self._renew()
        return findings

    def watch_strays(self) -> None:
        """From now on, until another problem is loaded, keep in mind where strays are seen; see `strays`."""
        self._strayed = torch.zeros(self._size, dtype=torch.bool, device=self.device)

    def strays(self) -> dict[str, Strays]:
        """Per tensor in whose elements, gaps or guards strays were seen since `watch_strays`: where."""
        if self._strayed is None:
            return {}
        return strays_of(self._strayed, list(self._placed.values()))

    def put_outputs_back(self) -> None:
        """Restore what a kernel may write, unseen the rest: the next `stray` under the same secret judges both runs."""
        self._clean = True
        first = (self._row or 0) * self._size if self._small else 0
        for placed in self._writable:
            if placed.plan.over is not None:
                continue
            arena = strided_view(self._arena.typed(placed.carrier), placed)
            image = strided_view(self._image.typed(placed.carrier), placed, first_byte=first)
            untouched = self._untouched.get(placed.plan.name)
            arena.copy_(image if untouched is None else torch.where(untouched, arena, image))

    def _image_of(self, row: int) -> Tensor:
        first = row * self._size if self._small else 0
        return self._image.data[first : first + self._size]

    def _slot(self, name: str) -> Tensor:
        """The bytes of the arena that mirror a tensor with its own storage: what it holds before and after a run."""
        placed = self._placed[name]
        return self._arena.data[placed.start : placed.end]


def _metadata(tensor: Tensor) -> _Metadata:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _storage_of(tensor: Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _layout_words(name: str, before: _Metadata, now: _Metadata) -> str:
    changes = [
        f"{what} {old} became {new}"
        for what, old, new in (
            ("shape", list(before[1]), list(now[1])),
            ("strides", list(before[2]), list(now[2])),
            ("dtype", before[3], now[3]),
        )
        if old != new
    ]
    if before[0] != now[0]:
        changes.append("it points to other memory than the caller's")
    return f"the caller's {name} was changed: {'; '.join(changes)}"
