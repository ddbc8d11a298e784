"""Fences on a device: the first element past a tensor is mapped to nothing while a kernel runs, and only then."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from mla_verify.examine import examine
from mla_verify.kernels.shipped import SHIPPED
from mla_verify.loading import open_bench
from sanitizer.arena import Arena
from sanitizer.audit import audit
from sanitizer.fences import Fence
from sanitizer.geometry import extent_of
from sanitizer.mapped_memory import DeviceFences, DriverError, MappedRange
from sanitizer.mapping_drivers import CudaDriver, HipDriver
from sanitizer.plan import TensorPlan
from strategies.problems import UpProjectionProblem
from tests.gpu.fakes.fake_mapping_driver import FakeMappingDriver, host_bytes

ROOT: Final = Path(__file__).resolve().parents[2]
CPU: Final = torch.device("cpu")


def fences(driver: FakeMappingDriver) -> DeviceFences:
    """Fences over the fake driver."""
    return DeviceFences(driver, CPU, tensor=host_bytes)


def plans() -> list[TensorPlan]:
    """An input and an output of odd sizes."""
    values = torch.arange(7.0)
    return [
        TensorPlan(name="x", shape=(7,), strides=(1,), dtype=torch.float32, role="input", values=values),
        TensorPlan(name="out", shape=(3, 5), strides=(6, 1), dtype=torch.float16, role="output"),
    ]


@pytest.mark.parametrize("side", ["after", "before"])
def test_tensors_touch_the_end_of_what_is_mapped(side: Any) -> None:
    """While the fences hold, the granule behind the last element (in front of the first) is not mapped; then it is."""
    driver = FakeMappingDriver()
    arena = Arena("cpu", fencing=fences(driver))
    arena.load(plans(), fence=Fence(side))
    everything = dict(driver.mapped)
    for tensor in arena.tensors().values():
        extent = extent_of(tensor.shape, tensor.stride())
        first, end = tensor.data_ptr(), tensor.data_ptr() + extent * tensor.itemsize
        edge = end if side == "after" else first
        assert edge % driver.granularity == 0
        gone = end if side == "after" else first - driver.granularity
        kept = end - driver.granularity if side == "after" else first
        with arena.fences():
            assert gone not in driver.mapped
            assert kept in driver.mapped
    assert {place: size for place, (size, _) in driver.mapped.items()} == {
        place: size for place, (size, _) in everything.items()
    }


def test_a_kernel_that_stays_within_its_tensors_passes_between_fences() -> None:
    """Three secrets, at the same addresses, with strips mapped and unmapped around every call."""
    arena = Arena("cpu", fencing=fences(FakeMappingDriver()))
    arena.load(plans(), fence=Fence("after"))

    def kernel(tensors: dict[str, Tensor]) -> None:
        tensors["out"].copy_(tensors["x"][:5].expand(3, 5))

    assert audit(kernel, arena).findings == ()


OVERREAD: Final = """
import torch
from sanitizer.arena import Arena
from sanitizer.audit import audit
from sanitizer.fences import Fence
from sanitizer.geometry import extent_of
from tests.gpu.test_device_fences import fences, plans
from tests.gpu.fakes.fake_mapping_driver import FakeMappingDriver

def kernel(tensors):
    x = tensors["x"]
    beyond = torch.empty(0).set_(x.untyped_storage(), x.storage_offset() + {offset}, (1,))
    tensors["out"].fill_(float(beyond))

