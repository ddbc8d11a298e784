"""The two programs of a split-KV decode: attend to one range of a request's keys, and merge the ranges."""

# No `from __future__ import annotations`: the interpreter compares the annotation `tl.constexpr` with the type itself.
# pyright: basic
import triton
import triton.language as tl

__all__ = ["attend_kernel", "merge_kernel"]


@triton.jit
def attend_kernel(  # noqa: PLR0912, PLR0915  a program is one straight line
    q_ptr,  # [num_rows, num_heads, kv_lora_rank + qk_rope_head_dim]
    kv_ptr,  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
    parts_ptr,  # float32 [num_rows, num_kv_splits, num_heads, kv_lora_rank], contiguous
    part_lse_ptr,  # float32 [num_rows, num_kv_splits, num_heads], contiguous
    qo_indptr_ptr,
    kv_indptr_ptr,
    kv_indices_ptr,
    kv_last_page_lens_ptr,
    batch,
    num_heads,
    kv_lora_rank,
    qk_rope_head_dim,
    page_size,
    num_kv_splits,
    lane_tiles,  # tiles of BLOCK_LANES that hold the most query rows of a request times num_heads
    sm_scale,
    q_row_stride,
    q_head_stride,
    q_column_stride,
    kv_page_stride,
    kv_slot_stride,
    kv_column_stride,
    q_scale_ptr,  # float32 [1]; any pointer, and never read, where Q_SCALED is False
    kv_scale_ptr,  # float32 [1], the same for KV_SCALED
    Q_SCALED: tl.constexpr,  # noqa: N803  q holds codes, and has a scale
    KV_SCALED: tl.constexpr,  # noqa: N803
    COMPUTE: tl.constexpr,  # noqa: N803  the dtype that codes are widened to: every one is exact in it
    BLOCK_LANES: tl.constexpr,  # noqa: N803  a lane is one head of one query row
    BLOCK_KEYS: tl.constexpr,  # noqa: N803
    BLOCK_LATENT: tl.constexpr,  # noqa: N803
    BLOCK_ROPE: tl.constexpr,  # noqa: N803  0 where the keys have no rope half
):
    """Stage 1: leave the normalised partial output and the log-sum-exp of one split in scratch.

    A split without keys writes nothing: stage 2 counts the splits in the same way and does not read it.
    """
    latent = tl.cast(tl.arange(0, BLOCK_LATENT), tl.int64)
    latent_live = latent < kv_lora_rank
    score_scale = sm_scale
    if Q_SCALED:
        score_scale = score_scale * tl.load(q_scale_ptr)
    if KV_SCALED:
        kv_scale = tl.load(kv_scale_ptr)
        score_scale = score_scale * kv_scale
    if BLOCK_ROPE > 0:
        rope = tl.cast(tl.arange(0, BLOCK_ROPE), tl.int64)
        rope_live = rope < qk_rope_head_dim
        rope = rope + kv_lora_rank
    for item in range(tl.program_id(0), batch * num_kv_splits * lane_tiles, tl.num_programs(0)):
        request = item // (num_kv_splits * lane_tiles)
        split = (item // lane_tiles) % num_kv_splits
        first_lane = (item % lane_tiles) * BLOCK_LANES
        first_page = tl.load(kv_indptr_ptr + request)
        num_pages = tl.load(kv_indptr_ptr + request + 1) - first_page
        # The last page's length is arbitrary where there are no pages, and is not read then.
        last_page_len = tl.load(kv_last_page_lens_ptr + request, num_pages > 0, other=page_size)
        num_keys = (num_pages - 1) * page_size + last_page_len
        first_row = tl.load(qo_indptr_ptr + request)
        num_rows = tl.load(qo_indptr_ptr + request + 1) - first_row
        keys_per_split = (num_keys + num_kv_splits - 1) // num_kv_splits
        start = split * keys_per_split
        end = tl.minimum(start + keys_per_split, num_keys)
        if (start < end) & (first_lane < num_rows * num_heads):
            lane = first_lane + tl.arange(0, BLOCK_LANES)
            lane_live = lane < num_rows * num_heads
            row_in_request = lane // num_heads
            row = tl.cast(first_row + row_in_request, tl.int64)
            head = tl.cast(lane % num_heads, tl.int64)
            # The last row sees every key, each row before it one key less.
            visible = num_keys - (num_rows - 1) + row_in_request
            q_lanes = q_ptr + row[:, None] * q_row_stride + head[:, None] * q_head_stride
            q_latent = tl.load(
                q_lanes + latent[None, :] * q_column_stride, lane_live[:, None] & latent_live[None, :], other=0.0
            )
            if BLOCK_ROPE > 0:
                q_rope = tl.load(
                    q_lanes + rope[None, :] * q_column_stride, lane_live[:, None] & rope_live[None, :], other=0.0
                )
            if Q_SCALED:
                # By way of float32, which every code converts to on every device.
                q_latent = q_latent.to(tl.float32).to(COMPUTE)
                if BLOCK_ROPE > 0:
                    q_rope = q_rope.to(tl.float32).to(COMPUTE)
            peak = tl.full((BLOCK_LANES,), float("-inf"), dtype=tl.float32)
            total = tl.full((BLOCK_LANES,), 0.0, dtype=tl.float32)
            acc = tl.full((BLOCK_LANES, BLOCK_LATENT), 0.0, dtype=tl.float32)
            for first_key in range(start, end, BLOCK_KEYS):
                key = first_key + tl.arange(0, BLOCK_KEYS)
                key_live = key < end
                # Neither the table's tail nor a slot behind the last key is read, not even to be masked afterwards:
                # whatever lies there, NaN included, times 0 is not always 0.
                page = tl.load(kv_indices_ptr + first_page + key // page_size, key_live, other=0)
                kv_keys = kv_ptr + tl.cast(page, tl.int64) * kv_page_stride
                kv_keys += tl.cast(key % page_size, tl.int64) * kv_slot_stride
                kv = tl.load(
                    kv_keys[:, None] + latent[None, :] * kv_column_stride,
                    key_live[:, None] & latent_live[None, :],
                    other=0.0,
                )
                if KV_SCALED:
                    kv = kv.to(tl.float32).to(COMPUTE)
                scores = tl.dot(q_latent, tl.trans(kv), input_precision="ieee")
                if BLOCK_ROPE > 0:
                    k_rope = tl.load(
                        kv_keys[None, :] + rope[:, None] * kv_column_stride,
                        rope_live[:, None] & key_live[None, :],
                        other=0.0,
                    )
                    if KV_SCALED:
                        k_rope = k_rope.to(tl.float32).to(COMPUTE)
                    scores = tl.dot(q_rope, k_rope, scores, input_precision="ieee")
                seen = key_live[None, :] & (key[None, :] < visible[:, None])
                scores = tl.where(seen, scores * score_scale, float("-inf"))
                new_peak = tl.maximum(peak, tl.max(scores, 1))
                # While a lane has seen no key its peak is −inf, and −inf − (−inf) would be NaN.
                shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
                weights = tl.exp(scores - shift[:, None])
                shrink = tl.exp(peak - shift)
                total = total * shrink + tl.sum(weights, 1)
                acc = tl.dot(weights.to(kv.dtype), kv, acc * shrink[:, None], input_precision="ieee")
                peak = new_peak
            # A lane that sees none of the split's keys leaves 0 and −inf.
            divisor = tl.where(total == 0.0, 1.0, total)
            part = tl.div_rn(acc, tl.broadcast_to(divisor[:, None], acc.shape))
            if KV_SCALED:
                part = part * kv_scale  # the values are codes until here
            part_lse = tl.where(total == 0.0, float("-inf"), peak + tl.log(divisor))
            at = (row * num_kv_splits + split) * num_heads + head
            tl.store(part_lse_ptr + at, part_lse, lane_live)
            tl.store(
                parts_ptr + at[:, None] * kv_lora_rank + latent[None, :],
                part,
                lane_live[:, None] & latent_live[None, :],
            )


@triton.jit
def merge_kernel(
    parts_ptr,  # float32 [num_rows, num_kv_splits, num_heads, kv_lora_rank], contiguous
    part_lse_ptr,  # float32 [num_rows, num_kv_splits, num_heads], contiguous
    o_ptr,  # [num_rows, num_heads, kv_lora_rank]
    lse_ptr,  # float32 [num_rows, num_heads]; o_ptr again, and never written, where HAS_LSE is False
    qo_indptr_ptr,
    kv_indptr_ptr,
    kv_last_page_lens_ptr,
    batch,
    num_heads,
    kv_lora_rank,
    page_size,
    num_kv_splits,
    lane_tiles,
    o_row_stride,
    o_head_stride,
    o_column_stride,
    lse_row_stride,
    lse_head_stride,
    HAS_LSE: tl.constexpr,  # noqa: N803
    BLOCK_LANES: tl.constexpr,  # noqa: N803
    BLOCK_LATENT: tl.constexpr,  # noqa: N803
):
    """Stage 2: weigh the splits by their share of the softmax, and write every row of every request once."""
    latent = tl.cast(tl.arange(0, BLOCK_LATENT), tl.int64)
    for item in range(tl.program_id(0), batch * lane_tiles, tl.num_programs(0)):
        request = item // lane_tiles
        num_pages = tl.load(kv_indptr_ptr + request + 1) - tl.load(kv_indptr_ptr + request)
        last_page_len = tl.load(kv_last_page_lens_ptr + request, num_pages > 0, other=page_size)
        num_keys = (num_pages - 1) * page_size + last_page_len
        first_row = tl.load(qo_indptr_ptr + request)
        num_rows = tl.load(qo_indptr_ptr + request + 1) - first_row
        # The splits that stage 1 has written: an empty request has none.
        keys_per_split = tl.maximum((num_keys + num_kv_splits - 1) // num_kv_splits, 1)
        splits = (num_keys + keys_per_split - 1) // keys_per_split
        lane = (item % lane_tiles) * BLOCK_LANES + tl.arange(0, BLOCK_LANES)
        lane_live = lane < num_rows * num_heads
        row = tl.cast(first_row + lane // num_heads, tl.int64)
        head = tl.cast(lane % num_heads, tl.int64)
        live = lane_live[:, None] & (latent < kv_lora_rank)[None, :]
        peak = tl.full((BLOCK_LANES,), float("-inf"), dtype=tl.float32)
        total = tl.full((BLOCK_LANES,), 0.0, dtype=tl.float32)
        acc = tl.full((BLOCK_LANES, BLOCK_LATENT), 0.0, dtype=tl.float32)
        for split in range(0, splits):
            at = (row * num_kv_splits + split) * num_heads + head
            part_lse = tl.load(part_lse_ptr + at, lane_live, other=float("-inf"))
            part = tl.load(parts_ptr + at[:, None] * kv_lora_rank + latent[None, :], live, other=0.0)
            new_peak = tl.maximum(peak, part_lse)
            shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            weight = tl.exp(part_lse - shift)
            shrink = tl.exp(peak - shift)
            total = total * shrink + weight
            acc = acc * shrink[:, None] + part * weight[:, None]
            peak = new_peak
        # A row that sees no key at all gets o = 0 and lse = −inf, written like any other.
        divisor = tl.where(total == 0.0, 1.0, total)
        o = tl.div_rn(acc, tl.broadcast_to(divisor[:, None], acc.shape))
        o_lanes = o_ptr + row[:, None] * o_row_stride + head[:, None] * o_head_stride
        tl.store(o_lanes + latent[None, :] * o_column_stride, o.to(o_ptr.dtype.element_ty), live)
        if HAS_LSE:
            lse = tl.where(total == 0.0, float("-inf"), peak + tl.log(divisor))
            tl.store(lse_ptr + row * lse_row_stride + head * lse_head_stride, lse, lane_live)
