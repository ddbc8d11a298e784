"""A fault on a device ends the process that runs kernels, is a `survival` finding, and the run goes on."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor

from mla_verify.check import check
from mla_verify.kernel import Kernel
from sanitizer.arena import Arena
from sanitizer.audit import audit
from sanitizer.fatal import broke_device, fatal_words, spoils_process
from sanitizer.plan import TensorPlan
from strategies.limits import UpProjectionLimits

# What torch, Triton and the runtimes say, as their documentation and users' reports have it.
BROKEN: Final = (
    "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported",
    "HIP error: an illegal memory access was encountered\nHIP kernel errors might be asynchronously reported",
    "CUDA error: misaligned address",
    "CUDA error: device-side assert triggered",
    "HIP error: unspecified launch failure",
    "Triton Error [CUDA]: an illegal memory access was encountered",
    "Triton Error [HIP]:  Code: 700, Messsage: an illegal memory access was encountered",
    "CUDA driver error: unspecified launch failure",
    "cudaErrorIllegalAddress: 700",
    "hipErrorIllegalAddress",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
)
SOUND: Final = (
    "CUDA error: invalid configuration argument",
    "CUDA error: invalid argument",
    "CUDA error: operation not permitted when stream is capturing",
    "CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmStridedBatchedEx`",
    "Triton Error [CUDA]: invalid argument",
    "kv_indices would be an illegal memory access",
)


@pytest.mark.parametrize("message", BROKEN)
def test_errors_that_stay_are_told(message: str) -> None:
    """After an error that every later call repeats, the process cannot be trusted."""
    error = RuntimeError(message)
    assert broke_device(error)
    assert spoils_process(error)
    assert (fatal_words(error) or "").startswith("the kernel broke the device: ")


@pytest.mark.parametrize("message", SOUND)
def test_errors_that_pass_are_exceptions_like_others(message: str) -> None:
    """An error that leaves the device as it was is a refusal, and costs no process."""
    assert not broke_device(RuntimeError(message))
    assert fatal_words(RuntimeError(message)) is None


def test_nothing_on_a_broken_device_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the fault no tensor of the arena is read: any such read would raise the same error again, as ours."""

    def kernel(tensors: dict[str, Tensor]) -> None:
        def broken(*_: object, **__: object) -> Any:
            raise AssertionError("a tensor on the broken device was used")

        for name in ("poison", "stray", "layout_changes", "output_bits", "put_outputs_back"):
            monkeypatch.setattr(Arena, name, broken)
        raise RuntimeError(BROKEN[0])

    arena = Arena()
    arena.load([TensorPlan(name="out", shape=(4,), strides=(1,), dtype=torch.float32, role="output")])
    shown = audit(kernel, arena)
    (finding,) = shown.findings
    assert finding.clause == "survival"
    assert "illegal memory access" in finding.detail
    assert spoils_process(shown.error)


def faulty(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Right for up to three tokens; for more it says what torch says after an illegal access on the device."""
    if x.shape[0] > 3:
        raise RuntimeError(BROKEN[0])
    out.copy_(torch.einsum("tnl,nlv->tnv", x.float(), w_uv.float()))


FAULTY: Final = Kernel(
    name="faulty",
    contract="up-projection",
    load=lambda: faulty,
    limits=UpProjectionLimits(num_heads=(1, 2), kv_lora_rank=(1, 2, 4), v_head_dim=(1, 2), max_num_tokens=4),
    target="tests.gpu.test_device_faults:FAULTY",
)


def test_the_run_goes_on_in_a_fresh_process() -> None:
    """The fault is found and shrunk to four tokens, and what else was drawn is checked on every other clause."""
    report = check(FAULTY, examples=40, seed=0, sequences=False)
    (finding,) = report.findings
    assert finding.clause == "survival"
    assert finding.detail.startswith("the kernel broke the device: CUDA error: an illegal memory access")
    assert "num_tokens=4" in finding.problem_text
    assert report.examples > finding.found_after
    assert report.clauses["coverage"].verdict == "pass"
