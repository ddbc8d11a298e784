"""Device memory that is mapped piece by piece, so that pieces of it can be taken away while a kernel runs.

Note [Granules]: a driver maps physical memory in granules, of 2 MiB on most devices. A range of addresses is reserved
once, each granule of it backed by memory of its own. To forbid a strip its granules are unmapped: an access faults as
any access to nothing does. To allow it the same memory is mapped again, with what it held. Drivers unmap what was
mapped by one call only as a whole, so every granule is mapped by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from sanitizer.device_memory import device_bytes
from sanitizer.fences import Strip
from sanitizer.stopwatch import synchronise

__all__ = ["DeviceFences", "DriverError", "MappedRange", "MappingDriver"]


class DriverError(RuntimeError):
    """A driver refused a call; the message names both."""


class MappingDriver(Protocol):
    """The calls of a driver for virtual memory. Sizes and addresses are multiples of `granularity`."""

    @property
    def granularity(self) -> int:
        """Bytes that are mapped at least."""
        ...

    def reserve(self, size: int) -> int:
        """The first of so many addresses, with nothing behind them."""
        ...

    def free(self, address: int, size: int) -> None:
        """Give reserved addresses back, once nothing is mapped there."""
        ...

    def create(self, size: int) -> int:
        """A handle of physical memory on the device."""
        ...

    def release(self, handle: int) -> None:
        """Give physical memory back; it stays for as long as it is mapped."""
        ...

    def map(self, address: int, size: int, handle: int) -> None:
        """Put memory behind reserved addresses, for the device to read and write."""
        ...

    def unmap(self, address: int, size: int) -> None:
        """Take away what one `map` has put there."""
        ...


class MappedRange:
    """Addresses of whole granules, all mapped at first. Raises DriverError where there are none left."""

    def __init__(self, driver: MappingDriver, size: int) -> None:
        self._driver = driver
        self._unit = driver.granularity
        self.size = max(-(-size // self._unit), 1) * self._unit
        self._handles: list[int] = []
        self._mapped: set[int] = set()  # numbers of granules
        self.address = driver.reserve(self.size)
        try:
            for number in range(self.size // self._unit):
                self._handles.append(driver.create(self._unit))
                self._map(number)
        except DriverError:
            self.close()
            raise

    def forbid(self, address: int, length: int) -> None:
        """Unmap the granules of a strip."""
        for number in self._numbers(address, length):
            self._driver.unmap(self.address + number * self._unit, self._unit)
            self._mapped.discard(number)

    def allow(self, address: int, length: int) -> None:
        """Map the granules of a strip again; those that are mapped stay so."""
        for number in self._numbers(address, length):
            if number not in self._mapped:
                self._map(number)

    def close(self) -> None:
        """Give everything back. A driver whose device has broken refuses, and the process is about to end anyway."""
        if self.size == 0:
            return
        with contextlib.suppress(DriverError):
            for number in sorted(self._mapped):
                self._driver.unmap(self.address + number * self._unit, self._unit)
            for handle in self._handles:
                self._driver.release(handle)
            self._driver.free(self.address, self.size)
        self._mapped.clear()
        self._handles.clear()
        self.size = 0

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self.close()

    def _map(self, number: int) -> None:
        self._driver.map(self.address + number * self._unit, self._unit, self._handles[number])
        self._mapped.add(number)

    def _numbers(self, address: int, length: int) -> range:
        first = address - self.address
        if first % self._unit or length % self._unit or not 0 <= first <= first + length <= self.size:
            raise ValueError(f"{length} bytes at {address:#x} are not whole granules of {self._unit} of this range")
        return range(first // self._unit, (first + length) // self._unit)


class DeviceFences:
    """Fences on a device, as `sanitizer.fences.HostFences` has them on a CPU.

    tensor: makes [size] uint8 over an address, and keeps the owner alive.
    """

    def __init__(
        self,
        driver: MappingDriver,
        device: torch.device,
        *,
        tensor: Callable[[int, int, MappedRange], Tensor] | None = None,
    ) -> None:
        self.page = driver.granularity
        self._driver = driver
        self._device = device
        self._tensor = tensor or self._on_device
        self._range: MappedRange | None = None

    def _on_device(self, address: int, size: int, owner: MappedRange) -> Tensor:
        return device_bytes(address, size, self._device, owner=owner)

    def own_pages(self, size: int) -> Tensor:
        """[size, whole granules] uint8: zeroed memory of its own. Strips are looked for in the latest of these."""
        self._range = MappedRange(self._driver, size)
        made = self._tensor(self._range.address, self._range.size, self._range)
        return made.zero_()

    @contextmanager
    def forbidden(self, strips: Sequence[Strip]) -> Generator[None, None, None]:
        """Unmap `strips` while the body runs. What has been launched before is waited for: it may write there."""
        if not strips or self._range is None:
            yield
            return
        synchronise(self._device)
        try:
            for address, length in strips:
                self._range.forbid(address, length)
            yield
            synchronise(self._device)
        except BaseException:
            # After a fault the driver refuses this too; what the kernel did is what has to be told.
            with contextlib.suppress(DriverError):
                self._allow(strips)
            raise
        self._allow(strips)

    def _allow(self, strips: Sequence[Strip]) -> None:
        if self._range is not None:
            for address, length in strips:
                self._range.allow(address, length)
