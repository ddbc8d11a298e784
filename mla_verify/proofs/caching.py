"""Remembers verdicts by what they rest on: the TTIR, the declaration and the version of the method."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from mla_verify.proofs.verdicts import Verdict

__all__ = ["key_of", "recall", "remember"]

_METHOD: Final = 1  # raised whenever a verdict may come out differently


def key_of(*parts: object) -> str:
    """A name for all that a verdict rests on. The sources of the method itself are part of it."""
    digest = hashlib.sha256(f"{_METHOD}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    for part in parts:
        digest.update(repr(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "mla-verify" / "proofs"


def recall(key: str) -> list[Verdict] | None:
    """Verdicts that were remembered under a key; None where there are none that can be read."""
    try:
        data: list[dict[str, Any]] = json.loads((_folder() / f"{key}.json").read_text(encoding="utf-8"))
        return [_verdict(part) for part in data]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _verdict(part: dict[str, Any]) -> Verdict:
    part["tables"] = {name: tuple(held) for name, held in part["tables"].items()}
    return Verdict(**part)


def remember(key: str, verdicts: Sequence[Verdict]) -> None:
    """Write verdicts down under a temporary name, and rename: readers never see half of them. No folder, no memory."""
    folder = _folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False, encoding="utf-8") as file:
            json.dump([asdict(verdict) for verdict in verdicts], file)
        Path(file.name).replace(folder / f"{key}.json")
    except OSError:
        return
