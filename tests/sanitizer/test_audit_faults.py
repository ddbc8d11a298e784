"""Every clause the sanitizer decides has seeded faults that it must catch, under the right name."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.plan import Element, TensorPlan
from tests.sanitizer.problems import COLUMNS, ROWS, clauses, doubling, output, run_audit, source


def last_row_unwritten(t: dict[str, Tensor]) -> None:
    """Forgets the last row."""
    torch.mul(t["x"][:-1], 2, out=t["out"][:-1])


def scaled_by_old_output(t: dict[str, Tensor]) -> None:
    """out*0 + acc: right unless the output held NaN."""
    t["out"].mul_(0).add_(t["x"] * 2)


def accumulating(t: dict[str, Tensor]) -> None:
    """out += acc: right only on a zero-filled output."""
    t["out"].add_(t["x"] * 2)


def maximum_with_old_output(t: dict[str, Tensor]) -> None:
    """max(out, x) that ignores NaN, and so is invisible to NaN poison."""
    torch.fmax(t["out"], t["x"], out=t["out"])


def scrubbing_nan(t: dict[str, Tensor]) -> None:
    """Adds scratch that nobody wrote, and turns NaN into 0."""
    scratch = torch.empty_like(t["x"])
    t["out"].copy_(t["x"] * 2 + scratch.nan_to_num(0.0) * 1e-3)


def skipping_where_zero(t: dict[str, Tensor]) -> None:
    """Writes only where the output is not zero already."""
    t["out"].copy_(torch.where(t["out"] == 0, t["out"], t["x"] * 2))


def reading_scratch_first(t: dict[str, Tensor]) -> None:
    """Accumulates into scratch from torch.empty."""
    scratch = torch.empty(ROWS, COLUMNS)
    scratch += t["x"]
    t["out"].copy_(scratch)


def reading_a_gap(t: dict[str, Tensor]) -> None:
    """Takes its last column from the gap behind the row of the input."""
    x = t["x"]
    t["out"].copy_(x.as_strided((ROWS, COLUMNS), x.stride(), x.storage_offset() + 1))


def one_element_past(t: dict[str, Tensor]) -> None:
    """Writes one element behind the last one."""
    doubling(t)
    _write(t["out"], (ROWS - 1) * (COLUMNS + 3) + COLUMNS)


def one_element_before(t: dict[str, Tensor]) -> None:
    """Writes one element in front of the first one."""
    doubling(t)
    _write(t["out"], -1)


def into_a_gap(t: dict[str, Tensor]) -> None:
    """Writes behind the first row."""
    doubling(t)
    _write(t["out"], COLUMNS)


def mutating_its_input(t: dict[str, Tensor]) -> None:
    """Scales x in place."""
    t["x"].mul_(2)
    t["out"].copy_(t["x"])


def re_pointing(t: dict[str, Tensor]) -> None:
    """Puts its result into another tensor's storage."""
    result = t["x"] * 2
    t["out"].set_(result.untyped_storage(), 0, result.shape, result.stride())


def re_pointing_data(t: dict[str, Tensor]) -> None:
    """The same through `.data`."""
    t["out"].data = t["x"] * 2


def growing(t: dict[str, Tensor]) -> None:
    """Enlarges the caller's output."""
    t["out"].resize_(ROWS * 4, COLUMNS * 4).zero_()


def shrinking_within(t: dict[str, Tensor]) -> None:
    """Makes the caller's output contiguous in place, over its gaps."""
    t["out"].resize_(ROWS * COLUMNS).copy_((t["x"] * 2).flatten())


def raising_on_nan(t: dict[str, Tensor]) -> None:
    """Raises when the output holds NaN."""
    if bool(t["out"].isnan().any()):
        raise ValueError("NaN in the output buffer")
    doubling(t)


def always_raising(t: dict[str, Tensor]) -> None:
    """Refuses a valid problem."""
    raise NotImplementedError("rows must be a multiple of 16")


def exiting(t: dict[str, Tensor]) -> None:
    """Ends the process."""
    sys.exit(3)


def random(t: dict[str, Tensor]) -> None:
    """Adds noise."""
    t["out"].copy_(t["x"] * 2 + torch.rand(ROWS, COLUMNS))


def past_its_scratch(t: dict[str, Tensor]) -> None:
    """Writes one element behind its scratch."""
    scratch = torch.empty(5)
    _write_raw(scratch.data_ptr() + 5 * 4)
    doubling(t)


