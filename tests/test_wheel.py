"""The wheel holds our three packages and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.package.wheel_contents import complaints, top_level_names

ROOT = Path(__file__).resolve().parent.parent


def test_the_wheel_holds_our_three_packages_and_nothing_else(tmp_path: Path) -> None:
    """Its top-level names are mla_verify, strategies and sanitizer, each typed, with the licence beside them."""
    pytest.importorskip("hatchling", reason="the wheel is built with hatchling, which is not installed here")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert complaints(wheel) == []
    assert top_level_names(wheel) == {"mla_verify", "strategies", "sanitizer"}


def test_a_stray_package_in_a_wheel_is_seen(tmp_path: Path) -> None:
    """A wheel that would install a top-level `tests` is refused."""
    wheel = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("mla_verify/py.typed", "tests/__init__.py"):
            archive.writestr(name, "")
    assert "unexpected top-level name tests" in complaints(wheel)
    assert "missing package sanitizer" in complaints(wheel)
