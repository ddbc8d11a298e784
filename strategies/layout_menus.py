"""Which layouts each tensor may be drawn in, and how a drawn kind becomes a layout without idle numbers."""

from __future__ import annotations

from typing import Final

from strategies.layouts import Layout, LayoutKind, strides_of

__all__ = [
    "CUBE_KINDS",
    "INPUT_KINDS",
    "PADS",
    "PLANE_KINDS",
    "TABLE_KINDS",
    "WEIGHT_KINDS",
    "kinds_for",
    "lay",
    "without_idle_numbers",
]

CUBE_KINDS: Final[tuple[LayoutKind, ...]] = (  # the plainest first: what a failure shrinks to
    "contiguous",
    "padded_rows",
    "padded_heads",
    "transposed",
    "sliced",
    "strided_inner",
    "reversed",
    "odd_singletons",
    "odd_singletons",  # matters only beside a size of 0 or 1, and would be rarer than the rest
)
# In two dimensions padded_heads is padded_rows, and reversed is transposed.
PLANE_KINDS: Final[tuple[LayoutKind, ...]] = (
    "contiguous",
    "padded_rows",
    "transposed",
    "sliced",
    "strided_inner",
    "odd_singletons",
)
TABLE_KINDS: Final[tuple[LayoutKind, ...]] = ("contiguous", "padded_rows", "sliced")
INPUT_KINDS: Final[tuple[LayoutKind, ...]] = (
    *CUBE_KINDS,
    "broadcast",
    "broadcast",
    "overlapping",
    "overlapping",
)
WEIGHT_KINDS: Final[tuple[LayoutKind, ...]] = (
    *CUBE_KINDS,
    "broadcast",
    "overlapping",
    "vllm_weight",
    "vllm_weight",
    "vllm_dequantised",
    "vllm_dequantised",
)
# Strides of dimensions of size 1 mean nothing: a tensor that has odd ones is contiguous still.
_PACKED_KINDS: Final[tuple[LayoutKind, ...]] = ("contiguous", "odd_singletons")
_FLAT_KINDS: Final[tuple[LayoutKind, ...]] = ("contiguous", "padded_rows", "padded_rows", "odd_singletons")

PADS: Final = (1, 2, 3, 5, 8, 16)
_UNPADDED: Final = frozenset[LayoutKind]({"contiguous", "strided_inner", "odd_singletons", "broadcast", "overlapping"})
_ALIGNED_PAD: Final = 8  # a multiple of 8 elements is a multiple of 16 bytes in every dtype


def kinds_for(
    kinds: tuple[LayoutKind, ...], *, packed: bool = False, flat_rows: bool = False
) -> tuple[LayoutKind, ...]:
    """The kinds that a kernel leaves open. `flat_rows`: all but the outermost dimension lie adjacent."""
    if packed:
        return tuple(kind for kind in dict.fromkeys(kinds) if kind in _PACKED_KINDS)
    return _FLAT_KINDS if flat_rows else kinds


def lay(kind: LayoutKind, shape: tuple[int, ...], *, pad: int, offset: int = 0, aligned: bool = False) -> Layout:
    """The layout of one tensor. `aligned`: its first element keeps to an aligned address."""
    if aligned:
        offset = 0
    if kind in _UNPADDED:
        pad = 0
    elif kind in ("transposed", "reversed"):
        pad //= 2  # the plainest is dense
    elif aligned and kind == "sliced":
        pad = 1  # of which nothing lies in front
    elif aligned and kind.startswith("vllm"):
        pad = -(-pad // _ALIGNED_PAD) * _ALIGNED_PAD
    return without_idle_numbers(Layout(kind, pad, offset), shape)


def without_idle_numbers(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """The layout itself, or the contiguous one where that puts every element of `shape` at the same place."""
    if layout.kind == "contiguous":
        return layout
    plain = Layout("contiguous", 0, layout.offset)
    return plain if strides_of(shape, layout) == strides_of(shape, plain) else layout
