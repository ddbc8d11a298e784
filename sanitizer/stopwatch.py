"""Says where the time of an audit goes: filling, running the kernel, comparing, intercepting."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

import torch

__all__ = ["Phase", "Stopwatch", "synchronise"]

Phase = Literal["fill", "runs", "compare", "intercept"]


def _no_seconds() -> dict[Phase, float]:
    return {"fill": 0.0, "runs": 0.0, "compare": 0.0, "intercept": 0.0}


def synchronise(device: torch.device) -> None:
    """Wait until `device` has done everything it was given; nothing to wait for on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(slots=True)
class Stopwatch:
    """Seconds per phase, summed over audits until `reset`.

    wait_for: a device to synchronise with at every lap, so that asynchronous work counts where it was launched. Only
    a benchmark wants that; None never waits.
    """

    wait_for: torch.device | None = None
    seconds: dict[Phase, float] = field(default_factory=_no_seconds)
    _mark: float = 0.0

    def start(self) -> None:
        """Begin a lap now; what passed since the last one belongs to no phase."""
        if self.wait_for is not None:
            synchronise(self.wait_for)
        self._mark = perf_counter()

    def lap(self, phase: Phase) -> None:
        """Book the time since the last lap under `phase`, and begin the next."""
        if self.wait_for is not None:
            synchronise(self.wait_for)
        now = perf_counter()
        self.seconds[phase] += now - self._mark
        self._mark = now

    def move(self, seconds: float, *, source: Phase, target: Phase) -> None:
        """Book `seconds` of one phase under another: interception happens inside the runs."""
        self.seconds[source] -= seconds
        self.seconds[target] += seconds

    def reset(self) -> None:
        """Forget every booked second."""
        self.seconds = _no_seconds()
