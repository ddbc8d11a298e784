"""The two problems: every value that decides what a kernel is given, as plain data.

Cheap to draw, easy to shrink, exact to save as JSON: ints, strings and tuples only. Tensors are made from a
problem elsewhere; page tables and strides follow from it by the functions beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strategies.layouts import CONTIGUOUS, Layout

__all__ = ["DecodeProblem", "OutputForm", "PageOrder", "Problem", "UpProjectionProblem"]

OutputForm = Literal["view", "owner"]  # a view into the arena, or a tensor that owns resizable storage
PageOrder = Literal["ascending", "descending", "shuffled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpProjectionProblem:
    """x [num_tokens, num_heads, kv_lora_rank] @ w_uv [num_heads, kv_lora_rank, v_head_dim] into out.

    `regime` is one of exact, gaussian, extreme, special. `invalid` names what is wrong with an invalid
    problem (a key of `strategies.invalid.UP_PROJECTION_INVALID`), None for a valid one. With a `weight_format`
    other than plain the weight comes in codes, [num_heads, v_head_dim, kv_lora_rank], and `w_layout` says how those
    lie; `fp8_format` says which codes where that is fp8. mxfp4 packs two to a byte: kv_lora_rank is even then.
    """

    num_tokens: int = 1
    num_heads: int = 1
    kv_lora_rank: int = 1
    v_head_dim: int = 1
    dtype: str = "float32"
    regime: str = "exact"
    x_layout: Layout = CONTIGUOUS
    w_layout: Layout = CONTIGUOUS
    out_layout: Layout = CONTIGUOUS
    out_form: OutputForm = "view"
    seed: int = 0
    invalid: str | None = None
    weight_format: str = "plain"
    fp8_format: str = "e4m3fn"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeProblem:
    """One paged decode of `len(kv_lens)` requests: `q_lens[r]` query rows over `kv_lens[r]` keys in each.

    `padding_rows` are rows of q, o and lse behind the last request's. `foreign_pages` are pages of the pool
    that belong to no request: one of them is always the pool's last, the others lie scattered among the owned
    ones. `page_pad` counts elements between the end of a page and the next page. `table_slack` counts unused
    columns of the block table behind the longest request's, `table_layout` how its rows lie; `index_tail`
    counts unused entries behind the last page id of `kv_indices`. Regimes: retrieval, uniform, gaussian,
    extreme, special. `softmax_scale` is a power of two's exponent: sm_scale = 2**softmax_scale. `q_format` and
    `kv_format` are plain (the problem's dtype) or an fp8 format, whose codes stand for themselves times `q_scale`
    and `kv_scale` (the decimals of a float32); o has the problem's dtype in any case.
    """

    kv_lens: tuple[int, ...] = (1,)
    q_lens: tuple[int, ...] = (1,)
    num_heads: int = 1
    kv_lora_rank: int = 1
    qk_rope_head_dim: int = 0
    page_size: int = 1
    num_kv_splits: int = 1
    dtype: str = "float32"
    regime: str = "retrieval"
    padding_rows: int = 0
    with_lse: bool = True
    q_layout: Layout = CONTIGUOUS
    o_layout: Layout = CONTIGUOUS
    lse_layout: Layout = CONTIGUOUS
    out_form: OutputForm = "view"
    page_pad: int = 0
    cache_offset: int = 0
    page_order: PageOrder = "ascending"
    foreign_pages: int = 1
    table_slack: int = 0
    table_layout: Layout = CONTIGUOUS
    index_tail: int = 0
    softmax_scale: int = 0
    seed: int = 0
    invalid: str | None = None
    q_format: str = "plain"
    kv_format: str = "plain"
    q_scale: str = "1"
    kv_scale: str = "1"

    @property
    def num_rows(self) -> int:
        """Rows of q, o and lse, padding included."""
        return sum(self.q_lens) + self.padding_rows

    @property
    def pages_per_request(self) -> tuple[int, ...]:
        """How many pages each request owns: ceil(kv_len / page_size)."""
        return tuple(-(-kv_len // self.page_size) for kv_len in self.kv_lens)


Problem = UpProjectionProblem | DecodeProblem
