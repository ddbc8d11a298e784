"""Memory that a kernel holds on to between calls: which of it is scratch, which a table, and what to do before a run.

Note [Kept memory]: a cached workspace that is read before it is written looks right on every call but the first. So
kept memory that came uninitialised is sorted, element by element:

* never written: it still holds the mark it was handed out with. Secret before every run.
* rewritten on every call: a probe run, with other numbers in it, overwrites them. Scratch, secret before every run.
* anything else, such as a table computed once: its bits are put back before every run.

Only floating-point memory is probed. Integers that were written are put back as they were: an index table full of
other numbers could make a right kernel crash. What is rewritten with zero counts as a semaphore that the kernel resets,
and is put back too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from sanitizer.interception import Interceptor, Scratch, scratch_fill
from sanitizer.secrets import Secret, carrier_of

__all__ = ["KeptMemory"]

# One byte has too few values for a mark: a byte that holds it may have been written. Only runs of this many
# marked bytes count as never written.
_MARKED_RUN: Final = 32


@dataclass(slots=True, eq=False)
class _Kept:
    """One kept allocation, in carrier words: masks of what is known about each, and the bits to put back."""

    scratch: Scratch
    unwritten: Tensor
    rewritten: Tensor
    bits: Tensor
    unknown: Tensor | None = None  # written, and not yet probed

    @property
    def probed(self) -> bool:
        return self.scratch.dtype.is_floating_point or self.scratch.dtype.is_complex


class KeptMemory:
    """All kept allocations of the kernels that were audited in one arena.

    `begin` an audit, `restore` before each run, `learn` after the warm-up; where that says so, `fill_probe`, run,
    `learn_probe`; `adopt` after later runs, `end` after the audit.
    """

    def __init__(self) -> None:
        self._items: list[_Kept] = []
        self._initialised: list[tuple[Tensor, Tensor]] = []  # words of storages that came initialised, and their bits

    @property
    def scratches(self) -> list[Scratch]:
        """The kept allocations that came uninitialised."""
        return [item.scratch for item in self._items]

    def begin(self) -> None:
        """Forget what has been freed, and take what the rest holds now for what it has to hold."""
        self._items = [item for item in self._items if item.scratch.alive]
        for item in self._items:
            item.bits = item.scratch.words.clone()

    def end(self) -> None:
        """Let go of storages that are only watched during one audit."""
        self._initialised = []

    def restore(self, secret: Secret, *, marked: bool = False) -> None:
        """Put `secret` into everything that is no table, and the tables' bits back."""
        for item in self._items:
            pattern = item.scratch.pattern(scratch_fill(secret, marked=marked))
            item.scratch.words.copy_(torch.where(item.unwritten | item.rewritten, pattern, item.bits))
        for words, bits in self._initialised:
            words.copy_(bits)

    def learn(self, interceptor: Interceptor, *, foreign: Iterable[int]) -> bool:
        """Sort what the warm-up kept. Whether a probe run is needed.

        foreign: identities of storages that are not the kernel's own.
        """
        for item in self._items:
            still = _still_marked(item.scratch)
            fresh = item.unwritten & ~still
            item.unwritten &= still
            item.unknown = fresh if item.probed and bool(fresh.any()) else None
            item.bits = item.scratch.words.clone()
        for scratch in interceptor.scratches:
            if scratch.alive:
                self._items.append(_sorted_in(scratch))
        self._watch_initialised(interceptor, frozenset(foreign))
        return any(item.unknown is not None for item in self._items)

    def _watch_initialised(self, interceptor: Interceptor, foreign: frozenset[int]) -> None:
        known = foreign | {item.scratch.given.cdata for item in self._items}
        for cdata, given in interceptor.tracked.items():
            if cdata in known or given.expired():
                continue
            words = _all_words(given, interceptor.device)
            if words.numel():
                self._initialised.append((words, words.clone()))

    def fill_probe(self) -> None:
        """Fill what was written and may be scratch with other ordinary numbers."""
        for item in self._items:
            if item.unknown is not None:
                item.scratch.words.copy_(
                    torch.where(item.unknown, item.scratch.pattern("ordinary2"), item.scratch.words)
                )

    def learn_probe(self) -> None:
        """Sort what the probe run has rewritten."""
        for item in self._items:
            if item.unknown is not None:
                words = item.scratch.words
                changed = (words != item.scratch.pattern("ordinary2")) & (words != 0)
                item.rewritten |= item.unknown & changed
                item.unknown = None

    def adopt(self, interceptor: Interceptor) -> None:
        """Take up what a run after the warm-up has kept: written elements are put back, the others are secret."""
        known = {item.scratch.given.cdata for item in self._items}
        for scratch in interceptor.scratches:
            if scratch.alive and scratch.given.cdata not in known:
                nothing = torch.zeros_like(scratch.words, dtype=torch.bool)
                self._items.append(_Kept(scratch, nothing, nothing.clone(), scratch.words.clone()))


def _sorted_in(scratch: Scratch) -> _Kept:
    unwritten = _still_marked(scratch)
    item = _Kept(scratch, unwritten, torch.zeros_like(unwritten), scratch.words.clone())
    if item.probed:
        item.unknown = ~unwritten
    return item


def _still_marked(scratch: Scratch) -> Tensor:
    """[words] bool: what holds the mark that it was handed out with, and so was never written."""
    same = scratch.words == scratch.pattern("marked")
    if carrier_of(scratch.dtype)[0].itemsize > 1:
        return same
    run = min(_MARKED_RUN, same.numel())
    count = same.to(torch.int32).cumsum(0)
    before = torch.cat([count.new_zeros(1), count])
    begins = (before[run:] - before[:-run]) == run  # a whole run of marks begins here
    spread = torch.cat([begins.new_zeros(run - 1), begins, begins.new_zeros(run - 1)])
    reach = torch.cat([count.new_zeros(1), spread.to(torch.int32).cumsum(0)])
    return (reach[run:] - reach[:-run]) > 0


def _all_words(given: StorageWeakRef, device: torch.device) -> Tensor:
    """[bytes] the whole of a storage that is still alive."""
    # torch offers no public way from a weak reference to its storage; its own code goes the same way.
    storage = torch.UntypedStorage._new_with_weak_ptr(given.cdata)  # pyright: ignore[reportPrivateUsage]
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
