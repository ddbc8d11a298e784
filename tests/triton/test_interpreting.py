"""Triton kernels on a CPU: decorated to be interpreted, refused in words where they were not, and reported as such."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
KERNEL: Final = """
import triton
import triton.language as tl
from mla_verify.registry import register


@triton.jit
def scale(x, out, count: tl.constexpr):
    at = tl.arange(0, count)
    tl.store(out + at, tl.load(x + at))


@register(contract="up-projection", triton=True, registry=False)
def user_kernel(x, w_uv, out, **_):
    scale[(1,)](x, out, 16)
"""


def check(folder: Path, source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `mla-verify check` on a user's file, without the variable unless it is given."""
    path = folder / "user_kernels.py"
    path.write_text(source, encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "mla_verify", "check", f"{path}:user_kernel", "--examples", "3"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120, env={**inherited, **environment}
    )


def test_a_users_file_is_interpreted_without_setting_anything(tmp_path: Path) -> None:
    """The variable is set before the file is imported; the report says interpreted, and with which mends."""
    done = check(tmp_path, KERNEL)
    assert done.returncode == 1, done.stderr
    assert "note: interpreted by Triton" in done.stdout
    assert "scale program (0, 0, 0)" in done.stdout


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("import os\nimport triton\nos.environ.pop('TRITON_INTERPRET')\n", "scale was decorated before"),
        ("import os\nos.environ.pop('TRITON_INTERPRET')\n", "triton was imported before"),
    ],
    ids=["the kernel too late", "Triton too late"],
)
def test_a_kernel_that_can_only_be_compiled_is_refused_in_words(tmp_path: Path, before: str, words: str) -> None:
    """Whoever unsets the variable gets one sentence and exit code 2, not a crash inside Triton."""
    done = check(tmp_path, before + KERNEL)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert "TRITON_INTERPRET=1" in done.stderr
    assert "Traceback" not in done.stderr
