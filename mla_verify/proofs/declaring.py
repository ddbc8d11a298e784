"""What a proof is about: a kernel, its grid, the layout of its tensors and what its caller promises, all of it data.

Sizes, strides, grids and promises are written as expressions in the names of the kernel's parameters, its constexprs
and further sizes that only the declaration names: `cdiv(num_tokens, BLOCK) * num_heads`, `table[b] <= table[b + 1]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Each", "Flow", "Layout", "Proof", "Ragged"]


@dataclass(frozen=True, slots=True)
class Layout:
    """One tensor: sizes and strides, outermost first. That distinct indices have distinct addresses is the caller's.

    A stride is a parameter, a number or a product of them. `live` (in terms of `index`) narrows the elements of an
    output that are written, and that may be.
    """

    tensor: str
    sizes: tuple[str, ...]
    strides: tuple[str, ...]
    output: bool = False
    index: tuple[str, ...] = ()
    live: str = ""
    covered: bool = True  # whether an output has to be written completely

    @property
    def names(self) -> tuple[str, ...]:
        """What indices are called in `live`."""
        return self.index or tuple(f"index_{axis}" for axis in range(len(self.sizes)))


@dataclass(frozen=True, slots=True)
class Each:
    """A promise about tables: `fact` holds for every `variable` from 0 up to, not including, `below`."""

    variable: str
    below: str
    fact: str

    def __str__(self) -> str:
        return f"{self.fact} for every {self.variable} < {self.below}"


@dataclass(frozen=True, slots=True)
class Ragged:
    """A table of `count` + 1 offsets that starts at 0, never falls and ends at no more than `total`."""

    table: str
    count: str
    total: str

    def __str__(self) -> str:
        return f"{self.table}[0] = 0, {self.table} does not fall up to {self.table}[{self.count}] <= {self.total}"


@dataclass(frozen=True, slots=True)
class Proof:
    """Everything about one kernel that a proof needs. `kernel` is `module:function` or `file.py:function`."""

    name: str
    kernel: str
    pointers: Mapping[str, str]  # parameter → element: "fp32", "bf16", "i32", …
    configurations: tuple[Mapping[str, int | bool | str | None], ...]  # constexprs
    grid: tuple[str, ...]
    layouts: tuple[Layout, ...]
    preconditions: tuple[str, ...] = ()
    each: tuple[Each, ...] = ()
    ragged: tuple[Ragged, ...] = ()
    scalars: Mapping[str, str] = field(default_factory=dict[str, str])  # parameters that are no i32: "fp32", "i64"
    most: Mapping[str, int] = field(default_factory=dict[str, int])  # largest sizes and table entries, for `overflow`

    @property
    def outputs(self) -> tuple[Layout, ...]:
        """The tensors that the kernel writes."""
        return tuple(layout for layout in self.layouts if layout.output)

    @property
    def promises(self) -> tuple[str, ...]:
        """What the caller has to keep, in words."""
        return (*self.preconditions, *map(str, self.ragged), *map(str, self.each))


@dataclass(frozen=True, slots=True)
class Flow:
    """That of `tensors` the consumer loads nothing that the producer has not stored. Equal names are equal things."""

    name: str
    producer: Proof
    consumer: Proof
    tensors: tuple[str, ...]
