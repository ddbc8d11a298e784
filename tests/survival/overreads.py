"""Right kernels but for one read: an element past a tensor, or before it. `TENSORS` says of which tensors there is one.

They are called up_projection_past_x, decode_before_kv_indptr and so on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from torch import Tensor

from mla_verify.faults.right import one_pass, summed_then_copied
from mla_verify.kernel import Kernel
from mla_verify.registry import ARGUMENTS

__all__ = ["SIDES", "TENSORS", "name_of"]

SIDES: Final = ("past", "before")
# Plain numbers, and the scales of codes, which a plain problem does not have.
_NO_TENSORS: Final = {"page_size", "max_seqlen_q", "sm_scale", "num_kv_splits", "q_scale", "kv_scale"}
TENSORS: Final = {
    contract: tuple(name for name in names if name not in _NO_TENSORS) for contract, names in ARGUMENTS.items()
}
_RIGHT: Final[dict[str, Callable[..., Any]]] = {"up-projection": summed_then_copied, "decode": one_pass}


def name_of(contract: str, side: str, tensor: str) -> str:
    """What the kernel is called that reads on this side of this tensor."""
    return f"{contract.replace('-', '_')}_{side}_{tensor}"


def read_beside(tensor: Tensor, side: str) -> None:
    """Read the element behind the last one in memory, or the one before the first."""
    if tensor.numel() == 0:
        return
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    ctypes.string_at(tensor.data_ptr() + (extent if side == "past" else -1) * tensor.itemsize, tensor.itemsize)


def _kernel(contract: str, side: str, tensor: str) -> Kernel:
    def call(**given: Any) -> None:
        _RIGHT[contract](**given)
        read_beside(given[tensor], side)

    return Kernel(name=name_of(contract, side, tensor), contract=contract, load=lambda: call)


for _contract, _tensors in TENSORS.items():
    for _tensor in _tensors:
        for _side in SIDES:
            globals()[name_of(_contract, _side, _tensor)] = _kernel(_contract, _side, _tensor)
