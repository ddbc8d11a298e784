"""An exact write map by other means than the sanitizer's: constant fills, and a look at every byte afterwards.

The tensors lie where the arena puts them, because some faults depend on what lies around an output. Nothing else of the
sanitizer is used: no secret, no interceptor, no classification, no search for strays.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor

from mla_verify.examine import Bench
from sanitizer.plan import TensorPlan

NAN: Final = float("nan")
FILLS: Final = (NAN, -3.0e4, 3.0e4, 0.0, 1.5, -2.25, 0.3125)
_BYTES: Final = (0xFF, 0x41, 0x13, 0x00, 0x77, 0x5A, 0x2C)  # of memory that belongs to no tensor
_FACTORIES: Final = ("empty", "empty_like", "empty_strided")


@dataclass(frozen=True, slots=True, eq=False)
class Writes:
    """What became of one tensor over all fills.

    written: [shape] bool, elements that some run changed. differing: [shape] bool, elements that two runs left
    different; surely_differing: those that the first fill and zero left different, which two of the secrets are, too.
    beside: places of changed slots in the extent and the guards that are no elements, in elements from the first one.
    """

    written: Tensor
    differing: Tensor
    surely_differing: Tensor
    beside: frozenset[int]


def writes_of(problem: Any, bench: Bench) -> dict[str, Writes]:
    """Run the kernel once over each fill."""
    placement = bench.contract.place(problem, bench.kernel, bench.device)
    plans = {plan.name: plan for plan in placement.tensors}
    bench.arena.load(placement.tensors)
    runs = [_run(bench, plans, placement.arguments, number) for number in range(len(FILLS))]
    return {name: _joined(plan, [run[name] for run in runs]) for name, plan in plans.items()}


@dataclass(frozen=True, slots=True, eq=False)
class _Left:
    """One tensor after one run. same: [shape] bool, still what it held before."""

    bits: Tensor
    same: Tensor
    beside: frozenset[int]


def _run(bench: Bench, plans: Mapping[str, TensorPlan], arguments: Mapping[str, Any], number: int) -> dict[str, _Left]:
    tensors = bench.arena.tensors()
    memories = {name: _memory(tensor) for name, tensor in tensors.items()}
    for memory in memories.values():
        memory.fill_(_BYTES[number])
    pool = plans["kv_buffer"].shape[0] if "kv_buffer" in plans else 1
    for name, plan in plans.items():
        _fill(tensors[name], plan, FILLS[number], pool)
    before = {name: memory.clone() for name, memory in memories.items()}
    held = {name: _bits(tensor).clone() for name, tensor in tensors.items()}
    with _filled(FILLS[number]), torch.no_grad():
        more = {} if bench.kernel.prepare is None else {"state": bench.kernel.prepare(**tensors, **arguments)}
        returned = bench.function(**tensors, **arguments, **more)
    left = {name: _bits(tensor).clone() for name, tensor in tensors.items()}
    for name, piece in _own(returned, bench.contract.outputs, tensors).items():
        left[name], held[name] = _bits(piece).clone(), _bits(torch.full_like(piece, FILLS[number]))
    return {
        name: _Left(left[name], left[name] == held[name], _beside(plan, tensors[name], before[name], memories[name]))
        for name, plan in plans.items()
    }


def _fill(tensor: Tensor, plan: TensorPlan, fill: float, pool: int) -> None:
    """Fill a tensor and its gaps, then put in what is declared."""
    constant = fill
    if not tensor.is_floating_point():  # an index that a kernel may follow: the last page is nobody's; or a code
        words = (0xFF, 0x7F) if plan.dtype == torch.uint8 else (-1, pool - 1)
        constant = 0 if fill == 0 else words[0] if math.isnan(fill) else words[1]
    extent = 0 if 0 in plan.shape else 1 + _reach(plan)
    whole = torch.as_strided(tensor, (extent,), (1,))
    whole.copy_(torch.full((extent,), constant, dtype=torch.float32 if tensor.is_floating_point() else torch.int64))
    if plan.values is not None and extent:
        live = torch.tensor(True) if plan.live is None else plan.live
        bits, wanted = _bits(tensor), _bits(plan.values.expand(plan.shape))
        mixed = torch.where(live.expand(plan.shape), wanted, bits).view(plan.dtype)
        for dim, (size, stride) in enumerate(zip(plan.shape, plan.strides, strict=True)):
            if stride == 0 and size > 1:
                tensor, mixed = tensor.narrow(dim, 0, 1), mixed.narrow(dim, 0, 1)
        tensor.copy_(mixed)


def _beside(plan: TensorPlan, tensor: Tensor, before: Tensor, after: Tensor) -> frozenset[int]:
    """Changed slots in a tensor's gaps and in the guards that it asked for."""
    item = tensor.itemsize
    start = int(tensor.storage_offset()) * item
    extent = 0 if 0 in plan.shape else 1 + _reach(plan)
    guard = plan.guard // item if plan.form == "view" else 0
    first = max(0, start - guard * item)
    slots = min(extent + (start - first) // item + guard, (after.numel() - first) // item)
    changed = (before != after)[first : first + slots * item].view(slots, item).any(-1)
    offset = (start - first) // item
    if 0 not in plan.shape:
        torch.as_strided(changed, plan.shape, plan.strides, int(changed.storage_offset()) + offset).fill_(False)
    return frozenset((changed.nonzero().flatten() - offset).tolist())


def _joined(plan: TensorPlan, runs: Sequence[_Left]) -> Writes:
    written, differing = ~runs[0].same, torch.zeros(plan.shape, dtype=torch.bool)
    for run in runs[1:]:
        written = written | ~run.same
        differing = differing | (run.bits != runs[0].bits)
    sure = runs[FILLS.index(0.0)].bits != runs[0].bits
    return Writes(written, differing, sure, frozenset[int]().union(*(run.beside for run in runs)))


def _reach(plan: TensorPlan) -> int:
    return sum((size - 1) * stride for size, stride in zip(plan.shape, plan.strides, strict=True))


def _memory(tensor: Tensor) -> Tensor:
    """All bytes of the storage that a tensor lies in."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _bits(values: Tensor) -> Tensor:
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(words[values.itemsize])


def _own(returned: Any, names: tuple[str, ...], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Outputs that the kernel allocated itself."""
    pieces = returned if isinstance(returned, tuple) else (returned,)
    return {
        name: piece
        for name, piece in zip(names, pieces, strict=False)
        if isinstance(piece, Tensor) and piece.data_ptr() != tensors[name].data_ptr()
    }


@contextmanager
def _filled(fill: float) -> Generator[None, None, None]:
    """Have torch's uninitialised tensors hold the fill."""

    def filling(make: Any) -> Any:
        def made(*arguments: Any, **options: Any) -> Tensor:
            tensor: Tensor = make(*arguments, **options)
            return tensor.fill_(fill) if tensor.is_floating_point() else tensor.zero_()

        return made

    patches = [mock.patch.object(torch, name, filling(getattr(torch, name))) for name in _FACTORIES]
    patches.append(mock.patch.object(Tensor, "new_empty", filling(Tensor.new_empty)))
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
