"""What only a GPU shows of a kernel: whether it can be replayed from a graph, and whether its work is in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.contract import Contract, Placement
from mla_verify.graphs import replayed_from_graphs
from mla_verify.kernel import Kernel
from sanitizer.arena import Arena
from sanitizer.finding import Finding
from sanitizer.graphs import GraphBackend
from sanitizer.streams import StreamBackend, audit_streams

__all__ = ["Backends", "OnDevice", "backends_of", "looked_at", "seen_on_device"]

# One problem in so many, by its seed: the same one again when it is shrunk or replayed. Capturing takes longer than all
# the rest of an examination.
_EVERY: Final = 8
_STREAMS: Final = "streams"

_Call = Callable[[dict[str, Tensor]], Mapping[str, Tensor] | None]


@dataclass(frozen=True, slots=True, eq=False)
class Backends:
    """What captures calls, made anew for every problem so that its pool goes with it, and what has streams."""

    graphs: Callable[[], GraphBackend]
    streams: StreamBackend


@dataclass(frozen=True, slots=True, eq=False)
class OnDevice:
    """What a problem showed. error: what the process will not get over."""

    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    error: BaseException | None = None


def backends_of(device: torch.device) -> Backends | None:
    """What a device has, on CUDA and ROCm alike; None on a CPU."""
    if device.type != "cuda":
        return None
    from sanitizer.cuda_graphs import CudaGraphs
    from sanitizer.cuda_streams import CudaStreams

    return Backends(lambda: CudaGraphs(device), CudaStreams(device))


def looked_at(problem: Any) -> bool:
    """Whether this problem is one of those that are captured and run on streams."""
    return problem.seed % _EVERY == 0 and problem.invalid is None


def seen_on_device(
    problem: Any,
    *,
    kernel: Kernel,
    contract: Contract,
    call: Callable[[Placement], _Call],
    arena: Arena,
    backends: Backends,
    workspaces: Callable[[], Sequence[Tensor]] = tuple,
) -> OnDevice:
    """Run a kernel on streams and from graphs, on a problem on which an eager audit has found nothing.

    call: the kernel with a placement's plain arguments, ready for tensors, which does not wait for the device.
    """
    placement = contract.place(problem, kernel, arena.device)
    arena.load(placement.tensors)
    ordered = audit_streams(
        call(placement),
        arena,
        backends.streams,
        deterministic=kernel.deterministic,
        workspaces=workspaces,
        zeroed_workspace="zeroed_workspace" in kernel.preconditions,
    )
    note = f"{_STREAMS} not checked: {ordered.why_not}" if ordered.why_not else f"{_STREAMS}: read by another stream"
    if ordered.findings or ordered.error is not None:
        return OnDevice(ordered.findings, (note,), ordered.error)
    replayed = replayed_from_graphs(
        problem,
        kernel=kernel,
        contract=contract,
        call=call,
        arena=arena,
        backend=backends.graphs(),
        workspaces=workspaces,
    )
    return OnDevice(replayed.findings, (note, *replayed.notes), replayed.error)
