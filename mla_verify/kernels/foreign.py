"""Loads single Triton sources out of other people's packages, with stand-ins for the parts that need their hardware."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Generator, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from mla_verify.errors import Unavailable
from mla_verify.kernels.triton_launch import interpreted

__all__ = [
    "cuda_here",
    "find_source",
    "imported",
    "load_source",
    "member",
    "stand_in",
    "standing_in",
    "triton_here",
    "version_of",
]

# What importing a library that does not fit its surroundings may raise.
IMPORT_ERRORS: Final = (ImportError, AttributeError, RuntimeError, OSError, TypeError, ValueError, AssertionError)


def triton_here(what: str) -> None:
    """Raise Unavailable unless Triton can be imported and has a GPU or its interpreter to run on."""
    if importlib.util.find_spec("triton") is None:
        raise Unavailable(f"{what} is written in Triton, which is not installed")
    if not torch.cuda.is_available() and not interpreted():
        raise Unavailable(f"{what} needs a GPU, or TRITON_INTERPRET=1 in the environment before Triton is imported")


def cuda_here(what: str) -> None:
    """Raise Unavailable unless torch has an NVIDIA GPU to run on."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        raise Unavailable(f"{what} needs an NVIDIA GPU and a CUDA build of torch")


def version_of(*distributions: str) -> str | None:
    """The version of the first of these distributions that is installed, None where none is. Imports nothing."""
    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def find_source(package: str, relative: str) -> Path:
    """A file of an installed package or of a checkout on the path, found without importing the package.

    Raises Unavailable where there is no such package or no such file.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable(f"{package} is not installed")
    for folder in spec.submodule_search_locations:
        path = Path(folder) / relative
        if path.is_file():
            return path
    raise Unavailable(f"{package} is installed, but has no {relative}")


def stand_in(name: str, **members: Any) -> ModuleType:
    """A module called `name` that has these members and, so that submodules can be stood in for as well, a path."""
    module = ModuleType(name)
    module.__path__ = []
    for key, value in members.items():
        setattr(module, key, value)
    return module


@contextlib.contextmanager
def standing_in(modules: Mapping[str, ModuleType]) -> Generator[None, None, None]:
    """Let imports find these modules for a while; whatever was there, or was not, comes back afterwards."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def load_source(name: str, path: Path, modules: Mapping[str, ModuleType]) -> ModuleType:
    """Execute one source file as the module `name` while `modules` stand in. Raises Unavailable where that fails.

    The module stays out of `sys.modules`, where it would be taken for the real one.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Unavailable(f"{path} is no Python source")
    module = importlib.util.module_from_spec(spec)
    try:
        with standing_in({**modules, name: module}), contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except IMPORT_ERRORS as error:
        raise Unavailable(f"{path.name} does not load by itself: {_first_line(error)}") from error
    return module


def imported(module: str, *, what: str) -> Any:
    """Import a part of a library. What it prints goes to standard error: standard output carries reports."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(module)
    except IMPORT_ERRORS as error:
        raise Unavailable(f"{what}: {module} cannot be imported: {_first_line(error)}") from error


def member(module: Any, name: str, *, what: str) -> Callable[..., Any]:
    """A function of a module. Raises Unavailable where this version of the library has none of that name."""
    found = getattr(module, name, None)
    if not callable(found):
        raise Unavailable(f"{what} has no {name} in {module.__name__}")
    return found


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
