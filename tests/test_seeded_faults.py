"""Every seeded fault of the corpus is found under a clause that it declares, and no right kernel is blamed."""

from __future__ import annotations

from typing import Final

import pytest

from mla_verify.check import Aim, check
from mla_verify.faults.corpus import controls, faults
from mla_verify.faults.fault import Fault, kernel_of, kinds_of
from mla_verify.faults.reports import KINDS, REPORTS
from mla_verify.kernel import Kernel
from mla_verify.registry import resolve
from sanitizer.finding import CLAUSES

_EXAMPLES: Final = 300
_CONTROL_EXAMPLES: Final = 40  # `mla-verify scoreboard` runs 20,000 in all
_INTERPRETED_EXAMPLES: Final = 6
_FAULTS: Final = sorted(faults(), key=lambda fault: fault.name)
_RIGHT: Final = sorted(controls(), key=lambda kernel: kernel.name)


@pytest.mark.parametrize("fault", _FAULTS, ids=[fault.name for fault in _FAULTS])
def test_a_seeded_fault_is_found_under_its_clause(fault: Fault) -> None:
    """A kernel with one fault fails a clause that the fault breaks, within the examples that the scoreboard grants."""
    aim = Aim(clauses=frozenset(fault.clauses), shrink=False)
    report = check(kernel_of(fault), examples=_EXAMPLES, seed=0, aim=aim)
    failed = [clause for clause, found in report.clauses.items() if found.verdict == "fail"]
    assert set(fault.clauses) & set(failed), f"{fault.what}: {failed or 'nothing'} failed ({report.unavailable})"
    assert {finding.clause for finding in report.findings} == set(failed)


@pytest.mark.parametrize("kernel", _RIGHT, ids=[kernel.name for kernel in _RIGHT])
def test_a_right_kernel_of_unusual_make_is_not_blamed(kernel: Kernel) -> None:
    """Kept scratch, semaphores, own outputs and prepared plans are no faults."""
    examples = _INTERPRETED_EXAMPLES if kernel.triton else _CONTROL_EXAMPLES
    report = check(kernel, examples=examples, seed=0)
    assert report.findings == ()
    assert report.verdict == "pass", report.unavailable


def test_the_corpus_is_as_large_and_as_varied_as_promised() -> None:
    """At least 20 reported faults of each contract, 8 in Triton, over every clause and kind of report; 12 controls."""
    reported = [fault for fault in _FAULTS if fault.reports]
    triton = [fault for fault in reported if fault.declares.get("triton")]
    plain = [fault for fault in reported if not fault.declares.get("triton")]
    assert sum(fault.contract == "up-projection" for fault in plain) >= 20
    assert sum(fault.contract == "decode" for fault in plain) >= 20
    assert len(triton) >= 8
    assert len(_RIGHT) >= 12
    assert {clause for fault in _FAULTS for clause in fault.clauses} == set(CLAUSES)
    assert {letter for fault in _FAULTS for letter in kinds_of(fault)} == set(KINDS)


@pytest.mark.parametrize("fault", _FAULTS, ids=[fault.name for fault in _FAULTS])
def test_a_fault_says_what_it_is_and_who_reported_one(fault: Fault) -> None:
    """Clauses, words for a person, and public reports that are known; a worker finds it by its name."""
    assert fault.what
    assert fault.clauses
    assert set(fault.clauses) <= set(CLAUSES)
    assert set(fault.reports) <= set(REPORTS)
    target = kernel_of(fault).target
    assert target is not None
    assert resolve(target).name == fault.name


def test_names_are_taken_once() -> None:
    """Two kernels of one name could not be told apart."""
    names = [*(fault.name for fault in _FAULTS), *(kernel.name for kernel in _RIGHT)]
    assert len(names) == len(set(names))
