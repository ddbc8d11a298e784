"""The drivers behind `sanitizer.mapped_memory`: CUDA's through cuda-bindings, HIP's through its own library."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Final

import torch

from sanitizer.mapped_memory import DriverError, MappingDriver

__all__ = ["CudaDriver", "HipDriver", "NoDriver", "mapping_driver"]


class NoDriver(RuntimeError):
    """This machine has no driver for virtual memory on a device; the message says why."""


def mapping_driver(device: torch.device) -> MappingDriver:
    """The driver for a device of torch's. Raises NoDriver where what it takes is not installed or not supported."""
    index = device.index or 0
    torch.empty(1, device=device)  # the driver's calls need torch's context
    try:
        driver = HipDriver(index) if torch.version.hip else CudaDriver(index)
        if driver.granularity <= 0:
            raise NoDriver("the driver maps no memory on this device")
    except (ImportError, OSError, AttributeError) as error:
        raise NoDriver(f"{type(error).__name__}: {error}") from error
    except DriverError as error:
        raise NoDriver(str(error)) from error
    return driver


class CudaDriver:
    """CUDA's driver, by the functions cuMem… of cuda-bindings."""

    def __init__(self, device: int) -> None:
        from cuda.bindings import driver  # pyright: ignore[reportMissingImports] - optional

        self._cuda: Any = driver
        self._prop = driver.CUmemAllocationProp()
        self._prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._prop.location.id = device
        self._access = driver.CUmemAccessDesc()
        self._access.location = self._prop.location
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granularity = int(self._call("cuMemGetAllocationGranularity", self._prop, minimum))

    def reserve(self, size: int) -> int:
        """cuMemAddressReserve."""
        return int(self._call("cuMemAddressReserve", size, 0, 0, 0))

    def free(self, address: int, size: int) -> None:
        """cuMemAddressFree."""
        self._call("cuMemAddressFree", address, size)

    def create(self, size: int) -> int:
        """cuMemCreate."""
        return int(self._call("cuMemCreate", size, self._prop, 0))

    def release(self, handle: int) -> None:
        """cuMemRelease."""
        self._call("cuMemRelease", handle)

    def map(self, address: int, size: int, handle: int) -> None:
        """cuMemMap and cuMemSetAccess."""
        self._call("cuMemMap", address, size, 0, handle, 0)
        self._call("cuMemSetAccess", address, size, [self._access], 1)

    def unmap(self, address: int, size: int) -> None:
        """cuMemUnmap."""
        self._call("cuMemUnmap", address, size)

    def _call(self, name: str, *arguments: Any) -> Any:
        """A driver's call. The bindings return the error first, then what the call gives, if anything."""
        error, *given = getattr(self._cuda, name)(*arguments)
        if int(error) != 0:
            raise DriverError(f"CUDA driver error: {name}: {getattr(error, 'name', error)}")
        return given[0] if given else None


_DEVICE: Final = 1  # hipMemLocationTypeDevice
_PINNED: Final = 1  # hipMemAllocationTypePinned
_READ_AND_WRITE: Final = 3  # hipMemAccessFlagsProtReadWrite
_MINIMUM: Final = 0  # hipMemAllocationGranularityMinimum


class _Location(ctypes.Structure):
    """hipMemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Flags(ctypes.Structure):
    """The struct `allocFlags` within hipMemAllocationProp."""

    _fields_ = (("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort))


class _Property(ctypes.Structure):
    """hipMemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_type", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", _Flags),
    )


class _Access(ctypes.Structure):
    """hipMemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class HipDriver:
    """HIP's runtime, by the functions hipMem… of the library that torch has loaded."""

    def __init__(self, device: int, library: Any = None) -> None:
        self._hip = library if library is not None else ctypes.CDLL(_loaded("libamdhip64"))
        location = _Location(_DEVICE, device)
        self._property = _Property(type=_PINNED, location=location)
        self._access = _Access(location, _READ_AND_WRITE)
        size = ctypes.c_size_t()
        self._call(
            "hipMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(self._property), ctypes.c_int(_MINIMUM)
        )
        self.granularity = int(size.value)

    def reserve(self, size: int) -> int:
        """hipMemAddressReserve."""
        address = ctypes.c_void_p()
        nothing = (ctypes.c_size_t(0), ctypes.c_void_p(0), ctypes.c_ulonglong(0))
        self._call("hipMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), *nothing)
        return int(address.value or 0)

    def free(self, address: int, size: int) -> None:
        """hipMemAddressFree."""
        self._call("hipMemAddressFree", ctypes.c_void_p(address), ctypes.c_size_t(size))

    def create(self, size: int) -> int:
        """hipMemCreate."""
        handle = ctypes.c_void_p()
        self._call(
            "hipMemCreate",
            ctypes.byref(handle),
            ctypes.c_size_t(size),
            ctypes.byref(self._property),
            ctypes.c_ulonglong(0),
        )
        return int(handle.value or 0)

    def release(self, handle: int) -> None:
        """hipMemRelease."""
        self._call("hipMemRelease", ctypes.c_void_p(handle))

    def map(self, address: int, size: int, handle: int) -> None:
        """hipMemMap and hipMemSetAccess."""
        where = (ctypes.c_void_p(address), ctypes.c_size_t(size))
        self._call("hipMemMap", *where, ctypes.c_size_t(0), ctypes.c_void_p(handle), ctypes.c_ulonglong(0))
        self._call("hipMemSetAccess", *where, ctypes.byref(self._access), ctypes.c_size_t(1))

    def unmap(self, address: int, size: int) -> None:
        """hipMemUnmap."""
        self._call("hipMemUnmap", ctypes.c_void_p(address), ctypes.c_size_t(size))

    def _call(self, name: str, *arguments: Any) -> None:
        error = int(getattr(self._hip, name)(*arguments))
        if error:
            raise DriverError(f"HIP error {error}: {name}")


def _loaded(name: str) -> str:
    """The path of a library that this process has loaded; its bare name where it has not."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.rpartition(" ")[2]
        if path.startswith("/") and Path(path).name.startswith(name):
            return path
    return f"{name}.so"
