"""Where a tile of an up-projection lies: which head, which tokens and which values."""

# No `from __future__ import annotations`: the interpreter compares the annotation `tl.constexpr` with the type itself.
# pyright: basic
import triton
import triton.language as tl

__all__ = ["place_of"]


@triton.jit
def place_of(
    tile,
    token_tiles,
    value_tiles,
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    BLOCK_VALUE: tl.constexpr,  # noqa: N803
):
    """The head, the tokens and the values of tile number `tile`, values varying fastest.

    Indices are 64 bits wide: token times stride passes 2³¹ in long prefills.
    """
    head = tl.cast(tile // (token_tiles * value_tiles), tl.int64)
    token = tl.cast((tile // value_tiles) % token_tiles, tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    value = tl.cast(tile % value_tiles, tl.int64) * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    return head, token, value
