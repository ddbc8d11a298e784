"""Economy: counts the pieces of memory that one call allocates, inside C++ operators too, with torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from sanitizer.arena import Arena
from sanitizer.finding import Finding
from sanitizer.secrets import Secret

__all__ = ["count_allocations", "measure_allocations"]


def count_allocations(run: Callable[[], object]) -> tuple[int, int]:
    """How many allocations a call makes on the CPU or the current GPU, and their bytes."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with torch.no_grad(), profile(activities=activities, profile_memory=True) as trace:
        run()
    sizes = [
        size
        for event in trace.profiler.kineto_results.events()  # type: ignore[union-attr]  # set once the profile has ended
        if event.name() == "[memory]" and (size := event.nbytes()) > 0
    ]
    return len(sizes), sum(sizes)


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
