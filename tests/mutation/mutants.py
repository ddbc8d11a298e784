"""The mutants that mutmut has written down: what each of them changes, its lasting name, and how some are drawn."""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Mutant", "drawn", "row", "written"]

_ORIGINAL: Final = "__mutmut_orig"
_CLASS: Final = "ǁ"  # mutmut's separator in the names of methods
_DIGITS: Final = 10  # of a key: enough that ten thousand mutants share none


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one function.

    key: follows from the function and the lines that change, so it outlives changes elsewhere in the function.
    name: mutmut's own, a number within the function. function: as a person would write it.
    """

    key: str
    name: str
    module: str
    function: str
    removed: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def tested_as(self) -> str:
        """The name under which mutmut keeps which tests call the function."""
        return self.name.partition("__mutmut_")[0]


def written(root: Path) -> list[Mutant]:
    """Every mutant below `root`, in mutmut's order."""
    found: list[Mutant] = []
    for meta in sorted(root.rglob("*.py.meta")):
        path = meta.with_suffix("")
        names: list[str] = list(json.loads(meta.read_text())["exit_code_by_key"])
        if names:
            found += _of_module(path.read_text(), names)
    return found


def _of_module(source: str, names: Sequence[str]) -> list[Mutant]:
    lines = source.splitlines()
    spans = {
        node.name: lines[node.lineno - 1 : node.end_lineno]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    seen: Counter[str] = Counter()
    found: list[Mutant] = []
    for name in names:
        module, _, mangled = name.rpartition(".")
        base = mangled.partition("__mutmut_")[0]
        removed, added = _difference(
            [line.replace(base + _ORIGINAL, base) for line in spans[base + _ORIGINAL]],
            [line.replace(mangled, base) for line in spans[mangled]],
        )
        function = f"{module}.{base.removeprefix('x' + _CLASS).replace(_CLASS, '.').removeprefix('x_')}"
        change = "\n".join([function, *removed, "", *added])
        seen[change] += 1
        key = hashlib.sha256(f"{change}\n{seen[change]}".encode()).hexdigest()[:_DIGITS]
        found.append(Mutant(key, name, module, function, removed, added))
    return found


def _difference(before: Sequence[str], after: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines that are only in one of two functions, without their indentation."""
    removed: list[str] = []
    added: list[str] = []
    for kind, first, last, start, end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            removed += [line.strip() for line in before[first:last]]
            added += [line.strip() for line in after[start:end]]
    return tuple(removed), tuple(added)


def drawn(mutants: Iterable[Mutant], *, count: int, seed: int) -> list[Mutant]:
    """`count` mutants at random. One that is still drawn when the code around it has changed is the same one.

    They are those with the smallest digests of seed and key: a change of one function exchanges its own alone.
    """
    return sorted(mutants, key=lambda mutant: hashlib.sha256(f"{seed}:{mutant.key}".encode()).digest())[:count]


def row(mutant: Mutant) -> str:
    """A line of the tables in docs/mutation.md."""
    removed, added = (" ⏎ ".join(lines).replace("|", "\\|") for lines in (mutant.removed, mutant.added))
    return f"| `{mutant.key}` | `{mutant.function}` | `` {removed} `` → `` {added} `` |"
