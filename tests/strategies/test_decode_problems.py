"""What drawn decode problems promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis.errors import InvalidArgument

from strategies.decode import decode_problems, invalid_decode_problems
from strategies.extents import elements_of
from strategies.invalid import DECODE_INVALID
from strategies.layouts import INPUT_ONLY, layout_is_packed
from strategies.limits import DecodeLimits
from strategies.problems import DecodeProblem
from strategies.vocabulary import ITEM_BYTES, ROUND_SCALES

Drawn = Callable[..., list[DecodeProblem]]
NATIVE = DecodeLimits(  # what a narrow kernel leaves open
    dtypes=("bfloat16",),
    num_heads=(16,),
    kv_lora_rank=(512,),
    qk_rope_head_dim=(64,),
    page_sizes=(16,),
    max_batch=3,
    max_q_len=2,
    uniform_q=True,
    max_kv_len=50,
    max_num_kv_splits=2,
    empty_requests=False,
    padding_rows=False,
    lse="never",
    packed=frozenset({"q", "o", "tables", "cache"}),
    aligned=True,
)


def test_problems_are_well_formed(drawn: Drawn) -> None:
    """As many query lengths as requests, no negative length, outputs and tables that never overlap themselves."""
    for problem in drawn(decode_problems()):
        assert len(problem.q_lens) == len(problem.kv_lens)
        assert min((*problem.q_lens, *problem.kv_lens), default=0) >= 0
        assert problem.foreign_pages >= 1
        for layout in (problem.o_layout, problem.lse_layout, problem.table_layout):
            assert layout.kind not in INPUT_ONLY
        assert problem.invalid is None


def test_limits_hold_by_construction(drawn: Drawn) -> None:
    """Every drawn problem keeps each of a kernel's limits."""
    for problem in drawn(decode_problems(NATIVE, regimes=("uniform", "gaussian")), count=300):
        width = problem.kv_lora_rank + problem.qk_rope_head_dim
        columns = max(problem.pages_per_request, default=0) + problem.table_slack
        assert (problem.num_heads, problem.kv_lora_rank, problem.qk_rope_head_dim) == (16, 512, 64)
        assert (problem.dtype, problem.page_size, problem.padding_rows) == ("bfloat16", 16, 0)
        assert len(problem.kv_lens) <= 3
        assert len(set(problem.q_lens)) <= 1
        assert all(1 <= q_len <= 2 for q_len in problem.q_lens)
        assert all(max(1, q_len) <= kv_len <= 50 for q_len, kv_len in zip(problem.q_lens, problem.kv_lens, strict=True))
        assert problem.num_kv_splits <= 2
        assert not problem.with_lse
        assert problem.regime in ("uniform", "gaussian")
        assert layout_is_packed((problem.num_rows, 16, width), problem.q_layout)
        assert layout_is_packed((problem.num_rows, 16, 512), problem.o_layout)
        assert layout_is_packed((len(problem.kv_lens), columns), problem.table_layout)
        offsets = {problem.q_layout.offset, problem.o_layout.offset, problem.lse_layout.offset}
        assert (problem.page_pad, problem.cache_offset, offsets) == (0, 0, {0})


def test_lse_can_be_always_there(drawn: Drawn) -> None:
    """`lse="always"` never draws a problem without it."""
    assert all(problem.with_lse for problem in drawn(decode_problems(DecodeLimits(lse="always")), count=200))


def test_idle_fields_keep_their_defaults(drawn: Drawn) -> None:
    """What makes no difference is not drawn: no lse, no layout of it; one page, no order; q = 0, no scale."""
    for problem in drawn(decode_problems()):
        default = DecodeProblem()
        if not problem.with_lse:
            assert problem.lse_layout == default.lse_layout
        if sum(problem.pages_per_request) <= 1:
            assert problem.page_order == default.page_order
        if problem.regime == "uniform":
            assert problem.softmax_scale == default.softmax_scale


