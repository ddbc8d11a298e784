"""The oracle's answer to one up-projection problem, ready to judge what a kernel and its baseline wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from mla_verify.contract import Judgement
from mla_verify.judging import Reference, differ, judge
from mla_verify.kernel import Kernel
from mla_verify.up_projection.bound import Sums, reference
from mla_verify.up_projection.oracle import up_project
from mla_verify.up_projection.quantising import operands_of
from strategies.problems import UpProjectionProblem

__all__ = ["UpProjectionExpectation", "expect"]


@dataclass(frozen=True, slots=True, eq=False)
class UpProjectionExpectation:
    """What out must be: for the kernel by its declared arithmetic, for the baseline by its own."""

    kernel: Reference
    baseline: Reference

    def reference(self, name: str) -> Reference:
        """What out must be, the only output."""
        del name
        return self.kernel

    def judge(self, outputs: Mapping[str, Tensor], *, skip: Mapping[str, Tensor]) -> Judgement:
        """Compare out with the oracle."""
        return judge(self.kernel, outputs["out"], skip=skip.get("out"))

    def differential(
        self, outputs: Mapping[str, Tensor], baseline: Mapping[str, Tensor], *, skip: Mapping[str, Tensor]
    ) -> Judgement:
        """Compare out with the baseline's out."""
        return differ(self.kernel, self.baseline, outputs["out"], baseline["out"], skip=skip.get("out"))


def expect(problem: UpProjectionProblem, kernel: Kernel, tensors: Mapping[str, Tensor]) -> UpProjectionExpectation:
    """Answer a valid problem from the tensors that the kernel saw.

    They are read again while judging, for elements that need their full bound, so they must stay as they are.
    """
    dtype, weight_format = tensors["x"].dtype, problem.weight_format
    if weight_format == "plain":
        sums = Sums(tensors["x"], tensors["w_uv"])
    else:
        operands = operands_of(problem, tensors)
        sums = Sums(operands.x, operands.w_uv, operands.slack, operands.small_x, operands.small_w)
    value = up_project(sums.x, sums.w_uv)
    exact = problem.regime == "exact" and not _leaves_the_grid(problem)
    ours = reference(value, sums, kernel.arithmetic, dtype, exact=exact, weight_format=weight_format)
    # A library's product may flush subnormals (on a CPU the 16-bit ones do, shape by shape), whatever the
    # kernel under test does; in everything else a form that a kernel replaced computes as the kernel does.
    arithmetic = replace(kernel.arithmetic, subnormals="flushed")
    if arithmetic == kernel.arithmetic:
        return UpProjectionExpectation(ours, ours)
    theirs = reference(value, sums, arithmetic, dtype, exact=False, weight_format=weight_format)
    return UpProjectionExpectation(ours, replace(theirs, exact=ours.exact))


def _leaves_the_grid(problem: UpProjectionProblem) -> bool:
    """Whether rows of x that overlap have mixed their groups, so that quantising them is no longer lossless."""
    return problem.weight_format != "plain" and problem.x_layout.kind == "overlapping"
