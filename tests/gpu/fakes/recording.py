"""A part of the fakes: records operators on CPU tensors, takes their effects back, and runs them when they are due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

__all__ = ["READ_BY_THE_HOST", "Record", "Work", "is_view"]

# What needs a value on the host, or a size that depends on values, waits for the device.
READ_BY_THE_HOST: Final = frozenset({"_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "masked_select"})
_UNDEFINED: Final = 0x5A  # what every byte of a result holds that nothing has been computed into yet


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One operator with its operands. results: what it returned when it was recorded, in order."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Tensor, ...]

    def run(self) -> None:
        """Do it now, on what its operands hold now, into the same memory."""
        given = self.func(*self.args, **self.kwargs)
        for made, result in zip(_tensors(given), self.results, strict=True):
            if made is not result:
                result.copy_(made)


@dataclass(slots=True, eq=False)
class Record:
    """Operators as they were called. They are run, so that each finds sizes and indices to work with, until `undo`."""

    work: list[Work] = field(default_factory=list[Work])
    allocated: list[Tensor] = field(default_factory=list[Tensor])  # [bytes] uint8 each: memory that came with them
    _before: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict[int, "tuple[Tensor, Tensor]"])

    def add(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator, and remember it and what it wrote over."""
        if is_view(func):
            return func(*args, **kwargs)
        for tensor in _written(func, args, kwargs):
            self._remember(tensor)
        given = func(*args, **kwargs)
        results = tuple(_tensors(given))
        operands = _tensors((args, kwargs))
        for result in results:
            if not any(result is operand for operand in operands):
                self.allocated.append(_bytes_of(result))
        if not _allocates_only(func):
            self.work.append(Work(func, args, kwargs, results))
        return given

    def undo(self) -> None:
        """As if nothing had been run: memory that was written holds what it did, and new memory is undefined."""
        for memory in self.allocated:
            memory.fill_(_UNDEFINED)
        for memory, before in self._before.values():
            memory.copy_(before)

    def _remember(self, tensor: Tensor) -> None:
        address = tensor.untyped_storage().data_ptr()
        if address not in self._before and not any(memory.data_ptr() == address for memory in self.allocated):
            memory = _bytes_of(tensor)
            self._before[address] = memory, memory.clone()


def _bytes_of(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The operands that an operator writes, by its schema."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        yield from _tensors(value)


def _tensors(values: Any) -> Sequence[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


@cache
def is_view(func: Any) -> bool:
    """Whether an operator returns a view of what it was given, which takes no work."""
    returns = func._schema.returns
    alias = returns[0].alias_info if returns else None
    return alias is not None and not alias.is_write


def _allocates_only(func: Any) -> bool:
    """Whether an operator hands out memory without writing it."""
    return func._schema.name.startswith(("aten::empty", "aten::new_empty"))
