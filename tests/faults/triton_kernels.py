"""Triton kernels with one fault each: small, in both contracts, each with a problem that shows the fault.

TRITON_INTERPRET=1 has to be set before this module is imported.
"""

# No `from __future__ import annotations`: the interpreter compares the annotation `tl.constexpr` with the type itself.
# pyright: basic, reportArgumentType=false, reportCallIssue=false
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from strategies.layouts import Layout
from strategies.problems import DecodeProblem, UpProjectionProblem
from tests.faults.fault import Fault

__all__ = ["FAULTS", "RIGHT", "Seeded"]

_TILE: Final = 16


class Seeded(NamedTuple):
    """A fault, and a problem at which it shows. `hidden`: only a recorder sees its clause, or its program."""

    fault: Fault
    problem: UpProjectionProblem | DecodeProblem
    hidden: bool = False


@triton.jit
def product_kernel(
    x_ptr,
    w_ptr,
    out_ptr,
    num_tokens,
    rank,
    width,
    x_token,
    x_head,
    x_rank,
    w_head,
    w_rank,
    w_value,
    out_token,
    out_head,
    out_value,
    ACCUMULATE: tl.constexpr,  # noqa: N803
    LAST: tl.constexpr,  # noqa: N803  columns stored beyond the last one
    SPLITS: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    """One tile of one head; with several splits each program sums every so manieth slice of the rank."""
    tiles = tl.cdiv(num_tokens, TILE)
    token = (tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE)
    value = (tl.program_id(0) // tiles) * TILE + tl.arange(0, TILE)
    head, split = tl.program_id(1), tl.program_id(2)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(split * TILE, rank, SPLITS * TILE):
        at = start + tl.arange(0, TILE)
        x = tl.load(
            x_ptr + head * x_head + token[:, None] * x_token + at[None, :] * x_rank,
            mask=(token < num_tokens)[:, None] & (at < rank)[None, :],
            other=0.0,
        )
        w = tl.load(
            w_ptr + head * w_head + at[:, None] * w_rank + value[None, :] * w_value,
            mask=(at < rank)[:, None] & (value < width)[None, :],
            other=0.0,
        )
        total += tl.dot(x, w, input_precision="ieee")
    places = out_ptr + head * out_head + token[:, None] * out_token + value[None, :] * out_value
    live = (token < num_tokens)[:, None] & (value < width + LAST)[None, :]
    if ACCUMULATE:
        total += tl.load(places, mask=live, other=0.0)
    tl.store(places, total.to(out_ptr.dtype.element_ty), mask=live)


def _multiply(
    x: Tensor,
    w_uv: Tensor,
    out: Tensor,
    *,
    last: int = 0,
    splits: int = 1,
    accumulate: bool = False,
    value_tiles: int | None = None,
    out_strides: tuple[int, ...] | None = None,
) -> None:
    num_tokens, num_heads, rank = x.shape
    width = w_uv.shape[2]
    tiles = triton.cdiv(num_tokens, _TILE) * (triton.cdiv(width, _TILE) if value_tiles is None else value_tiles)
    if num_tokens * num_heads * width:
        product_kernel[(tiles, num_heads, splits)](
            x,
            w_uv,
            out,
            num_tokens,
            rank,
            width,
            *x.stride(),
            *w_uv.stride(),
            *(out_strides or out.stride()),
            ACCUMULATE=accumulate,
            LAST=last,
            SPLITS=splits,
            TILE=_TILE,
        )


def right_product(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """No fault."""
    _multiply(x, w_uv, out)


def mask_short_by_one(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """The last tile's mask ends one column early."""
    _multiply(x, w_uv, out, last=-1)


def two_programs_on_a_tile(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Split over the rank, and every split stores its own sum."""
    _multiply(x, w_uv, out, splits=2)


def store_past_the_end(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """The last tile's mask ends one column late."""
    _multiply(x, w_uv, out, last=1)


def wrong_stride(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Takes the output for packed."""
    _multiply(x, w_uv, out, out_strides=(out.shape[1] * out.shape[2], out.shape[2], 1))


def missing_tile(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """A grid rounded down."""
    _multiply(x, w_uv, out, value_tiles=out.shape[2] // _TILE)


def adds_to_the_output(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Relies on an output that was zero."""
    _multiply(x, w_uv, out, accumulate=True)


@triton.jit
def attend_kernel(
    q_ptr,
    kv_ptr,
    part_ptr,  # float32 [batch, heads, splits, latent]
    part_lse_ptr,  # float32 [batch, heads, splits]
    indptr_ptr,
    indices_ptr,
    lens_ptr,
    sm_scale,
    latent,
    width,
    page_size,
    q_row,
    q_head,
    q_column,
    kv_page,
    kv_slot,
    kv_column,
    BEYOND: tl.constexpr,  # noqa: N803  keys read behind the last one
    GUARDED: tl.constexpr,  # noqa: N803  an empty split leaves 0 and −inf
    LANES: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
):
    """One split of one head of one request, key by key."""
    request, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count = tl.load(lens_ptr + request)
    step = tl.cdiv(count, SPLITS)
    first, end = split * step, tl.minimum(split * step + step, count)
    if end == count:
        end += BEYOND
    lane = tl.arange(0, LANES)
    q = tl.load(q_ptr + request * q_row + head * q_head + lane * q_column, mask=lane < width, other=0.0)
    peak, total = float("-inf"), 0.0
    acc = tl.zeros((LANES,), dtype=tl.float32)
    pages = tl.load(indptr_ptr + request)
    if first < end:
        for key in range(first, end):
            page = tl.load(indices_ptr + pages + key // page_size)
            kv = tl.load(
                kv_ptr + page.to(tl.int64) * kv_page + (key % page_size) * kv_slot + lane * kv_column,
                mask=lane < width,
                other=0.0,
            )
            score = tl.sum(q.to(tl.float32) * kv.to(tl.float32), axis=0) * sm_scale
            new_peak = tl.maximum(peak, score)
            weight = tl.exp(score - new_peak)
            shrink = tl.exp(peak - new_peak)
            acc = acc * shrink + weight * kv
            total = total * shrink + weight
            peak = new_peak
        place = (request * tl.num_programs(1) + head) * SPLITS + split
        tl.store(part_ptr + place * latent + lane, acc / total, mask=lane < latent)
        tl.store(part_lse_ptr + place, peak + tl.log(total))
    elif GUARDED:
        place = (request * tl.num_programs(1) + head) * SPLITS + split
        tl.store(part_ptr + place * latent + lane, acc, mask=lane < latent)
        tl.store(part_lse_ptr + place, float("-inf"))


@triton.jit
def merge_kernel(
    part_ptr,
    part_lse_ptr,
    o_ptr,
    lse_ptr,
    num_heads,
    latent,
    o_row,
    o_head,
    o_column,
    lse_row,
    lse_head,
    LANES: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
):
    """Merge every split of one head of one request."""
    request, head = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, LANES)
    place = (request * num_heads + head) * SPLITS
    each = tl.arange(0, SPLITS)
    lse = tl.load(part_lse_ptr + place + each)
    peak = tl.max(lse, axis=0)
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp(lse - shift)
    total = tl.sum(weights, axis=0)
    parts = tl.load(part_ptr + (place + each[:, None]) * latent + lane[None, :], mask=(lane < latent)[None, :], other=0)
    o = tl.sum(parts * weights[:, None], axis=0) / tl.where(total == 0, 1.0, total)
    tl.store(
        o_ptr + request * o_row + head * o_head + lane * o_column, o.to(o_ptr.dtype.element_ty), mask=lane < latent
    )
    tl.store(lse_ptr + request * lse_row + head * lse_head, shift + tl.log(total))


def _attend(
    q: Tensor,
    kv_buffer: Tensor,
    o: Tensor,
    lse: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    seq_lens: Tensor,
    page_size: int,
    sm_scale: float,
    num_kv_splits: int,
    *,
    beyond: int = 0,
    guarded: bool = True,
    merged: int = 0,
    **_: Any,
) -> None:
    """Decode with one query row per request, and a power of two of splits. merged: heads left out of the merge."""
    batch, heads, latent = o.shape
    parts = torch.empty(batch, heads, num_kv_splits, latent, dtype=torch.float32)
    part_lse = torch.empty(batch, heads, num_kv_splits, dtype=torch.float32)
    lanes = max(2, triton.next_power_of_2(q.shape[2]))
    attend_kernel[(batch, heads, num_kv_splits)](
        q,
        kv_buffer,
        parts,
        part_lse,
        kv_indptr,
        kv_indices,
        seq_lens,
        sm_scale,
        latent,
        q.shape[2],
        page_size,
        *q.stride(),
        kv_buffer.stride(0),
        kv_buffer.stride(1),
        kv_buffer.stride(3),
        BEYOND=beyond,
        GUARDED=guarded,
        LANES=lanes,
        SPLITS=num_kv_splits,
    )
    merge_kernel[(batch, heads - merged)](
        parts,
        part_lse,
        o,
        lse,
        heads,
        latent,
        *o.stride(),
        *lse.stride(),
        LANES=lanes,
        SPLITS=num_kv_splits,
    )


def right_attention(**arguments: Any) -> None:
    """No fault."""
    _attend(**arguments)


def neighbour_page(**arguments: Any) -> None:
    """Reads one key too many: the next page, or what stands behind the last key in its own."""
    _attend(**arguments, beyond=1)


def unguarded_empty_split(**arguments: Any) -> None:
    """A split without keys stores nothing, and is merged all the same."""
    _attend(**arguments, guarded=False)


def missing_head(**arguments: Any) -> None:
    """The merge's grid is one head short."""
    _attend(**arguments, merged=1)


_PRODUCT: Final = UpProjectionProblem(num_tokens=3, num_heads=2, kv_lora_rank=20, v_head_dim=20, seed=3)
_STRIDED: Final = UpProjectionProblem(
    num_tokens=3, num_heads=2, kv_lora_rank=4, v_head_dim=5, out_layout=Layout("padded_rows", 8), seed=3
)
_DECODE: Final = DecodeProblem(
    kv_lens=(8, 3),
    q_lens=(1, 1),
    num_heads=2,
    kv_lora_rank=4,
    qk_rope_head_dim=2,
    page_size=4,
    num_kv_splits=4,
    regime="gaussian",
    index_tail=2,
)


def _product_fault(call: Any, clauses: tuple[str, ...], problem: UpProjectionProblem, **rest: Any) -> Seeded:
    return Seeded(Fault(f"triton_{call.__name__}", "up-projection", call, clauses, call.__doc__), problem, **rest)


def _decode_fault(call: Any, clauses: tuple[str, ...], problem: DecodeProblem = _DECODE) -> Seeded:
    return Seeded(Fault(f"triton_{call.__name__}", "decode", call, clauses, call.__doc__), problem)


FAULTS: Final = (
    _product_fault(mask_short_by_one, ("coverage",), _PRODUCT),
    _product_fault(two_programs_on_a_tile, ("repeatability", "agreement"), _PRODUCT, hidden=True),
    _product_fault(store_past_the_end, ("containment", "repeatability"), _PRODUCT),
    _product_fault(wrong_stride, ("containment", "coverage"), _STRIDED),
    _product_fault(missing_tile, ("coverage",), _PRODUCT),
    _product_fault(adds_to_the_output, ("independence",), _PRODUCT),
    _decode_fault(neighbour_page, ("independence",)),
    _decode_fault(unguarded_empty_split, ("independence",)),
    _decode_fault(missing_head, ("coverage",)),
)
RIGHT: Final = (
    _product_fault(right_product, (), _PRODUCT),
    _product_fault(right_product, (), _STRIDED),
    _decode_fault(right_attention, ()),
)
