"""How a tensor lies in memory: a name and two numbers, from which the strides of any shape follow.

A layout is drawn apart from the sizes, so that a problem stays valid while Hypothesis shrinks either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["CONTIGUOUS", "INPUT_ONLY", "Layout", "LayoutKind", "layout_is_packed", "strides_of"]

LayoutKind = Literal[
    "contiguous",
    "padded_rows",  # the outermost dimension has `pad` unused elements behind each row
    "padded_heads",  # each innermost row has `pad` unused elements behind it
    "transposed",  # the two outermost dimensions swapped in memory, innermost rows `pad` elements longer
    "reversed",  # column-major: the innermost dimension is the slowest in memory
    "sliced",  # cut from a buffer that is `pad` larger in every dimension
    "strided_inner",  # every second element: the innermost stride is 2
    "odd_singletons",  # contiguous, but dimensions of size 0 and 1 carry odd, meaningless strides
    "broadcast",  # stride 0 along the outermost dimension (inputs only)
    "overlapping",  # rows begin before their predecessor ends (inputs only)
    "vllm_weight",  # [heads, latent, value] of vLLM's kv_b_proj: strides ((pad + V)·L, 1, L)
    "vllm_dequantised",  # the same, dequantised through an identity: (pad + V, N·(pad + V), 1)
]

INPUT_ONLY: Final[frozenset[LayoutKind]] = frozenset({"broadcast", "overlapping"})
_ODD_STRIDES: Final = (7, 13, 5, 11)  # for dimensions of size 0 or 1, where every stride is legal


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of a tensor lie.

    `pad` counts unused elements (for the two vLLM weights: qk_nope_head_dim, the width of the key half that
    lies in front of the value half). `offset` counts elements between an aligned address and the first one.
    """

    kind: LayoutKind = "contiguous"
    pad: int = 0
    offset: int = 0


CONTIGUOUS: Final = Layout()


def layout_is_packed(shape: tuple[int, ...], layout: Layout) -> bool:
    """Whether the elements of `shape` lie one after the other, row-major, dimensions of size 1 aside."""
    if 0 in shape:
        return True
    strides, _ = strides_of(shape, layout)
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def strides_of(shape: tuple[int, ...], layout: Layout) -> tuple[tuple[int, ...], int]:
    """Strides in elements, and how many elements lie between the aligned address and the first one.

    The second value includes what a slice of a larger buffer has in front of it, and `layout.offset`.
    """
    if len(shape) == 3 and layout.kind in ("vllm_weight", "vllm_dequantised"):
        return _weight_strides(*shape, layout)
    kind, pad = layout.kind, layout.pad
    order, widened = _buffer_around(shape, layout)
    strides = [0] * len(shape)
    step = 2 if kind == "strided_inner" else 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(widened[dim], 1)
    lead = layout.offset
    if kind == "sliced":
        lead += sum(strides) * (pad // 2)
    elif kind == "padded_rows" and len(shape) >= 2:
        strides[0] += pad
    elif kind == "broadcast" and shape:
        strides[0] = 0
    elif kind == "overlapping" and len(shape) >= 2:
        strides[0] = max(1, strides[0] // 2)
    elif kind == "odd_singletons":
        strides = [
            _ODD_STRIDES[dim % len(_ODD_STRIDES)] if shape[dim] <= 1 else stride for dim, stride in enumerate(strides)
        ]
    return tuple(strides), lead


def _buffer_around(shape: tuple[int, ...], layout: Layout) -> tuple[tuple[int, ...], list[int]]:
    """Dimensions from the slowest in memory to the fastest, and the sizes of the buffer around the tensor."""
    rank, pad = len(shape), layout.pad
    order = tuple(range(rank))
    widened = list(shape)
    if layout.kind == "padded_heads" and rank:
        widened[-1] += pad
    elif layout.kind == "transposed" and rank >= 2:
        order = (1, 0, *range(2, rank))
        widened[-1 if rank > 2 else 0] += pad
    elif layout.kind == "reversed" and rank:
        order = order[::-1]
        widened[0] += pad
    elif layout.kind == "sliced":
        widened = [size + pad for size in shape]
    return order, widened


def _weight_strides(heads: int, latent: int, value: int, layout: Layout) -> tuple[tuple[int, ...], int]:
    """Strides and first element of w_uv [heads, latent, value], the value half of one of vLLM's weights."""
    head_width = layout.pad + value
    if layout.kind == "vllm_weight":
        return (head_width * max(latent, 1), 1, max(latent, 1)), layout.offset + layout.pad * latent
    return (head_width, max(heads, 1) * head_width, 1), layout.offset + layout.pad
