"""The check: what is counted, what is excused, and how a search goes on after a clause has broken."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mla_verify.check import check
from mla_verify.errors import ExitCode, UsageError
from mla_verify.faults.corpus import kernel_named
from mla_verify.kernel import Kernel, KnownDeviation
from mla_verify.report import exit_code_of, unavailable_report
from strategies.limits import UpProjectionLimits
from strategies.problems import DecodeProblem


def product(x: Tensor, w_uv: Tensor) -> Tensor:
    """x @ w_uv in float32. [num_tokens, num_heads, v_head_dim]"""
    return torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1)


def tokens(count: int) -> Callable[[Any], bool]:
    """A predicate: problems with so many tokens."""
    return lambda problem: problem.num_tokens == count


def right(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Keeps every clause."""
    out.copy_(product(x, w_uv))


def kernel(function: Any, **declarations: Any) -> Kernel:
    """An up-projection with small sizes, registered nowhere."""
    limits = UpProjectionLimits(num_heads=(1, 2, 3), kv_lora_rank=(0, 1, 2, 5), v_head_dim=(1, 2, 5), max_num_tokens=6)
    plain = Kernel(name=function.__name__, contract="up-projection", load=lambda: function, limits=limits)
    return replace(plain, **declarations)


def test_a_right_kernel_passes_every_clause_that_was_exercised() -> None:
    """No finding, and exit code 0."""
    report = check(kernel(right), examples=60, seed=1)
    assert report.findings == ()
    assert report.exit_code is ExitCode.HOLDS
    assert report.examples == 60