FAULTS = {
    "last_row_unwritten": (last_row_unwritten, {"coverage"}),
    "scaled_by_old_output": (scaled_by_old_output, {"independence"}),
    "accumulating": (accumulating, {"independence"}),
    "maximum_with_old_output": (maximum_with_old_output, {"independence"}),
    "scrubbing_nan": (scrubbing_nan, {"independence"}),
    "skipping_where_zero": (skipping_where_zero, {"independence"}),
    "reading_scratch_first": (reading_scratch_first, {"independence"}),
    "reading_a_gap": (reading_a_gap, {"independence"}),
    "one_element_past": (one_element_past, {"containment"}),
    "one_element_before": (one_element_before, {"containment"}),
    "into_a_gap": (into_a_gap, {"containment"}),
    "mutating_its_input": (mutating_its_input, {"containment"}),
    "re_pointing": (re_pointing, {"layout"}),
    "re_pointing_data": (re_pointing_data, {"layout"}),
    "growing": (growing, {"layout"}),
    "shrinking_within": (shrinking_within, {"layout", "containment"}),
    "raising_on_nan": (raising_on_nan, {"independence"}),
    "always_raising": (always_raising, {"refusal"}),
    "exiting": (exiting, {"survival"}),
    "random": (random, {"repeatability"}),
    "past_its_scratch": (past_its_scratch, {"containment"}),
}


def _write(tensor: Tensor, place: int) -> None:
    """Write one element at `place`, counted from the first one, wherever in the storage that is."""
    tensor.as_strided((1,), (1,), int(tensor.storage_offset()) + place).fill_(7.0)


def _write_raw(address: int) -> None:
    import ctypes

    ctypes.memset(address, 0x11, 4)


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_each_fault_is_found_under_its_clause_and_no_other(name: str) -> None:
    """A seeded fault breaks exactly the clause that it was written to break."""
    kernel, expected = FAULTS[name]
    assert clauses(run_audit(kernel)) == expected


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_leaves_the_arena_whole(name: str) -> None:
    """Whatever a kernel does, the next one in the same arena is judged by its own deeds."""
    arena = Arena()
    run_audit(FAULTS[name][0], arena=arena)
    assert run_audit(doubling, arena=arena).findings == ()


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"one_element_past", "one_element_before", "shrinking_within"}))
def test_faults_are_found_on_outputs_that_own_their_storage(name: str) -> None:
    """An output with its own storage hides nothing that a view shows (strays outside its storage aside)."""
    kernel, expected = FAULTS[name]
    assert clauses(run_audit(kernel, source(), output(form="owner"))) == expected


@pytest.mark.parametrize("size", [300_000, 2_200_000], ids=["large", "huge"])
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_faults_are_found_at_sizes_that_are_handled_otherwise(name: str, size: int) -> None:
    """Large problems are rewritten in place, huge ones looked at less often, with the same verdicts."""
    kernel, expected = FAULTS[name]
    ballast = torch.ones(size)
    padding = source(guard=64)
    big = type(padding)(name="ballast", shape=(size,), strides=(1,), dtype=torch.float32, role="input", values=ballast)
    assert clauses(run_audit(kernel, big, source(), output())) == expected


def test_findings_name_ranges_counts_and_distances() -> None:
    """A finding says which tensor, which indices, how many, and how far outside."""
    (coverage,) = run_audit(last_row_unwritten).findings
    assert (coverage.tensor, coverage.elements) == ("out", COLUMNS)
    assert "out[2, 0:4] never written" in coverage.detail
    (past,) = run_audit(one_element_past).findings
    assert "guard behind out: 1 elements (4 bytes) overwritten, the first 0 bytes past its end" in past.detail
    (gap,) = run_audit(into_a_gap).findings
    assert "stride gap of out: 1 elements overwritten behind out[0, 3]" in gap.detail
    (scratch,) = run_audit(past_its_scratch).findings
    assert "torch.empty [5] at test_audit_faults.py" in scratch.detail
    (mutated,) = run_audit(mutating_its_input).findings
    assert "input x[0:3, 0:4] was changed" in mutated.detail
    assert "before the beginning of out" in mutated.detail


def test_blamed_elements_are_exactly_those_named() -> None:
    """What a finding names is marked, so that nobody blames it again."""
    blamed = run_audit(last_row_unwritten).blamed["out"]
    assert blamed[-1].all()
    assert not blamed[:-1].any()


def test_a_re_pointed_output_is_not_blamed_for_coverage_as_well() -> None:
    """The kernel wrote every element, into the wrong tensor: that is one fault."""
    result = run_audit(re_pointing)
    assert [finding.clause for finding in result.findings] == ["layout"]
    assert result.blamed["out"].all()


def test_an_exception_is_kept_with_its_message() -> None:
    """The report shows what the kernel said."""
    result = run_audit(always_raising)
    assert isinstance(result.error, NotImplementedError)
    assert "multiple of 16" in result.findings[0].detail


