"""Every seeded fault is found under its clause within 200 examples, and no right kernel is accused."""

from __future__ import annotations

from typing import Final

import pytest

from mla_verify.check import check
from mla_verify.faults import decode, up_projection
from mla_verify.faults.fault import Fault, kernel_of
from mla_verify.faults.right import RIGHT
from mla_verify.kernel import Kernel

_EXAMPLES: Final = 200
_FAULTS: Final = sorted((*up_projection.FAULTS, *decode.FAULTS), key=lambda fault: fault.name)
_RIGHT: Final = sorted(RIGHT, key=lambda kernel: kernel.name)


@pytest.mark.parametrize("fault", _FAULTS, ids=[fault.name for fault in _FAULTS])
def test_a_seeded_fault_is_found_under_its_clause(fault: Fault) -> None:
    """A kernel with one fault fails the clause that the fault breaks."""
    report = check(kernel_of(fault), examples=_EXAMPLES, seed=0)
    failed = [clause for clause, found in report.clauses.items() if found.verdict == "fail"]
    assert set(fault.clauses) & set(failed), f"{fault.what}: {failed or 'nothing'} failed"
    assert {finding.clause for finding in report.findings} == set(failed)


@pytest.mark.parametrize("kernel", _RIGHT, ids=[kernel.name for kernel in _RIGHT])
def test_a_right_kernel_of_unusual_make_is_not_accused(kernel: Kernel) -> None:
    """Kept scratch, semaphores, own outputs and prepared plans are no faults."""
    report = check(kernel, examples=_EXAMPLES, seed=0)
    assert report.findings == ()
    assert report.verdict == "pass"
