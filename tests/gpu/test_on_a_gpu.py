"""The same checks on a GPU: right kernels pass, seeded faults are found, the sanitizer stays on the device."""

from __future__ import annotations

from typing import Final

import pytest
import torch

from mla_verify.check import Aim, check
from mla_verify.faults import calls
from mla_verify.faults.corpus import controls, faults
from mla_verify.faults.fault import Fault, kernel_of
from mla_verify.registry import registered
from sanitizer.arena import Arena
from sanitizer.plan import TensorPlan
from sanitizer.secrets import Secret

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

# Fences are for CPUs, and sequences for worker processes, of which each takes seconds to start here.
FAULTS: Final = [
    fault for fault in faults(triton=False) if fault not in calls.FAULTS and fault.clauses != ("survival",)
]
RIGHT: Final = controls(triton=False)


@pytest.mark.parametrize("kernel", registered(), ids=lambda kernel: kernel.name)
def test_registered_kernels_hold_on_a_gpu(kernel: object) -> None:
    """Every registered kernel that runs on CUDA or ROCm keeps its contract there."""
    report = check(kernel, examples=60, seed=0, device="cuda")  # type: ignore[arg-type]  # a Kernel, as parametrized
    if report.verdict == "unavailable":
        pytest.skip(f"{report.kernel}: {report.unavailable}")
    assert report.findings == ()


@pytest.mark.parametrize("kernel", RIGHT, ids=lambda kernel: kernel.name)
def test_right_kernels_are_not_blamed_on_a_gpu(kernel: object) -> None:
    """Right kernels of unusual make pass on the device too."""
    report = check(kernel, examples=40, seed=0, device="cuda", isolation="none")  # type: ignore[arg-type]  # a Kernel
    assert report.findings == ()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_seeded_faults_are_found_on_a_gpu(fault: Fault) -> None:
    """Each seeded fault is found on the device under a clause that it declares."""
    aim = Aim(clauses=frozenset(fault.clauses), shrink=False)
    report = check(kernel_of(fault), examples=300, seed=0, device="cuda", isolation="none", aim=aim)
    assert {finding.clause for finding in report.findings} & set(fault.clauses)


def test_the_arena_lies_on_the_device() -> None:
    """Tensors, secrets and comparison are on the GPU: nothing of a problem is copied to the host."""
    arena = Arena("cuda")
    values = torch.arange(12, dtype=torch.float32, device="cuda").view(3, 4)
    arena.load(
        [
            TensorPlan(name="x", shape=(3, 4), strides=(5, 1), dtype=torch.float32, role="input", values=values),
            TensorPlan(name="out", shape=(3, 4), strides=(6, 1), dtype=torch.float16, role="output"),
        ]
    )
    for secret in Secret:
        arena.poison(secret)
        tensors = arena.tensors()
        assert all(tensor.is_cuda for tensor in tensors.values())
        assert torch.equal(tensors["x"], values)
        assert arena.stray() == []
    tensors = arena.tensors()
    tensors["x"][1, 2] = 0
    (finding,) = arena.stray()
    assert finding.clause == "containment"
    assert finding.tensor == "x"
