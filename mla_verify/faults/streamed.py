"""Kernels that give work to a stream of their own: one that orders it, and two that do not. They need a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.kernel import Kernel

__all__ = ["STREAMED_RIGHT", "STREAM_FAULTS"]


def forked_and_joined(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Multiplies on a stream that waits for the caller's, and lets the caller's wait for it."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        torch.bmm(x.transpose(0, 1), w_uv, out=out.transpose(0, 1))
    current.wait_stream(side)


def never_joined(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Multiplies on a stream of its own, and records no event for the caller's stream to wait for."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        torch.bmm(x.transpose(0, 1), w_uv, out=out.transpose(0, 1))


def never_forked(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Multiplies on a stream that does not wait for its inputs; the caller's waits for the result."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.bmm(x.transpose(0, 1), w_uv, out=out.transpose(0, 1))
    current.wait_stream(side)


def _kernel(function: Callable[..., Any]) -> Kernel:
    return Kernel(
        name=function.__name__,
        contract="up-projection",
        load=lambda: function,
        summary=(function.__doc__ or "").split("\n")[0],
        target=f"mla_verify.faults.streamed:{function.__name__.upper()}",
        devices=("cuda",),
    )


FORKED_AND_JOINED: Final = _kernel(forked_and_joined)
NEVER_JOINED: Final = _kernel(never_joined)
NEVER_FORKED: Final = _kernel(never_forked)

STREAMED_RIGHT: Final = (FORKED_AND_JOINED,)
STREAM_FAULTS: Final = (NEVER_JOINED, NEVER_FORKED)
"""Each is found under `repeatability`."""
