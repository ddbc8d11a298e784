"""What drawn up-projection problems promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis.errors import InvalidArgument

from strategies.extents import elements_of
from strategies.invalid import UP_PROJECTION_INVALID
from strategies.layouts import INPUT_ONLY, Layout, layout_is_packed, strides_of
from strategies.limits import UpProjectionLimits
from strategies.problems import UpProjectionProblem
from strategies.up_projection import invalid_up_projection_problems, up_projection_problems
from strategies.vocabulary import ITEM_BYTES

Drawn = Callable[..., list[UpProjectionProblem]]
VLLM = UpProjectionLimits(
    dtypes=("bfloat16", "float16"),
    num_heads=(16, 128),
    kv_lora_rank=(512,),
    v_head_dim=(128,),
    max_num_tokens=40,
    flat_rows=True,
    packed=frozenset({"x"}),
    aligned=True,
)


def _tensors(problem: UpProjectionProblem) -> dict[str, tuple[tuple[int, ...], Layout]]:
    tokens, heads = problem.num_tokens, problem.num_heads
    latent, value = problem.kv_lora_rank, problem.v_head_dim
    return {
        "x": ((tokens, heads, latent), problem.x_layout),
        "w_uv": ((heads, latent, value), problem.w_layout),
        "out": ((tokens, heads, value), problem.out_layout),
    }


def test_outputs_never_overlap_themselves(drawn: Drawn) -> None:
    """Layouts in which elements share memory are drawn for inputs alone."""
    for problem in drawn(up_projection_problems()):
        assert problem.out_layout.kind not in INPUT_ONLY
        assert problem.invalid is None


def test_limits_hold_by_construction(drawn: Drawn) -> None:
    """Every drawn problem keeps each of a kernel's limits."""
    for problem in drawn(up_projection_problems(VLLM, regimes=("gaussian",)), count=300):
        tensors = _tensors(problem)
        assert problem.dtype in VLLM.dtypes
        assert problem.num_heads in (16, 128)
        assert (problem.kv_lora_rank, problem.v_head_dim) == (512, 128)
        assert problem.num_tokens <= 40
        assert problem.regime == "gaussian"
        assert layout_is_packed(*tensors["x"])
        for shape, layout in tensors.values():
            assert strides_of(shape, layout)[1] * ITEM_BYTES[problem.dtype] % 16 == 0


def test_flat_rows_can_be_viewed_as_two_dimensions(drawn: Drawn) -> None:
    """With `flat_rows`, out.view(num_tokens, num_heads · v_head_dim) works on every problem."""
    torch.set_num_threads(1)
    limits = UpProjectionLimits(flat_rows=True)
    padded = 0
    for problem in drawn(up_projection_problems(limits), count=1000):
        shape, layout = _tensors(problem)["out"]
        strides, lead = strides_of(shape, layout)
        out = torch.empty_strided((elements_of(problem) + 1,), (1,), device="meta")
        out.as_strided(shape, strides, lead).view(shape[0], shape[1] * shape[2])
        padded += not layout_is_packed(shape, layout)
    assert padded > 100


