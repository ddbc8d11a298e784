"""Right kernels of every make pass without a finding."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.audit import audit_refusal
from sanitizer.plan import TensorPlan
from sanitizer.stopwatch import Stopwatch
from tests.sanitizer.problems import COLUMNS, ROWS, clauses, doubling, output, run_audit, source


def through_scratch(t: dict[str, Tensor]) -> None:
    """Uses scratch of many kinds, all of it written first."""
    first = torch.empty_like(t["x"])
    first.copy_(t["x"])
    second = torch.empty_strided((ROWS, COLUMNS), (1, ROWS))
    second.copy_(first)
    third = second.new_empty(ROWS * COLUMNS).view(ROWS, COLUMNS)
    torch.add(first, second, out=third)
    t["out"].copy_(third)


def growing_scratch(t: dict[str, Tensor]) -> None:
    """Lets torch enlarge its scratch, from nothing and from something."""
    grown = torch.empty(0)
    torch.mul(t["x"], 1, out=grown)
    scratch = torch.empty(2, dtype=torch.float32)
    scratch.resize_(ROWS, COLUMNS).copy_(grown)
    t["out"].copy_(scratch + grown)


def enlarging_out(t: dict[str, Tensor]) -> None:
    """Relies on the deprecated enlargement of an `out=` tensor that is not empty."""
    scratch = torch.empty(2)
    torch.mul(t["x"], 2, out=scratch)
    t["out"].copy_(scratch)


def absolute_view_of_scratch(t: dict[str, Tensor]) -> None:
    """Addresses its scratch from the beginning of its storage, which is its own."""
    scratch = torch.empty(ROWS, COLUMNS)
    assert scratch.storage_offset() == 0
    assert scratch.untyped_storage().nbytes() == ROWS * COLUMNS * 4
    scratch.as_strided((ROWS * COLUMNS,), (1,), 0).copy_((t["x"] * 2).flatten())
    t["out"].copy_(scratch)


def warning(t: dict[str, Tensor]) -> None:
    """Warns; a warning is recorded, never raised."""
    warnings.warn("slow path", stacklevel=1)
    doubling(t)


def catching(t: dict[str, Tensor]) -> None:
    """Handles an exception of its own."""
    try:
        torch.empty(-1)
    except RuntimeError:
        doubling(t)


def writing_nan(t: dict[str, Tensor]) -> None:
    """Writes NaN where that is the answer."""
    t["out"].copy_(torch.full_like(t["x"], float("nan")))


def taking_arguments_away(t: dict[str, Tensor]) -> None:
    """Empties the dictionary that it was given."""
    x, out = t.pop("x"), t.pop("out")
    torch.mul(x, 2, out=out)


RIGHT = [
    doubling,
    through_scratch,
    growing_scratch,
    enlarging_out,
    absolute_view_of_scratch,
    warning,
    catching,
    writing_nan,
    taking_arguments_away,
]


@pytest.mark.parametrize("kernel", RIGHT, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("form", ["view", "owner"])
def test_a_right_kernel_has_no_finding(kernel: object, form: str) -> None:
    """Whatever a right kernel does with its own memory is its own business."""
    result = run_audit(kernel, source(), output(form=form))  # type: ignore[arg-type]
    assert result.findings == ()
    assert result.error is None
    assert result.outputs["out"].shape == (ROWS, COLUMNS)


LAYOUTS: dict[str, dict[str, Any]] = {
    "broadcast": {"strides": (0, 1)},
    "overlapping": {"strides": (2, 1)},
    "transposed": {"strides": (1, ROWS + 1)},
    "every-second": {"strides": (COLUMNS * 2 + 1, 2)},
    "odd-offset": {"offset": 3},
    "scattered-overlap": {"strides": (5, 2)},
}


@pytest.mark.parametrize("ballast", [0, 300_000], ids=["small", "large"])
@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_inputs_may_lie_anyhow(name: str, ballast: int) -> None:
    """Stride 0, overlaps, gaps and offsets: what the kernel reads is what the oracle reads."""
    arena = Arena()
    weight = TensorPlan(
        name="ballast", shape=(ballast,), strides=(1,), dtype=torch.float32, role="input", values=torch.ones(ballast)
    )
    result = run_audit(doubling, weight, source(**LAYOUTS[name]), output(), arena=arena)
    assert result.findings == ()
    assert torch.equal(result.outputs["out"], arena.tensors()["x"] * 2)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,), ()], ids=str)
@pytest.mark.parametrize("form", ["view", "owner"])
def test_tensors_without_elements_and_without_dimensions_work(shape: tuple[int, ...], form: str) -> None:
    """Nothing to write is nothing to blame; one element without dimensions is one element."""
    strides = tuple(7 for _ in shape)
    plans = (
        TensorPlan(name="x", shape=shape, strides=strides, dtype=torch.float32, role="input", values=torch.ones(shape)),
        output(shape=shape, strides=strides, form=form),
    )
    assert run_audit(doubling, *plans).findings == ()
    assert clauses(run_audit(lambda t: None, *plans)) == (set() if 0 in shape else {"coverage"})


def test_the_report_says_what_was_intercepted() -> None:
    """Counts come from one run: guarded pieces, and all that a factory allocated."""

    def kernel(t: dict[str, Tensor]) -> None:
        scratch = torch.empty(3)
        scratch.fill_(1)
        torch.zeros(5)
        doubling(t)

    result = run_audit(kernel)
    assert (result.intercepted, result.allocations, result.allocated_bytes) == (1, 2, 32)


def test_the_stopwatch_books_every_phase() -> None:
    """Filling, running, comparing and intercepting are told apart."""
    stopwatch = Stopwatch()
    run_audit(through_scratch, stopwatch=stopwatch)
    assert all(seconds > 0 for seconds in stopwatch.seconds.values())


class TestRefusals:
    """An invalid problem has to be refused, with nothing written."""

    @staticmethod
    def arena() -> Arena:
        """An output that lies over the input, one row further."""
        arena = Arena()
        arena.load((source(), output(strides=(COLUMNS + 2, 1), over="x", offset=COLUMNS + 2)))
        return arena

    def test_refusing_untouched_is_right(self) -> None:
        """An exception and not a byte changed."""

        def kernel(t: dict[str, Tensor]) -> None:
            raise ValueError("out overlaps x")

        result = audit_refusal(kernel, self.arena())
        assert result.findings == ()
        assert isinstance(result.error, ValueError)

    def test_writing_before_refusing_is_found(self) -> None:
        """An exception that comes too late."""

        def kernel(t: dict[str, Tensor]) -> None:
            t["out"][0] = 0
            raise ValueError("out overlaps x")

        result = audit_refusal(kernel, self.arena())
        assert clauses(result) == {"refusal"}
        assert "had already written" in result.findings[0].detail

    def test_accepting_is_found(self) -> None:
        """No exception at all."""
        result = audit_refusal(lambda t: None, self.arena())
        assert [finding.clause for finding in result.findings] == ["refusal"]
        assert result.error is None

    def test_the_overlay_lies_where_it_was_asked_to(self) -> None:
        """Its first element is `offset` elements from the first of what it lies over."""
        tensors = self.arena().tensors()
        assert tensors["out"].data_ptr() == tensors["x"].data_ptr() + (COLUMNS + 2) * 4


def test_several_outputs_may_be_returned_by_a_kernel_that_takes_none() -> None:
    """Outputs that no plan names are judged by their bits alone."""

    def kernel(t: dict[str, Tensor]) -> Mapping[str, Tensor]:
        return {"sum": t["x"].sum(0), "double": t["x"] * 2}

    result = run_audit(kernel, source())
    assert result.findings == ()
    assert sorted(result.outputs) == ["double", "sum"]
