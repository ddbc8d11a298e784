"""Smaller problems: each is valid, differs in one size and its values, and is really smaller."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.decode import decode_problems
from strategies.extents import elements_of
from strategies.layouts import CONTIGUOUS, Layout
from strategies.limits import UpProjectionLimits
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem
from strategies.serial import problem_from_json, problem_to_json
from strategies.smaller import smaller
from strategies.up_projection import up_projection_problems

SIZES = {"num_tokens", "num_heads", "kv_lora_rank", "v_head_dim", "qk_rope_head_dim", "page_size", "num_kv_splits"}
FOLLOW = {"x_layout", "w_layout", "out_layout", "q_layout", "o_layout", "lse_layout", "table_layout", "page_order"}
QUANTISED = UpProjectionLimits(weight_formats=("plain", "fp8", "mxfp4"))


def differing(one: Any, other: Any) -> set[str]:
    """The fields in which two problems differ."""
    return {field.name for field in fields(one) if getattr(one, field.name) != getattr(other, field.name)}


@settings(max_examples=60, deadline=None)
@given(problem=st.one_of(decode_problems(), up_projection_problems(QUANTISED)))
def test_each_has_one_size_less_and_can_be_saved(problem: Problem) -> None:
    """One size, or the lengths of the requests; whatever else differs follows from it."""
    for other in smaller(problem):
        assert problem_from_json(problem_to_json(other)) == other
        changed = differing(problem, other) - FOLLOW - {"seed"}
        assert changed <= SIZES | {"kv_lens", "q_lens"}
        sizes, lengths = changed & SIZES, changed - SIZES
        assert len(sizes) == 1 or (lengths and not sizes)
        assert not (sizes and lengths) or changed == {"page_size", "kv_lens"}
        # A page of one key, or one split, is simpler and yet may take as many elements.
        if changed.isdisjoint({"page_size", "num_kv_splits"}):
            assert elements_of(other) <= elements_of(problem)


def test_the_simplest_problem_has_nothing_below_it() -> None:
    """So nothing is tried in vain where Hypothesis has done it all."""
    assert list(smaller(UpProjectionProblem())) == []
    assert list(smaller(DecodeProblem())) == []


def test_a_length_that_a_menu_does_not_lead_to_is_tried() -> None:
    """16 keys in pages of 2, where 15 and 8 pass: 2 is among what is tried, with the same values and with others."""
    tried = list(smaller(DecodeProblem(kv_lens=(16,), page_size=2, seed=9)))
    assert {problem.seed for problem in tried if problem.kv_lens == (2,)} == {9, 0, 1, 2, 3, 4, 5}


def test_pages_become_smaller_with_what_lies_in_them() -> None:
    """A full last page stays full, and one that is not stays so while it can."""
    tried = [(one.page_size, one.kv_lens) for one in smaller(DecodeProblem(kv_lens=(8, 7), q_lens=(1, 1), page_size=4))]
    assert {(2, (4, 3)), (3, (6, 5)), (1, (2, 2))} <= set(tried)


def test_requests_are_left_out_from_the_end_and_one_at_a_time() -> None:
    """As few as one to three, half, and one fewer, where a kernel's grid is what matters."""
    seventeen = DecodeProblem(kv_lens=(1,) * 17, q_lens=(1,) * 17)
    assert {len(problem.kv_lens) for problem in smaller(seventeen)} == {1, 2, 3, 8, 16}


def test_layouts_keep_their_kind_and_lose_numbers_that_mean_nothing() -> None:
    """One token has no rows to lie apart; odd strides of dimensions of size 1 are left alone altogether."""
    padded = UpProjectionProblem(num_tokens=2, out_layout=Layout("padded_rows", 3))
    assert {problem.out_layout for problem in smaller(padded)} <= {CONTIGUOUS, Layout("padded_rows", 3)}
    assert list(smaller(replace(padded, out_layout=Layout("odd_singletons")))) == []


def test_codes_of_four_bits_stay_in_pairs() -> None:
    """mxfp4 packs two to a byte."""
    ranks = {problem.kv_lora_rank for problem in smaller(UpProjectionProblem(kv_lora_rank=34, weight_format="mxfp4"))}
    assert ranks == {2}  # 17 is half of 34, and odd
