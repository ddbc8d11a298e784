"""Lays each tensor out in an allocation of its own, as other tools want it: what nobody declared stays uninitialised.

Tools that watch a device's memory know allocations, and whether a byte has ever been written. In an arena everything is
one allocation, and all of it has been.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sanitizer.geometry import extent_of
from sanitizer.plan import TensorPlan
from sanitizer.secrets import Secret, carrier_of, carrier_view, fill_with_secret

__all__ = ["laid_apart"]


def laid_apart(plans: Sequence[TensorPlan], device: torch.device) -> dict[str, Tensor]:
    """The tensors by name, each exactly as large as from its first element to its last; plans without overlays only.

    Undeclared elements that a kernel may expect to be valid (`fills` that are neither NaN nor −1) hold secret A.
    """
    return {plan.name: _laid(plan, device) for plan in plans if plan.over is None}


def _laid(plan: TensorPlan, device: torch.device) -> Tensor:
    storage = torch.empty(extent_of(plan.shape, plan.strides), dtype=plan.dtype, device=device)
    if plan.role == "input" and plan.fills.a not in ("nan", -1):
        fill_with_secret(storage, Secret.A.fill(plan.fills))
    if plan.values is not None and storage.numel():
        words = carrier_of(plan.dtype)[1]
        places = _places(plan, device)
        live = torch.ones((), dtype=torch.bool) if plan.live is None else plan.live
        live = live.to(device).expand(plan.shape).reshape(-1)
        values = carrier_view(plan.values.to(device).contiguous()).reshape(-1, words)
        # Element by element: rows of an input may overlap, and its gaps are nobody's.
        carrier_view(storage).view(-1, words)[places[live]] = values[live]
    return storage.as_strided(plan.shape, plan.strides)


def _places(plan: TensorPlan, device: torch.device) -> Tensor:
    """[elements] int64: where in the storage each element lies, in row-major order."""
    places = torch.zeros((), dtype=torch.int64, device=device)
    for size, stride in zip(plan.shape, plan.strides, strict=True):
        places = places.unsqueeze(-1) + torch.arange(size, device=device) * stride
    return places.reshape(-1)
