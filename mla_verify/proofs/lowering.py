"""Makes TTIR from jitted functions, without a GPU, in a process of its own.

Triton decides when it is imported whether it compiles or interprets: a process that has lowered kernels cannot
interpret any, and the other way round. So a child process lowers, all requests at once, and this one stays as it is.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mla_verify.errors import Unavailable, UsageError
from mla_verify.proofs.children import ChildFailed, answer_of

__all__ = ["Lowered", "Request", "lower", "resolve", "value_of"]

_IR: Final = "triton._C.libtriton"


@dataclass(frozen=True, slots=True)
class Request:
    """One specialisation of one kernel. `kernel` is `module:function` or `file.py:function`."""

    kernel: str
    pointers: Mapping[str, str]
    scalars: Mapping[str, str]
    constexprs: Mapping[str, int | bool | str | None]


@dataclass(frozen=True, slots=True)
class Lowered:
    """The text of a function, and the names of its parameters in order. `error` says why there is none."""

    text: str
    names: tuple[str, ...]
    error: str = ""


def lower(requests: Sequence[Request]) -> list[Lowered]:
    """TTIR for each request. Raises Unavailable without Triton, UsageError for a kernel that is not there."""
    if importlib.util.find_spec("triton") is None:
        raise Unavailable("proofs need Triton: pip install 'mla-verify[triton]'")
    try:
        answer = answer_of(__name__, [asdict(request) for request in requests], interprets=False)
    except ChildFailed as error:
        raise UsageError(f"kernels could not be lowered: {str(error).splitlines()[-1]}") from error
    if "usage" in answer:
        raise UsageError(answer["usage"])
    return [Lowered(part["text"], tuple(part["names"]), part["error"]) for part in answer["lowered"]]


def _lowered(request: Request) -> Lowered:
    """TTIR in this process. What Triton refuses comes back as an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function: Any = resolve(request.kernel)
        while not hasattr(function, "arg_names") or type(function).__name__ in ("Autotuner", "Heuristics"):
            inner = getattr(function, "fn", None)
            if inner is None:
                raise UsageError(f"{request.kernel} is a {type(function).__name__}, wanted a function with @triton.jit")
            function = inner
        names = tuple(function.arg_names)
        unknown = sorted({*request.pointers, *request.scalars, *request.constexprs} - set(names))
        if unknown:
            raise UsageError(f"{request.kernel} has no parameter {', '.join(unknown)}; it has {', '.join(names)}")
        try:
            text = _text_of(function, request, names)
        except _compilation_errors() as error:
            return Lowered("", (), f"Triton does not compile it: {str(error).strip().splitlines()[-1]}")
    return Lowered(text, tuple(name for name in names if name not in request.constexprs))


def _compilation_errors() -> tuple[type[BaseException], ...]:
    errors = importlib.import_module("triton.compiler.errors")
    return (errors.CompilationError, errors.CompileTimeAssertionFailure)


def _text_of(function: Any, request: Request, names: tuple[str, ...]) -> str:
    library = importlib.import_module(_IR)
    compiler = importlib.import_module("triton.compiler.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    kinds = dict.fromkeys(names, "i32")
    kinds.update(request.scalars)
    kinds.update({name: f"*{element}" for name, element in request.pointers.items()})
    kinds.update(dict.fromkeys(request.constexprs, "constexpr"))
    source = compiler.ASTSource(
        function,
        signature=kinds,
        constexprs={(names.index(name),): value_of(value) for name, value in request.constexprs.items()},
    )
    backend = compiler.make_backend(target)
    options = backend.parse_options({})
    context = library.ir.context()
    library.ir.load_dialects(context)
    backend.load_dialects(context)
    made = backend.get_codegen_implementation(options), backend.get_module_map(), context
    try:
        module = source.make_ir(target, options, *made)
    except TypeError:  # Triton before 3.4 knows the target already
        module = source.make_ir(options, *made)
    passes = library.ir.pass_manager(context)
    library.passes.common.add_inliner(passes)
    library.passes.common.add_canonicalizer(passes)
    library.passes.common.add_cse(passes)
    try:
        passes.run(module, "make_ttir")
    except TypeError:
        passes.run(module)
    return str(module)


def value_of(value: int | bool | str | None) -> Any:
    """A constexpr: `tl.bfloat16` in a declaration is Triton's dtype."""
    if isinstance(value, str) and value.startswith("tl."):
        return getattr(importlib.import_module("triton.language"), value[3:])
    return value


def resolve(reference: str) -> Any:
    """The object that `module:name` or `file.py:name` names. Raises UsageError where there is none."""
    where, _, name = reference.rpartition(":")
    if not where:
        raise UsageError(f"{reference!r} names no kernel, wanted module:function or file.py:function")
    try:
        module = _module_of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and where.startswith(error.name):
            raise UsageError(f"there is no module {where!r} for {reference!r}") from error
        raise
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{where} holds no {name}, named by {reference!r}")
        found = getattr(found, part)
    return found


def _module_of_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    known = f"mla_verify_proved_{path.resolve().as_posix().replace('/', '_').replace('.', '_')}"
    if known in sys.modules:
        return sys.modules[known]
    spec = importlib.util.spec_from_file_location(known, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[known] = module
    spec.loader.exec_module(module)
    return module


def _main() -> None:
    requests = [Request(**part) for part in json.load(sys.stdin)]
    try:
        answer: dict[str, Any] = {"lowered": [asdict(_lowered(request)) for request in requests]}
    except UsageError as error:
        answer = {"usage": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    _main()
