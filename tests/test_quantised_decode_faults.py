"""Faults of fp8 decode and of consumers are found under their clauses; right kernels beside them are not accused."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from mla_verify.check import check
from mla_verify.declared import declarations_of
from mla_verify.errors import UsageError
from mla_verify.faults import consumed, quantised_decode
from mla_verify.faults.fault import Fault, kernel_of
from mla_verify.kernel import Kernel
from mla_verify.registry import add, register
from strategies.limits import DecodeLimits

_FAULTS: Final = (*quantised_decode.FAULTS, *consumed.FAULTS)
_RIGHT: Final = (*quantised_decode.RIGHT, *consumed.RIGHT)
_EXAMPLES: Final = 300


@pytest.mark.parametrize("fault", _FAULTS, ids=[fault.name for fault in _FAULTS])
def test_a_fault_is_found_under_its_clause(fault: Fault) -> None:
    """The first clause to break within 300 examples is the one that the fault breaks."""
    broken = 0

    def count(_seen: int, _total: int, so_far: int) -> None:
        nonlocal broken
        broken = so_far

    report = check(
        kernel_of(fault),
        examples=_EXAMPLES,
        seed=0,
        isolation="none",
        progress=count,
        stopped=lambda: broken > 0,
    )
    assert {finding.clause for finding in report.findings} <= set(fault.clauses), fault.what
    assert report.findings, fault.what


@pytest.mark.parametrize("kernel", _RIGHT, ids=[kernel.name for kernel in _RIGHT])
def test_a_right_kernel_is_not_accused(kernel: Kernel) -> None:
    """Scales folded, codes dequantised early, padding zeroed: none of it is a fault."""
    report = check(kernel, examples=60, seed=0, isolation="none")
    assert [finding.detail for finding in report.findings] == []


def test_a_consumer_says_by_which_way_padding_reaches_the_rest() -> None:
    """The finding names the largest magnitude, with and without the rows of padding."""
    report = check(kernel_of(consumed.FAULTS[0]), examples=40, seed=0, isolation="none")
    (finding,) = report.findings
    assert (finding.clause, finding.tensor) == ("independence", "o")
    assert "through a per-tensor amax over padding rows" in finding.detail
    assert "nan with them" in finding.detail


def test_what_no_caller_quantises_is_nobodys_fault() -> None:
    """The same kernels without the declaration pass: padding may be left alone, rows without keys mean nothing."""
    for fault in consumed.FAULTS:
        report = check(replace(kernel_of(fault), consumers=()), examples=40, seed=0, isolation="none")
        assert report.findings == ()


def test_consumers_are_declared_in_known_words_and_printed() -> None:
    """An unknown consumer is refused, and so is one of a kernel that has no padding."""
    right = consumed.RIGHT[0]
    assert "consumers=per_tensor_fp8" in declarations_of(right)
    with pytest.raises(UsageError, match="consumer 'per_row_fp8' is unknown"):
        add(replace(right, consumers=("per_row_fp8",)))
    with pytest.raises(UsageError, match="leave none; leave it out"):
        add(replace(right, limits=DecodeLimits(padding_rows=False, empty_requests=False)))
    with pytest.raises(UsageError, match="leave none; leave it out"):

        @register(contract="up-projection", consumers=("per_tensor_fp8",), registry=False)
        def kernel(**_: object) -> None: ...
