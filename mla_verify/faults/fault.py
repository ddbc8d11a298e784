"""A seeded fault: a kernel that is right but for one thing, and the clauses under which it has to be found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mla_verify.faults.reports import KINDS, REPORTS
from mla_verify.kernel import Kernel

__all__ = ["TARGETS", "Fault", "kernel_of", "kinds_of"]

TARGETS: Final = "mla_verify.faults.targets"
"""The module in which a worker process finds every kernel of the corpus by its name."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in an otherwise right kernel.

    clauses: under which it has to be reported, the right one first; under one of them is enough. what: the fault as a
    person would say it. reports: keys of `REPORTS`, the public reports of such a fault. declares: fields of `Kernel`
    that the kernel needs in order to be right but for its fault.
    """

    name: str
    contract: str
    call: Callable[..., Any]
    clauses: tuple[str, ...]
    what: str
    reports: tuple[str, ...] = ()
    declares: Mapping[str, Any] = field(default_factory=dict[str, Any])


def kernel_of(fault: Fault) -> Kernel:
    """The registration of a faulty kernel: what it declares excuses nothing."""
    return Kernel(
        name=fault.name,
        contract=fault.contract,
        load=lambda: fault.call,
        summary=fault.what,
        target=f"{TARGETS}:{fault.name}",
        **fault.declares,
    )


def kinds_of(fault: Fault) -> str:
    """The kinds of the reports behind a fault, letters of `KINDS` in order."""
    letters = {letter for report in fault.reports for letter in REPORTS[report].kinds}
    return "".join(letter for letter in KINDS if letter in letters)
