"""Problems that differ from a given one in a single aspect: siblings of the same shapes, and smaller ones.

A kernel that remembers an earlier call (a plan, a workspace, a result) recognises it by something: by shapes, strides,
addresses. Two problems drawn apart hardly ever look alike to it. Siblings do, and ask for another answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

from hypothesis.strategies import SearchStrategy

from strategies.choosing import choice
from strategies.layout_menus import CUBE_KINDS, INPUT_KINDS, PLANE_KINDS, kinds_for, lay
from strategies.layout_menus import without_idle_numbers as fit
from strategies.layouts import LayoutKind
from strategies.limits import DecodeLimits, Limits, UpProjectionLimits
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem
from strategies.sizes import check_dtypes
from strategies.vocabulary import DECODE_REGIMES, UP_PROJECTION_REGIMES
from strategies.weight_formats import kind_of_codes, rank_in_format, weight_kinds, weight_shape

__all__ = ["Change", "changed", "changes", "fitted", "reductions"]

P = TypeVar("P", UpProjectionProblem, DecodeProblem)
Change: TypeAlias = "tuple[str, Any]"  # the aspect, and what becomes of it

# Where the tensors of a problem lie may hang on its seed's remainder by 3: half of the steps leave that as it is.
_SEED_STEPS: Final = (3, 1, 6, 2)
_PAD: Final = 1
_MOST_PAIRS: Final = 64  # of request and split: kernels on a CPU walk over them one by one
_KEYS: Final = ("one fewer", "half", "rotated", "few in their pages", "all of their pages", "half of the first")


def changes(limits: Limits) -> SearchStrategy[Change]:
    """What makes a sibling of the same shapes, for `changed`; the simplest, other values, first."""
    return _changes(limits)


def reductions(limits: Limits) -> SearchStrategy[Change]:
    """What makes a smaller problem, for `changed`."""
    if isinstance(limits, UpProjectionLimits):
        return choice("smaller", (("num_tokens", None), ("num_heads", None), ("kv_lora_rank", None)))
    return choice("smaller", (("requests", None), ("fewer keys", None), ("num_heads", None), ("padding_rows", None)))


def changed(problem: Problem, change: Change, limits: Limits) -> Problem:
    """`problem` after one change, still within `limits`. Where the change changes nothing, the values are others."""
    _, (aspect, value) = change
    if isinstance(problem, UpProjectionProblem):
        assert isinstance(limits, UpProjectionLimits)
        other: Problem = _UP_PROJECTION[aspect](problem, value, limits)
    else:
        assert isinstance(limits, DecodeLimits)
        other = _DECODE[aspect](problem, value, limits)
    return replace(problem, seed=problem.seed + 1) if other == problem else other


@lru_cache(maxsize=256)
def _changes(limits: Limits) -> SearchStrategy[Change]:
    """Every aspect once per value; how often one stands in the menu is its weight."""
    packed = limits.packed
    menu = [*_values("seed", _SEED_STEPS, times=5), *_values("dtype", check_dtypes(limits.dtypes))]
    if isinstance(limits, UpProjectionLimits):
        menu += _values("regime", UP_PROJECTION_REGIMES)
        out_kinds = kinds_for(CUBE_KINDS, packed="out" in packed, flat_rows=limits.flat_rows)
        menu += _layouts("out_layout", out_kinds)
        menu += _layouts("x_layout", kinds_for(INPUT_KINDS, packed="x" in packed))
        menu += _layouts("w_layout", weight_kinds(limits))
    else:
        menu += _values("keys", _KEYS, times=5)
        menu += _values("q_lens", ("rotated",), times=3)
        menu += _values("regime", DECODE_REGIMES)
        menu += _values("page_order", ("descending", "shuffled", "ascending"))
        menu += _values("softmax_scale", (0, -1, -2))
        menu += _values("num_kv_splits", (1, 2, 3, 5), times=5)
        menu += _layouts("o_layout", kinds_for(CUBE_KINDS, packed="o" in packed))
        menu += _layouts("q_layout", kinds_for(INPUT_KINDS, packed="q" in packed))
        if limits.lse != "never":
            menu += _layouts("lse_layout", kinds_for(PLANE_KINDS, packed="lse" in packed))
        if limits.lse == "optional":
            menu += _values("with_lse", (True, False))
    menu += _values("out_form", ("view", "owner"))
    return choice("sibling", menu)


def _values(aspect: str, values: Iterable[Any], *, times: int = 1) -> list[Change]:
    return [(aspect, value) for value in values for _ in range(times)]


def _layouts(aspect: str, kinds: tuple[LayoutKind, ...]) -> list[Change]:
    return [(aspect, kind) for kind in dict.fromkeys(kinds)]


# Of a problem, what a change makes of it, and the limits.
_UpProjection = Callable[[UpProjectionProblem, Any, UpProjectionLimits], UpProjectionProblem]
_Decode = Callable[[DecodeProblem, Any, DecodeLimits], DecodeProblem]


def _plain_up_projection(name: str) -> _UpProjection:
    return lambda problem, value, _: replace(problem, **{name: value})


def _plain_decode(name: str) -> _Decode:
    return lambda problem, value, _: replace(problem, **{name: value})


def _laid_up_projection(name: str) -> _UpProjection:
    """Other strides for one tensor; its first element stays where it was."""

    def laid(problem: UpProjectionProblem, kind: LayoutKind, limits: UpProjectionLimits) -> Any:
        if name == "out_layout" and limits.flat_rows and kind == "odd_singletons" and problem.v_head_dim == 1:
            kind = "contiguous"  # an odd stride behind a last dimension of one element forbids view(rows, -1)
        if name == "w_layout" and problem.weight_format != "plain":
            kind = kind_of_codes(kind, limits)
        offset = getattr(problem, name).offset
        shape = _up_projection_shapes(problem)[name]
        return replace(problem, **{name: lay(kind, shape, pad=_PAD, offset=offset, aligned=limits.aligned)})

    return laid


def _laid_decode(name: str) -> _Decode:
    """Other strides for one tensor; its first element stays where it was."""

    def laid(problem: DecodeProblem, kind: LayoutKind, limits: DecodeLimits) -> DecodeProblem:
        if name == "lse_layout" and not problem.with_lse:
            return problem
        offset = getattr(problem, name).offset
        shape = _decode_shapes(problem)[name]
        return replace(problem, **{name: lay(kind, shape, pad=_PAD, offset=offset, aligned=limits.aligned)})

    return laid


def _other_dtype(problem: DecodeProblem, dtype: str, _: DecodeLimits) -> DecodeProblem:
    return problem if problem.kv_format != "plain" else replace(problem, dtype=dtype)


def _other_regime(problem: DecodeProblem, regime: str, _: DecodeLimits) -> DecodeProblem:
    if problem.kv_format != "plain":
        return problem  # the codes of a quantised cache do not hold every regime
    # A zero query has zero logits at every scale.
    return replace(problem, regime=regime, softmax_scale=0 if regime == "uniform" else problem.softmax_scale)


def _other_scale(problem: DecodeProblem, exponent: int, _: DecodeLimits) -> DecodeProblem:
    return problem if problem.regime == "uniform" else replace(problem, softmax_scale=exponent)


def _other_splits(problem: DecodeProblem, splits: int, limits: DecodeLimits) -> DecodeProblem:
    most = max(_MOST_PAIRS // max(1, len(problem.kv_lens)), 1)
    return replace(problem, num_kv_splits=min(splits, most, limits.max_num_kv_splits or splits))


def _without_lse(problem: DecodeProblem, with_lse: bool, _: DecodeLimits) -> DecodeProblem:
    layout = type(problem)().lse_layout if not with_lse else problem.lse_layout
    return replace(problem, with_lse=with_lse, lse_layout=layout)


def _other_order(problem: DecodeProblem, order: str, _: DecodeLimits) -> DecodeProblem:
    return replace(problem, page_order=order) if sum(problem.pages_per_request) > 1 else problem


def _other_keys(problem: DecodeProblem, how: str, limits: DecodeLimits) -> DecodeProblem:
    """Other lengths in tensors of the same shapes: pages that a request no longer owns stay in the pool and tables."""
    return _with_keys(problem, _keys(problem, how, limits), limits, same_shapes=True)


def _keys(problem: DecodeProblem, how: str, limits: DecodeLimits) -> tuple[int, ...]:
    page, lens = problem.page_size, problem.kv_lens
    if how == "rotated":
        return (*lens[1:], *lens[:1])
    if how == "all of their pages":
        most = limits.max_kv_len
        return tuple(pages * page if most is None else min(most, pages * page) for pages in problem.pages_per_request)
    if how == "few in their pages":
        return tuple((pages - 1) * page + 1 if pages else 0 for pages in problem.pages_per_request)
    if how == "half of the first":
        return (*(kv_len // 2 for kv_len in lens[:1]), *lens[1:])
    return tuple(kv_len // 2 if how == "half" else max(0, kv_len - 1) for kv_len in lens)


def _with_keys(
    problem: DecodeProblem, kv_lens: tuple[int, ...], limits: DecodeLimits, *, same_shapes: bool
) -> DecodeProblem:
    """The problem with other lengths, none longer in pages than the longest was."""
    if not limits.empty_requests:
        kv_lens = tuple(max(kv_len, q_len, 1) for kv_len, q_len in zip(kv_lens, problem.q_lens, strict=True))
    before = problem.pages_per_request
    other = replace(problem, kv_lens=kv_lens)
    pages = other.pages_per_request
    spare, columns = sum(before) - sum(pages), max(before, default=0) - max(pages, default=0)
    if spare < 0 or columns < 0:
        return problem  # a request that got a short one's keys needs more of them for its own query rows
    if not same_shapes:
        return fitted(other)
    order = problem.page_order if sum(pages) > 1 else "ascending"
    return replace(
        other,
        page_order=order,
        foreign_pages=problem.foreign_pages + spare,
        index_tail=problem.index_tail + spare,
        table_slack=problem.table_slack + columns,
    )


def _rotated_rows(problem: DecodeProblem, _: str, limits: DecodeLimits) -> DecodeProblem:
    q_lens = (*problem.q_lens[1:], *problem.q_lens[:1])
    if not limits.empty_requests and any(kv_len < q_len for kv_len, q_len in zip(problem.kv_lens, q_lens, strict=True)):
        return problem
    return replace(problem, q_lens=q_lens)


def _fewer_requests(problem: DecodeProblem, _: None, __: DecodeLimits) -> DecodeProblem:
    half = max(1, len(problem.kv_lens) // 2)
    return fitted(replace(problem, kv_lens=problem.kv_lens[:half], q_lens=problem.q_lens[:half]))


def _fewer_keys(problem: DecodeProblem, _: None, limits: DecodeLimits) -> DecodeProblem:
    return _with_keys(problem, _keys(problem, "half", limits), limits, same_shapes=False)


def _fewer_heads(problem: DecodeProblem, _: None, limits: DecodeLimits) -> DecodeProblem:
    return fitted(replace(problem, num_heads=_smaller(problem.num_heads, limits.num_heads)))


def _no_padding(problem: DecodeProblem, _: None, __: DecodeLimits) -> DecodeProblem:
    return fitted(replace(problem, padding_rows=0))


def _shrunk_up_projection(name: str) -> _UpProjection:
    def shrunk(problem: UpProjectionProblem, _: None, limits: UpProjectionLimits) -> UpProjectionProblem:
        allowed = None if name == "num_tokens" else getattr(limits, name)
        size = _smaller(getattr(problem, name), allowed)
        if name == "kv_lora_rank":
            size = rank_in_format(problem.weight_format, size, limits.kv_lora_rank, more_groups=0)
        return fitted(replace(problem, **{name: size}))

    return shrunk


def _smaller(size: int, allowed: tuple[int, ...] | None) -> int:
    """About half of `size`, where that is allowed; `size` itself where nothing smaller is."""
    if allowed is None:
        return max(min(size, 1), size // 2)
    return max((other for other in allowed if 0 < other <= size // 2), default=size)


def fitted(problem: P) -> P:
    """The problem without numbers in its layouts that mean nothing at its sizes, nor an order of a single page."""
    if isinstance(problem, UpProjectionProblem):
        shapes = _up_projection_shapes(problem)
    else:
        shapes = _decode_shapes(problem)
        if sum(problem.pages_per_request) <= 1:
            problem = replace(problem, page_order="ascending")
    return replace(problem, **{field: fit(getattr(problem, field), shape) for field, shape in shapes.items()})


def _up_projection_shapes(problem: UpProjectionProblem) -> dict[str, tuple[int, ...]]:
    tokens, heads = problem.num_tokens, problem.num_heads
    latent, value = problem.kv_lora_rank, problem.v_head_dim
    return {
        "x_layout": (tokens, heads, latent),
        "w_layout": weight_shape(problem.weight_format, (heads, latent, value)),
        "out_layout": (tokens, heads, value),
    }


def _decode_shapes(problem: DecodeProblem) -> dict[str, tuple[int, ...]]:
    rows, heads, latent = problem.num_rows, problem.num_heads, problem.kv_lora_rank
    width = max(problem.pages_per_request, default=0) + problem.table_slack
    return {
        "q_layout": (rows, heads, latent + problem.qk_rope_head_dim),
        "o_layout": (rows, heads, latent),
        "lse_layout": (rows, heads),
        "table_layout": (len(problem.kv_lens), width),
    }


_UP_PROJECTION: Final[dict[str, _UpProjection]] = {
    "seed": lambda problem, step, _: replace(problem, seed=problem.seed + step),
    "dtype": _plain_up_projection("dtype"),
    "regime": _plain_up_projection("regime"),
    "out_form": _plain_up_projection("out_form"),
    "x_layout": _laid_up_projection("x_layout"),
    "w_layout": _laid_up_projection("w_layout"),
    "out_layout": _laid_up_projection("out_layout"),
    "num_tokens": _shrunk_up_projection("num_tokens"),
    "num_heads": _shrunk_up_projection("num_heads"),
    "kv_lora_rank": _shrunk_up_projection("kv_lora_rank"),
}
_DECODE: Final[dict[str, _Decode]] = {
    "seed": lambda problem, step, _: replace(problem, seed=problem.seed + step),
    "dtype": _other_dtype,
    "regime": _other_regime,
    "out_form": _plain_decode("out_form"),
    "keys": _other_keys,
    "q_lens": _rotated_rows,
    "page_order": _other_order,
    "softmax_scale": _other_scale,
    "num_kv_splits": _other_splits,
    "with_lse": _without_lse,
    "q_layout": _laid_decode("q_layout"),
    "o_layout": _laid_decode("o_layout"),
    "lse_layout": _laid_decode("lse_layout"),
    "requests": _fewer_requests,
    "fewer keys": _fewer_keys,
    "num_heads": _fewer_heads,
    "padding_rows": _no_padding,
}
