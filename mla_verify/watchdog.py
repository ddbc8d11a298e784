"""Ends a process whose kernel does not come back: an interval timer, whose signal also stops a loop in C."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any, Final

import torch

__all__ = ["HUNG", "Watchdog"]

HUNG: Final = "SIGALRM"  # what a process ended by the watchdog is reported to have died of


class Watchdog:
    """Calls a kernel under a time limit.

    The first call of a problem is its warm-up, in which compilers and autotuners run: it has a limit of its own and is
    left out of `slowest`, the longest call of the problem so far (seconds). `function` is the kernel itself.
    """

    def __init__(self, function: Callable[..., Any], device: torch.device) -> None:
        self.function = function
        self._device = device
        self._limit = 0.0
        self._warm_up_limit = 0.0
        self._calls = 0
        self.slowest = 0.0

    def begin(self, *, limit: float, warm_up_limit: float) -> None:
        """A new problem: set its limits (seconds; 0 for none) and forget the last one's times."""
        self._limit, self._warm_up_limit = limit, warm_up_limit
        self._calls, self.slowest = 0, 0.0

    def __call__(self, **arguments: Any) -> Any:
        """Call the kernel; the process ends by SIGALRM where it does not return in time."""
        warm_up = self._calls == 0
        self._calls += 1
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        started = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, self._warm_up_limit if warm_up else self._limit)
        try:
            result = self.function(**arguments)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            return result
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if not warm_up:
                self.slowest = max(self.slowest, time.perf_counter() - started)
