"""The programs of an up-projection with a quantised weight: partial products per part of the rank, and their sum."""

# No `from __future__ import annotations`: the interpreter compares the annotation `tl.constexpr` with the type itself.
# pyright: basic, reportAttributeAccessIssue=false
import triton
import triton.language as tl

from mla_verify.kernels.jitted.tiles import place_of

__all__ = ["fp8_partials_kernel", "mxfp4_partials_kernel", "sum_partials_kernel"]


@triton.jit
def _rounded_to_fp8(x, codes: tl.constexpr, LARGEST: tl.constexpr):  # noqa: N803
    """Rows of float32 as fp8 codes and back, each by its own scale. A row of zeros has a scale above zero."""
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(x), axis=1), 1e-10), tl.full((), LARGEST, dtype=tl.float32))[:, None]
    inside = tl.minimum(tl.maximum(tl.div_rn(x, scale + x * 0.0), -LARGEST), LARGEST)
    return inside.to(codes).to(tl.float32) * scale


@triton.jit
def _rounded_to_even(x):
    """The nearest whole number of what is not negative, the even one of two."""
    whole = tl.floor(x)
    rest = x - whole
    is_odd = whole - 2.0 * tl.floor(whole * 0.5)
    return whole + tl.where((rest > 0.5) | ((rest == 0.5) & (is_odd > 0.5)), 1.0, 0.0)


@triton.jit
def _rounded_to_mxfp4(x):
    """Rows of float32 as e2m1 codes and back, each by its own power of two."""
    # A quarter of a power of two carries an amax of 1.75 of it and more into the next; 2 is the exponent of 4.
    bits = tl.max(tl.abs(x), axis=1).to(tl.int32, bitcast=True) + 0x200000
    exponent = tl.maximum((bits >> 23) - 127 - 2, -127)
    shrink = ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    # 2**-127 is a subnormal float32.
    grow = tl.where(exponent == -127, 0x400000, (exponent + 127) << 23).to(tl.float32, bitcast=True)
    magnitude = tl.abs(x) * shrink[:, None]
    steps = tl.where(magnitude < 2.0, 2.0, tl.where(magnitude < 4.0, 1.0, 0.5))  # in one
    rounded = tl.minimum(_rounded_to_even(magnitude * steps) / steps, 6.0) * grow[:, None]
    return tl.where(x < 0, -rounded, rounded)


@triton.jit
def _e2m1(code):
    """What a code of four bits stands for, float32."""
    exponent = (code >> 1) & 3
    mantissa = (code & 1).to(tl.float32)
    power = (1 << exponent).to(tl.float32)
    magnitude = tl.where(exponent == 0, mantissa * 0.5, (2.0 + mantissa) * power * 0.25)
    return tl.where((code & 8) != 0, -magnitude, magnitude)


