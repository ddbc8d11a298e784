"""What the arena is told about one tensor: how it lies, what it holds, which of its elements mean something."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

import torch
from torch import Tensor

__all__ = ["ELEMENT_RULES", "Element", "Fills", "Role", "TensorPlan"]

Role = Literal["input", "output", "workspace"]


class Element(IntEnum):
    """What a kernel owes to one element of an output."""

    DETERMINED = 0  # must be written, from the inputs alone
    WRITTEN = 1  # must be written, with anything
    UNTOUCHED = 2  # must keep what it held (containment)
    FREE = 3  # no promise


ELEMENT_RULES: Final = tuple(Element)


@dataclass(frozen=True, slots=True)
class Fills:
    """What memory that is no declared input holds under each secret: a number, or one of two words.

    "nan" is a NaN in the buffer's dtype (0x80 for the fnuz formats; −1 for integers, True for bool).
    "ordinary" is finite and differs from place to place; "ordinary2" is the same with other numbers.
    """

    a: float | Literal["nan", "ordinary", "ordinary2"] = "nan"
    b: float | Literal["nan", "ordinary", "ordinary2"] = "ordinary"
    z: float | Literal["nan", "ordinary", "ordinary2"] = 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TensorPlan:
    """One tensor of a problem.

    name: what findings call it.
    shape, strides: in elements; a stride may be 0.
    offset: elements between an address aligned to 64 bytes and the first element.
    values: [shape], any strides, of `dtype`: what an input holds. None for outputs and workspaces.
    live: bool, broadcastable to shape: the elements of an input that are declared; the rest is secret. None: all.
    rules: uint8 `Element` values, broadcastable to shape, for outputs. None: every element is DETERMINED.
    fills: what the secrets put into the gaps and the elements that are not live.
    guard: bytes at least on either side.
    form: "view" lies in the arena among its neighbours; "owner" has its own storage of exactly its extent.
    over: the name of an earlier plan whose first element this tensor's `offset` counts from instead: it lies on top.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    role: Role
    offset: int = 0
    values: Tensor | None = None
    live: Tensor | None = None
    rules: Tensor | None = None
    fills: Fills = Fills()
    guard: int = 64
    form: Literal["view", "owner"] = "view"
    over: str | None = None
