"""A problem small enough to hold in mind, for the sanitizer's own tests: out = 2·x over rows, with gaps and guards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.audit import Audit, audit
from sanitizer.plan import TensorPlan

__all__ = ["COLUMNS", "ROWS", "clauses", "doubling", "output", "run_audit", "source"]

ROWS, COLUMNS = 3, 4
torch.set_num_threads(1)

Kernel = Callable[[dict[str, Tensor]], Mapping[str, Tensor] | None]


def source(dtype: torch.dtype = torch.float32, **changes: Any) -> TensorPlan:
    """The input x [ROWS, COLUMNS]: 1, 2, 3 and so on, with two unused elements behind each row."""
    values = torch.arange(1, ROWS * COLUMNS + 1).view(ROWS, COLUMNS).to(dtype)
    settings: dict[str, Any] = {"strides": (COLUMNS + 2, 1), "values": values} | changes
    return TensorPlan(name="x", shape=(ROWS, COLUMNS), dtype=dtype, role="input", **settings)


def output(dtype: torch.dtype = torch.float32, **changes: Any) -> TensorPlan:
    """The output [ROWS, COLUMNS], with three elements that belong to somebody else behind each row."""
    settings: dict[str, Any] = {"shape": (ROWS, COLUMNS), "strides": (COLUMNS + 3, 1)} | changes
    return TensorPlan(name="out", dtype=dtype, role="output", **settings)


def doubling(tensors: dict[str, Tensor]) -> None:
    """The right kernel: out = 2·x, in place."""
    torch.mul(tensors["x"], 2, out=tensors["out"])


def run_audit(kernel: Kernel, *plans: TensorPlan, arena: Arena | None = None, **settings: Any) -> Audit:
    """Audit a kernel on x and out, or on the given plans."""
    arena = arena or Arena()
    arena.load(plans or (source(), output()))
    return audit(kernel, arena, **settings)


def clauses(result: Audit) -> set[str]:
    """The clauses that an audit found broken."""
    return {finding.clause for finding in result.findings}