@triton.jit
def _e8m0(code):
    """What a scale stands for, float32: code 0 is a subnormal there, and 255 is NaN."""
    bits = tl.where(code == 0, 0x400000, tl.where(code == 255, 0x7FC00000, code << 23))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def fp8_partials_kernel(
    x_ptr,  # [num_tokens, num_heads, kv_lora_rank]
    w_ptr,  # fp8 [num_heads, v_head_dim, kv_lora_rank]
    partials_ptr,  # float32 [splits, num_heads, num_tokens, v_head_dim], contiguous
    num_tokens,
    num_heads,
    kv_lora_rank,
    v_head_dim,
    num_splits,
    rank_per_split,  # whole groups
    x_token_stride,
    x_head_stride,
    x_rank_stride,
    w_head_stride,
    w_value_stride,
    w_rank_stride,
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    BLOCK_VALUE: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
    LARGEST: tl.constexpr,  # noqa: N803 - of the codes
):
    """Write each part's product, but for the weight's scale, every element of it exactly once."""
    token_tiles = (num_tokens + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    value_tiles = (v_head_dim + BLOCK_VALUE - 1) // BLOCK_VALUE
    tiles = num_heads * token_tiles * value_tiles
    rank = tl.cast(tl.arange(0, GROUP), tl.int64)
    for item in range(tl.program_id(0), tiles * num_splits, tl.num_programs(0)):
        split = tl.cast(item // tiles, tl.int64)
        tile = item % tiles
        head, token, value = place_of(tile, token_tiles, value_tiles, BLOCK_TOKENS, BLOCK_VALUE)
        token_live = token < num_tokens
        value_live = value < v_head_dim
        x_tile = x_ptr + head * x_head_stride + token[:, None] * x_token_stride
        w_tile = w_ptr + head * w_head_stride + value[None, :] * w_value_stride
        total = tl.full((BLOCK_TOKENS, BLOCK_VALUE), 0.0, dtype=tl.float32)
        first = split * rank_per_split
        for start in range(first, tl.minimum(first + rank_per_split, kv_lora_rank), GROUP):
            at = start + rank
            rank_live = at < kv_lora_rank
            x = tl.load(x_tile + at[None, :] * x_rank_stride, token_live[:, None] & rank_live[None, :], other=0.0)
            w = tl.load(w_tile + at[:, None] * w_rank_stride, rank_live[:, None] & value_live[None, :], other=0.0)
            rounded = _rounded_to_fp8(x.to(tl.float32), w_ptr.dtype.element_ty, LARGEST)
            total = tl.dot(rounded, w.to(tl.float32), total, input_precision="ieee")
        row = (split * num_heads + head) * num_tokens + token
        tl.store(
            partials_ptr + row[:, None] * v_head_dim + value[None, :],
            total,
            token_live[:, None] & value_live[None, :],
        )


@triton.jit
def mxfp4_partials_kernel(
    x_ptr,  # [num_tokens, num_heads, kv_lora_rank]
    w_ptr,  # uint8 [num_heads, v_head_dim, kv_lora_rank / 2], the earlier code of a pair in the low half
    w_scale_ptr,  # uint8 [num_heads, v_head_dim, ceil(kv_lora_rank / 32)], e8m0
    partials_ptr,  # float32 [splits, num_heads, num_tokens, v_head_dim], contiguous
    num_tokens,
    num_heads,
    kv_lora_rank,
    v_head_dim,
    num_splits,
    rank_per_split,  # whole blocks
    x_token_stride,
    x_head_stride,
    x_rank_stride,
    w_head_stride,
    w_value_stride,
    w_pair_stride,
    w_scale_head_stride,
    w_scale_value_stride,
    w_scale_block_stride,
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    BLOCK_VALUE: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
):
    """Write each part's product, every element of it exactly once."""
    token_tiles = (num_tokens + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    value_tiles = (v_head_dim + BLOCK_VALUE - 1) // BLOCK_VALUE
    tiles = num_heads * token_tiles * value_tiles
    rank = tl.cast(tl.arange(0, GROUP), tl.int64)
    for item in range(tl.program_id(0), tiles * num_splits, tl.num_programs(0)):
        split = tl.cast(item // tiles, tl.int64)
        tile = item % tiles
        head, token, value = place_of(tile, token_tiles, value_tiles, BLOCK_TOKENS, BLOCK_VALUE)
        token_live = token < num_tokens
        value_live = value < v_head_dim
        x_tile = x_ptr + head * x_head_stride + token[:, None] * x_token_stride
        w_tile = w_ptr + head * w_head_stride + value[None, :] * w_value_stride
        scale_tile = w_scale_ptr + head * w_scale_head_stride + value * w_scale_value_stride
        total = tl.full((BLOCK_TOKENS, BLOCK_VALUE), 0.0, dtype=tl.float32)
        first = split * rank_per_split
        for start in range(first, tl.minimum(first + rank_per_split, kv_lora_rank), GROUP):
            at = start + rank
            rank_live = at < kv_lora_rank
            x = tl.load(x_tile + at[None, :] * x_rank_stride, token_live[:, None] & rank_live[None, :], other=0.0)
            # Each byte is loaded twice, once for either half.
            pair = tl.load(
                w_tile + (at // 2)[:, None] * w_pair_stride, rank_live[:, None] & value_live[None, :], other=0
            ).to(tl.int32)
            scale = tl.load(scale_tile + (start // GROUP) * w_scale_block_stride, value_live, other=127).to(tl.int32)
            w = _e2m1(pair >> ((at % 2) * 4).to(tl.int32)[:, None]) * _e8m0(scale)[None, :]
            total = tl.dot(_rounded_to_mxfp4(x.to(tl.float32)), w, total, input_precision="ieee")
        row = (split * num_heads + head) * num_tokens + token
        tl.store(
            partials_ptr + row[:, None] * v_head_dim + value[None, :],
            total,
            token_live[:, None] & value_live[None, :],
        )


@triton.jit
def sum_partials_kernel(
    partials_ptr,  # float32 [splits, num_heads, num_tokens, v_head_dim], contiguous
    w_scale_ptr,  # float32 [1], read where it applies to the whole weight
    out_ptr,  # [num_tokens, num_heads, v_head_dim]
    num_tokens,
    num_heads,
    v_head_dim,
    num_splits,
    out_token_stride,
    out_head_stride,
    out_value_stride,
    SCALED: tl.constexpr,  # noqa: N803
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    BLOCK_VALUE: tl.constexpr,  # noqa: N803
):
    """Write `out`, every element of it exactly once."""
    token_tiles = (num_tokens + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    value_tiles = (v_head_dim + BLOCK_VALUE - 1) // BLOCK_VALUE
    for tile in range(tl.program_id(0), num_heads * token_tiles * value_tiles, tl.num_programs(0)):
        head, token, value = place_of(tile, token_tiles, value_tiles, BLOCK_TOKENS, BLOCK_VALUE)
        live = (token < num_tokens)[:, None] & (value < v_head_dim)[None, :]
        total = tl.full((BLOCK_TOKENS, BLOCK_VALUE), 0.0, dtype=tl.float32)
        for split in range(0, num_splits):
            row = (tl.cast(split, tl.int64) * num_heads + head) * num_tokens + token
            total += tl.load(partials_ptr + row[:, None] * v_head_dim + value[None, :], live, other=0.0)
        if SCALED:
            total *= tl.load(w_scale_ptr)
        out_tile = out_ptr + head * out_head_stride + token[:, None] * out_token_stride
        tl.store(out_tile + value[None, :] * out_value_stride, total.to(out_ptr.dtype.element_ty), live)
