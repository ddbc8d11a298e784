"""A failure keeps what it needs and loses the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.strategies import SearchStrategy

from strategies.decode import decode_problems
from strategies.layouts import Layout, layout_is_packed
from strategies.problems import DecodeProblem, UpProjectionProblem
from strategies.up_projection import up_projection_problems

Failure = tuple[Callable[[Any], bool], Any]  # what fails, and the smallest problem that does

_STRIDED: Final = frozenset({"padded_rows", "padded_heads", "transposed", "sliced", "strided_inner", "reversed"})


def _smallest(strategy: SearchStrategy[Any], fails: Callable[[Any], bool]) -> object:
    return find(
        strategy,
        fails,
        settings=settings(
            max_examples=2000,
            derandomize=True,
            database=None,
            phases=[Phase.generate, Phase.shrink],  # explaining costs ten times as much as shrinking
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


def _out_is_strided(problem: UpProjectionProblem) -> bool:
    shape = (problem.num_tokens, problem.num_heads, problem.v_head_dim)
    return not layout_is_packed(shape, problem.out_layout)


UP_PROJECTION: Final[dict[str, Failure]] = {
    "anything": (lambda _: True, UpProjectionProblem()),
    "several tokens": (lambda problem: problem.num_tokens > 3, UpProjectionProblem(num_tokens=4)),
    "strided out": (
        _out_is_strided,
        UpProjectionProblem(num_tokens=2, out_layout=Layout("padded_rows", 1)),
    ),
    "transposed out": (
        lambda problem: problem.out_layout.kind == "transposed",
        UpProjectionProblem(num_tokens=2, out_layout=Layout("transposed")),
    ),
    "odd offset": (
        lambda problem: problem.out_layout.offset % 4 > 0,
        UpProjectionProblem(out_layout=Layout("contiguous", 0, 1)),
    ),
    "no inner size": (lambda problem: problem.kv_lora_rank == 0, UpProjectionProblem(kv_lora_rank=0)),
    "vLLM's weight": (
        lambda problem: problem.w_layout.kind == "vllm_weight",
        UpProjectionProblem(w_layout=Layout("vllm_weight", 1)),
    ),
    "dtype and regime": (
        lambda problem: problem.dtype == "bfloat16" and problem.regime == "special",
        UpProjectionProblem(dtype="bfloat16", regime="special"),
    ),
    "owner": (lambda problem: problem.out_form == "owner", UpProjectionProblem(out_form="owner")),
}

DECODE: Final[dict[str, Failure]] = {
    "anything": (lambda _: True, DecodeProblem()),
    "an empty request": (lambda problem: 0 in problem.kv_lens, DecodeProblem(kv_lens=(0,))),
    "several keys": (
        lambda problem: max(problem.kv_lens, default=0) > 5,
        DecodeProblem(kv_lens=(6,)),
    ),
    "a partial page": (
        lambda problem: any(kv_len % problem.page_size for kv_len in problem.kv_lens),
        DecodeProblem(page_size=2),
    ),
    "several query rows": (
        lambda problem: max(problem.q_lens, default=0) > 1,
        DecodeProblem(q_lens=(2,)),
    ),
    "shuffled pages": (
        lambda problem: problem.page_order == "shuffled",
        DecodeProblem(kv_lens=(2,), page_order="shuffled"),
    ),
    "padding rows": (lambda problem: problem.padding_rows > 0, DecodeProblem(padding_rows=1)),
    "strided o": (
        lambda problem: problem.o_layout.kind in _STRIDED,
        DecodeProblem(o_layout=Layout("padded_rows", 1)),
    ),
    "padded pages and splits": (
        lambda problem: problem.page_pad > 0 and problem.num_kv_splits > 1,
        DecodeProblem(page_pad=1, num_kv_splits=2),
    ),
    "ragged requests": (
        lambda problem: len(set(problem.kv_lens)) > 1 and 0 < problem.kv_lens[0] == min(problem.kv_lens),
        DecodeProblem(kv_lens=(1, 2), q_lens=(1, 1)),
    ),
    "no request": (lambda problem: not problem.kv_lens, DecodeProblem(kv_lens=(), q_lens=())),
}


@pytest.mark.parametrize("name", sorted(UP_PROJECTION))
def test_up_projection_problems_shrink_to_what_matters(name: str) -> None:
    """One token, one head, contiguous, float32, exact, but for what the failure needs."""
    fails, smallest = UP_PROJECTION[name]
    assert _smallest(up_projection_problems(), fails) == smallest


@pytest.mark.parametrize("name", sorted(DECODE))
def test_decode_problems_shrink_to_what_matters(name: str) -> None:
    """One request of one key and row, one head, contiguous, float32, retrieval, but for what the failure needs."""
    fails, smallest = DECODE[name]
    assert _smallest(decode_problems(), fails) == smallest
