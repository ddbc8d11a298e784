"""One exception per clause, so that Hypothesis, pytest and people tell broken promises apart by name."""

from __future__ import annotations

from typing import Final

from sanitizer.finding import Finding

__all__ = [
    "VIOLATIONS",
    "AgreementViolation",
    "ClauseViolation",
    "ContainmentViolation",
    "CoverageViolation",
    "EconomyViolation",
    "IndependenceViolation",
    "LayoutViolation",
    "RefusalViolation",
    "RepeatabilityViolation",
    "SurvivalViolation",
]


class ClauseViolation(AssertionError):
    """A kernel broke a clause of its contract. `finding` says which, where and how."""

    def __init__(self, finding: Finding, *, kernel: str, problem: str) -> None:
        self.finding = finding
        self.kernel = kernel
        self.problem = problem
        super().__init__(f"{finding.clause}: {finding.detail} ({problem}) [{kernel}]")


class CoverageViolation(ClauseViolation):
    """A live output element was never written."""


class IndependenceViolation(ClauseViolation):
    """An output element was computed from memory that is no declared input."""


class ContainmentViolation(ClauseViolation):
    """Memory outside the outputs was written."""


class AgreementViolation(ClauseViolation):
    """An output element lies outside the bound around the oracle or the baseline."""


class LayoutViolation(ClauseViolation):
    """The caller's output tensor was re-pointed, reshaped or resized."""


class RepeatabilityViolation(ClauseViolation):
    """The same call gave other bits."""


class RefusalViolation(ClauseViolation):
    """An invalid problem was accepted, or a valid one was refused."""


class SurvivalViolation(ClauseViolation):
    """The kernel ended its process, hung, or touched unmapped memory."""


class EconomyViolation(ClauseViolation):
    """The kernel allocated or launched more than it declares."""


VIOLATIONS: Final[dict[str, type[ClauseViolation]]] = {
    kind.__name__.removesuffix("Violation").lower(): kind for kind in ClauseViolation.__subclasses__()
}
