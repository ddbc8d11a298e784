"""The kernels of the corpus that remember, under the names by which a worker can load them from this file."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mla_verify.faults import calls
from mla_verify.faults.fault import kernel_of
from mla_verify.kernel import Kernel

__all__ = ["FAULTS", "RIGHT"]


def _short(kernel: Kernel) -> Kernel:
    return replace(kernel, name=kernel.name.removeprefix("decode_").removeprefix("up_projection_"), target=None)


FAULTS: Final = tuple(_short(kernel_of(fault)) for fault in calls.FAULTS)
RIGHT: Final = tuple(_short(kernel) for kernel in calls.RIGHT)

globals().update({f"kernel_{kernel.name}": kernel for kernel in (*FAULTS, *RIGHT)})
