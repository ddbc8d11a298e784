"""The hostile features that drawn problems have to show, so that how often they do can be measured.

A feature is a pair of predicates: whether a problem of these sizes could have it, and whether it has it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, NamedTuple

from strategies.layouts import INPUT_ONLY, Layout, LayoutKind, layout_is_packed
from strategies.lengths import LENGTHS, keys_in
from strategies.paging import paging_of
from strategies.problems import DecodeProblem, UpProjectionProblem
from strategies.vocabulary import (
    DECODE_FORMATS,
    DECODE_REGIMES,
    DTYPES,
    FP8_FORMATS,
    QUANTISED_GROUPS,
    ROUND_SCALES,
    UP_PROJECTION_REGIMES,
)
from strategies.weight_formats import weight_shape

__all__ = ["FEATURES", "PAIRS", "Feature"]

Shape = tuple[int, ...]
Placed = tuple[Shape, Layout]
Tensors = Callable[[Any], "list[Placed]"]

_TILES: Final = (16, 32, 64)


class Feature(NamedTuple):
    """`could_have`: the sizes leave room for the feature; `has`: it is there (asked only of those)."""

    could_have: Callable[[Any], bool]
    has: Callable[[Any], bool]


def _always(problem: object) -> bool:
    return True


# What a shape with elements needs, for a layout to put any of them elsewhere than the contiguous one would.
_ROOM: Final[dict[LayoutKind, Callable[[Shape], bool]]] = {
    "padded_rows": lambda shape: shape[0] >= 2,
    "padded_heads": lambda shape: max(shape[:-1]) >= 2,
    "transposed": lambda shape: shape[0] >= 2 and shape[1] >= 2,
    "reversed": lambda shape: sum(size >= 2 for size in shape) >= 2,
    "sliced": lambda shape: max(shape) >= 2,
    "strided_inner": lambda shape: shape[-1] >= 2,
    "broadcast": lambda shape: shape[0] >= 2,
    "overlapping": lambda shape: shape[0] >= 2 and shape[1] * shape[-1] >= 2,
}


def _leaves_room(kind: LayoutKind, shape: Shape) -> bool:
    """Whether `kind` means something for a tensor of this shape."""
    if kind == "odd_singletons":
        return min(shape) <= 1
    return 0 not in shape and _ROOM[kind](shape)


def _of_kind(kind: LayoutKind, tensors: Tensors) -> Feature:
    def could_have(problem: object) -> bool:
        return any(_leaves_room(kind, shape) for shape, _ in tensors(problem))

    def has(problem: object) -> bool:
        return any(layout.kind == kind and _leaves_room(kind, shape) for shape, layout in tensors(problem))

    return Feature(could_have, has)


def _strided(tensors: Tensors) -> Feature:
    def could_have(problem: object) -> bool:
        return any(_leaves_room("sliced", shape) for shape, _ in tensors(problem))

    def has(problem: object) -> bool:
        return any(not layout_is_packed(shape, layout) for shape, layout in tensors(problem))

    return Feature(could_have, has)


def _odd_offset(tensors: Tensors) -> Feature:
    def has(problem: object) -> bool:
        return any(layout.offset in (1, 2, 3) for _, layout in tensors(problem))

    return Feature(_always, has)


def _equal(field: str, value: object) -> Feature:
    return _up_projection(lambda problem: getattr(problem, field) == value)


def _odd_sizes(shape: Shape) -> bool:
    return any(size > 1 and size % 2 for size in shape)


def _beside_tile(sizes: Shape) -> bool:
    return any(abs(size - times * tile) == 1 for size in sizes for tile in _TILES for times in (1, 2, 4))


# Up-projection


def _up_inputs(problem: UpProjectionProblem) -> list[Placed]:
    tokens, heads, latent = problem.num_tokens, problem.num_heads, problem.kv_lora_rank
    return [
        ((tokens, heads, latent), problem.x_layout),
        (weight_shape(problem.weight_format, (heads, latent, problem.v_head_dim)), problem.w_layout),
    ]


def _up_output(problem: UpProjectionProblem) -> list[Placed]:
    return [((problem.num_tokens, problem.num_heads, problem.v_head_dim), problem.out_layout)]


def _up_sizes(problem: UpProjectionProblem) -> Shape:
    return (problem.num_tokens, problem.num_heads, problem.kv_lora_rank, problem.v_head_dim)


def _up_projection(has: Callable[[UpProjectionProblem], bool]) -> Feature:
    return Feature(_always, has)


_SHARED_KINDS: Final[tuple[LayoutKind, ...]] = (
    "padded_rows",
    "padded_heads",
    "transposed",
    "reversed",
    "sliced",
    "strided_inner",
    "odd_singletons",
)

_UP_PROJECTION: Final[dict[str, Feature]] = {
    **{f"out {kind}": _of_kind(kind, _up_output) for kind in _SHARED_KINDS},
    "out strided": _strided(_up_output),
    "out at an odd offset": _odd_offset(_up_output),
    "out owns its storage": _equal("out_form", "owner"),
    **{f"input {kind}": _of_kind(kind, _up_inputs) for kind in (*_SHARED_KINDS, *sorted(INPUT_ONLY))},
    "input at an odd offset": _odd_offset(_up_inputs),
    "vLLM's weight": _up_projection(lambda problem: problem.w_layout.kind == "vllm_weight"),
    "vLLM's dequantised weight": _up_projection(lambda problem: problem.w_layout.kind == "vllm_dequantised"),
    "a size of 0": _up_projection(lambda problem: 0 in _up_sizes(problem)),
    "a size beside a tile": _up_projection(lambda problem: _beside_tile(_up_sizes(problem))),
    **{f"dtype {dtype}": _equal("dtype", dtype) for dtype in DTYPES},
    **{f"regime {regime}": _equal("regime", regime) for regime in UP_PROJECTION_REGIMES},
}


# Up-projection with a quantised weight


def _up_codes(problem: UpProjectionProblem) -> list[Placed]:
    return _up_inputs(problem)[1:]


def _is_fp8(problem: UpProjectionProblem) -> bool:
    return problem.weight_format == "fp8"


def _several_groups(problem: UpProjectionProblem) -> bool:
    return problem.kv_lora_rank > QUANTISED_GROUPS[problem.weight_format]


def _short_last_group(problem: UpProjectionProblem) -> bool:
    return problem.kv_lora_rank % QUANTISED_GROUPS[problem.weight_format] != 0


_QUANTISED_UP_PROJECTION: Final[dict[str, Feature]] = {
    "weight in fp8": _up_projection(_is_fp8),
    "weight in mxfp4": _up_projection(lambda problem: problem.weight_format == "mxfp4"),
    **{f"weight in {name}": Feature(_is_fp8, _equal("fp8_format", name).has) for name in FP8_FORMATS},
    "several groups": _up_projection(_several_groups),
    "short last group": _up_projection(_short_last_group),
    "short group behind whole ones": _up_projection(lambda p: _several_groups(p) and _short_last_group(p)),
    "codes strided": _strided(_up_codes),
    "codes at an odd offset": _odd_offset(_up_codes),
    "out strided": _strided(_up_output),
    "out at an odd offset": _odd_offset(_up_output),
    "out owns its storage": _equal("out_form", "owner"),
    **{f"dtype {dtype}": _equal("dtype", dtype) for dtype in DTYPES},
    **{f"regime {regime}": _equal("regime", regime) for regime in UP_PROJECTION_REGIMES},
}


# Decode


def _q(problem: DecodeProblem) -> list[Placed]:
    width = problem.kv_lora_rank + problem.qk_rope_head_dim
    return [((problem.num_rows, problem.num_heads, width), problem.q_layout)]


def _o(problem: DecodeProblem) -> list[Placed]:
    return [((problem.num_rows, problem.num_heads, problem.kv_lora_rank), problem.o_layout)]


def _lse(problem: DecodeProblem) -> list[Placed]:
    return [((problem.num_rows, problem.num_heads), problem.lse_layout)] if problem.with_lse else []


def _table(problem: DecodeProblem) -> list[Placed]:
    width = max(problem.pages_per_request, default=0) + problem.table_slack
    return [((len(problem.kv_lens), width), problem.table_layout)]


def _q_and_outputs(problem: DecodeProblem) -> list[Placed]:
    return [*_q(problem), *_o(problem), *_lse(problem)]


def _decode_sizes(problem: DecodeProblem) -> Shape:
    return (problem.num_rows, problem.num_heads, problem.kv_lora_rank, problem.qk_rope_head_dim)


def _strided_table(problem: DecodeProblem) -> bool:
    return not layout_is_packed(*_table(problem)[0])


def _several_requests(problem: DecodeProblem) -> bool:
    return len(problem.kv_lens) >= 2


def _several_query_rows(problem: DecodeProblem) -> bool:
    return max(problem.q_lens, default=0) >= 2


def _has_empty_request(problem: DecodeProblem) -> bool:
    return 0 in problem.kv_lens


def _has_splits(problem: DecodeProblem) -> bool:
    return problem.num_kv_splits >= 2


def _owns_pages(problem: DecodeProblem) -> bool:
    return any(problem.kv_lens)


def _several_pages(problem: DecodeProblem) -> bool:
    return sum(problem.pages_per_request) >= 2


def _pages_of_one_request(problem: DecodeProblem) -> bool:
    return max(problem.pages_per_request, default=0) >= 2


def _scattered_pages(problem: DecodeProblem) -> bool:
    requests = paging_of(problem).pages
    return any(abs(after - page) != 1 for ids in requests for page, after in pairwise(ids))


def _beside_page(problem: DecodeProblem) -> bool:
    size = problem.page_size
    return any(kv_len % size in (1, size - 1) for kv_len in problem.kv_lens if kv_len >= size - 1)


def _beside_split(problem: DecodeProblem) -> bool:
    """A length on a boundary of splits, counted in keys or in pages, or one key off it."""
    boundaries = {
        keys_in(length, page_size=problem.page_size, num_kv_splits=problem.num_kv_splits)
        for length in LENGTHS
        if length.unit.startswith("splits") or length.unit.endswith("split")
    }
    return any(kv_len in boundaries for kv_len in problem.kv_lens)


def _row_without_keys(problem: DecodeProblem) -> bool:
    lengths = zip(problem.q_lens, problem.kv_lens, strict=True)
    return any(q_len > kv_len > 0 for q_len, kv_len in lengths)


def _more_splits_than_pages(problem: DecodeProblem) -> bool:
    return any(0 < pages < problem.num_kv_splits for pages in problem.pages_per_request)


def _has_requests(problem: DecodeProblem) -> bool:
    return bool(problem.kv_lens)


def _cut_pages(problem: DecodeProblem) -> bool:
    return problem.page_size > 2 and _owns_pages(problem)


def _cut_splits(problem: DecodeProblem) -> bool:
    return _has_splits(problem) and _owns_pages(problem)


def _decode(has: Callable[[DecodeProblem], bool], *, given: Callable[[DecodeProblem], bool] = _always) -> Feature:
    return Feature(given, has)


_DECODE: Final[dict[str, Feature]] = {
    "page size above 1": _decode(lambda problem: problem.page_size > 1),
    "page size no power of two": _decode(lambda problem: problem.page_size.bit_count() > 1),
    "page size of 64": _equal("page_size", 64),
    "ragged lengths": _decode(lambda problem: len(set(problem.kv_lens)) > 1, given=_several_requests),
    "length beside a page": _decode(_beside_page, given=_cut_pages),
    "length at a split": _decode(_beside_split, given=_cut_splits),
    "empty request": _decode(_has_empty_request, given=_has_requests),
    "several query rows": _decode(_several_query_rows, given=_has_requests),
    "ragged query rows": _decode(lambda problem: len(set(problem.q_lens)) > 1, given=_several_requests),
    "request without query rows": _decode(lambda problem: 0 in problem.q_lens, given=_several_requests),
    "query row before the first key": _decode(_row_without_keys, given=_several_query_rows),
    "several splits": _decode(_has_splits),
    "more splits than pages": _decode(_more_splits_than_pages, given=_owns_pages),
    "padding rows": _decode(lambda problem: problem.padding_rows > 0),
    "page ids shuffled": _decode(lambda problem: problem.page_order == "shuffled", given=_several_pages),
    "page ids descending": _decode(lambda problem: problem.page_order == "descending", given=_several_pages),
    "page ids not adjacent": _decode(_scattered_pages, given=_pages_of_one_request),
    "several foreign pages": _decode(lambda problem: problem.foreign_pages > 1),
    "padded page stride": _decode(lambda problem: problem.page_pad > 0),
    "cache at an odd offset": _decode(lambda problem: problem.cache_offset % 4 > 0),
    "table slack": _decode(lambda problem: problem.table_slack > 0),
    "index tail": _decode(lambda problem: problem.index_tail > 0),
    "table strided": _decode(_strided_table, given=_several_requests),
    "q strided": _strided(_q),
    "o strided": _strided(_o),
    "lse strided": _strided(_lse),
    "q at an odd offset": _odd_offset(_q),
    "o at an odd offset": _odd_offset(_o),
    "lse at an odd offset": _decode(_odd_offset(_lse).has, given=lambda problem: problem.with_lse),
    **{f"q, o or lse {kind}": _of_kind(kind, _q_and_outputs) for kind in _SHARED_KINDS},
    **{f"q {kind}": _of_kind(kind, _q) for kind in sorted(INPUT_ONLY)},
    "o owns its storage": _equal("out_form", "owner"),
    "no lse": _equal("with_lse", False),
    "a size beside a tile": _decode(lambda problem: _beside_tile(_decode_sizes(problem))),
    **{f"dtype {dtype}": _equal("dtype", dtype) for dtype in DTYPES},
    **{f"regime {regime}": _equal("regime", regime) for regime in DECODE_REGIMES},
}


def _has_codes(problem: DecodeProblem) -> bool:
    return problem.kv_format != "plain"


def _has_query_codes(problem: DecodeProblem) -> bool:
    return problem.q_format != "plain"


# Of kernels that take caches in every format; the others see nothing of it.
_QUANTISED_DECODE: Final[dict[str, Feature]] = {
    **{f"cache {name}": _equal("kv_format", name) for name in DECODE_FORMATS},
    "quantised query": _decode(_has_query_codes, given=_has_codes),
    "scale no power of two": _decode(lambda problem: problem.kv_scale not in ("1", "0.5", "2"), given=_has_codes),
    "scale of many bits": _decode(lambda problem: problem.kv_scale not in ROUND_SCALES, given=_has_codes),
    "scales that differ": _decode(lambda problem: problem.q_scale != problem.kv_scale, given=_has_query_codes),
}

FEATURES: Final[dict[str, dict[str, Feature]]] = {
    "up-projection": _UP_PROJECTION,
    "quantised up-projection": _QUANTISED_UP_PROJECTION,
    "decode": _DECODE,
    "quantised decode": _QUANTISED_DECODE,
}

# Two things at once, which must happen often enough among all problems.
PAIRS: Final[dict[str, dict[str, Callable[[Any], bool]]]] = {
    "up-projection": {
        "strided output, odd size": lambda problem: (
            _strided(_up_output).has(problem) and _odd_sizes(_up_output(problem)[0][0])
        ),
        "vLLM's weight, several tokens": lambda problem: (
            problem.w_layout.kind.startswith("vllm") and problem.num_tokens >= 2
        ),
        "no inner size, some output": lambda problem: problem.kv_lora_rank == 0 and 0 not in _up_output(problem)[0][0],
    },
    "quantised up-projection": {
        "several tokens and heads, several groups": lambda problem: (
            problem.num_tokens >= 2 and problem.num_heads >= 2 and _several_groups(problem)
        ),
        "strided codes, several groups": lambda problem: _strided(_up_codes).has(problem) and _several_groups(problem),
        "whole groups": lambda problem: problem.kv_lora_rank > 0 and not _short_last_group(problem),
    },
    "decode": {
        "strided output, odd size": lambda problem: _strided(_o).has(problem) and _odd_sizes(_o(problem)[0][0]),
        "several query rows, several splits": lambda problem: _several_query_rows(problem) and _has_splits(problem),
        "empty request, several splits": lambda problem: _has_empty_request(problem) and _has_splits(problem),
        "padding rows, several query rows": lambda problem: problem.padding_rows > 0 and _several_query_rows(problem),
        "padded pages, ids not adjacent": lambda problem: problem.page_pad > 0 and _scattered_pages(problem),
    },
}
