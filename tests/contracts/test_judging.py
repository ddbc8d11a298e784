"""Comparing outputs with an oracle: what counts as right, what as wrong, and how it is said."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf, nan

import pytest
import torch
from torch import Tensor

from mla_verify.contract import Judgement
from mla_verify.judging import Reference, differ, judge, merged, round_once

WIDTH = 0.25  # of the bound in these tests, where there is one


def _bounded(value: list[float], *, bound: list[float] | None = None, judged: list[bool] | None = None) -> Reference:
    """A float16 reference whose lower limit accepts nothing but equality, so that the bound decides."""
    bounds = torch.tensor(bound or [WIDTH] * len(value), dtype=torch.float64)
    usable = torch.tensor(judged or [True] * len(value))

    def at(index: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        return bounds[index], usable[index]

    return Reference(
        name="out",
        value=torch.tensor(value, dtype=torch.float64),
        dtype=torch.float16,
        exact=None,
        relative=0.0,
        absolute=1e-9,
        bound=at,
    )


def _exact(value: list[float]) -> Reference:
    return replace(_bounded(value), exact=torch.tensor(value, dtype=torch.float16))


def _half(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float16)


def _wrong(judgement: Judgement) -> list[bool]:
    assert len(judgement.disagreements) <= 1
    return judgement.disagreements[0].wrong.tolist() if judgement.disagreements else []


def _right(judgement: Judgement) -> bool:
    return not judgement.disagreements and judgement.not_judged == 0


def test_an_error_within_the_bound_is_right_and_beyond_it_wrong() -> None:
    """The bound is the border, and the worst ratio is reported."""
    at_the_border = judge(_bounded([1.0]), _half(1.25))
    assert _right(at_the_border)
    assert at_the_border.worst == 1.0
    beyond = judge(_bounded([1.0, 1.0]), _half(1.0, 1.5))
    assert _wrong(beyond) == [False, True]
    assert beyond.worst == 2.0


def test_the_bound_is_asked_only_for_elements_beyond_the_lower_limit() -> None:
    """A right kernel costs one pass: what lies within the lower limit is never looked up."""
    asked: list[int] = []
    reference = replace(_bounded([1.0, 2.0, 3.0]), relative=0.01)
    inner = reference.bound

    def at(index: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        asked.extend(index[0].tolist())
        return inner(index)

    judge(replace(reference, bound=at), _half(1.0, 2.1, 3.01))
    assert asked == [1]


def test_a_nan_where_the_oracle_is_finite_is_wrong() -> None:
    """NaN is no small error."""
    assert _wrong(judge(_bounded([1.0]), _half(nan))) == [True]
    assert _wrong(judge(_exact([1.0]), _half(nan))) == [True]


def test_nan_in_is_nan_out() -> None:
    """Where the oracle says NaN a number is wrong, and any NaN right."""
    assert _wrong(judge(_bounded([nan, nan]), _half(0.0, nan))) == [True, False]


def test_an_infinity_must_be_that_infinity() -> None:
    """Neither a finite number nor the other infinity stands for it."""
    assert _wrong(judge(_bounded([inf, inf, inf]), _half(inf, -inf, 65504.0))) == [False, True, True]


def test_zeros_of_either_sign_are_alike() -> None:
    """Agreement is about values; bits are compared between runs of one kernel."""
    assert _right(judge(_exact([0.0]), _half(-0.0)))


def test_an_overflow_is_right_only_at_the_edge_of_the_range_and_with_the_right_sign() -> None:
    """float16 ends at 65504: what reaches beyond it by its bound may become that infinity."""
    reference = _bounded([65503.0, 65503.0, 65000.0, 70000.0], bound=[2.0] * 4)
    assert _wrong(judge(reference, _half(inf, -inf, inf, inf))) == [False, True, True, False]


def test_elements_out_of_the_accumulators_range_are_not_judged_but_counted() -> None:
    """An infinite bound excuses even NaN, and the report says how many."""
    found = judge(_bounded([1.0, 1.0], bound=[inf, WIDTH], judged=[False, True]), _half(nan, 1.0))
    assert found.disagreements == ()
    assert found.not_judged == 1


def test_a_vacuous_bound_excuses_finite_numbers_alone() -> None:
    """Where the bound is too wide to mean something NaN stays wrong."""
    reference = _bounded([1.0, 1.0], bound=[50.0, 50.0], judged=[False, False])
    found = judge(reference, _half(99.0, nan))
    assert _wrong(found) == [False, True]
    assert found.not_judged == 1


def test_skipped_elements_are_left_out() -> None:
    """What another clause has blamed is not blamed twice."""
    skip = torch.tensor([True, False])
    assert _right(judge(_bounded([1.0, 1.0]), _half(nan, 1.0), skip=skip))
    reference = _exact([1.0, 1.0])
    assert _right(judge(reference, _half(9.0, 1.0), skip=skip))
    assert _right(differ(reference, reference, _half(9.0, 1.0), _half(1.0, 1.0), skip=skip))


def test_the_text_names_the_elements_the_worst_and_what_was_expected() -> None:
    """A person can act on the sentence without a debugger."""
    found = judge(_bounded([1.5, 1.5, 1.5]), _half(1.5, 2.0, 2.5))
    assert found.disagreements[0].detail == "out[1:3]: got 2.5, expected 1.5 ± 0.25 (worst of 2, at [2])"
    found = judge(_exact([3.0, 4.0]), _half(3.0, 5.0))
    assert found.disagreements[0].detail == "out[1]: got 5, expected 4 exactly"


def test_the_differential_allows_the_sum_of_both_bounds() -> None:
    """Two right answers may lie on either side of the oracle."""
    reference = _bounded([1.0])
    assert _right(differ(reference, reference, _half(1.25), _half(0.75)))
    assert _wrong(differ(reference, reference, _half(1.375), _half(0.75))) == [True]


@pytest.mark.parametrize(
    ("got", "baseline", "said"),
    [
        (3.0, 1.0, "the baseline agrees with the oracle, the kernel does not"),
        (1.0, 3.0, "the kernel agrees with the oracle, the baseline does not"),
        (3.0, 5.0, "neither agrees with the oracle"),
        (nan, 1.0, "the baseline agrees with the oracle, the kernel does not"),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_the_differential_says_which_of_the_two_is_right(got: float, baseline: float, said: str, exact: bool) -> None:
    """A difference alone is no verdict."""
    reference = _exact([1.0]) if exact else _bounded([1.0])
    found = differ(reference, reference, _half(got), _half(baseline))
    assert found.disagreements[0].detail.endswith(said)


def test_two_overflows_do_not_differ() -> None:
    """An infinity beside the largest number is no difference where both stand right to the oracle."""
    reference = _bounded([65503.0], bound=[2.0])
    assert differ(reference, reference, _half(inf), _half(65504.0)).disagreements == ()


def test_judgements_of_several_outputs_add_up() -> None:
    """Nothing that one output showed is lost."""
    one = judge(_bounded([1.0]), _half(9.0))
    other = judge(_bounded([1.0], bound=[inf], judged=[False]), _half(2.0))
    both = merged((one, other))
    assert (len(both.disagreements), both.not_judged, both.worst) == (1, 1, one.worst)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_float64_to_16_bits_rounds_once(dtype: torch.dtype) -> None:
    """No nearer number of the dtype exists, where going through float32 would have found the wrong neighbour."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(20_000, dtype=torch.float64, generator=generator).to(dtype).to(torch.float64)
    # Just beside the tie between two neighbours: float32 would round onto the tie.
    tie = exact * (1 + torch.finfo(dtype).eps / 2 ** (1 + (torch.frexp(exact.abs()).mantissa > 0.99).int()))
    beside = torch.cat([tie * (1 + 2.0**-40), tie * (1 - 2.0**-40)])
    rounded = round_once(beside, dtype)
    twice = beside.to(dtype)
    changed = rounded != twice
    assert changed.any()
    for value, once, through in zip(
        beside[changed][:200].tolist(), rounded[changed][:200].tolist(), twice[changed][:200].tolist(), strict=True
    ):
        assert abs(Fraction(once) - Fraction(value)) < abs(Fraction(through) - Fraction(value))
    assert ((rounded.double() - beside).abs() <= (twice.double() - beside).abs()).all()


def test_rounding_keeps_what_is_not_finite() -> None:
    """NaN, infinities and numbers beyond the range become what they must."""
    values = torch.tensor([nan, inf, -inf, 1e300, -1e300, 65519.99, 65520.0, 0.0], dtype=torch.float64)
    expected = _half(nan, inf, -inf, inf, -inf, 65504.0, inf, 0.0)
    assert torch.equal(round_once(values, torch.float16).nan_to_num(nan=7), expected.nan_to_num(nan=7))
