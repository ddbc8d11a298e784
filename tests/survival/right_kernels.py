"""The right kernels of unusual make, each under its own name, so that a worker can load them."""

from __future__ import annotations

from typing import Final

from mla_verify.faults.right import RIGHT

__all__ = ["NAMES"]

NAMES: Final = tuple(kernel.name for kernel in RIGHT)

globals().update({kernel.name: kernel for kernel in RIGHT})
