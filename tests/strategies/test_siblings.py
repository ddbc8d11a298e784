"""Siblings: one aspect differs, the shapes stay; smaller problems are smaller; all stay within a kernel's limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from mla_verify.kernel import Kernel
from mla_verify.within import why_outside
from strategies.decode import decode_problems
from strategies.extents import elements_of
from strategies.limits import DecodeLimits, Limits, UpProjectionLimits
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem
from strategies.serial import problem_from_json, problem_to_json
from strategies.siblings import Change, changed, changes, reductions
from strategies.up_projection import up_projection_problems

UP_PROJECTION: Final = (
    UpProjectionLimits(),
    UpProjectionLimits(flat_rows=True, dtypes=("bfloat16",), num_heads=(4, 16), aligned=True),
    UpProjectionLimits(packed=frozenset({"x", "w_uv", "out"}), kv_lora_rank=(8,), max_num_tokens=3),
)
DECODE: Final = (
    DecodeLimits(),
    DecodeLimits(empty_requests=False, uniform_q=True, max_kv_len=20, lse="always", max_num_kv_splits=2),
    DecodeLimits(packed=frozenset({"q", "o", "lse", "tables", "cache"}), page_sizes=(4, 16), lse="never", aligned=True),
    DecodeLimits(empty_requests=False, max_q_len=3, num_heads=(16,), padding_rows=False, max_batch=4),
)
Drawn = tuple[Limits, Problem, Change]


def drawn(kind: Callable[[Limits], SearchStrategy[Change]]) -> SearchStrategy[Drawn]:
    """Limits, a problem within them, and one change of this kind."""
    every: list[SearchStrategy[Drawn]] = [
        st.tuples(st.just(limits), up_projection_problems(limits), kind(limits)) for limits in UP_PROJECTION
    ]
    every += [st.tuples(st.just(limits), decode_problems(limits), kind(limits)) for limits in DECODE]
    return st.one_of(every)


def kernel_within(limits: Limits) -> Kernel:
    """A kernel that declares just these limits."""
    contract = "decode" if isinstance(limits, DecodeLimits) else "up-projection"
    return Kernel(name="limited", contract=contract, load=lambda: print, limits=limits)


def shapes_of(problem: Problem) -> tuple[Any, ...]:
    """The shapes of every tensor of a problem."""
    if isinstance(problem, UpProjectionProblem):
        return problem.num_tokens, problem.num_heads, problem.kv_lora_rank, problem.v_head_dim
    pages = problem.pages_per_request
    return (
        (problem.num_rows, problem.num_heads, problem.kv_lora_rank, problem.qk_rope_head_dim),
        (sum(pages) + problem.foreign_pages, problem.page_size),
        sum(pages) + problem.index_tail,
        (len(pages), max(pages, default=0) + problem.table_slack),
    )


def differing(one: Problem, other: Problem) -> set[str]:
    """The fields in which two problems differ."""
    return {field.name for field in fields(one) if getattr(one, field.name) != getattr(other, field.name)}


@given(drawn(changes))
def test_a_sibling_has_the_same_shapes_and_is_another_problem(drawing: Drawn) -> None:
    """Whoever recognises a problem by the shapes of its tensors takes a sibling for it."""
    limits, problem, change = drawing
    sibling = changed(problem, change, limits)
    assert shapes_of(sibling) == shapes_of(problem)
    assert sibling != problem


@given(drawn(changes))
def test_a_sibling_differs_in_one_aspect(drawing: Drawn) -> None:
    """One field, and beside it only what absorbs it: pages that nobody owns any more, and what means nothing now."""
    limits, problem, change = drawing
    other = differing(problem, changed(problem, change, limits))
    absorbed = {"foreign_pages", "index_tail", "table_slack", "page_order"} if "kv_lens" in other else set[str]()
    absorbed |= {"softmax_scale"} if "regime" in other else {"lse_layout"} if "with_lse" in other else set()
    assert len(other - absorbed) == 1


@given(drawn(reductions))
def test_a_smaller_problem_has_no_more_elements(drawing: Drawn) -> None:
    """Fewer requests, keys, heads, tokens or rows: what an earlier call left behind reaches further than this one."""
    limits, problem, change = drawing
    assert elements_of(changed(problem, change, limits)) <= elements_of(problem)


@pytest.mark.parametrize("kind", [changes, reductions])
def test_what_comes_out_is_a_problem_that_the_kernel_takes(kind: Callable[[Limits], SearchStrategy[Change]]) -> None:
    """Within the limits that the first problem was drawn from, exact to save, however often it is changed."""

    @given(drawn(kind), st.integers(1, 3))
    def inner(drawing: Drawn, times: int) -> None:
        limits, problem, change = drawing
        for _ in range(times):
            problem = changed(problem, change, limits)
        assert why_outside(problem, kernel_within(limits)) == ""
        assert problem_from_json(problem_to_json(problem)) == problem

    inner()


def test_lengths_change_while_page_lists_and_tables_keep_their_shapes() -> None:
    """The sibling that a plan cached by shapes takes for the problem that it was made for."""
    problem = DecodeProblem(kv_lens=(9, 5), q_lens=(1, 1), page_size=4)
    sibling = changed(problem, ("sibling", ("keys", "half")), DecodeLimits())
    assert isinstance(sibling, DecodeProblem)
    assert sibling.kv_lens == (4, 2)
    assert shapes_of(sibling) == shapes_of(problem)
    assert (sibling.foreign_pages, sibling.index_tail, sibling.table_slack) == (4, 3, 2)


def test_every_aspect_is_drawn() -> None:
    """Lengths, values, strides, splits: each turns up among a few hundred changes."""
    seen: set[str] = set()

    @settings(max_examples=500, derandomize=True, database=None)
    @given(changes(DecodeLimits()))
    def note(change: Change) -> None:
        seen.add(change[1][0])

    note()
    assert {"keys", "seed", "num_kv_splits", "o_layout"} <= seen
