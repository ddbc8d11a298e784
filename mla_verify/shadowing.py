"""Refuses to work with somebody else's `strategies` or `sanitizer`: both names are common, ours come as a set."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

from mla_verify.errors import UsageError

__all__ = ["foreign_packages", "refuse_foreign_packages"]

_OURS: Final = ("strategies", "sanitizer")


def foreign_packages() -> dict[str, str]:
    """Which of our top-level packages do not lie beside `mla_verify`, and where they were found instead."""
    root = Path(__file__).resolve().parent.parent
    found: dict[str, str] = {}
    for name in _OURS:
        spec = importlib.util.find_spec(name)
        origin = spec.origin if spec is not None else None
        if origin is None or Path(origin).resolve().parent.parent != root:
            found[name] = origin or "nowhere"
    return found


def refuse_foreign_packages() -> None:
    """Raise UsageError when another package stands where one of ours should."""
    for name, origin in foreign_packages().items():
        raise UsageError(
            f"the package {name!r} comes from {origin}, not from beside mla_verify: another package of that name "
            "shadows ours; uninstall or rename it, or run from a folder that does not contain it"
        )
