"""A seeded fault: a kernel that is right but for one thing, and the clause under which it has to be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mla_verify.kernel import Kernel

__all__ = ["Fault", "kernel_of"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in an otherwise right kernel.

    clauses: under which it may be reported, the right one first. what: the fault as a person would say it.
    """

    name: str
    contract: str
    call: Callable[..., Any]
    clauses: tuple[str, ...]
    what: str


def kernel_of(fault: Fault) -> Kernel:
    """The registration of a faulty kernel: it declares nothing, so that nothing is excused."""
    return Kernel(name=fault.name, contract=fault.contract, load=lambda: fault.call, summary=fault.what)