def test_a_keyboard_interrupt_is_not_a_finding() -> None:
    """The person at the keyboard always gets through."""

    def interrupted(t: dict[str, Tensor]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_audit(interrupted)


def test_rows_past_the_batch_must_keep_what_they_held() -> None:
    """A write into an untouched row is a stray write, even into the output itself."""
    rules = torch.tensor([[Element.DETERMINED], [Element.DETERMINED], [Element.UNTOUCHED]], dtype=torch.uint8)
    (finding,) = run_audit(doubling, source(), output(rules=rules)).findings
    assert finding.clause == "containment"
    assert "out[2, 0:4] was written, which had to stay untouched" in finding.detail
    assert run_audit(last_row_unwritten, source(), output(rules=rules)).findings == ()


@pytest.mark.parametrize(
    ("rule", "kernel", "expected"),
    [
        (Element.WRITTEN, accumulating, set[str]()),
        (Element.WRITTEN, last_row_unwritten, {"coverage"}),
        (Element.FREE, accumulating, set[str]()),
        (Element.FREE, last_row_unwritten, set[str]()),
    ],
    ids=["written-anything", "written-nothing", "free-anything", "free-nothing"],
)
def test_undetermined_elements_owe_less(rule: Element, kernel: object, expected: set[str]) -> None:
    """WRITTEN elements owe coverage alone, FREE ones nothing."""
    rules = torch.full((1, 1), int(rule), dtype=torch.uint8)
    assert clauses(run_audit(kernel, source(), output(rules=rules))) == expected  # type: ignore[arg-type]


class TestReturnedOutputs:
    """Outputs that the kernel allocates and returns are under test like any other."""

    @staticmethod
    def fresh(t: dict[str, Tensor]) -> Mapping[str, Tensor]:
        """A right kernel of this make."""
        out = torch.empty(ROWS, COLUMNS)
        torch.mul(t["x"], 2, out=out)
        return {"out": out}

    def test_a_right_kernel_passes(self) -> None:
        """Its outputs are handed on, and the caller's buffer owes nothing."""
        result = run_audit(self.fresh)
        assert result.findings == ()
        assert torch.equal(result.outputs["out"], source().values * 2)  # type: ignore[operator]

    def test_an_unwritten_row_is_coverage(self) -> None:
        """Memory from torch.empty inside the kernel holds secrets as well."""

        def kernel(t: dict[str, Tensor]) -> Mapping[str, Tensor]:
            out = torch.empty(ROWS, COLUMNS)
            out[:-1] = t["x"][:-1] * 2
            return {"out": out}

        (finding,) = run_audit(kernel).findings
        assert (finding.clause, finding.elements) == ("coverage", COLUMNS)

    @pytest.mark.parametrize("words", ["shape", "dtype"])
    def test_a_wrong_form_is_layout(self, words: str) -> None:
        """A returned tensor of the wrong shape or dtype is said to be that."""

        def kernel(t: dict[str, Tensor]) -> Mapping[str, Tensor]:
            out = t["x"] * 2
            return {"out": out[:-1] if words == "shape" else out.double()}

        (finding,) = run_audit(kernel).findings
        assert finding.clause == "layout"
        assert words in finding.detail


class TestNondeterministicKernels:
    """A kernel declared non-deterministic owes coverage and the same pattern of finite values."""

    def test_noise_is_allowed(self) -> None:
        """Its bits may differ; every run's outputs are handed on for the bound."""
        result = run_audit(random, deterministic=False)
        assert result.findings == ()
        assert len(result.runs) >= 3

    @pytest.mark.parametrize(
        ("kernel", "expected"),
        [(last_row_unwritten, {"coverage"}), (scaled_by_old_output, {"independence"})],
        ids=["unwritten", "leaking-nan"],
    )
    def test_secrets_are_still_found(self, kernel: object, expected: set[str]) -> None:
        """Unwritten elements and leaked NaN show in spite of noise."""
        assert clauses(run_audit(kernel, deterministic=False)) == expected  # type: ignore[arg-type]


def test_an_output_that_was_resized_casts_no_doubt_on_the_others() -> None:
    """What a kernel wrote into its other outputs is still what it wrote."""
    second = TensorPlan(name="second", shape=(ROWS,), strides=(2,), dtype=torch.float32, role="output")

    def kernel(t: dict[str, Tensor]) -> None:
        t["second"].copy_(t["x"].sum(1))
        torch.mul(t["x"].repeat(200, 200), 2, out=t["out"])

    for form in ("owner", "view"):
        result = run_audit(kernel, source(), second, output(form=form))
        assert ("layout", "out") in {(finding.clause, finding.tensor) for finding in result.findings}
        assert "second" not in {finding.tensor for finding in result.findings if finding.clause == "coverage"}
