"""What a contract is: how its problems are drawn, placed in memory, answered and judged.

The check (`mla_verify.check`) is written against this interface alone; each contract is a package of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from mla_verify.kernel import Kernel
from sanitizer.plan import TensorPlan

if TYPE_CHECKING:
    from mla_verify.judging import Reference

__all__ = ["Contract", "Disagreement", "Expectation", "Judgement", "Placement"]


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """A problem made concrete: the tensors to lay out, and the plain arguments to pass beside them."""

    tensors: tuple[TensorPlan, ...]
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Disagreement:
    """Elements of one output that are not what they must be. `wrong` is a bool mask of the output's shape."""

    tensor: str
    wrong: Tensor
    detail: str


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """What became of comparing outputs with what was expected. `not_judged` counts elements without a usable bound."""

    disagreements: tuple[Disagreement, ...]
    not_judged: int
    worst: float  # the largest error over bound among judged elements, 0.0 where every one was exact


class Expectation(Protocol):
    """The oracle's answer to one problem, able to judge outputs."""

    def reference(self, name: str) -> Reference:
        """What one output must be, element by element."""
        ...

    def judge(self, outputs: Mapping[str, Tensor], *, skip: Mapping[str, Tensor]) -> Judgement:
        """Compare outputs (name → tensor of the output's shape) with the oracle, within the derived bound.

        `skip` holds, per output, a bool mask of elements that other clauses have blamed already.
        """
        ...

    def differential(
        self, outputs: Mapping[str, Tensor], baseline: Mapping[str, Tensor], *, skip: Mapping[str, Tensor]
    ) -> Judgement:
        """Compare a kernel's outputs with its baseline's, within the sum of both bounds (bit for bit where exact).

        `detail` says where the two differ and which of them agrees with the oracle.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """One contract. Every callable takes the problem first.

    problems: valid problems within a kernel's limits. invalid_problems: problems that a kernel which validates the
    named things ("shapes", "dtypes", "overlap", "tables") must refuse.
    place: tensors and arguments for one kernel on one device; depends on the kernel's declarations (preconditions
    decide what secrets may be, padding_rows and empty_rows decide each element's rule).
    expect: the oracle. It reads the inputs back from the tensors that the kernel will see.
    baseline: the plain operation computed into a temporary and copied into a zero-filled output; name → tensor.
    outputs: the names of the outputs, in the order in which a kernel that allocates its own returns them.
    real_rows: which rows of the first output somebody asked for, bool [rows]; None where all of them are.
    """

    name: str
    outputs: tuple[str, ...]
    problems: Callable[[Kernel], SearchStrategy[Any]]
    invalid_problems: Callable[[Kernel], SearchStrategy[Any]]
    place: Callable[[Any, Kernel, torch.device], Placement]
    expect: Callable[[Any, Kernel, Mapping[str, Tensor]], Expectation]
    baseline: Callable[[Any, Kernel, Mapping[str, Tensor]], dict[str, Tensor]]
    describe: Callable[[Any], str]
    real_rows: Callable[[Any], Tensor] | None = None