def test_the_search_goes_on_after_a_clause_has_broken() -> None:
    """A kernel with two faults has both reported, each shrunk by itself, and the whole budget is spent."""

    def two_faults(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
        out[:-1].copy_(product(x, w_uv)[:-1])
        if x.shape[0] > 2 and x.numel():
            x[0, 0, 0] += 1

    report = check(kernel(two_faults), examples=150, seed=0)
    assert {"coverage", "containment"} <= {finding.clause for finding in report.findings}
    by_clause = {finding.clause: finding.problem for finding in report.findings}
    assert by_clause["coverage"].num_tokens == 1  # type: ignore[union-attr]
    assert by_clause["containment"].num_tokens == 3  # type: ignore[union-attr]
    assert report.examples == 150
    assert report.clauses["layout"].verdict == "pass"


def test_a_problem_is_shrunk_past_sizes_that_pass() -> None:
    """A full last page of 16 keys, of 3 or of 2: the menus of sizes do not lead from one to the next."""
    for seed in range(3):
        (finding,) = check(kernel_named("decode_full_last_page_dropped"), examples=40, seed=seed).findings
        assert replace(finding.problem, seed=0) == DecodeProblem(kv_lens=(2,), page_size=2)
        assert finding.history[-1] == finding.problem_text


def test_a_known_deviation_is_reported_and_does_not_fail() -> None:
    """Its clause is `known`, with the count; a finding outside its predicate still fails."""

    def misses_two_tokens(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
        right(x, w_uv, out)
        if x.shape[0] == 2:
            out.zero_()

    known = KnownDeviation(clause="agreement", problems=tokens(2), reason="zero at two tokens")
    excused = check(kernel(misses_two_tokens, known_deviations=(known,)), examples=150, seed=0)
    assert excused.clauses["agreement"].verdict == "known"
    assert excused.exit_code is ExitCode.HOLDS
    assert excused.deviations[0].deviated > 0
    elsewhere = replace(known, problems=tokens(3))
    blamed = check(kernel(misses_two_tokens, known_deviations=(elsewhere,)), examples=150, seed=0)
    assert blamed.clauses["agreement"].verdict == "fail"


def test_a_known_deviation_that_no_longer_shows_fails_the_run() -> None:
    """After 50 matching problems without one deviation the declaration is stale; with fewer, not exercised."""
    known = KnownDeviation(clause="agreement", problems=lambda _: True, reason="long gone")
    stale = check(kernel(right, known_deviations=(known,)), examples=60, seed=0)
    assert stale.deviations[0].state == "stale"
    assert stale.exit_code is ExitCode.VIOLATION
    few = check(kernel(right, known_deviations=(known,)), examples=20, seed=0)
    assert few.deviations[0].state == "not exercised"
    assert few.exit_code is ExitCode.HOLDS


def test_quarantined_problems_are_not_launched() -> None:
    """A kernel is never called with a problem that a quarantining deviation names."""
    launched: list[int] = []

    def recording(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
        launched.append(x.shape[0])
        right(x, w_uv, out)

    known = KnownDeviation(clause="survival", problems=tokens(2), reason="crashes the machine", quarantine=True)
    report = check(kernel(recording, known_deviations=(known,)), examples=150, seed=0)
    assert 2 not in launched
    assert 3 in launched
    assert report.clauses["survival"].verdict == "known"
    assert report.deviations[0].state == "quarantined"


def test_an_exception_on_a_valid_problem_is_a_refusal_finding() -> None:
    """It is reported under `refusal` with the exception's name and message."""

    def refuses_five(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
        if w_uv.shape[2] == 5:
            raise ValueError("cannot do five")
        right(x, w_uv, out)

    report = check(kernel(refuses_five), examples=100, seed=0)
    (finding,) = report.findings
    assert finding.clause == "refusal"
    assert "ValueError" in finding.detail
    assert "cannot do five" in finding.detail


def test_a_validating_kernel_must_refuse_invalid_problems() -> None:
    """One that checks passes; one that only says so is blamed."""

    def validates(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
        if out.shape != (x.shape[0], x.shape[1], w_uv.shape[2]) or x.shape[2] != w_uv.shape[1]:
            raise ValueError("shapes disagree")
        right(x, w_uv, out)

    honest = check(kernel(validates, validates=("shapes",)), examples=100, seed=0)
    assert honest.clauses["refusal"].verdict == "pass"

    def broadcasts(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
        rows, rank = min(x.shape[0], out.shape[0]), min(x.shape[2], w_uv.shape[1])
        out[:rows].copy_(product(x[:rows, :, :rank], w_uv[:, :rank]))

    careless = check(kernel(broadcasts, validates=("shapes",)), examples=100, seed=0)
    assert careless.clauses["refusal"].verdict == "fail"


def test_a_kernel_that_allocates_more_than_it_declares_breaks_economy() -> None:
    """The profiler counts allocations inside C++ operators too."""
    frugal = check(kernel(right, allocations=20), examples=5, seed=0)
    assert frugal.clauses["economy"].verdict == "pass"
    greedy = check(kernel(right, allocations=0), examples=5, seed=0)
    assert greedy.clauses["economy"].verdict == "fail"


def test_a_deadline_ends_the_search() -> None:
    """A check that is out of time reports what it has, and how many examples that rests on."""
    report = check(kernel(right), examples=100_000, seed=0, deadline_s=0.5)
    assert 0 < report.examples < 100_000
    assert report.seconds < 20


def test_a_wrong_number_of_examples_is_refused() -> None:
    """Zero examples cannot give a verdict."""
    with pytest.raises(UsageError, match="at least 1, got 0"):
        check(kernel(right), examples=0, seed=0)


def test_of_several_exit_codes_the_gravest_counts() -> None:
    """Usage before violation before unavailable before success."""
    assert ExitCode.of_several([ExitCode.HOLDS, ExitCode.UNAVAILABLE, ExitCode.VIOLATION]) is ExitCode.VIOLATION
    assert ExitCode.of_several([ExitCode.VIOLATION, ExitCode.USAGE]) is ExitCode.USAGE
    assert ExitCode.of_several([]) is ExitCode.HOLDS
    missing = unavailable_report(kernel="k", contract="decode", device="cpu", reason="no library")
    assert exit_code_of([missing]) is ExitCode.UNAVAILABLE


def test_nothing_passes_of_a_kernel_that_never_came_back() -> None:
    """Where every call raised, the clauses of a result are not checked, with the reason; only refusal fails."""

    def always_raises(**_: Any) -> None:
        raise ValueError("never")

    report = check(kernel(always_raises), examples=20, seed=0)
    assert report.clauses["refusal"].verdict == "fail"
    for clause in ("coverage", "independence", "containment", "agreement", "layout", "repeatability"):
        assert report.clauses[clause].verdict == "not checked"
        assert report.clauses[clause].reason == "no call of the kernel came back"


def test_nothing_passes_where_no_output_element_was_looked_at() -> None:
    """Limits that leave only empty outputs give no verdict about elements, and stand beside the verdict."""
    report = check(kernel(right, limits=UpProjectionLimits(num_heads=(0,))), examples=20, seed=0)
    assert report.clauses["coverage"].verdict == "not checked"
    assert report.clauses["agreement"].reason == "no problem had an output element"
    assert "num_heads=0" in report.declarations


def test_what_a_kernel_changes_for_its_whole_process_is_undone() -> None:
    """Defaults of torch and numpy, streams and the folder are as before: a right kernel that changes them passes."""

    def meddles(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
        right(x, w_uv, out)
        np.seterr(all="raise")
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        sys.setrecursionlimit(500)
        os.chdir("/")

    before = (np.geterr(), torch.get_default_dtype(), torch.get_default_device(), sys.getrecursionlimit(), Path.cwd())
    report = check(kernel(meddles), examples=40, seed=0)
    after = (np.geterr(), torch.get_default_dtype(), torch.get_default_device(), sys.getrecursionlimit(), Path.cwd())
    assert report.findings == ()
    assert after == before


class Unreadable(Exception):
    """An exception whose message cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.parametrize(
    "error",
    [Unreadable(), ValueError("A" * 100_000), ValueError("\x1b[31m\x00\udcff"), BaseException("not an Exception")],
    ids=["unreadable", "long", "control-characters", "base"],
)
def test_whatever_a_kernel_raises_is_told_in_a_bounded_printable_sentence(error: BaseException) -> None:
    """A message may be unreadable, huge, or full of control characters: the report is none of these."""

    def raises(**_: Any) -> None:
        raise error

    (finding,) = check(kernel(raises), examples=5, seed=0).findings
    assert finding.clause in ("refusal", "survival")
    assert type(error).__name__ in finding.detail
    assert finding.detail.isprintable()
    assert len(finding.detail) < 1_000


def test_a_returned_value_that_is_no_output_is_told_and_not_blamed() -> None:
    """In-place kernels may return what they like; the report notes what it ignored."""

    def talkative(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> object:
        right(x, w_uv, out)
        return "done", 3

    report = check(kernel(talkative), examples=10, seed=0)
    assert report.findings == ()
    assert any("partly ignored: str, int" in note for note in report.notes)


def test_limits_that_cannot_be_drawn_from_are_a_usage_error() -> None:
    """An unknown dtype or an empty tuple in a declaration is told in the declaration's words."""
    with pytest.raises(UsageError, match="float64"):
        check(kernel(right, limits=UpProjectionLimits(dtypes=("float64",))), examples=5, seed=0)
    with pytest.raises(UsageError, match="num_heads"):
        check(kernel(right, limits=UpProjectionLimits(num_heads=())), examples=5, seed=0)


def test_where_every_problem_is_quarantined_nothing_is_launched_and_nothing_passes() -> None:
    """Quarantined problems are replaced by others; where there are no others, no clause has a verdict."""

    def never_called(**_: Any) -> None:
        raise AssertionError("launched")

    known = KnownDeviation(clause="survival", problems=lambda _: True, reason="crashes", quarantine=True)
    report = check(kernel(never_called, known_deviations=(known,)), examples=20, seed=0)
    assert report.examples == 0
    assert report.clauses["coverage"].reason == "no problem was run"
    assert report.clauses["survival"].verdict == "known"


def test_the_report_says_what_was_intercepted() -> None:
    """A kernel with scratch of its own has it counted, beside what could not be seen; one without has no such note."""

    def with_scratch(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
        scratch = torch.empty(out.shape, dtype=torch.float32)
        scratch.copy_(product(x, w_uv))
        out.copy_(scratch)

    (note,) = (note for note in check(kernel(with_scratch), examples=10, seed=0).notes if "secrets" in note)
    assert note.startswith("memory that the kernel allocated itself was filled with secrets: ")
    assert note.endswith("in 10 examples; what C++ operators, other threads and raw storages allocate was not")
    assert not any("secrets" in note for note in check(kernel(right), examples=10, seed=0).notes)
