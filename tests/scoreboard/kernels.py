"""Faulty kernels for tests of the board itself: one that breaks no promise of the contract, and a usual one."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.faults.fault import Fault

__all__ = ["FOUND", "OUTSIDE"]


def slow_for_many_heads(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Multiplies twice where there is more than one head: slow, which the contract does not speak of."""
    product = torch.einsum("tnl,nlv->tnv", x.float(), w_uv.float())
    if x.shape[1] > 1:
        product = torch.einsum("tnl,nlv->tnv", x.float(), w_uv.float())
    out.copy_(product)


def heads_reversed(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Writes the heads in the wrong order."""
    out.copy_(torch.einsum("tnl,nlv->tnv", x.float(), w_uv.float()).flip(1))


OUTSIDE: Final = Fault(
    "slow_for_many_heads", "up-projection", slow_for_many_heads, ("agreement",), "more work than it needs", ("B080",)
)
FOUND: Final = Fault("heads_reversed", "up-projection", heads_reversed, ("agreement",), "heads reversed", ("B042",))
