"""The Triton kernels of the corpus: a product and a two-stage decode, right unless a constant asks for a fault.

TRITON_INTERPRET=1 has to be set before this module is imported on a CPU.
"""

# No `from __future__ import annotations`: the interpreter compares the annotation `tl.constexpr` with the type itself.
# pyright: basic, reportArgumentType=false, reportCallIssue=false
import triton
import triton.language as tl

__all__ = ["attend_kernel", "merge_kernel", "product_kernel"]


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
    NARROW: tl.constexpr,  # noqa: N803  offsets of pages in 16 bits
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
            place_of_page = page.to(tl.int64) * kv_page
            if NARROW:
                place_of_page = place_of_page.to(tl.int16).to(tl.int64)
            kv = tl.load(
                kv_ptr + place_of_page + (key % page_size) * kv_slot + lane * kv_column,
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
    BASE_TWO: tl.constexpr,  # noqa: N803  lse in base 2
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
    lse_value = shift + tl.log(total)
    if BASE_TWO:
        lse_value = lse_value * 1.4426950408889634
    tl.store(lse_ptr + request * lse_row + head * lse_head, lse_value)