arena = Arena("cpu", fencing=fences(FakeMappingDriver()))
arena.load(plans(), fence=Fence("{side}"))
print(len(audit(kernel, arena).findings))
"""


@pytest.mark.parametrize(("side", "offset", "dies"), [("after", 7, True), ("after", 6, False), ("before", -1, True)])
def test_one_element_too_far_faults(side: str, offset: int, *, dies: bool) -> None:
    """A read of the element behind the last one ends the process; a read of the last one does not."""
    done = subprocess.run(
        [sys.executable, "-c", OVERREAD.format(side=side, offset=offset)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode < 0) == dies, done.stderr


def test_what_a_strip_held_is_there_again() -> None:
    """Memory that is unmapped and mapped again holds what it did: writes beside a tensor are seen in its guard."""
    driver = FakeMappingDriver()
    unit = driver.granularity
    piece = MappedRange(driver, 3 * unit)
    memory = host_bytes(piece.address, piece.size, piece)
    memory.fill_(7)
    piece.forbid(piece.address + unit, unit)
    assert piece.address + unit not in driver.mapped
    piece.allow(piece.address + unit, unit)
    assert int(memory[unit]) == 7
    piece.allow(piece.address, unit)  # mapped already, and not mapped twice
    with pytest.raises(ValueError, match="are not whole granules"):
        piece.forbid(piece.address + 1, unit)


def test_everything_is_given_back() -> None:
    """When the last tensor goes, so do mappings, memory and addresses; also where memory ran out half-way."""
    driver = FakeMappingDriver()
    memory = fences(driver).own_pages(5 * driver.granularity)
    assert len(driver.mapped) == 5
    del memory
    gc.collect()
    assert (driver.mapped, driver.handles, driver.reserved) == ({}, {}, {})
    small = FakeMappingDriver(memory=2 * driver.granularity)
    with pytest.raises(DriverError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        MappedRange(small, 3 * small.granularity)
    assert (small.mapped, small.handles, small.reserved) == ({}, {}, {})


def test_what_the_kernel_did_is_told_and_not_what_the_driver_says_of_it() -> None:
    """After a fault the driver refuses every call: the kernel's own error is the one that counts."""
    driver = FakeMappingDriver()
    arena = Arena("cpu", fencing=fences(driver))
    arena.load(plans(), fence=Fence("after"))

    def kernel(_: dict[str, Tensor]) -> None:
        driver.broken = True
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    (finding,) = audit(kernel, arena).findings
    driver.broken = False
    assert finding.clause == "survival"
    assert "illegal memory access" in finding.detail


def test_a_problem_is_examined_between_the_fences_of_its_device() -> None:
    """A worker on a device with fences uses them, and scratch there is guarded instead."""
    kernel = next(one for one in SHIPPED if one.name == "up_projection_copy")
    bench = open_bench(kernel)
    driver = FakeMappingDriver()
    bench.arena = Arena("cpu", fencing=fences(driver))
    bench.fenced = True
    problem = UpProjectionProblem(num_tokens=3, num_heads=2, kv_lora_rank=4, v_head_dim=2)
    assert examine(problem, bench).findings == ()
    assert driver.calls.count("cuMemUnmap") > 0


def test_the_fake_keeps_the_books() -> None:
    """What this file rests on: the driver's documented refusals."""
    driver = FakeMappingDriver()
    unit = driver.granularity
    address, handle = driver.reserve(2 * unit), driver.create(unit)
    driver.map(address, unit, handle)
    for wrong in (
        lambda: driver.map(address, unit, handle),  # mapped twice
        lambda: driver.map(address + 8 * unit, unit, handle),  # not reserved
        lambda: driver.map(address + 1, unit, handle),  # no granule
        lambda: driver.unmap(address + unit, unit),  # nothing mapped
        lambda: driver.free(address, 2 * unit),  # something mapped
        lambda: driver.create(unit + 1),
    ):
        with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
            wrong()
    driver.unmap(address, unit)
    driver.release(handle)
    driver.free(address, 2 * unit)


class FakeHip:
    """A stand-in for HIP's library: records calls, answers as documented."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "hipMemGetAllocationGranularity":
                ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_size_t))[0] = 2 << 20
            if name in ("hipMemAddressReserve", "hipMemCreate"):
                ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_void_p))[0] = 0x10000000
            return 1 if name == "hipMemUnmap" else 0

        return call


def test_hip_s_calls_are_made_in_their_order() -> None:
    """Reserve, create, map with access; an error code becomes an exception that names the call."""
    library = FakeHip()
    driver = HipDriver(0, library)
    assert driver.granularity == 2 << 20
    address, handle = driver.reserve(2 << 20), driver.create(2 << 20)
    driver.map(address, 2 << 20, handle)
    assert library.calls == [
        "hipMemGetAllocationGranularity",
        "hipMemAddressReserve",
        "hipMemCreate",
        "hipMemMap",
        "hipMemSetAccess",
    ]
    with pytest.raises(DriverError, match="HIP error 1: hipMemUnmap"):
        driver.unmap(address, 2 << 20)


def test_cuda_s_driver_is_asked_through_its_bindings_only_when_it_is_used() -> None:
    """Importing the module needs no bindings; making a driver without them says which are missing."""
    if importlib.util.find_spec("cuda") is None:
        with pytest.raises(ImportError, match="cuda"):
            CudaDriver(0)