def test_most_problems_are_small_and_all_are_cheap(drawn: Drawn) -> None:
    """The median spans less than 100 KB, and none more elements or multiplications than a CPU does at once."""
    problems = drawn(up_projection_problems())
    spans = sorted(elements_of(problem) * ITEM_BYTES[problem.dtype] for problem in problems)
    assert spans[len(spans) // 2] < 100_000
    for problem in problems:
        size = problem.num_heads * problem.kv_lora_rank * problem.v_head_dim
        assert size <= 1 << 20
        assert problem.num_tokens * size <= 1 << 22


def test_sizes_reach_from_nothing_to_a_model(drawn: Drawn) -> None:
    """Every size is 0 somewhere, and a model's head of 512 × 128 appears among 2,000 problems."""
    problems = drawn(up_projection_problems())
    for field in ("num_tokens", "num_heads", "kv_lora_rank", "v_head_dim"):
        assert any(getattr(problem, field) == 0 for problem in problems)
    assert any(problem.num_heads == 128 for problem in problems)
    assert any((problem.kv_lora_rank, problem.v_head_dim) == (512, 128) for problem in problems)


def test_nearly_all_problems_differ(drawn: Drawn) -> None:
    """Among 2,000 draws hardly one repeats another (strategies/choosing.py, Note [Distinct labels])."""
    problems = drawn(up_projection_problems())
    assert len(set(problems)) >= 0.98 * len(problems)


@pytest.mark.parametrize("kind", sorted(UP_PROJECTION_INVALID))
def test_invalid_problems_have_a_real_fault(drawn: Drawn, kind: str) -> None:
    """Each invalid problem has room for its fault: elements, rows, and equal sizes where `out` is `x`."""
    for problem in drawn(invalid_up_projection_problems(kinds=(kind,)), count=100):
        assert problem.invalid == kind
        tokens, heads = problem.num_tokens, problem.num_heads
        latent, value = problem.kv_lora_rank, problem.v_head_dim
        assert min(tokens, heads, latent, value) >= 1
        if kind == "out_is_x":
            assert latent == value
            assert problem.x_layout == problem.out_layout
            assert problem.x_layout.kind not in INPUT_ONLY
        elif UP_PROJECTION_INVALID[kind] == "overlap":
            assert tokens >= 2
            assert problem.out_form == "view"
        if kind == "out_rows_overlap":
            assert heads * value >= 2


def test_invalid_problems_keep_the_limits(drawn: Drawn) -> None:
    """Besides its fault an invalid problem is within the limits; faults that cannot be built are left out."""
    kinds: set[str | None] = set()
    for problem in drawn(invalid_up_projection_problems(VLLM), count=300):
        kinds.add(problem.invalid)
        assert problem.num_heads in (16, 128)
        assert (problem.kv_lora_rank, problem.v_head_dim) == (512, 128)
        assert layout_is_packed(*_tensors(problem)["x"])
    assert kinds == set(UP_PROJECTION_INVALID) - {"out_is_x"}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"dtypes": ()}, "dtypes"),
        ({"dtypes": ("int3",)}, "unknown 'int3'"),
        ({"num_heads": ()}, "num_heads"),
        ({"kv_lora_rank": (-1,)}, "at least 0, got -1"),
        ({"v_head_dim": (1.5,)}, "got 1.5"),
        ({"v_head_dim": (True,)}, "got True"),
        ({"num_heads": 16}, "wanted a tuple"),
        ({"max_num_tokens": 0}, "max_num_tokens=0"),
        ({"packed": frozenset({"q"})}, "packed: unknown 'q'"),
        ({"weight_formats": ("int4",)}, "weight_formats: unknown 'int4'"),
        ({"weight_formats": ()}, "weight_formats"),
        ({"weight_formats": ("fp8",), "fp8_formats": ("e3m4",)}, "fp8_formats: unknown 'e3m4'"),
        ({"weight_formats": ("mxfp4",), "kv_lora_rank": (1, 33)}, "wanted an even size"),
    ],
    ids=str,
)
def test_wrong_limits_are_refused(limits: dict[str, Any], message: str) -> None:
    """Limits that leave nothing to draw raise InvalidArgument, which names the limit."""
    with pytest.raises(InvalidArgument, match=message):
        up_projection_problems(UpProjectionLimits(**limits))
    with pytest.raises(InvalidArgument, match=message):
        invalid_up_projection_problems(UpProjectionLimits(**limits))


def test_wrong_words_are_refused() -> None:
    """Unknown regimes and kinds raise InvalidArgument, and so do kinds of which none can be built."""
    with pytest.raises(InvalidArgument, match="regimes: unknown 'retrieval'"):
        up_projection_problems(regimes=("retrieval",))
    with pytest.raises(InvalidArgument, match="regimes"):
        up_projection_problems(regimes=())
    with pytest.raises(InvalidArgument, match="kinds: unknown"):
        invalid_up_projection_problems(kinds=("out_is_late",))
    with pytest.raises(InvalidArgument, match="none of them can be built"):
        invalid_up_projection_problems(UpProjectionLimits(max_num_tokens=1), kinds=("out_stride_0",))


QUANTISED = UpProjectionLimits(weight_formats=("plain", "fp8", "mxfp4"), fp8_formats=("e4m3fn", "e5m2"))


def test_quantised_weights_have_sizes_and_layouts_of_their_own(drawn: Drawn) -> None:
    """Pairs need an even rank, codes share no memory, and what means nothing for a format stays at its default."""
    for strategy in (up_projection_problems(QUANTISED), invalid_up_projection_problems(QUANTISED)):
        for problem in drawn(strategy, count=500):
            assert problem.weight_format != "mxfp4" or problem.kv_lora_rank % 2 == 0
            assert problem.weight_format == "plain" or problem.w_layout.kind not in INPUT_ONLY
            assert problem.weight_format == "plain" or not problem.w_layout.kind.startswith("vllm")
            assert problem.fp8_format == "e4m3fn" or (problem.weight_format, problem.fp8_format) == ("fp8", "e5m2")


def test_quantised_weights_keep_the_limits(drawn: Drawn) -> None:
    """Prescribed ranks are kept, the even ones alone where codes come in pairs, and contiguous codes are."""
    limits = UpProjectionLimits(
        weight_formats=("fp8", "mxfp4"), kv_lora_rank=(33, 64, 320), packed=frozenset({"w_q"}), aligned=True
    )
    ranks: dict[str, set[int]] = {"fp8": set(), "mxfp4": set()}
    for problem in drawn(up_projection_problems(limits), count=300):
        ranks[problem.weight_format].add(problem.kv_lora_rank)
        assert problem.w_layout.kind in ("contiguous", "odd_singletons")
        assert problem.w_layout.offset == 0
    assert ranks == {"fp8": {33, 64, 320}, "mxfp4": {64, 320}}
