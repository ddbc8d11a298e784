"""Looks into a built wheel: exactly our three packages, each typed, and nothing of the tests."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Final

PACKAGES: Final = frozenset({"mla_verify", "strategies", "sanitizer"})


def top_level_names(wheel: Path) -> frozenset[str]:
    """The first path component of everything in a wheel, its metadata folder aside."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name.split("/", 1)[0] for name in archive.namelist()}
    return frozenset(name for name in names if not name.endswith(".dist-info"))


def complaints(wheel: Path) -> list[str]:
    """What is wrong with a wheel; empty where nothing is."""
    names = top_level_names(wheel)
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
    wrong = [f"unexpected top-level name {name}" for name in sorted(names - PACKAGES)]
    wrong += [f"missing package {name}" for name in sorted(PACKAGES - names)]
    wrong += [f"{name} has no py.typed" for name in sorted(PACKAGES & names) if f"{name}/py.typed" not in files]
    if not any(name.endswith(("licenses/LICENSE", ".dist-info/LICENSE")) for name in files):
        wrong.append("no LICENSE in the metadata")
    return wrong


def main(folder: str) -> int:
    """Print what is wrong with the one wheel in `folder`; the exit code."""
    wheels = list(Path(folder).glob("*.whl"))
    if len(wheels) != 1:
        print(f"wanted one wheel in {folder}, found {len(wheels)}")
        return 1
    wrong = complaints(wheels[0])
    print("\n".join(wrong) or f"{wheels[0].name}: {', '.join(sorted(top_level_names(wheels[0])))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
