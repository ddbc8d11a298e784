"""A fake: a driver for virtual memory, over a CPU's; no GPU was asked.

It keeps the books as CUDA's driver documents them: sizes and addresses are whole granules, nothing is mapped twice,
only what one call has mapped is unmapped, only addresses where nothing is mapped are given back. Behind them lies real
memory of this process, which nothing may touch where nothing is mapped: an access there faults, as it does on a GPU.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import torch
from torch import Tensor

from sanitizer.fences import forbidden
from sanitizer.mapped_memory import DriverError

__all__ = ["FakeMappingDriver", "host_bytes"]


class FakeMappingDriver:
    """Stands in for `sanitizer.mapping_drivers.CudaDriver`. `broken`: the device has faulted, every call fails."""

    def __init__(self, *, granularity: int = 4 * mmap.PAGESIZE, memory: int = 1 << 30) -> None:
        self.granularity = granularity
        self.broken = False
        self.mapped: dict[int, tuple[int, int]] = {}  # address → size and handle
        self.reserved: dict[int, tuple[int, mmap.mmap]] = {}
        self.handles: dict[int, int] = {}  # handle → size
        self.calls: list[str] = []
        self._free = memory
        self._number = 0
        self._locks: dict[int, Any] = {}  # address → what keeps its pages from being touched

    def reserve(self, size: int) -> int:
        """Addresses with nothing behind them."""
        self._check("cuMemAddressReserve", size)
        memory = mmap.mmap(-1, size + self.granularity)
        first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        address = -(-first // self.granularity) * self.granularity
        self.reserved[address] = size, memory
        for place in range(address, address + size, self.granularity):
            self._lock(place)
        return address

    def free(self, address: int, size: int) -> None:
        """Only whole reservations, in which nothing is mapped."""
        self._check("cuMemAddressFree", size, address)
        if self.reserved.get(address, (0, None))[0] != size:
            self._refuse("cuMemAddressFree", "CUDA_ERROR_INVALID_VALUE")
        if any(address <= place < address + size for place in self.mapped):
            self._refuse("cuMemAddressFree", "CUDA_ERROR_INVALID_VALUE")
        for place in range(address, address + size, self.granularity):
            self._unlock(place)
        del self.reserved[address]

    def create(self, size: int) -> int:
        """Physical memory, of which there is an end."""
        self._check("cuMemCreate", size)
        if size > self._free:
            self._refuse("cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY")
        self._free -= size
        self._number += 1
        self.handles[self._number] = size
        return self._number

    def release(self, handle: int) -> None:
        """A handle once."""
        self._check("cuMemRelease")
        if handle not in self.handles:
            self._refuse("cuMemRelease", "CUDA_ERROR_INVALID_VALUE")
        self._free += self.handles.pop(handle)

    def map(self, address: int, size: int, handle: int) -> None:
        """A whole handle, at reserved addresses, where nothing is mapped."""
        self._check("cuMemMap", size, address)
        inside = any(
            first <= address and address + size <= first + whole for first, (whole, _) in self.reserved.items()
        )
        end = address + size
        taken = any(place < end and address < place + other for place, (other, _) in self.mapped.items())
        if not inside or taken or self.handles.get(handle) != size:
            self._refuse("cuMemMap", "CUDA_ERROR_INVALID_VALUE")
        self.mapped[address] = size, handle
        self._unlock(address)

    def unmap(self, address: int, size: int) -> None:
        """Exactly what one call has mapped."""
        self._check("cuMemUnmap", size, address)
        if self.mapped.get(address, (0, 0))[0] != size:
            self._refuse("cuMemUnmap", "CUDA_ERROR_INVALID_VALUE")
        del self.mapped[address]
        self._lock(address)

    def _check(self, name: str, *sizes: int) -> None:
        self.calls.append(name)
        if self.broken:
            self._refuse(name, "CUDA_ERROR_ILLEGAL_ADDRESS")
        if any(size % self.granularity or size <= 0 for size in sizes):
            self._refuse(name, "CUDA_ERROR_INVALID_VALUE")

    def _refuse(self, name: str, error: str) -> None:
        raise DriverError(f"CUDA driver error: {name}: {error}")

    def _lock(self, address: int) -> None:
        self._locks[address] = forbidden([(address, self.granularity)])
        self._locks[address].__enter__()

    def _unlock(self, address: int) -> None:
        lock = self._locks.pop(address, None)
        if lock is not None:
            lock.__exit__(None, None, None)


def host_bytes(address: int, size: int, owner: Any) -> Tensor:
    """[size] uint8 over memory of this process; stands in for `sanitizer.device_memory.device_bytes`."""
    array = (ctypes.c_ubyte * size).from_address(address)
    setattr(array, "owner", owner)  # noqa: B010 - torch keeps the array, and it the owner; ctypes' stubs know no more
    return torch.frombuffer(array, dtype=torch.uint8)
