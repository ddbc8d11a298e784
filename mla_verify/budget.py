"""How much of a GPU's memory one worker may take, and which problems fit into that."""

from __future__ import annotations

from typing import Any, Final

import torch
from hypothesis.strategies import SearchStrategy

from strategies.extents import elements_of

__all__ = ["BYTES_PER_ELEMENT", "budget_of", "fitting", "most_elements", "sharing", "workers_on"]

# Arena and image hold an element once each (4 bytes at most), the oracle's float64 temporaries take up to twice 8.
BYTES_PER_ELEMENT: Final = 24
_CONTEXT: Final = 1 << 30  # bytes that two processes' contexts, their loaded kernels and cuBLAS's workspaces take
_SPARE: Final = 10  # one part in so many stays free: for other programs, and for what fragmentation costs


def workers_on(index: int, *, workers: int, devices: int) -> int:
    """How many workers are pinned to device `index`: worker w is, to device w modulo `devices`."""
    return len(range(index, workers, devices))


def budget_of(free: int, *, workers: int) -> int:
    """The bytes that each of `workers` workers on one device may take of the `free` ones, its contexts aside."""
    return max(0, (free - free // _SPARE) // max(workers, 1) - _CONTEXT)


def sharing(name: str, device: torch.device, *, workers: int) -> int:
    """How many of `workers` xdist workers run on `device`, all of them having been told to use the device `name`."""
    if name != "cuda":
        return workers  # a GPU named by its number is everybody's
    return workers_on(device.index or 0, workers=workers, devices=torch.cuda.device_count())


def most_elements(device: torch.device, *, workers: int) -> int | None:
    """The largest problem, in elements, that one of `workers` workers on `device` may run; None: nothing limits it."""
    if device.type != "cuda":
        return None
    free, _total = torch.cuda.mem_get_info(device)
    return budget_of(free, workers=workers) // BYTES_PER_ELEMENT


def fitting(problems: SearchStrategy[Any], most: int | None) -> SearchStrategy[Any]:
    """The same problems without those that span more than `most` elements."""
    return problems if most is None else problems.filter(lambda problem: elements_of(problem) <= most)
