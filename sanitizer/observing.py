"""What an audit lets others watch: every run of the kernel, and the findings before they are handed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from sanitizer.fences import Strip
from sanitizer.finding import Finding
from sanitizer.interception import Interceptor, Scratch
from sanitizer.plan import TensorPlan

__all__ = ["Observer", "Scene"]


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """One run as it begins: what the kernel is given, and what else there is.

    kept: allocations of earlier calls that the kernel holds on to. workspaces: declared scratch; secret, or zero.
    strips: pages around the tensors that nobody may touch.
    """

    tensors: Mapping[str, Tensor]
    plans: Mapping[str, TensorPlan]
    interceptor: Interceptor
    kept: Sequence[Scratch]
    workspaces: Sequence[Tensor]
    zeroed_workspace: bool
    strips: Sequence[Strip] = ()


class Observer(Protocol):
    """Watches the runs of one audit."""

    def watching(self, scene: Scene) -> AbstractContextManager[object]:
        """The context in which the kernel is called once."""
        ...

    def joined(self, findings: Sequence[Finding]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
        """The audit's findings with what was seen added to them, and what was seen without effect, as notes."""
        ...
