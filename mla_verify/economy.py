"""Economy: what one call launches and allocates, by torch's profiler and allocator, against what is declared."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from mla_verify.traces import Spending, memory_events, spending_of
from sanitizer.arena import Arena
from sanitizer.finding import Finding
from sanitizer.secrets import Secret
from sanitizer.stopwatch import synchronise

__all__ = [
    "allocated_between",
    "economy_findings",
    "exceeding",
    "measure",
    "peak_bytes",
    "trace_of",
]

_COUNT: Final = "allocation.all.allocated"
_BYTES: Final = "requested_bytes.all.allocated"  # as asked for; "allocated_bytes" are rounded up to whole blocks


def measure(run: Callable[[], object], device: torch.device) -> Spending:
    """What one call spends on `device`. On a GPU the allocator's own statistics count, which miss nothing."""
    if device.type != "cuda":
        return spending_of(trace_of(run), gpu=False)
    before: dict[str, int] = {}
    after: dict[str, int] = {}

    def counted() -> None:
        before.update(torch.cuda.memory_stats(device))
        run()
        synchronise(device)
        after.update(torch.cuda.memory_stats(device))

    spent = spending_of(trace_of(counted), gpu=True)
    count, size = allocated_between(before, after)
    return replace(spent, allocations=count, allocated_bytes=size)


def allocated_between(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[int, int]:
    """How many allocations lie between two readings of `torch.cuda.memory_stats`, and their bytes."""
    return (
        after.get(_COUNT, 0) - before.get(_COUNT, 0),
        after.get(_BYTES, 0) - before.get(_BYTES, 0),
    )


def peak_bytes(run: Callable[[], object]) -> int:
    """The most memory, in bytes, that a call held at once beyond what was held before it."""
    held = peak = 0
    for size in memory_events(trace_of(run)):
        held += size
        peak = max(peak, held)
    return peak


def trace_of(run: Callable[[], object]) -> dict[str, Any]:
    """The trace of one call, as kineto writes it (`mla_verify.traces`)."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else every profile prints two lines to stderr
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with torch.no_grad(), profile(activities=activities, profile_memory=True) as recorded:
        run()
    with tempfile.TemporaryDirectory(prefix="mla-verify-") as folder:
        path = Path(folder, "trace.json")
        recorded.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8", errors="replace"))


def economy_findings(
    call: Callable[[dict[str, Tensor]], Mapping[str, Tensor] | None],
    arena: Arena,
    *,
    allocations: int | None,
    launches: int | None,
) -> list[Finding]:
    """A finding where one call allocates or launches more often than its kernel declares; None declares nothing.

    Launches are held against the declaration on a GPU alone: a CPU has none, and its operators may copy an operand
    where a GPU would not.
    """
    arena.poison(Secret.A)
    tensors = arena.tensors()
    return exceeding(
        measure(lambda: call(tensors), arena.device),
        allocations=allocations,
        launches=launches if arena.device.type == "cuda" else None,
    )


def exceeding(spent: Spending, *, allocations: int | None, launches: int | None) -> list[Finding]:
    """What a call spent beyond its declaration, as findings; one that comes first explains the other."""
    if allocations is not None and spent.allocations > allocations:
        detail = (
            f"one call allocates {spent.allocations} pieces of memory ({spent.allocated_bytes} bytes), "
            f"{allocations} declared"
        )
        return [Finding("economy", "", spent.allocations, detail)]
    if launches is not None and spent.launches > launches:
        fills = f", {spent.fills} of them to fill memory" if spent.fills else ""
        detail = f"one call launches {spent.launches} kernels and copies{fills}; {launches} declared"
        return [Finding("economy", "", spent.launches, detail)]
    return []
