"""Tensors over memory of a GPU that torch did not allocate for them: by address and size alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["device_bytes"]


@dataclass(frozen=True, slots=True, eq=False)
class _Region:
    """A piece of device memory as `__cuda_array_interface__` describes it, which torch reads on CUDA and ROCm.

    owner: what has to live as long as the memory is used; torch keeps this object, and so the owner.
    """

    address: int
    size: int
    owner: Any

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False), "version": 2}


def device_bytes(address: int, size: int, device: torch.device, *, owner: Any = None) -> Tensor:
    """[size] uint8: the memory itself, not a copy. owner: kept alive by the tensor."""
    if size == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    return torch.as_tensor(_Region(address, size, owner), device=device)
