"""Chooses sizes, strides and tables that keep a declaration's promises, the smallest first."""

from __future__ import annotations

import ast
import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mla_verify.errors import UsageError
from mla_verify.proofs.declaring import Proof
from mla_verify.proofs.expressions import Concrete, names_in, tables_in

__all__ = ["Setting", "Sizer", "offsets_of"]

_SMALL: Final = (1, 2, 3)
_MOST_LISTED: Final = 4000
_MOST_DRAWN: Final = 100_000
_TABLE_TRIES: Final = 12
_LONGEST: Final = (1, 2, 3, 5, 9, 17)  # entries of tables, or what lies between two offsets
_DEFAULT_ENTRIES: Final = 16  # of a table whose length nothing declares


@dataclass(frozen=True, slots=True)
class Setting:
    """One launch's numbers: scalars (sizes and strides) and integer tables, all promises kept."""

    scalars: Mapping[str, int]
    tables: Mapping[str, tuple[int, ...]]


class Sizer:
    """Makes settings for a configuration of a proof, or of several that share names."""

    def __init__(
        self,
        proofs: Sequence[Proof],
        constants: Mapping[str, object],
        parameters: Sequence[str],
        numbers: Sequence[int],
    ) -> None:
        self.proofs = proofs
        self.constants = {name: value for name, value in constants.items() if isinstance(value, int)}
        self.preconditions = [text for proof in proofs for text in proof.preconditions]
        layouts = [layout for proof in proofs for layout in proof.layouts]
        self.layouts = layouts
        texts = [*self.preconditions, *(size for layout in layouts for size in layout.sizes)]
        texts += [extent for proof in proofs for extent in proof.grid]
        texts += [text for proof in proofs for part in proof.ragged for text in (part.count, part.total)]
        texts += [part.below for proof in proofs for part in proof.each]
        named = {name for text in texts for name in names_in(text)}
        inner = {name for proof in proofs for part in proof.each for name in names_in(part.fact) - {part.variable}}
        pointers = {name for proof in proofs for name in proof.pointers}
        self.tables = sorted(
            name
            for proof in proofs
            for name, element in proof.pointers.items()
            if re.fullmatch(r"i(32|64)", element)
            and not any(layout.output for layout in proof.layouts if layout.tensor == name)
        )
        self.tables = list(dict.fromkeys(self.tables))
        strides = {text for layout in layouts for text in layout.strides if text.isidentifier()} - set(self.constants)
        sized = {name for layout in layouts for size in layout.sizes for name in names_in(size)}
        sized |= {name for proof in proofs for extent in proof.grid for name in names_in(extent)}
        self.strides = strides - sized
        derived = dict(filter(None, (_definition(text) for text in self.preconditions)))
        everything = (named | inner | set(parameters)) - pointers - set(self.constants)
        self.derived = {name: text for name, text in derived.items() if name in everything and name not in self.strides}
        free = everything - self.strides - set(self.derived)
        self.free = sorted(
            free, key=lambda name: (list(parameters).index(name) if name in parameters else len(parameters), name)
        )
        limits = {
            bound
            for number in numbers
            if 2 <= number <= 1024
            for bound in (number - 1, number, number + 1, 2 * number + 1)
        }
        self.values = sorted({0, *_SMALL, *limits})

    def settings(self, seed: int) -> Iterator[Setting]:
        """Settings without end but for repeats: the smallest first under seed 0, drawn at random under any other."""
        rng = random.Random(seed)
        for scalars in self._scalars(rng) if seed == 0 else self._drawn(rng):
            yield from self.completed(scalars, rng, tries=3 if self.tables else 1)

    def completed(self, free: Mapping[str, int], rng: random.Random, *, tries: int) -> Iterator[Setting]:
        """Settings with these values of the free names."""
        for mode in range(4):
            scalars = self._with_strides(dict(free), mode)
            if scalars is None:
                continue
            for number in range(tries):  # tables of zeros first, then ever other ones
                tables = self._tables(scalars, rng, longest=0 if number == 0 else rng.choice(_LONGEST))
                if tables is not None:
                    yield Setting(scalars, tables)
            return

    def _scalars(self, rng: random.Random) -> Iterator[dict[str, int]]:
        names = self.free
        small = [*_SMALL, 0]
        seen: set[tuple[int, ...]] = set()

        def fresh(values: tuple[int, ...]) -> bool:
            new = values not in seen
            seen.add(values)
            return new

        combinations: Sequence[tuple[int, ...]]
        if len(small) ** len(names) <= _MOST_LISTED:
            combinations = sorted(
                itertools.product(small, repeat=len(names)), key=lambda values: (sum(values), max(values, default=0))
            )
            head, tail = combinations[:40], combinations[40:]
        else:
            head, tail = [(1,) * len(names)], []
        for values in head:
            if fresh(values):
                yield dict(zip(names, values, strict=True))
        for name in names:  # one size at a time at each boundary
            for value in self.values:
                values = tuple(value if other == name else 1 for other in names)
                if fresh(values):
                    yield dict(zip(names, values, strict=True))
        for value in self.values:
            values = (value,) * len(names)
            if fresh(values):
                yield dict(zip(names, values, strict=True))
        for values in tail:
            if fresh(values):
                yield dict(zip(names, values, strict=True))
        yield from self._drawn(rng)

    def _drawn(self, rng: random.Random) -> Iterator[dict[str, int]]:
        for _ in range(_MOST_DRAWN):
            one = rng.choice(self.values)  # sizes that are large together reach what no single one does
            yield {
                name: one if rng.random() < 0.3 else rng.choice(self.values if rng.random() < 0.3 else _SMALL)
                for name in self.free
            }

    def _with_strides(self, scalars: dict[str, int], mode: int) -> dict[str, int] | None:
        """Scalars with what follows from them: strides with gaps, padded, packed, or with the first axis inside."""
        try:
            for name, text in self.derived.items():
                scalars[name] = self._number(text, scalars)
            for layout in self.layouts:
                reach = (2, 1, 1, 1)[mode]
                axes = range(len(layout.strides))
                for axis in axes if mode == 3 else reversed(axes):
                    text, size = layout.strides[axis], self._number(layout.sizes[axis], scalars)
                    if text in self.strides and text not in scalars:
                        scalars[text] = reach
                    stride = abs(self._number(text, scalars))
                    reach = max(reach, stride * max(size, 1) + (3 if mode in (0, 1) else 0))
            scalars.update({name: 1 for name in self.strides if name not in scalars})
            reader = Concrete({**scalars, **self.constants}, {})
            kept = all(reader.read(text) for text in self.preconditions if not tables_in(text))
        except (ZeroDivisionError, LookupError):
            return None
        return scalars if kept and all(size >= 0 for size in self._sizes(scalars)) else None

    def _number(self, text: str, scalars: Mapping[str, int]) -> int:
        return int(Concrete({**scalars, **self.constants}, {}).read(text))

    def _sizes(self, scalars: Mapping[str, int]) -> Iterator[int]:
        for layout in self.layouts:
            for size in layout.sizes:
                yield self._number(size, scalars)

    def _tables(
        self, scalars: Mapping[str, int], rng: random.Random, *, longest: int
    ) -> dict[str, tuple[int, ...]] | None:
        if not self.tables:
            return {}
        for attempt in range(_TABLE_TRIES):
            tables = self._drawn_tables(scalars, rng, longest=max(longest - attempt, min(attempt, 2)))
            if tables is not None and self.kept(Setting(scalars, tables)):
                return {name: tuple(held) for name, held in tables.items()}
        return None

    def _drawn_tables(
        self, scalars: Mapping[str, int], rng: random.Random, *, longest: int
    ) -> dict[str, tuple[int, ...]] | None:
        tables: dict[str, list[int]] = {}
        for proof in self.proofs:
            for ragged in proof.ragged:
                if ragged.table in tables:
                    continue
                count, total = self._number(ragged.count, scalars), self._number(ragged.total, scalars)
                offsets = [0]
                for _ in range(count):
                    most = max(0, min(total - offsets[-1], longest))
                    offsets.append(offsets[-1] + rng.randint(0, most))
                tables[ragged.table] = offsets
        for name in self.tables:
            if name not in tables:
                length = self._length(name, scalars)
                tables[name] = [rng.randint(0, longest) for _ in range(length)]
        promises = [part for proof in self.proofs for part in proof.each]
        candidates = sorted({0, 1, 2, longest, *(value for value in scalars.values() if 0 <= value <= 64)})
        for promise in promises:
            for at in range(int(Concrete({**scalars, **self.constants}, tables).read(promise.below))):
                if not self._mend(promise.fact, promise.variable, at, scalars, tables, candidates, rng):
                    return None
        return {name: tuple(held) for name, held in tables.items()}

    def _mend(
        self,
        fact: str,
        variable: str,
        at: int,
        scalars: Mapping[str, int],
        tables: dict[str, list[int]],
        candidates: Sequence[int],
        rng: random.Random,
    ) -> bool:
        """Change entries that are no offsets until a promise holds at one place."""
        ragged = {part.table for proof in self.proofs for part in proof.ragged}
        loose = sorted(tables_in(fact) - ragged)

        def holds() -> bool:
            try:
                return bool(Concrete({**scalars, **self.constants, variable: at}, tables).read(fact))
            except LookupError:
                return False

        if holds():
            return True
        for name in loose:
            if at < len(tables[name]):
                for value in rng.sample(candidates, len(candidates)):
                    tables[name][at] = value
                    if holds():
                        return True
        return False

    def _length(self, table: str, scalars: Mapping[str, int]) -> int:
        for layout in self.layouts:
            if layout.tensor == table:
                sizes = [self._number(size, scalars) for size in layout.sizes]
                strides = [abs(self._number(stride, scalars)) for stride in layout.strides]
                reach = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1
                return reach if all(sizes) else 0
        for proof in self.proofs:
            for part in proof.each:
                if table in tables_in(part.fact) and not tables_in(part.below):
                    return self._number(part.below, scalars) + 1
        return _DEFAULT_ENTRIES

    def kept(self, setting: Setting) -> bool:
        """Whether every promise holds."""
        names = {**setting.scalars, **self.constants}
        reader = Concrete(names, setting.tables)
        try:
            if not all(reader.read(text) for text in self.preconditions):
                return False
            for proof in self.proofs:
                for ragged in proof.ragged:
                    held, count = setting.tables[ragged.table], int(reader.read(ragged.count))
                    if held[0] != 0 or list(held) != sorted(held) or held[count] > reader.read(ragged.total):
                        return False
                for promise in proof.each:
                    for at in range(int(reader.read(promise.below))):
                        if not Concrete({**names, promise.variable: at}, setting.tables).read(promise.fact):
                            return False
        except LookupError:
            return False
        return True


def _definition(text: str) -> tuple[str, str] | None:
    """(name, expression) of a promise `name == expression`."""
    node = ast.parse(text.strip(), mode="eval").body
    if (
        isinstance(node, ast.Compare)
        and len(node.ops) == 1
        and isinstance(node.ops[0], ast.Eq)
        and isinstance(node.left, ast.Name)
    ):
        right = ast.unparse(node.comparators[0])
        if node.left.id not in names_in(right) and not tables_in(right):
            return node.left.id, right
    return None


def offsets_of(sizes: Sequence[int], strides: Sequence[int]) -> NDArray[np.int64]:
    """[*sizes] the offset of every element. Raises UsageError where two elements share one."""
    total = np.zeros(tuple(sizes), dtype=np.int64)
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        shape = [1] * len(sizes)
        shape[axis] = size
        total = total + (np.arange(size, dtype=np.int64) * stride).reshape(shape)
    if np.unique(total).size != total.size:
        raise UsageError(
            f"a layout of sizes {tuple(sizes)} and strides {tuple(strides)} puts two elements at one address"
        )
    return total
