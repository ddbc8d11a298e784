"""Keeps mutmut's wrappers around functions from changing what the sanitizer does by themselves.

As a pytest plugin (`-p tests.mutation.hiding`) it does so for an interpreter of its own.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import CodeType
from typing import Any

__all__ = ["hide_wrappers"]


def hide_wrappers() -> None:
    """A finding names the innermost line that is neither the sanitizer's nor torch's: so let these be torch's."""
    trampoline: Any = importlib.import_module("mutmut.mutation.trampoline")
    torch: Any = importlib.import_module("torch")
    hidden = str(Path(torch.__file__).with_name("trampoline.py"))
    trampoline.wrap_in_trampoline.__code__ = _renamed(trampoline.wrap_in_trampoline.__code__, hidden)


def _renamed(code: CodeType, file: str) -> CodeType:
    """The code, and that of functions in it, as if it stood in another file."""
    inner = tuple(_renamed(one, file) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=file, co_consts=inner)


def pytest_configure() -> None:
    """Before anything is collected."""
    hide_wrappers()
