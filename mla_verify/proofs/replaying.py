"""Launches a kernel at refuted sizes in Triton's interpreter, between guards, under the secrets and the recorder.

A refutation comes from TTIR; what is shown has happened to the kernel itself. Run as a module, it is the process that
interprets: the one that proves compiles, and Triton decides between the two when it is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from mla_verify.proofs.children import ChildFailed, answer_of
from mla_verify.proofs.declaring import Layout, Proof
from mla_verify.proofs.expressions import Concrete

if TYPE_CHECKING:
    from torch import Tensor

    from sanitizer.plan import TensorPlan

__all__ = ["Disagreement", "Reenactment", "Result", "reenact"]

_ENTRIES: Final = 4096  # of a tensor that no layout describes
_SECRET_LOAD: Final = "no input"  # what the recorder says of a load of memory that nobody has given or stored to
_OUTSIDE: Final = "belongs to no tensor"

_DTYPES: Final = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "i1": "bool",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
}


class Disagreement(RuntimeError):
    """A refutation that the kernel itself does not show: an error of ours, never a finding."""


@dataclass(frozen=True, slots=True)
class Reenactment:
    """One launch (or two, the second reading what the first wrote), and what it is to show."""

    proofs: tuple[dict[str, Any], ...]
    constants: tuple[Mapping[str, Any], ...]
    scalars: Mapping[str, int]
    tables: Mapping[str, Sequence[int]]
    property: str
    tensor: str


@dataclass(frozen=True, slots=True)
class Result:
    """Whether it was shown, and what the recorder and the secrets said."""

    shown: bool
    words: str


def describe(proof: Proof) -> dict[str, Any]:
    """A declaration as JSON."""
    return asdict(proof)


def reenact(scenes: Sequence[Reenactment]) -> list[Result]:
    """Launch every scene in one process that interprets."""
    if not scenes:
        return []
    try:
        answer = answer_of(__name__, [asdict(scene) for scene in scenes], interprets=True)
    except ChildFailed as error:
        raise Disagreement(f"a refutation could not be launched: {error}") from error
    return [Result(**part) for part in answer]


# In the process that interprets


def _proof_of(data: Mapping[str, Any]) -> Proof:
    layouts: list[Layout] = []
    for part in data["layouts"]:
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in part.items()
        }
        layouts.append(Layout(**fields))
    return Proof(
        name=data["name"],
        kernel=data["kernel"],
        pointers=data["pointers"],
        configurations=(),
        grid=tuple(data["grid"]),
        layouts=tuple(layouts),
        scalars=data["scalars"],
    )


def _play(scene: Reenactment) -> Result:
    result = _run(scene)
    if scene.property == "race" and not result.shown:
        # A program that loads before another one stores is seen as a race only where the other one runs first.
        with _last_program_first():
            backwards = _run(scene)
        if backwards.shown:
            return Result(True, f"{backwards.words} (programs run from the last to the first)")
    return result


@contextlib.contextmanager
def _last_program_first() -> Generator[None, None, None]:
    """Have the interpreter walk every grid the other way around: on a GPU programs run in no order."""
    builder = importlib.import_module("triton.runtime.interpreter").interpreter_builder
    stock = builder.set_grid_idx

    def backwards(x: int, y: int, z: int) -> None:
        across, down, deep = builder.grid_dim
        stock(across - 1 - x, down - 1 - y, deep - 1 - z)

    builder.set_grid_idx = backwards
    try:
        yield
    finally:
        del builder.set_grid_idx


def _run(scene: Reenactment) -> Result:
    from mla_verify.proofs.lowering import resolve
    from sanitizer.arena import Arena
    from sanitizer.audit import audit
    from sanitizer.triton.mends import mended
    from sanitizer.triton.recorder import Recorder

    proofs = [_proof_of(data) for data in scene.proofs]
    functions = [_jitted(resolve(proof.kernel)) for proof in proofs]
    arena, recorder = Arena(), Recorder()
    arena.load(_plans(scene, proofs))

    def call(tensors: dict[str, Tensor], /) -> None:
        for proof, constants, function in zip(proofs, scene.constants, functions, strict=True):
            _launch(proof, constants, function, scene, tensors)

    with mended():
        result = audit(call, arena, observer=recorder)
    if result.error is not None:
        raise result.error
    found = [f"{finding.clause}: {finding.detail}" for finding in result.findings]
    said = [*found, *result.notes]
    match scene.property:
        case "coverage":
            shown = [text for text in found if text.startswith("coverage")]
        case "containment":
            shown = [text for text in found if text.startswith("containment")]
            shown += [text for text in result.notes if "outside the outputs" in text]
        case "race":
            shown = [text for text in said if text.startswith("repeatability") or "from several programs" in text]
        case _:  # bounds, flow
            shown = [text for text in said if _SECRET_LOAD in text or _OUTSIDE in text]
    return Result(bool(shown), (shown or said or ["nothing was found"])[0])


def _jitted(function: Any) -> Any:
    while type(function).__name__ in ("Autotuner", "Heuristics"):
        function = function.fn
    return function


def _launch(
    proof: Proof, constants: Mapping[str, Any], function: Any, scene: Reenactment, tensors: Mapping[str, Any]
) -> None:
    from mla_verify.proofs.lowering import value_of

    reader = Concrete({**scene.scalars, **_integers(constants)}, scene.tables)
    grid = tuple(int(reader.read(extent)) for extent in proof.grid)
    if min(grid) <= 0:
        return
    arguments: dict[str, Any] = {name: value_of(value) for name, value in constants.items()}
    for name in function.arg_names:
        if name in proof.pointers:
            arguments[name] = tensors[name]
        elif name not in arguments:
            arguments[name] = 1.0 if proof.scalars.get(name, "").startswith(("fp", "bf")) else scene.scalars[name]
    function[grid](**arguments)


def _plans(scene: Reenactment, proofs: Sequence[Proof]) -> list[TensorPlan]:
    import torch

    from sanitizer.plan import TensorPlan

    plans: dict[str, TensorPlan] = {}
    written = {layout.tensor for proof in proofs for layout in proof.outputs}
    for proof, constants in zip(proofs, scene.constants, strict=True):
        names = {**scene.scalars, **_integers(constants)}
        layouts = {layout.tensor: layout for layout in proof.layouts}
        for name, element in proof.pointers.items():
            if name in plans:
                continue
            dtype = getattr(torch, _DTYPES[element])
            layout = layouts.get(name)
            reader = Concrete(names, scene.tables)
            shape = tuple(int(reader.read(size)) for size in layout.sizes) if layout else (_ENTRIES,)
            strides = tuple(int(reader.read(stride)) for stride in layout.strides) if layout else (1,)
            if name in written:
                # What the second kernel reads of the first one's output is scratch between them: no promise of its own.
                rules = _rules(layout, shape, names, scene) if scene.property != "flow" else _free(shape)
                plans[name] = TensorPlan(
                    name=name, shape=shape, strides=strides, dtype=dtype, role="output", rules=rules, guard=512
                )
                continue
            values = torch.ones(shape).to(dtype)
            if name in scene.tables:
                held = torch.tensor(list(scene.tables[name]), dtype=dtype)
                values = torch.as_strided(held, shape, strides) if layout else held
                shape, strides = tuple(values.shape), strides if layout else (1,)
            plans[name] = TensorPlan(
                name=name, shape=shape, strides=strides, dtype=dtype, role="input", values=values, guard=512
            )
    return list(plans.values())


def _free(shape: tuple[int, ...]) -> Tensor:
    import torch

    from sanitizer.plan import Element

    return torch.full(shape, int(Element.FREE), dtype=torch.uint8)


def _rules(layout: Layout | None, shape: tuple[int, ...], names: Mapping[str, Any], scene: Reenactment) -> Tensor:
    import numpy as np
    import torch

    from sanitizer.plan import Element

    rule = Element.DETERMINED if layout is None or layout.covered else Element.FREE
    rules = torch.full(shape, int(rule), dtype=torch.uint8)
    if layout is not None and layout.live:
        for at in np.ndindex(*shape):
            inside = Concrete({**names, **dict(zip(layout.names, at, strict=True))}, scene.tables).read(layout.live)
            if not inside:
                rules[at] = int(Element.UNTOUCHED)
    return rules


def _integers(constants: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(value) for name, value in constants.items() if isinstance(value, int)}


def _main() -> None:
    scenes: list[Reenactment] = []
    for part in json.load(sys.stdin):
        part["proofs"], part["constants"] = tuple(part["proofs"]), tuple(part["constants"])
        scenes.append(Reenactment(**part))
    results = [asdict(_play(scene)) for scene in scenes]
    print(json.dumps(results))


if __name__ == "__main__":
    _main()
