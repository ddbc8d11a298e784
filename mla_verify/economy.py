"""Economy: counts the pieces of memory that one call allocates, inside C++ operators too, with torch's profiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from sanitizer.arena import Arena
from sanitizer.finding import Finding
from sanitizer.secrets import Secret

__all__ = ["count_allocations", "measure_allocations", "peak_bytes"]


def count_allocations(run: Callable[[], object]) -> tuple[int, int]:
    """How many allocations a call makes on the CPU or the current GPU, and their bytes."""
    sizes = [size for size in _memory_events(run) if size > 0]
    return len(sizes), sum(sizes)


def peak_bytes(run: Callable[[], object]) -> int:
    """The most memory, in bytes, that a call held at once beyond what was held before it."""
    held = peak = 0
    for size in _memory_events(run):
        held += size
        peak = max(peak, held)
    return peak


def _memory_events(run: Callable[[], object]) -> list[int]:
    """Bytes of every allocation (positive) and release (negative) during a call, in order of time."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else every profile prints two lines to stderr
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with torch.no_grad(), profile(activities=activities, profile_memory=True) as trace:
        run()
    results: Any = cast("Any", trace.profiler).kineto_results
    events = [event for event in results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


def measure_allocations(
    call: Callable[[dict[str, Tensor]], Mapping[str, Tensor] | None], arena: Arena, *, allowed: int
) -> list[Finding]:
    """A finding where one call allocates more often than its kernel declares."""
    arena.poison(Secret.A)
    tensors = arena.tensors()
    count, size = count_allocations(lambda: call(tensors))
    if count <= allowed:
        return []
    detail = f"one call allocates {count} pieces of memory ({size} bytes), {allowed} declared"
    return [Finding("economy", "", count, detail)]
