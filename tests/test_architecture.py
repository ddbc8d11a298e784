"""The arrows between rooms: sanitizer and strategies know neither each other nor mla_verify."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent

# package → top-level packages that it must never import
FORBIDDEN: Final = {
    "sanitizer": {"mla_verify", "strategies", "hypothesis", "pytest"},
    "strategies": {"mla_verify", "sanitizer", "torch"},
    "mla_verify": {"tests"},
}
OPTIONAL: Final = {
    "vllm",
    "sglang",
    "aiter",
    "flashinfer",
    "flash_mla",
    "triton",
    "redis",
    "jinja2",
    "matplotlib",
    "z3",
    "cuda",
}
# triton.jit reads a function's names from the module around it, so that `tl` must be imported at its top. These modules
# hold nothing but jitted functions and are imported when a kernel is loaded.
JITTED: Final = tuple(ROOT / "mla_verify" / room / "jitted" for room in ("kernels", "faults"))


def imports_of(source: str) -> Iterator[tuple[int, str, bool]]:
    """(line, top-level package, whether at module level) of every import in a source text."""
    tree = ast.parse(source)
    top = {id(node) for node in ast.walk(tree) if isinstance(node, ast.Module) for node in node.body}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        for name in names:
            yield cast("ast.stmt", node).lineno, name.split(".", 1)[0], id(node) in top


def arrows_broken_by(source: str, package: str) -> list[str]:
    """The imports in a source text of `package` that its room must not have."""
    return [f"line {line} imports {name}" for line, name, _ in imports_of(source) if name in FORBIDDEN[package]]


def sources(package: str) -> list[Path]:
    """Every module of a package, in a stable order."""
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_no_room_imports_what_it_must_not_know(package: str) -> None:
    """strategies and sanitizer import neither mla_verify nor each other; the sanitizer knows no Hypothesis."""
    broken = {
        str(path.relative_to(ROOT)): wrong
        for path in sources(package)
        if (wrong := arrows_broken_by(path.read_text(encoding="utf-8"), package))
    }
    assert broken == {}


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("sanitizer", "from strategies.layouts import Layout"),
        ("strategies", "def f():\n    import mla_verify.kernel"),
        ("sanitizer", "import hypothesis"),
    ],
)
def test_a_forbidden_import_is_seen(package: str, source: str) -> None:
    """The test above can fail: an import against the arrows is found, inside a function too."""
    assert arrows_broken_by(source, package)


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_optional_libraries_are_imported_only_where_they_are_used(package: str) -> None:
    """No module of ours needs vLLM, AITER or Triton to be imported itself."""
    at_top = {
        str(path.relative_to(ROOT)): name
        for path in sources(package)
        if path.parent not in JITTED
        for _, name, top in imports_of(path.read_text(encoding="utf-8"))
        if top and name in OPTIONAL
    }
    assert at_top == {}


def test_help_does_not_import_torch() -> None:
    """Printing help loads neither torch nor Hypothesis, so that it answers at once."""
    code = (
        "import sys\n"
        "from mla_verify.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'hypothesis', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "check" in done.stdout
