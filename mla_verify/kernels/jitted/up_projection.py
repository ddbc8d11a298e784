"""The up-projection's program: one tile of one head's matrix product."""

# No `from __future__ import annotations`: the interpreter compares the annotation `tl.constexpr` with the type itself.
# pyright: basic
import triton
import triton.language as tl

from mla_verify.kernels.jitted.tiles import place_of

__all__ = ["up_projection_kernel"]


@triton.jit
def up_projection_kernel(
    x_ptr,  # [num_tokens, num_heads, kv_lora_rank]
    w_ptr,  # [num_heads, kv_lora_rank, v_head_dim]
    out_ptr,  # [num_tokens, num_heads, v_head_dim]
    num_tokens,
    num_heads,
    kv_lora_rank,
    v_head_dim,
    x_token_stride,
    x_head_stride,
    x_rank_stride,
    w_head_stride,
    w_rank_stride,
    w_value_stride,
    out_token_stride,
    out_head_stride,
    out_value_stride,
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    BLOCK_RANK: tl.constexpr,  # noqa: N803
    BLOCK_VALUE: tl.constexpr,  # noqa: N803
):
    """Write the tiles of `out` that fall to this program, every element of them exactly once."""
    token_tiles = (num_tokens + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    value_tiles = (v_head_dim + BLOCK_VALUE - 1) // BLOCK_VALUE
    rank = tl.cast(tl.arange(0, BLOCK_RANK), tl.int64)
    for tile in range(tl.program_id(0), num_heads * token_tiles * value_tiles, tl.num_programs(0)):
        head, token, value = place_of(tile, token_tiles, value_tiles, BLOCK_TOKENS, BLOCK_VALUE)
        token_live = token < num_tokens
        value_live = value < v_head_dim
        x_tile = x_ptr + head * x_head_stride + token[:, None] * x_token_stride
        w_tile = w_ptr + head * w_head_stride + value[None, :] * w_value_stride
        total = tl.full((BLOCK_TOKENS, BLOCK_VALUE), 0.0, dtype=tl.float32)
        for start in range(0, kv_lora_rank, BLOCK_RANK):
            at = start + rank
            rank_live = at < kv_lora_rank
            x = tl.load(x_tile + at[None, :] * x_rank_stride, token_live[:, None] & rank_live[None, :], other=0.0)
            w = tl.load(w_tile + at[:, None] * w_rank_stride, rank_live[:, None] & value_live[None, :], other=0.0)
            total = tl.dot(x, w, total, input_precision="ieee")
        out_tile = out_ptr + head * out_head_stride + token[:, None] * out_token_stride
        tl.store(
            out_tile + value[None, :] * out_value_stride,
            total.to(out_ptr.dtype.element_ty),
            token_live[:, None] & value_live[None, :],
        )
