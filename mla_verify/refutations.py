"""Refutations as files: a launch that breaks what a proof was to show, saved as mere data and launched again."""

from __future__ import annotations

import hashlib
import importlib
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, cast

from mla_verify.cases import REFUTATION_SUFFIX, make_folder, write_whole
from mla_verify.errors import UsageError
from mla_verify.proofs.declaring import Flow, Proof
from mla_verify.proofs.lowering import resolve
from mla_verify.proofs.proving import scene_of
from mla_verify.proofs.replaying import Result, reenact
from mla_verify.proofs.verdicts import PROPERTIES, Property, Verdict

__all__ = [
    "OWN",
    "Refutation",
    "declarations_of",
    "declared_names",
    "is_refutation",
    "launch_again",
    "launchable",
    "load_refutation",
    "save_refutation",
    "sizes_text",
]

OWN: Final = "mla_verify.kernels.triton_proofs"  # the declarations of registered kernels
_FORMAT: Final = "mla-verify refutation 1"
_LARGEST: Final = 4 * 2**20  # bytes
_COMPUTED: Final = ("defined", "overflow", "grid")  # no launch shows it, or at sizes whose memory is not there


@dataclass(frozen=True, slots=True, kw_only=True)
class Refutation:
    """One property of one configuration of a declared kernel, and a launch that breaks it.

    target: what the declaration was named by. Nothing is ever imported because a file names it.
    """

    target: str
    name: str
    constexprs: Mapping[str, int | bool | str | None]
    property: Property
    tensor: str
    sizes: Mapping[str, int]
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, "tuple[int, ...]"])
    detail: str = ""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])


def declared_names() -> tuple[str, ...]:
    """Registered kernels that have a declaration."""
    return tuple(importlib.import_module(OWN).DECLARED)


def declarations_of(target: str) -> dict[str, Proof | Flow]:
    """What `target` declares, by reference: a registered kernel's declarations, or those at module:NAME, file.py:NAME.

    Raises UsageError where there is none.
    """
    registered: Mapping[str, tuple[str, ...]] = importlib.import_module(OWN).DECLARED
    if target not in registered and ":" not in target:
        raise UsageError(
            f"{target!r} has no declaration for a proof; those that have one: {', '.join(registered)}; for a "
            "kernel of your own write one and name it as file.py:NAME (docs/proofs.md)"
        )
    found: dict[str, Proof | Flow] = {}
    for reference in [f"{OWN}:{name}" for name in registered.get(target, ())] or [target]:
        held = resolve(reference)
        parts = list(cast("tuple[object, ...]", held)) if isinstance(held, tuple | list) else [held]
        for number, part in enumerate(parts):
            if not isinstance(part, Proof | Flow):
                raise UsageError(f"{reference} is a {type(part).__name__}, wanted a mla_verify.proofs.Proof or Flow")
            found[reference if len(parts) == 1 else f"{reference}[{number}]"] = part
    return found


# Files


def save_refutation(refutation: Refutation, folder: Path) -> Path:
    """Write a refutation into `folder`. Its path."""
    make_folder(folder)
    versions = {"python": platform.python_version(), "triton": _version("triton"), "z3-solver": _version("z3-solver")}
    text = json.dumps({"format": _FORMAT, **asdict(refutation), "versions": versions}, indent=2)
    about = f"{refutation.name}-{refutation.property}-{refutation.tensor}"
    stem = "".join(char if char.isalnum() or char in "._-" else "-" for char in about)
    path = folder / f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}{REFUTATION_SUFFIX}"
    write_whole(path, text + "\n")
    return path


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def is_refutation(path: Path) -> bool:
    """Whether a file says that it is one, whatever else is wrong with it."""
    data = _read(path)
    return isinstance(data, dict) and cast("dict[str, object]", data).get("format") == _FORMAT


def load_refutation(path: Path) -> Refutation:
    """Read a refutation. Raises UsageError with one sentence for whatever is not a whole one."""
    data = _read(path)
    if not isinstance(data, dict) or cast("dict[str, object]", data).get("format") != _FORMAT:
        raise UsageError(f"{path} is no refutation, wanted a file that `mla-verify prove --cases` has written")
    values = {name: value for name, value in cast("dict[str, Any]", data).items() if name != "format"}
    for part in fields(Refutation):
        right = _RIGHT.get(part.name, _is_text)
        if part.name not in values or not right(values[part.name]):
            raise UsageError(f"{path} is no whole refutation: its {part.name} is {str(values.get(part.name))[:80]!r}")
    unknown = sorted(set(values) - {part.name for part in fields(Refutation)})
    if unknown:
        raise UsageError(f"{path} is no refutation of this version: it holds {', '.join(unknown)[:200]}")
    values["tables"] = {name: tuple(held) for name, held in values["tables"].items()}
    return Refutation(**values)


def _read(path: Path) -> object:
    """What JSON a file holds; None for a file that holds none."""
    try:
        if path.stat().st_size > _LARGEST:
            return None
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _maps(value: object, right: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(map(right, cast("dict[str, object]", value).values()))


_RIGHT: Final[Mapping[str, Callable[[object], bool]]] = {
    "constexprs": lambda value: _maps(value, lambda part: part is None or isinstance(part, int | str)),
    "property": lambda value: isinstance(value, str) and value in PROPERTIES,
    "sizes": lambda value: _maps(value, _is_number),
    "tables": lambda value: _maps(
        value, lambda part: isinstance(part, list) and all(map(_is_number, cast("list[object]", part)))
    ),
    "versions": lambda value: _maps(value, _is_text),
}


# Launching


def launchable(refutation: Refutation) -> bool:
    """Whether a launch can show it; what is undefined, overflow and the grid's limits are computed instead."""
    return refutation.property not in _COMPUTED


def launch_again(refutation: Refutation, *, target: str) -> Result:
    """Launch a refutation on what `target` declares now. Raises UsageError where it declares no such thing."""
    if not launchable(refutation):
        raise UsageError(
            f"{refutation.property} is computed, and no launch shows it: decide it again with mla-verify prove {target}"
        )
    parts = {part.name: part for part in declarations_of(target).values()}
    part = parts.get(refutation.name)
    if part is None:
        raise UsageError(f"{target} declares no {refutation.name[:200]!r}; it declares {', '.join(parts)}")
    proofs = (part.producer, part.consumer) if isinstance(part, Flow) else (part,)
    constants: list[dict[str, Any]] = []
    for proof in proofs:
        missing = sorted(set(proof.configurations[0]) - set(refutation.constexprs))
        if missing:
            raise UsageError(f"{proof.name} takes the constexpr {missing[0]} now, of which the refutation says nothing")
        constants.append({name: refutation.constexprs[name] for name in proof.configurations[0]})
    verdict = Verdict(
        refutation.property, "refuted", refutation.tensor, "", dict(refutation.sizes), dict(refutation.tables)
    )
    return reenact([scene_of(proofs, constants, verdict)])[0]


def sizes_text(refutation: Refutation) -> str:
    """Where it shows, on one line."""
    sizes = [f"{name}={value}" for name, value in refutation.sizes.items()]
    return ", ".join([*sizes, *(f"{name}={list(held)}" for name, held in refutation.tables.items())])
