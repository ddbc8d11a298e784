"""Draws paged decode problems that a kernel's limits allow, and invalid ones that it must refuse."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import SearchStrategy

from strategies.choosing import Choice, choice, made_by, several
from strategies.invalid import DECODE_INVALID
from strategies.layout_menus import CUBE_KINDS, INPUT_KINDS, PADS, kinds_for, lay
from strategies.layouts import LayoutKind
from strategies.lengths import LENGTHS, Length, keys_in
from strategies.limits import DecodeLimits
from strategies.problems import DecodeProblem
from strategies.quirks import MANY_REQUESTS, NO_REQUESTS, SLOTS, quirks_within
from strategies.refusals import can_be_wrong, made_wrong
from strategies.sizes import (
    HEADS,
    LATENT,
    PAGE_SIZES,
    QUERY_ROWS,
    ROPE,
    SEEDS,
    SPLITS,
    at_most,
    check_dtypes,
    check_limit,
    check_maximum,
    check_names,
    fitted,
    menu_within,
    rarely,
)
from strategies.vocabulary import DECODE_FORMATS, DECODE_REGIMES, DECODE_SCALES, ROUND_SCALES

__all__ = ["decode_problems", "invalid_decode_problems"]

# One example must stay cheap: at most so many elements in the cache and in q, so many multiplications, and so
# many pairs of request and split (kernels on a CPU walk over them one by one).
_MAX_CACHE: Final = 1 << 19
_MAX_QUERIES: Final = 1 << 18
_MAX_PRODUCTS: Final = 1 << 22
_MAX_PAIRS: Final = 129
_MAX_PARTIALS: Final = 1 << 20  # elements of the scratch that split-KV kernels take for their partial outputs

_MAX_DRAWN_REQUESTS: Final = 5
_MANY_REQUESTS: Final = 17  # one more than a tile of 16
_MODEL_SHAPES: Final = ((1, 512, 64), (4, 512, 64), (16, 512, 64), (128, 512, 64))

# q, o, lse: elements between an aligned address and the first element
_OFFSETS: Final = (*((0, 0, 0),) * 3, (0, 1, 0), (1, 0, 0), (0, 0, 1), (0, 3, 1), (2, 1, 0), (1, 3, 2))
_OWN_QUERY_ROWS: Final = (1, 2, 3, 4, 8, 0)  # of a request that differs from the rest
_QUANTISED_Q: Final = {"never": (False,), "optional": (False, True), "always": (True,)}
# A wide spread of magnitudes, or logits that have to lead by far, leave no room for scales that stretch them.
_ROUND_SCALES_ONLY: Final = ("retrieval", "extreme")
_ANYTHING: Final = DecodeLimits()


class _Drawn(NamedTuple):
    """What Hypothesis decides, quirks apart."""

    requests: list[tuple[Choice, Choice]]
    query_rows: int
    num_heads: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    page_size: int
    num_kv_splits: int
    dtype: str
    regime: str
    q_kind: LayoutKind
    o_kind: LayoutKind
    pad: int
    offsets: tuple[int, int, int]
    softmax_scale: int
    model_shape: tuple[int, int, int] | None
    seed: int
    kv_format: str = "plain"
    q_is_quantised: bool = False
    kv_scale: str = "1"
    q_scale: str = "1"


def decode_problems(
    limits: DecodeLimits = _ANYTHING, *, regimes: tuple[str, ...] = DECODE_REGIMES
) -> SearchStrategy[DecodeProblem]:
    """Valid problems within `limits`. They shrink to one request, key and head, contiguous, float32."""
    _check(limits)
    check_names("regimes", regimes, DECODE_REGIMES)
    return _problems(limits, tuple(regimes))


def invalid_decode_problems(
    limits: DecodeLimits = _ANYTHING, *, kinds: tuple[str, ...] = tuple(DECODE_INVALID)
) -> SearchStrategy[DecodeProblem]:
    """Problems whose `invalid` is one of `kinds`, within `limits` but for that fault.

    Kinds that cannot be built within the limits are left out (`kv_indptr_falls` needs two requests).
    """
    _check(limits)
    check_names("kinds", kinds, DECODE_INVALID)
    possible = tuple(kind for kind in kinds if can_be_wrong(kind, limits))
    if not possible:
        raise InvalidArgument(f"kinds={kinds!r}: none of them can be built within {limits!r}")
    problems = _problems(limits, DECODE_REGIMES)
    return st.tuples(choice("invalid", possible), problems).map(partial(made_wrong, limits))


def _check(limits: DecodeLimits) -> None:
    check_dtypes(limits.dtypes)
    check_limit("num_heads", limits.num_heads, minimum=0)
    check_limit("kv_lora_rank", limits.kv_lora_rank, minimum=0)
    check_limit("qk_rope_head_dim", limits.qk_rope_head_dim, minimum=0)
    check_limit("page_sizes", limits.page_sizes, minimum=1)
    for name in ("max_batch", "max_q_len", "max_kv_len", "max_num_kv_splits"):
        check_maximum(name, getattr(limits, name))
    check_names("lse", (limits.lse,), ("optional", "never", "always"))
    check_names("packed", limits.packed, ("q", "o", "lse", "tables", "cache"), empty=True)
    check_names("kv_formats", limits.kv_formats, DECODE_FORMATS)
    check_names("quantised_q", (limits.quantised_q,), tuple(_QUANTISED_Q))


@lru_cache(maxsize=256)
def _problems(limits: DecodeLimits, regimes: tuple[str, ...]) -> SearchStrategy[DecodeProblem]:
    """Built once for each set of limits: building strategies costs more than drawing from them."""
    allowed = (limits.num_heads, limits.kv_lora_rank, limits.qk_rope_head_dim)
    max_q_len = limits.max_q_len
    if not limits.empty_requests and limits.max_kv_len is not None:
        max_q_len = min(max_q_len or limits.max_kv_len, limits.max_kv_len)  # each row needs a key of its own
    own_rows = [rows for rows in _OWN_QUERY_ROWS if max_q_len is None or rows <= max_q_len]
    # None: as many query rows as the rest.
    rows_menu = (None,) if limits.uniform_q else (*(None,) * 16, *own_rows)
    max_batch = min(limits.max_batch or _MAX_DRAWN_REQUESTS, _MAX_DRAWN_REQUESTS)
    requests = [
        st.tuples(choice(f"length {index}", LENGTHS), choice(f"query rows {index}", rows_menu))
        for index in range(max_batch)
    ]
    quirks = quirks_within(limits)
    # In the order in which Hypothesis simplifies.
    choices = st.tuples(
        several("requests", choice("batch", range(1, max_batch + 1)), requests),
        choice("query_rows", at_most(QUERY_ROWS, max_q_len)),
        choice("num_heads", menu_within(HEADS, limits.num_heads)),
        choice("kv_lora_rank", menu_within(LATENT, limits.kv_lora_rank)),
        choice("qk_rope_head_dim", menu_within(ROPE, limits.qk_rope_head_dim)),
        choice("page_size", menu_within(PAGE_SIZES, limits.page_sizes)),
        choice("num_kv_splits", at_most(SPLITS, limits.max_num_kv_splits)),
        choice("dtype", check_dtypes(limits.dtypes)),
        choice("regime", regimes),
        choice("q_kind", kinds_for(INPUT_KINDS, packed="q" in limits.packed)),
        choice("o_kind", kinds_for(CUBE_KINDS, packed="o" in limits.packed)),
        choice("pad", PADS),
        choice("offsets", _OFFSETS),
        choice("softmax_scale", (0, -1, -2, -3, -4)),
        choice("model_shape", rarely(_MODEL_SHAPES, allowed)),
        choice("seed", SEEDS),
        *_formats(limits),
        *(choice(f"slot {slot}", quirks) for slot in range(SLOTS)),
    )
    return made_by(_problem, limits, choices)


def _formats(limits: DecodeLimits) -> list[SearchStrategy[Choice]]:
    """Choices about quantised tensors; none for a kernel that takes plain ones alone."""
    if limits.kv_formats == ("plain",):
        return []
    return [
        choice("kv_format", (name for name in DECODE_FORMATS if name in limits.kv_formats)),
        choice("q_is_quantised", _QUANTISED_Q[limits.quantised_q]),
        choice("kv_scale", DECODE_SCALES),
        choice("q_scale", DECODE_SCALES),
    ]


def _scale(drawn: _Drawn, scale: str) -> str:
    """The scale as drawn, or a round one where the regime needs it."""
    if drawn.regime in _ROUND_SCALES_ONLY and scale not in ROUND_SCALES:
        return ROUND_SCALES[DECODE_SCALES.index(scale) % len(ROUND_SCALES)]
    return scale


def _problem(limits: DecodeLimits, choices: tuple[Choice, ...]) -> DecodeProblem:
    """Fit the sizes to what one example may cost, then let lengths, tables and layouts follow."""
    drawn = _Drawn(**dict(choices[:-SLOTS]))
    quirks: dict[str, Any] = dict(quirk for _, quirk in choices[-SLOTS:] if quirk)
    page_size = drawn.page_size
    lengths = [(length, own_rows) for (_, length), (_, own_rows) in drawn.requests]
    requests = _requests(lengths, quirks.get("requests"), limits)
    q_lens = tuple(drawn.query_rows if own is None else own for _, own in requests)
    num_rows = sum(q_lens) + quirks.get("padding_rows", 0)

    heads, latent, rope = drawn.model_shape or (drawn.num_heads, drawn.kv_lora_rank, drawn.qk_rope_head_dim)
    if latent + rope == 0 and limits.qk_rope_head_dim is None:
        rope = 1  # a query of no elements at all is nothing to attend with
    width = latent + rope
    heads = fitted(heads, _MAX_QUERIES // max(1, num_rows * width), limits.num_heads)
    splits = min(
        drawn.num_kv_splits,
        _MAX_PAIRS // max(1, len(requests)),
        max(1, _MAX_PARTIALS // max(1, num_rows * heads * latent)),
    )
    ceiling = _key_ceiling(len(requests), num_rows, heads, width, page_size)
    kv_lens = tuple(
        _kv_len(keys_in(length, page_size=page_size, num_kv_splits=splits), ceiling, q_len, limits)
        for (length, _), q_len in zip(requests, q_lens, strict=True)
    )
    pages = tuple(-(-kv_len // page_size) for kv_len in kv_lens)
    with_lse = limits.lse != "never" and quirks.get("with_lse", True)
    table_slack = quirks.get("table_slack", 0)
    table_shape = (len(requests), max(pages, default=0) + table_slack)
    q_offset, o_offset, lse_offset = drawn.offsets
    aligned, pad = limits.aligned, drawn.pad
    quantised = drawn.kv_format != "plain"
    q_is_quantised = quantised and drawn.q_is_quantised
    return DecodeProblem(
        kv_lens=kv_lens,
        q_lens=q_lens,
        num_heads=heads,
        kv_lora_rank=latent,
        qk_rope_head_dim=rope,
        page_size=page_size,
        num_kv_splits=splits,
        dtype=drawn.dtype,
        regime=drawn.regime,
        padding_rows=quirks.get("padding_rows", 0),
        with_lse=with_lse,
        q_layout=lay(drawn.q_kind, (num_rows, heads, width), pad=pad, offset=q_offset, aligned=aligned),
        o_layout=lay(drawn.o_kind, (num_rows, heads, latent), pad=pad, offset=o_offset, aligned=aligned),
        lse_layout=lay(
            quirks.get("lse_kind", "contiguous") if with_lse else "contiguous",
            (num_rows, heads),
            pad=pad,
            offset=lse_offset if with_lse else 0,
            aligned=aligned,
        ),
        out_form=quirks.get("out_form", "view"),
        page_pad=quirks.get("page_pad", 0),
        cache_offset=quirks.get("cache_offset", 0),
        page_order=quirks.get("page_order", "ascending") if sum(pages) > 1 else "ascending",
        foreign_pages=quirks.get("foreign_pages", 1),
        table_slack=table_slack,
        table_layout=lay(quirks.get("table_kind", "contiguous"), table_shape, pad=pad, aligned=aligned),
        index_tail=quirks.get("index_tail", 0),
        # A zero query has zero logits at every scale.
        softmax_scale=0 if drawn.regime == "uniform" else drawn.softmax_scale,
        seed=drawn.seed,
        q_format=drawn.kv_format if q_is_quantised else "plain",
        kv_format=drawn.kv_format,
        q_scale=_scale(drawn, drawn.q_scale) if q_is_quantised and drawn.regime != "uniform" else "1",
        kv_scale=_scale(drawn, drawn.kv_scale) if quantised else "1",
    )


def _requests(
    drawn: list[tuple[Length, int | None]], how_many: str | None, limits: DecodeLimits
) -> list[tuple[Length, int | None]]:
    """The requests as drawn, none of them, or the drawn ones over and over until they fill a tile."""
    if how_many == NO_REQUESTS:
        return []
    if how_many == MANY_REQUESTS:
        batch = min(_MANY_REQUESTS, limits.max_batch or _MANY_REQUESTS)
        return [drawn[index % len(drawn)] for index in range(batch)]
    return drawn


def _key_ceiling(batch: int, num_rows: int, heads: int, width: int, page_size: int) -> int:
    """The most keys that one request may have at this cost, but always enough for a second page."""
    by_memory = _MAX_CACHE // max(1, batch * width)
    by_products = _MAX_PRODUCTS // max(1, num_rows * heads * width)
    return max(min(by_memory, by_products), page_size + 1)


def _kv_len(keys: int, ceiling: int, q_len: int, limits: DecodeLimits) -> int:
    """A length within the limits: no longer than allowed, and not empty where that is not allowed."""
    if limits.max_kv_len is not None:
        ceiling = min(ceiling, limits.max_kv_len)
    keys = min(keys, ceiling)
    return keys if limits.empty_requests else max(keys, q_len, 1)
