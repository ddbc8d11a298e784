"""Looks for a launch at small sizes that breaks a property, and makes it smaller."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mla_verify.proofs.declaring import Layout, Proof
from mla_verify.proofs.expressions import Concrete
from mla_verify.proofs.model import Model
from mla_verify.proofs.simulating import Launch, TooMuch, run_program
from mla_verify.proofs.sizing import Setting, Sizer, offsets_of
from mla_verify.proofs.verdicts import OutOfClass, Property
from mla_verify.proofs.widths import GRID_LIMITS

__all__ = ["Breach", "Found", "at_largest", "breaches_at", "grid_at", "launch_all", "search", "shrink", "sizer_of"]

_MOST_PROGRAMS: Final = 600
_MOST_LANES: Final = 4_000_000  # over all programs
_NUMBER: Final = re.compile(r"\b\d+\b")

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Breach:
    """One property that one launch broke, and the first place where."""

    property: Property
    tensor: str
    detail: str


@dataclass(slots=True)
class Found:
    """What a search came to: the first setting for each broken property, and how much it has tried."""

    breaches: dict[tuple[Property, str], tuple[Breach, Setting]] = field(
        default_factory=dict["tuple[Property, str]", "tuple[Breach, Setting]"]
    )
    launches: int = 0  # settings that keep all promises and launch at least one program
    stored: dict[str, int] = field(default_factory=dict["str", "int"])  # elements, by tensor, over all of them
    lost: OutOfClass | None = None


def sizer_of(models: Sequence[Model]) -> Sizer:
    """What chooses settings for one kernel, or for two that belong together."""
    constants: dict[str, Any] = {}
    parameters: dict[str, None] = {}
    numbers: set[int] = set()
    for model in models:
        constants.update(model.constants)
        kinds = dict(zip(model.names, (kind for _, kind in model.function.arguments), strict=True))
        parameters.update({name: None for name, kind in kinds.items() if kind.bits})
        numbers |= {int(value) for value in model.constants.values() if isinstance(value, int)}
        for lane in (lane for site in model.program.sites for lane in site.lanes):
            numbers.add(lane.args[0])
        for text in model.proof.preconditions:
            numbers |= {int(number) for number in _NUMBER.findall(text)}
    return Sizer([model.proof for model in models], constants, list(parameters), sorted(numbers))


def grid_at(proof: Proof, names: Mapping[str, Any]) -> tuple[int, int, int]:
    """The grid at given sizes."""
    reader = Concrete(names, {})
    extents = [int(reader.read(extent)) for extent in proof.grid]
    x, y, z = [*extents, 1, 1][:3]
    return x, y, z


@dataclass(slots=True)
class Traffic:
    """Every access of one launch, by tensor: offsets, and the number of the program."""

    stored: dict[str, list[tuple[int, Array]]] = field(default_factory=dict["str", "list[tuple[int, Array]]"])
    loaded: dict[str, list[tuple[int, Array]]] = field(default_factory=dict["str", "list[tuple[int, Array]]"])
    strange: list[tuple[str, str]] = field(default_factory=list["tuple[str, str]"])
    lines: dict[str, str] = field(default_factory=dict["str", "str"])


def launch_all(model: Model, setting: Setting) -> Traffic | None:
    """Run every program of a launch; None where the grid is empty. Raises TooMuch, OutOfClass."""
    x, y, z = grid_at(model.proof, {**setting.scalars, **_integers(model.constants)})
    programs = x * y * z
    lanes = max((int(np.prod([lane.args[0] for lane in site.lanes])) for site in model.program.sites), default=1)
    if programs > _MOST_PROGRAMS or programs * lanes > _MOST_LANES:
        raise TooMuch
    traffic = Traffic()
    if min(x, y, z) <= 0:
        return traffic
    launch = Launch(setting.scalars, setting.tables, (x, y, z))
    for number in range(programs):
        at = (number % x, number // x % y, number // (x * y))
        for access in run_program(model.function, model.names, launch, at):
            side = traffic.stored if access.stores else traffic.loaded
            side.setdefault(access.base, []).append((number, access.offsets.ravel()))
            traffic.lines.setdefault(access.base, access.line)
    traffic.strange = launch.strange
    return traffic


def search(
    models: Sequence[Model],
    *,
    seconds: float,
    launches: int = 1_000_000,
    seed: int = 0,
    flows: Sequence[str] = (),
    stop_at: Sequence[tuple[Property, str]] = (),
    stored: Sequence[str] = (),
) -> Found:
    """Try settings, smallest first. Of two models the second reads what the first wrote of `flows`.

    It ends after so many seconds or launches; early, once all of `stop_at` are broken or once something was stored to
    each of `stored`.
    """
    found = Found()
    end = time.process_time() + seconds
    sizer = sizer_of(models)
    wanted = set(stop_at)
    for setting in sizer.settings(seed):
        if time.process_time() > end or (wanted and wanted <= set(found.breaches)):
            break
        if found.launches >= launches:
            break
        if stored and all(found.stored.get(tensor) for tensor in stored):
            break
        try:
            breaches, written = breaches_at(models, setting, flows=flows)
        except TooMuch:
            continue
        except OutOfClass as lost:
            found.lost = lost
            break
        found.launches += 1
        for tensor, count in written.items():
            found.stored[tensor] = found.stored.get(tensor, 0) + count
        for breach in breaches:
            found.breaches.setdefault((breach.property, breach.tensor), (breach, setting))
    return found


def breaches_at(
    models: Sequence[Model], setting: Setting, *, flows: Sequence[str] = ()
) -> tuple[list[Breach], dict[str, int]]:
    """What one launch breaks, and how many elements of each tensor it stored. Raises TooMuch, OutOfClass."""
    breaches: list[Breach] = []
    stored: dict[str, int] = {}
    traffics: list[Traffic] = []
    for model in models:
        traffic = launch_all(model, setting) or Traffic()
        traffics.append(traffic)
        stored.update({tensor: sum(part.size for _, part in parts) for tensor, parts in traffic.stored.items()})
        breaches += [Breach("defined", "", f"{what} ({line})") for what, line in traffic.strange[:1]]
        breaches += _tensor_breaches(model, setting, traffic)
    for tensor in flows:
        breaches += _flow_breaches(tensor, traffics[0], traffics[1])
    return breaches, stored


def _flow_breaches(tensor: str, producer: Traffic, consumer: Traffic) -> list[Breach]:
    wanted, there = _all(consumer.loaded.get(tensor, [])), _all(producer.stored.get(tensor, []))
    missing = np.setdiff1d(wanted, there)
    if missing.size == 0:
        return []
    return [Breach("flow", tensor, f"offset {missing[0]} is loaded and was not stored ({consumer.lines[tensor]})")]


def _tensor_breaches(model: Model, setting: Setting, traffic: Traffic) -> list[Breach]:
    breaches: list[Breach] = []
    names = {**setting.scalars, **_integers(model.constants)}
    outputs = {layout.tensor: layout for layout in model.proof.outputs}
    for tensor in traffic.stored:
        if tensor not in outputs:
            breaches.append(
                Breach("containment", tensor, f"is stored to and is no declared output ({traffic.lines[tensor]})")
            )
    for layout in model.proof.layouts:
        reader = Concrete(names, setting.tables)
        sizes = [int(reader.read(size)) for size in layout.sizes]
        offsets = offsets_of(sizes, [int(reader.read(stride)) for stride in layout.strides])
        loaded = traffic.loaded.get(layout.tensor, [])
        outside = np.setdiff1d(_all(loaded), offsets)
        if outside.size:
            breaches.append(
                Breach(
                    "bounds",
                    layout.tensor,
                    f"offset {outside[0]} is loaded and lies outside ({traffic.lines[layout.tensor]})",
                )
            )
        if layout.output:
            live = offsets[_live(layout, sizes, names, setting)] if layout.live else offsets.ravel()
            breaches += _output_breaches(layout, offsets, live, traffic)
    return breaches


def _output_breaches(layout: Layout, offsets: Array, live: Array, traffic: Traffic) -> list[Breach]:
    tensor = layout.tensor
    stores = traffic.stored.get(tensor, [])
    line = traffic.lines.get(tensor, "")
    stored = _all(stores)
    breaches: list[Breach] = []
    outside = np.setdiff1d(stored, live)
    if outside.size:
        breaches.append(Breach("containment", tensor, f"offset {outside[0]} is stored and is no live element ({line})"))
    missing = np.setdiff1d(live, stored)
    if missing.size and layout.covered:
        at = tuple(int(part[0]) for part in np.nonzero(offsets == missing[0]))
        breaches.append(Breach("coverage", tensor, f"{tensor}{list(at)} is never stored"))
    # What lies outside is told above; two stores that meet there are no second fault.
    stores = [(number, part[np.isin(part, live)]) for number, part in stores] if outside.size else stores
    stored = _all(stores)
    owners = np.concatenate([np.full(part.size, number) for number, part in stores]) if stores else np.zeros(0, int)
    order = np.lexsort((owners, stored))
    ordered, by = stored[order], owners[order]
    twice = (ordered[1:] == ordered[:-1]) & (by[1:] != by[:-1])
    if twice.any():
        at = int(np.flatnonzero(twice)[0])
        breaches.append(
            Breach("race", tensor, f"offset {ordered[at]} is stored by programs {by[at]} and {by[at + 1]} ({line})")
        )
    elif _read_elsewhere(stored, owners, traffic.loaded.get(tensor, [])):
        breaches.append(Breach("race", tensor, f"an element is stored by one program and loaded by another ({line})"))
    return breaches


def _read_elsewhere(stored: Array, owners: Array, loads: Sequence[tuple[int, Array]]) -> bool:
    return any(np.isin(part, stored[owners != number]).any() for number, part in loads)


def _live(layout: Layout, sizes: Sequence[int], names: Mapping[str, Any], setting: Setting) -> Array:
    mask = np.zeros(tuple(sizes), dtype=bool)
    for at in np.ndindex(*sizes):
        mask[at] = bool(
            Concrete({**names, **dict(zip(layout.names, at, strict=True))}, setting.tables).read(layout.live)
        )
    return mask


def _all(parts: Sequence[tuple[int, Array]]) -> Array:
    return np.concatenate([part for _, part in parts]) if parts else np.zeros(0, dtype=np.int64)


def _integers(constants: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(value) for name, value in constants.items() if isinstance(value, int)}


def shrink(
    models: Sequence[Model], breach: Breach, setting: Setting, *, flows: Sequence[str] = (), seconds: float = 3.0
) -> tuple[Breach, Setting]:
    """The smallest setting that can be reached from one by lowering one size at a time."""
    sizer = sizer_of(models)
    end = time.process_time() + seconds
    best = breach, setting
    progress = True
    while progress and time.process_time() < end:
        progress = False
        for name in sizer.free:
            value = best[1].scalars[name]
            for smaller in dict.fromkeys((0, 1, 2, value // 2, value - 1)):
                if not 0 <= smaller < value or time.process_time() > end:
                    continue
                free = {other: best[1].scalars[other] for other in sizer.free} | {name: smaller}
                again = _again(models, sizer, free, breach, flows)
                if again is not None:
                    best, progress = again, True
                    break
    return best


def _again(
    models: Sequence[Model], sizer: Sizer, free: Mapping[str, int], breach: Breach, flows: Sequence[str]
) -> tuple[Breach, Setting] | None:
    for setting in sizer.completed(free, random.Random(0), tries=6 if sizer.tables else 1):
        try:
            breaches, _ = breaches_at(models, setting, flows=flows)
        except (TooMuch, OutOfClass):
            continue
        for other in breaches:
            if (other.property, other.tensor) == (breach.property, breach.tensor):
                return other, setting
    return None


def at_largest(model: Model, asked: Property) -> tuple[Breach, Setting] | None:
    """Whether `overflow` or `grid` breaks at the largest declared sizes: at the corners of the grid alone.

    An integer that leaves 32 bits counts where it moves an address that is accessed. Launching this would need the
    memory; it is computed, with and without the wrap.
    """
    sizer = sizer_of([model])
    free = {name: model.proof.most.get(name, 1) for name in sizer.free}
    for small in sizer.completed(free, random.Random(0), tries=4):
        strides = {name: model.proof.most[name] for name in sizer.strides if name in model.proof.most}
        setting = Setting({**small.scalars, **strides}, small.tables)
        if not sizer.kept(setting):
            setting = small
        grid = grid_at(model.proof, {**setting.scalars, **_integers(model.constants)})
        if asked == "grid":
            over = [axis for axis, extent, limit in zip("xyz", grid, GRID_LIMITS, strict=True) if extent > limit]
            return (
                (Breach("grid", "", f"axis {over[0]} of the grid {grid} is longer than a GPU takes"), setting)
                if over
                else None
            )
        corners = itertools.product(*({0, min(1, extent - 1), extent - 1} for extent in grid))
        for program in corners if min(grid) > 0 else ():
            moved = _moved(model, setting, grid, program)
            if moved is not None:
                return Breach("overflow", "", f"{moved}, by program {program}"), setting
    return None


def _moved(model: Model, setting: Setting, grid: tuple[int, int, int], program: tuple[int, ...]) -> str | None:
    x, y, z = program
    try:
        launches = [Launch(setting.scalars, setting.tables, grid, wrap=wrap) for wrap in (True, False)]
        wrapped, exact = (run_program(model.function, model.names, launch, (x, y, z)) for launch in launches)
    except (TooMuch, OutOfClass):
        return None
    for strange in launches[0].strange:
        if strange not in launches[1].strange:
            return f"{strange[0]} ({strange[1]})"
    for one, other in zip(wrapped, exact, strict=False):
        if not np.array_equal(one.offsets, other.offsets):
            want = int(other.offsets.flat[0]) if other.offsets.size else 0
            have = int(one.offsets.flat[0]) if one.offsets.size else 0
            return f"an offset of {one.base} is {want} and wraps to {have} ({one.line})"
    if len(wrapped) != len(exact):
        return f"an integer wraps, and there are {len(wrapped)} loads and stores instead of {len(exact)}"
    return None
