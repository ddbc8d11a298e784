"""Says where the time goes: filling, running the kernel, comparing, intercepting, and what callers add."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

import torch

__all__ = ["Stopwatch", "synchronise"]


def _no_seconds() -> dict[str, float]:
    return {"fill": 0.0, "runs": 0.0, "compare": 0.0, "intercept": 0.0}


def synchronise(device: torch.device) -> None:
    """Wait until `device` has done everything it was given; nothing to wait for on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(slots=True)
class Stopwatch:
    """Seconds per phase, summed over audits until `reset`. An audit books fill, runs, compare and intercept.

    wait_for: a device to synchronise with at every lap, so that asynchronous work counts where it was launched. Only
    a benchmark wants that; None never waits.
    """

    wait_for: torch.device | None = None
    seconds: dict[str, float] = field(default_factory=_no_seconds)
    _mark: float = 0.0

    def start(self) -> None:
        """Begin a lap now; what passed since the last one belongs to no phase."""
        if self.wait_for is not None:
            synchronise(self.wait_for)
        self._mark = perf_counter()

    def lap(self, phase: str) -> None:
        """Book the time since the last lap under `phase`, and begin the next."""
        if self.wait_for is not None:
            synchronise(self.wait_for)
        now = perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._mark
        self._mark = now

    def move(self, seconds: float, *, source: str, target: str) -> None:
        """Book `seconds` of one phase under another: interception happens inside the runs."""
        self.seconds[source] -= seconds
        self.seconds[target] += seconds

    def reset(self) -> None:
        """Forget every booked second."""
        self.seconds = _no_seconds()
