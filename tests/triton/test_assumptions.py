"""What a kernel takes for granted (`tl.assume`) is held against every problem."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.audit import Audit, audit
from sanitizer.plan import TensorPlan
from sanitizer.triton.mends import mended
from sanitizer.triton.recorder import Recorder

kernels: Any = importlib.import_module("tests.triton.kernels")


def audited(stride: int) -> Audit:
    """A copy of sixteen elements, one or no element apart; it assumes that they are at least one apart."""
    values = torch.arange(16, dtype=torch.int32)
    arena = Arena()
    arena.load(
        [
            TensorPlan(name="source", shape=(16,), strides=(1,), dtype=torch.int32, role="input", values=values),
            TensorPlan(name="target", shape=(16,), strides=(1,), dtype=torch.int32, role="output"),
        ]
    )

    def call(tensors: dict[str, Tensor], /) -> None:
        kernels.assuming_kernel[(1,)](tensors["source"], tensors["target"], stride, SIZE=16)

    with mended():
        return audit(call, arena, observer=Recorder())


def test_a_false_assumption_is_a_finding_with_its_line_and_program() -> None:
    """A valid problem that a kernel assumes away should have been refused; what is computed goes on being judged."""
    found = audited(0)
    source, first = inspect.getsourcelines(kernels.assuming_kernel.fn)
    line = first + next(number for number, text in enumerate(source) if "tl.assume" in text)
    (finding,) = found.findings
    assert finding.clause == "refusal"
    assert finding.detail == (
        f"assuming_kernel (kernels.py:{line}) program (0, 0, 0) assumes what does not hold (tl.assume): "
        "compiled code may do anything then"
    )
    assert found.outputs["target"].tolist() == [0] * 16


def test_an_assumption_that_holds_is_silent() -> None:
    """No finding, no note."""
    found = audited(1)
    assert (found.findings, found.notes) == ((), ())
