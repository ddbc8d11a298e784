"""The pytest plugin: a kernel becomes items from any directory, under xdist too, and other runs are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
KERNELS: Final = """
import torch

def right(x, w_uv, out, **_):
    out.copy_(torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1))

def adds_to_what_was_there(x, w_uv, out, **_):
    out.add_(torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1))
"""


def pytest_in(folder: Path, *arguments: str, plugin: bool = True) -> subprocess.CompletedProcess[str]:
    """Run pytest in `folder`, with our plugin named where it is not installed."""
    loaded = ("-p", "mla_verify.pytest_plugin") if plugin else ()
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *loaded, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder outside the repository, with kernels and a test of its own that fails."""
    (tmp_path / "my.py").write_text(KERNELS)
    (tmp_path / "test_own.py").write_text("def test_own():\n    assert False\n")
    return tmp_path


def test_a_kernel_becomes_items_from_any_directory(folder: Path) -> None:
    """--mla-kernel collects one item per shard by itself; the folder's own tests are not run with them."""
    done = pytest_in(
        folder, "--mla-kernel", "my.py:right", "--mla-contract", "up-projection", "--hypothesis-profile=dev", "-v"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    assert "my.py:right" in done.stdout


def test_a_faulty_kernel_fails_with_its_findings(folder: Path) -> None:
    """The failure section shows the clause and the smallest problem, not a traceback through our own code."""
    done = pytest_in(
        folder,
        *("--mla-kernel", "my.py:adds_to_what_was_there", "--mla-contract", "up-projection"),
        *("--mla-shards", "1", "--hypothesis-profile=dev"),
    )
    assert done.returncode == 1
    assert "independence: out[" in done.stdout
    assert "smallest problem" in done.stdout
    assert "Traceback" not in done.stdout


def test_shards_are_spread_over_xdist_workers(folder: Path) -> None:
    """Ids depend on the command line alone, so that workers agree on them."""
    done = pytest_in(
        folder,
        *("--mla-kernel", "my.py:right", "--mla-contract", "up-projection"),
        *("--mla-shards", "3", "--hypothesis-profile=dev", "-n", "2"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_a_kernel_can_run_in_pytest_s_own_process(folder: Path) -> None:
    """--mla-isolation none is for debuggers: no worker stands between; a word that is unknown is refused."""
    (folder / "here.py").write_text(
        "import os\n" + KERNELS + "\ndef here(x, w_uv, out, **_):\n    right(x, w_uv, out)\n"
        "    with open('pids', 'a') as file:\n        file.write(f'{os.getpid()} {os.getppid()}\\n')\n"
    )
    options = ("--mla-kernel", "here.py:here", "--mla-contract", "up-projection", "--mla-shards", "1")
    done = pytest_in(folder, *options, "--hypothesis-profile=dev", "--mla-isolation", "none")
    assert done.returncode == 0, done.stdout + done.stderr
    (pid,) = set((folder / "pids").read_text().splitlines())
    assert int(pid.split()[1]) == os.getpid()
    refused = pytest_in(folder, *options, "--mla-isolation", "some")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "isolation 'some' is unknown; there are process and none" in refused.stdout + refused.stderr


def test_an_unknown_kernel_is_a_usage_error(folder: Path) -> None:
    """pytest ends with its own exit code for wrong usage and our sentence."""
    done = pytest_in(folder, "--mla-kernel", "up_projection_dirct")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "did you mean 'up_projection_direct'" in done.stdout + done.stderr


def test_runs_that_do_not_use_our_options_are_left_alone(folder: Path) -> None:
    """With the plugin loaded and none of its options given, a folder's own tests run as ever, torch not imported."""
    (folder / "test_own.py").write_text("import sys\n\ndef test_own():\n    assert 'torch' not in sys.modules\n")
    (folder / "strategies").mkdir()
    (folder / "strategies" / "__init__.py").write_text("")
    done = pytest_in(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
