"""Reaches outside a tensor, within the memory that its storage owns: what a kernel with a wrong index does."""

from __future__ import annotations

import ctypes

from torch import Tensor

__all__ = ["as_packed", "packed_strides", "read_beside", "store_behind", "store_in_row_gaps"]


def store_behind(tensor: Tensor) -> None:
    """Store one zero behind the last element. A tensor that ends with its storage is left alone."""
    _store_zeros(tensor, first=_extent(tensor), stride=1, many=1)


def store_in_row_gaps(tensor: Tensor) -> None:
    """Store one zero behind each row but the last, where rows have a gap between them."""
    row = _extent(tensor[:1])
    if tensor.shape[0] >= 2 and tensor.stride(0) > row:
        _store_zeros(tensor, first=row, stride=tensor.stride(0), many=tensor.shape[0] - 1)


def packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor without gaps."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def as_packed(tensor: Tensor) -> Tensor:
    """The same elements taken for adjacent; the tensor itself where its storage is too short for that."""
    room = tensor.untyped_storage().nbytes() // tensor.element_size()
    if tensor.storage_offset() + tensor.numel() > room:
        return tensor
    return tensor.as_strided(tensor.shape, packed_strides(tuple(tensor.shape)))


def read_beside(tensor: Tensor, *, behind: bool) -> None:
    """Read the element behind the last one, or the one before the first, and do nothing with it; on a CPU only."""
    if tensor.numel() and tensor.device.type == "cpu":
        distance = _extent(tensor) if behind else -1
        ctypes.string_at(tensor.data_ptr() + distance * tensor.itemsize, tensor.itemsize)


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
