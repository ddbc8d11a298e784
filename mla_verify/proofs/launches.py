"""Compares a declaration with launches that happen: grid, sizes, strides, constexprs and promises.

A proof is about the declared launch. What the caller really passes is seen in the interpreter, where the registered
kernel runs on drawn problems.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mla_verify.errors import UsageError
from mla_verify.proofs.children import ChildFailed, answer_of
from mla_verify.proofs.declaring import Layout, Proof
from mla_verify.proofs.expressions import Concrete, tables_in

__all__ = ["Seen", "complaints", "launches_of", "seen_launches"]

_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One launch of a jitted function: its arguments by name, tensors included, and its grid."""

    function: str
    arguments: Mapping[str, Any]
    grid: tuple[int, int, int]


@contextlib.contextmanager
def seen_launches(look: Callable[[Seen], None]) -> Generator[None, None, None]:
    """Have `look` see every interpreted launch within the context, before it happens: memory is used again later."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    stock = interpreter.GridExecutor.__call__

    def call(executor: Any, *arguments: Any, **named: Any) -> Any:
        given = {**dict(zip(executor.arg_names, arguments, strict=False)), **named}
        grid: Any = executor.grid
        grid = grid(given) if callable(grid) else grid
        x, y, z = [*grid, 1, 1][:3]
        look(Seen(executor.fn.__name__, given, (x, y, z)))
        return stock(executor, *arguments, **named)

    interpreter.GridExecutor.__call__ = call
    try:
        yield
    finally:
        interpreter.GridExecutor.__call__ = stock


def complaints(proof: Proof, launch: Seen) -> list[str]:
    """In what a launch is not the declared one."""
    names: dict[str, Any] = {name: int(value) for name, value in launch.arguments.items() if isinstance(value, int)}
    tables = {
        name: launch.arguments[name].flatten().tolist()
        for name, element in proof.pointers.items()
        if element in ("i32", "i64") and launch.arguments.get(name) is not None
    }
    wrong = [f"the kernel takes {name}, which the launch does not pass" for name in _missing(proof, launch)]
    _learn_sizes(proof, launch, names)
    x, y, z = launch.grid
    for text, extent in zip(proof.grid, (x, y, z), strict=False):
        names.setdefault(text, extent) if text.isidentifier() else None
    for ragged in proof.ragged:  # of a tensor that this kernel is not given
        if ragged.total.isidentifier() and ragged.total not in names and ragged.count in names:
            names[ragged.total] = tables[ragged.table][names[ragged.count]]
    reader = Concrete(names, tables)
    wrong += [
        f"axis {axis} of the grid is declared as {text} = {reader.read(text)} and is {extent}"
        for axis, text, extent in zip("xyz", proof.grid, launch.grid, strict=False)
        if reader.read(text) != extent
    ]
    if any(extent != 1 for extent in launch.grid[len(proof.grid) :]):
        wrong.append(f"the grid {launch.grid} has more axes than the {len(proof.grid)} declared")
    for layout in proof.layouts:
        wrong += _layout_complaints(layout, launch.arguments[layout.tensor], reader)
    wrong += [f"the launch breaks the promise {text}" for text in proof.preconditions if not reader.read(text)]
    wrong += _table_complaints(proof, names, tables)
    return wrong


def _meant(proof: Proof, launch: Seen) -> bool:
    """Whether the constexprs that all configurations agree in, numbers and truths, are those of the launch."""
    first = proof.configurations[0]
    fixed = [name for name in first if all(part[name] == first[name] for part in proof.configurations)]
    return all(first[name] == launch.arguments.get(name) for name in fixed if isinstance(first[name], int))


def _missing(proof: Proof, launch: Seen) -> list[str]:
    return sorted({*proof.pointers, *proof.configurations[0]} - set(launch.arguments))


def _learn_sizes(proof: Proof, launch: Seen, names: dict[str, Any]) -> None:
    """A size that only the declaration names is what the tensors say."""
    for layout in proof.layouts:
        axes = _axes(layout, launch.arguments[layout.tensor])
        if len(axes) == len(layout.sizes):
            for text, (size, _) in zip(layout.sizes, axes, strict=True):
                if text.isidentifier():
                    names.setdefault(text, size)


def _axes(layout: Layout, tensor: Any) -> list[tuple[int, int]]:
    """(size, stride) of each axis; of more axes than are declared, those of size 1 are none, the last ones first."""
    axes = list(zip(tensor.shape, tensor.stride(), strict=True))
    for axis in reversed(range(len(axes))):
        if len(axes) > len(layout.sizes) and axes[axis][0] == 1:
            del axes[axis]
    return axes


def _layout_complaints(layout: Layout, tensor: Any, reader: Concrete) -> list[str]:
    """Sizes and strides, axes of size 1 aside: their stride says nothing."""
    declared = [
        (int(reader.read(size)), int(reader.read(stride)))
        for size, stride in zip(layout.sizes, layout.strides, strict=True)
    ]
    found = _axes(layout, tensor)
    if 0 in tensor.shape and 0 in [size for size, _ in declared]:
        return []
    if [part for part in declared if part[0] != 1] == [part for part in found if part[0] != 1]:
        return []
    reach = sum((size - 1) * stride for size, stride in declared) + 1
    held = sum((size - 1) * stride for size, stride in found) + 1
    if not layout.output and len(declared) == 1 and reach <= held and declared[0][1] == found[0][1]:
        return []  # a table with a tail that is never read
    return [f"{layout.tensor} is declared with (size, stride) {declared} and has {found}"]


def _table_complaints(proof: Proof, names: Mapping[str, Any], tables: Mapping[str, Sequence[int]]) -> list[str]:
    wrong: list[str] = []
    reader = Concrete(names, tables)
    for ragged in proof.ragged:
        count = int(reader.read(ragged.count))
        held = list(tables[ragged.table][: count + 1])
        if held[0] != 0 or held != sorted(held) or held[-1] > reader.read(ragged.total):
            wrong.append(f"the launch breaks the promise {ragged}")
    for promise in proof.each:
        for at in range(int(reader.read(promise.below))):
            if tables_in(promise.fact) and not Concrete({**names, promise.variable: at}, tables).read(promise.fact):
                wrong.append(f"the launch breaks the promise {promise} at {at}")
                break
    return wrong


def launches_of(kernel: str, proofs: Sequence[str], *, problems: int = 8) -> list[str]:
    """Complaints about the declarations `proofs` (`module:name`) from a registered kernel's launches, in a child."""
    try:
        return answer_of(__name__, [kernel, list(proofs), problems], interprets=True, seconds=_SECONDS)
    except ChildFailed as error:
        raise UsageError(f"{kernel} could not be launched: {str(error).splitlines()[-1]}") from error


def _main() -> None:
    from mla_verify.check import check
    from mla_verify.proofs.lowering import resolve
    from mla_verify.registry import resolve as registered

    kernel, references, problems = json.load(sys.stdin)
    proofs: list[Proof] = [resolve(reference) for reference in references]
    found: dict[str, None] = {}
    launched: set[str] = set()

    def look(launch: Seen) -> None:
        for proof in proofs:
            if proof.kernel.rpartition(":")[2] == launch.function and _meant(proof, launch):
                launched.add(proof.name)
                found.update({f"{proof.name}: {text}": None for text in complaints(proof, launch)})

    with seen_launches(look):
        check(registered(kernel), examples=problems, seed=0, isolation="none", sequences=False)
    found.update({f"{proof.name}: no problem launched it": None for proof in proofs if proof.name not in launched})
    print(json.dumps(list(found)))


if __name__ == "__main__":
    _main()