def test_most_problems_are_small_and_all_are_cheap(drawn: Drawn) -> None:
    """The median spans less than 100 KB, and none more than 32 MB, a kernel's partial outputs included."""
    spans = sorted(elements_of(problem) * ITEM_BYTES[problem.dtype] for problem in drawn(decode_problems()))
    assert spans[len(spans) // 2] < 100_000
    assert spans[-1] < 32 << 20


def test_formats_are_drawn_where_a_kernel_takes_them(drawn: Drawn) -> None:
    """No format without the limit; a quantised query has the cache's format; scales belong to codes alone."""
    plain = DecodeProblem()
    for problem in drawn(decode_problems()):
        assert (problem.q_format, problem.kv_format, problem.q_scale, problem.kv_scale) == ("plain", "plain", "1", "1")
    limits = DecodeLimits(kv_formats=("plain", "e4m3fnuz", "e5m2"), quantised_q="always")
    for problem in drawn(decode_problems(limits)):
        assert problem.kv_format in limits.kv_formats
        assert problem.q_format == problem.kv_format
        if problem.kv_format == "plain":
            assert (problem.q_scale, problem.kv_scale) == (plain.q_scale, plain.kv_scale)
        if problem.regime in ("retrieval", "extreme"):
            assert {problem.q_scale, problem.kv_scale} <= set(ROUND_SCALES)


def test_a_model_of_128_heads_stays_cheap(drawn: Drawn) -> None:
    """Where the limits prescribe a model's sizes, lengths give way: they still cross a page."""
    limits = DecodeLimits(num_heads=(128,), kv_lora_rank=(512,), qk_rope_head_dim=(64,), page_sizes=(64,), max_batch=2)
    problems = drawn(decode_problems(limits), count=200)
    assert all(max(problem.kv_lens, default=0) <= 65 for problem in problems if problem.num_rows)
    assert any(max(problem.kv_lens, default=0) == 65 for problem in problems)


def test_sizes_reach_from_nothing_to_a_model(drawn: Drawn) -> None:
    """No request, no key, no head, no latent column, 128 heads and 512 + 64 columns all appear in 2,000 draws."""
    problems = drawn(decode_problems())
    assert any(not problem.kv_lens for problem in problems)
    assert any(problem.num_heads == 0 for problem in problems)
    assert any(problem.kv_lora_rank == 0 for problem in problems)
    assert any(problem.num_heads == 128 for problem in problems)
    assert any((problem.kv_lora_rank, problem.qk_rope_head_dim) == (512, 64) for problem in problems)
    assert all(problem.kv_lora_rank + problem.qk_rope_head_dim > 0 for problem in problems)


def test_nearly_all_problems_differ(drawn: Drawn) -> None:
    """Among 2,000 draws hardly one repeats another (strategies/choosing.py, Note [Distinct labels])."""
    problems = drawn(decode_problems())
    assert len(set(problems)) >= 0.98 * len(problems)


@pytest.mark.parametrize("kind", sorted(DECODE_INVALID))
def test_invalid_problems_have_a_real_fault(drawn: Drawn, kind: str) -> None:
    """Each invalid problem has room for its fault: a key and a row for each request, two where pointers fall."""
    for problem in drawn(invalid_decode_problems(kinds=(kind,)), count=100):
        assert problem.invalid == kind
        assert problem.kv_lens
        assert len(problem.q_lens) == len(problem.kv_lens)
        assert min(*problem.kv_lens, *problem.q_lens, problem.num_heads, problem.kv_lora_rank) >= 1
        if kind == "kv_indptr_falls":
            assert len(problem.kv_lens) >= 2
        if DECODE_INVALID[kind] == "overlap":
            assert problem.out_form == "view"


def test_invalid_problems_keep_the_limits(drawn: Drawn) -> None:
    """Besides its fault an invalid problem is within the limits; faults that cannot be built are left out."""
    limits = DecodeLimits(max_batch=1, num_heads=(0, 8), kv_lora_rank=(0, 16), max_q_len=1)
    kinds: set[str | None] = set()
    for problem in drawn(invalid_decode_problems(limits), count=300):
        kinds.add(problem.invalid)
        assert (problem.num_heads, problem.kv_lora_rank) == (8, 16)
        assert len(problem.kv_lens) == 1
        assert problem.q_lens == (1,)
    assert kinds == set(DECODE_INVALID) - {"kv_indptr_falls"}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"dtypes": ()}, "dtypes"),
        ({"page_sizes": (0,)}, "at least 1, got 0"),
        ({"page_sizes": ()}, "page_sizes"),
        ({"qk_rope_head_dim": (-64,)}, "got -64"),
        ({"max_batch": 0}, "max_batch=0"),
        ({"max_q_len": -1}, "max_q_len=-1"),
        ({"max_kv_len": True}, "max_kv_len=True"),
        ({"max_num_kv_splits": 1.5}, "max_num_kv_splits=1.5"),
        ({"lse": "sometimes"}, "lse: unknown 'sometimes'"),
        ({"packed": frozenset({"x"})}, "packed: unknown 'x'"),
        ({"kv_formats": ()}, "kv_formats"),
        ({"kv_formats": ("fp8",)}, "kv_formats: unknown 'fp8'"),
        ({"quantised_q": "sometimes"}, "quantised_q: unknown 'sometimes'"),
    ],
    ids=str,
)
def test_wrong_limits_are_refused(limits: dict[str, Any], message: str) -> None:
    """Limits that leave nothing to draw raise InvalidArgument, which names the limit."""
    with pytest.raises(InvalidArgument, match=message):
        decode_problems(DecodeLimits(**limits))
    with pytest.raises(InvalidArgument, match=message):
        invalid_decode_problems(DecodeLimits(**limits))


def test_wrong_words_are_refused() -> None:
    """Unknown regimes and kinds raise InvalidArgument, and so do kinds of which none can be built."""
    with pytest.raises(InvalidArgument, match="regimes: unknown 'exact'"):
        decode_problems(regimes=("exact",))
    with pytest.raises(InvalidArgument, match="kinds: unknown"):
        invalid_decode_problems(kinds=("o_is_late",))
    with pytest.raises(InvalidArgument, match="none of them can be built"):
        invalid_decode_problems(DecodeLimits(max_batch=1), kinds=("kv_indptr_falls",))
