"""Graphs of CUDA and HIP behind `sanitizer.graphs`, through torch.cuda.CUDAGraph, which is both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor

from sanitizer.device_memory import device_bytes

__all__ = ["CudaGraphs", "blocks_of_pool"]

_WARM_UPS: Final = 3  # what torch's own documentation does before a capture
# An expandable segment is a range of addresses of which only some blocks are mapped.
_MAPPED: Final = frozenset({"active_allocated", "active_awaiting_free", "active_pending_free", "inactive"})


class CudaGraphs:
    """Captures calls on one device, all into one pool and on one stream: torch asks the second of the first."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def warm_up(self, call: Callable[[], object]) -> None:
        """Call it a few times on a side stream: libraries set themselves up there, and not within a capture."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                call()
        current.wait_stream(self._stream)
        torch.cuda.synchronize(self._device)

    def capture(self, call: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Capture one call. Raises what the kernel or the driver raises where it cannot be."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            call()
        torch.cuda.synchronize(self._device)
        return graph

    def pool(self) -> Sequence[Tensor]:
        """[bytes] uint8 each: the blocks of the pool, as torch's allocator lists them."""
        blocks = blocks_of_pool(torch.cuda.memory_snapshot(), cast("tuple[int, int]", self._pool))
        return [device_bytes(address, size, self._device) for address, size in blocks]


def blocks_of_pool(snapshot: Sequence[Mapping[str, Any]], pool: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Address and bytes of every mapped block of a pool, from what `torch.cuda.memory_snapshot` returns."""
    for segment in snapshot:
        if tuple(cast("Sequence[int]", segment.get("segment_pool_id", ()))) != tuple(pool):
            continue
        address = int(segment["address"])
        for block in segment["blocks"]:
            # Old versions of torch leave the address out: blocks lie one behind the other.
            address = int(block.get("address", address))
            if block["state"] in _MAPPED:
                yield address, int(block["size"])
            address += int(block["size"])
