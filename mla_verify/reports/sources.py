"""Where a kernel stands: the file and line that a finding about it is shown beside."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mla_verify.errors import Unavailable, UsageError
from mla_verify.kernel import Kernel

__all__ = ["SourcePlace", "place_of", "shown_path"]


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A line of a file; lines count from 1."""

    file: Path
    line: int


def place_of(kernel: Kernel) -> SourcePlace | None:
    """Where a kernel's callable begins; where its library is missing, where it would have been loaded.

    None for what has no source that Python knows of.
    """
    try:
        function: Callable[..., Any] = kernel.load()
    except (Unavailable, UsageError):
        function = kernel.load
    plain = inspect.unwrap(function)
    if inspect.isroutine(plain) or isinstance(plain, functools.partial):
        return _place(plain)
    return _place(plain) or _place(type(plain))


def shown_path(file: Path) -> str:
    """A path relative to the current folder where it lies below it, else whole; with forward slashes."""
    here = Path.cwd().resolve()
    whole = file.resolve()
    return (whole.relative_to(here) if whole.is_relative_to(here) else whole).as_posix()


def _place(what: Any) -> SourcePlace | None:
    while isinstance(what, functools.partial) or hasattr(what, "fn"):  # Triton's wrappers keep a kernel under this name
        what = what.func if isinstance(what, functools.partial) else what.fn
    try:
        file = inspect.getsourcefile(what)
        _, line = inspect.getsourcelines(what)
    except (TypeError, OSError):  # built-in, or typed into an interpreter
        return None
    return SourcePlace(Path(file), max(line, 1)) if file is not None else None
