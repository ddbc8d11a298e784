"""Stores outside a tensor, within the memory that its storage owns: what a kernel with a wrong index does."""

from __future__ import annotations

from torch import Tensor

__all__ = ["store_behind", "store_in_row_gaps"]


def store_behind(tensor: Tensor) -> None:
    """Store one zero behind the last element. A tensor that ends with its storage is left alone."""
    _store_zeros(tensor, first=_extent(tensor), stride=1, many=1)


def store_in_row_gaps(tensor: Tensor) -> None:
    """Store one zero behind each row but the last, where rows have a gap between them."""
    row = _extent(tensor[:1])
    if tensor.shape[0] >= 2 and tensor.stride(0) > row:
        _store_zeros(tensor, first=row, stride=tensor.stride(0), many=tensor.shape[0] - 1)


def _extent(tensor: Tensor) -> int:
    """Elements from a tensor's first one to the one behind its last; 0 where it has none."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _store_zeros(tensor: Tensor, *, first: int, stride: int, many: int) -> None:
    start = tensor.storage_offset() + first
    room = tensor.untyped_storage().nbytes() // tensor.element_size()
    if first and start + (many - 1) * stride < room:
        tensor.as_strided((many,), (stride,), start).zero_()
