"""Draws up-projection problems that a kernel's limits allow, and invalid ones that it must refuse."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Final, NamedTuple

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import SearchStrategy

from strategies.choosing import Choice, choice, made_by
from strategies.invalid import UP_PROJECTION_INVALID
from strategies.layout_menus import (
    CUBE_KINDS,
    INPUT_KINDS,
    PADS,
    kinds_for,
    lay,
    without_idle_numbers,
)
from strategies.layouts import CONTIGUOUS, LayoutKind
from strategies.limits import UpProjectionLimits
from strategies.problems import OutputForm, UpProjectionProblem
from strategies.sizes import (
    HEADS,
    LATENT,
    SEEDS,
    TOKENS,
    VALUE,
    at_most,
    check_dtypes,
    check_limit,
    check_maximum,
    check_names,
    fitted,
    menu_within,
    rarely,
)
from strategies.vocabulary import UP_PROJECTION_REGIMES
from strategies.weight_formats import (
    check_formats,
    even,
    format_choices,
    kind_of_codes,
    positive_rank,
    rank_in_format,
    shape_of_codes,
    weight_kinds,
    weight_shape,
)

__all__ = ["invalid_up_projection_problems", "up_projection_problems"]

# One example must stay cheap: at most so many elements in the weight, in x and out, and multiplications.
_MAX_WEIGHT: Final = 1 << 20  # 16 heads of 512 × 128
_MAX_ROWS: Final = 1 << 18
_MAX_PRODUCTS: Final = 1 << 22

_MODEL_SHAPES: Final = ((1, 512, 128), (2, 512, 128), (4, 512, 128), (16, 512, 128))
_MODEL_NOPE: Final = 128  # qk_nope_head_dim of every model with these shapes

# x, w_uv, out: elements between an aligned address and the first element
_OFFSETS: Final = (*((0, 0, 0),) * 3, (0, 0, 1), (1, 0, 0), (0, 1, 0), (0, 0, 3), (2, 3, 1), (3, 1, 2))
_ANYTHING: Final = UpProjectionLimits()


class _Drawn(NamedTuple):
    """What Hypothesis decides."""

    num_tokens: int
    num_heads: int
    kv_lora_rank: int
    v_head_dim: int
    dtype: str
    regime: str
    x_kind: LayoutKind
    w_kind: LayoutKind
    out_kind: LayoutKind
    pad: int
    offsets: tuple[int, int, int]
    out_form: OutputForm
    model_shape: tuple[int, int, int] | None
    seed: int
    weight_format: str = "plain"
    fp8_format: str = "e4m3fn"
    more_groups: int = 0  # of a scale each, beside what kv_lora_rank says


def up_projection_problems(
    limits: UpProjectionLimits = _ANYTHING, *, regimes: tuple[str, ...] = UP_PROJECTION_REGIMES
) -> SearchStrategy[UpProjectionProblem]:
    """Valid problems within `limits`. They shrink to one token and head, contiguous, float32, exact."""
    _check(limits)
    check_names("regimes", regimes, UP_PROJECTION_REGIMES)
    return _problems(limits, tuple(regimes))


def invalid_up_projection_problems(
    limits: UpProjectionLimits = _ANYTHING,
    *,
    kinds: tuple[str, ...] = tuple(UP_PROJECTION_INVALID),
) -> SearchStrategy[UpProjectionProblem]:
    """Problems whose `invalid` is one of `kinds`, within `limits` but for that fault.

    Kinds that cannot be built within the limits are left out (`out_is_x` needs kv_lora_rank == v_head_dim).
    """
    _check(limits)
    check_names("kinds", kinds, UP_PROJECTION_INVALID)
    possible = tuple(kind for kind in kinds if _can_be_wrong(kind, limits))
    if not possible:
        raise InvalidArgument(f"kinds={kinds!r}: none of them can be built within {limits!r}")
    problems = _problems(limits, UP_PROJECTION_REGIMES)
    return st.tuples(choice("invalid", possible), problems).map(partial(_made_wrong, limits))


def _check(limits: UpProjectionLimits) -> None:
    check_dtypes(limits.dtypes)
    check_limit("num_heads", limits.num_heads, minimum=0)
    check_limit("kv_lora_rank", limits.kv_lora_rank, minimum=0)
    check_limit("v_head_dim", limits.v_head_dim, minimum=0)
    check_maximum("max_num_tokens", limits.max_num_tokens)
    check_names("packed", limits.packed, ("x", "w_uv", "w_q", "out"), empty=True)
    check_formats(limits)


@lru_cache(maxsize=256)
def _problems(limits: UpProjectionLimits, regimes: tuple[str, ...]) -> SearchStrategy[UpProjectionProblem]:
    """Built once for each set of limits: building strategies costs more than drawing from them."""
    allowed = (limits.num_heads, limits.kv_lora_rank, limits.v_head_dim)
    packed = limits.packed
    out_kinds = kinds_for(CUBE_KINDS, packed="out" in packed, flat_rows=limits.flat_rows)
    # In the order in which Hypothesis simplifies.
    choices = st.tuples(
        choice("num_tokens", at_most(TOKENS, limits.max_num_tokens)),
        choice("num_heads", menu_within(HEADS, limits.num_heads)),
        choice("kv_lora_rank", menu_within(LATENT, limits.kv_lora_rank)),
        choice("v_head_dim", menu_within(VALUE, limits.v_head_dim)),
        choice("dtype", check_dtypes(limits.dtypes)),
        choice("regime", regimes),
        choice("x_kind", kinds_for(INPUT_KINDS, packed="x" in packed)),
        choice("w_kind", weight_kinds(limits)),
        choice("out_kind", out_kinds),
        choice("pad", PADS),
        choice("offsets", _OFFSETS),
        choice("out_form", ("view", "view", "owner")),
        choice("model_shape", rarely(_MODEL_SHAPES, allowed)),
        choice("seed", SEEDS),
        *format_choices(limits),
    )
    return made_by(_problem, limits, choices)


def _problem(limits: UpProjectionLimits, choices: tuple[Choice, ...]) -> UpProjectionProblem:
    """Fit the sizes to what one example may cost, then let the layouts follow from the shapes."""
    drawn = _Drawn(**dict(choices))
    heads, latent, value = drawn.model_shape or (drawn.num_heads, drawn.kv_lora_rank, drawn.v_head_dim)
    more_groups = 0 if drawn.model_shape else drawn.more_groups
    latent = rank_in_format(drawn.weight_format, latent, limits.kv_lora_rank, more_groups=more_groups)
    heads = fitted(heads, _MAX_WEIGHT // max(1, latent * value), limits.num_heads)
    tokens = min(
        drawn.num_tokens,
        max(1, _MAX_ROWS // max(1, heads * (latent + value))),
        max(1, _MAX_PRODUCTS // max(1, heads * latent * value)),
    )
    x_offset, w_offset, out_offset = drawn.offsets
    aligned, pad = limits.aligned, drawn.pad
    w_kind, w_shape = drawn.w_kind, (heads, latent, value)
    if drawn.weight_format != "plain":
        w_kind, w_shape = kind_of_codes(w_kind, limits), shape_of_codes(drawn.weight_format, w_shape)
    nope = _MODEL_NOPE if drawn.model_shape and w_kind.startswith("vllm") else pad
    out_shape = (tokens, heads, value)
    out_kind = drawn.out_kind
    if limits.flat_rows and out_kind == "odd_singletons" and value == 1:
        out_kind = "contiguous"  # an odd stride behind a last dimension of one element forbids view(rows, -1)
    return UpProjectionProblem(
        num_tokens=tokens,
        num_heads=heads,
        kv_lora_rank=latent,
        v_head_dim=value,
        dtype=drawn.dtype,
        regime=drawn.regime,
        x_layout=lay(drawn.x_kind, (tokens, heads, latent), pad=pad, offset=x_offset, aligned=aligned),
        w_layout=lay(w_kind, w_shape, pad=nope, offset=w_offset, aligned=aligned),
        out_layout=lay(out_kind, out_shape, pad=pad, offset=out_offset, aligned=aligned),
        out_form=drawn.out_form,
        seed=drawn.seed,
        weight_format=drawn.weight_format,
        fp8_format=drawn.fp8_format if drawn.weight_format == "fp8" else "e4m3fn",
    )


def _positive(size: int, allowed: tuple[int, ...] | None) -> int:
    """`size`, or the smallest permitted one that is not 0."""
    return size or min((other for other in allowed or (1,) if other > 0), default=1)


def _common_sizes(limits: UpProjectionLimits) -> tuple[int, ...] | None:
    """Sizes that both kv_lora_rank and v_head_dim may have; None where neither is prescribed."""
    if limits.kv_lora_rank is None:
        return limits.v_head_dim
    if limits.v_head_dim is None:
        return limits.kv_lora_rank
    return tuple(size for size in limits.kv_lora_rank if size in limits.v_head_dim)


def _row_of_two(heads: int, value: int, limits: UpProjectionLimits) -> tuple[int, int]:
    """Heads and v_head_dim such that a row of `out` has two elements, where the limits allow it."""
    if heads * value >= 2:
        return heads, value
    value = 2 if limits.v_head_dim is None else max(limits.v_head_dim)
    if value == 1:
        heads = 2 if limits.num_heads is None else max(limits.num_heads)
    return heads, value


def _can_be_wrong(kind: str, limits: UpProjectionLimits) -> bool:
    """Whether a problem within the limits can have this fault."""
    for sizes in (limits.num_heads, limits.kv_lora_rank, limits.v_head_dim):
        if sizes is not None and max(sizes) == 0:
            return False  # every tensor is empty: there is nothing to get wrong
    if kind == "out_is_x":
        sizes = _common_sizes(limits)
        if "mxfp4" in limits.weight_formats:
            sizes = even(sizes)
        return sizes is None or any(sizes)
    if UP_PROJECTION_INVALID[kind] == "overlap" and limits.max_num_tokens == 1:
        return False
    if kind == "out_rows_overlap":
        heads, value = _row_of_two(1, 1, limits)
        return heads * value >= 2
    return True


def _made_wrong(limits: UpProjectionLimits, drawn: tuple[Choice, UpProjectionProblem]) -> UpProjectionProblem:
    """Give a valid problem its fault, and the least that the fault needs in order to be one."""
    (_, kind), problem = drawn
    overlap = UP_PROJECTION_INVALID[kind] == "overlap"
    tokens = max(1, problem.num_tokens)
    heads = _positive(problem.num_heads, limits.num_heads)
    latent = positive_rank(problem, limits.kv_lora_rank)
    value = _positive(problem.v_head_dim, limits.v_head_dim)
    x_layout, out_layout = problem.x_layout, problem.out_layout
    if kind == "out_is_x":
        sizes = _common_sizes(limits)
        if problem.weight_format == "mxfp4":
            sizes, value = even(sizes), value + value % 2
        value = latent = value if sizes is None or value in sizes else min(size for size in sizes if size)
        # One set of strides has to suit both tensors.
        if {"x", "out"} & limits.packed or out_layout.kind == "odd_singletons":
            out_layout = CONTIGUOUS
        x_layout = out_layout
    elif overlap:
        tokens, out_layout = max(2, tokens), CONTIGUOUS
        if kind == "out_shifted_over_x":
            x_layout = CONTIGUOUS
        elif kind == "out_rows_overlap":
            heads, value = _row_of_two(heads, value, limits)
    return replace(
        problem,
        num_tokens=tokens,
        num_heads=heads,
        kv_lora_rank=latent,
        v_head_dim=value,
        x_layout=without_idle_numbers(x_layout, (tokens, heads, latent)),
        w_layout=without_idle_numbers(problem.w_layout, weight_shape(problem.weight_format, (heads, latent, value))),
        out_layout=without_idle_numbers(out_layout, (tokens, heads, value)),
        out_form="view" if overlap else problem.out_form,
        invalid=kind,
    )
