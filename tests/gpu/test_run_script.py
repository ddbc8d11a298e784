"""run.sh: what is to be run on a GPU is understood here, word by word, and its table can be made on a CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.gpu import dry_run, table

ROOT: Final = Path(__file__).resolve().parents[2]
SCRIPT: Final = ROOT / "tests" / "gpu" / "run.sh"


def test_every_command_of_the_script_is_understood() -> None:
    """`--dry-run` parses every command as it would be run, and finds every file and test that it names."""
    done = subprocess.run(
        ["bash", str(SCRIPT), "--dry-run"],
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    commands = [line for line in done.stdout.splitlines() if line.startswith("+ ")]
    assert len(commands) == done.stdout.count("  understood")
    assert len(commands) >= 10
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["-m", "mla_verify", "check", "--all", "--exmaples", "3"], "No such option"),
        (["-m", "mla_verify", "chekc"], "No such command"),
        (["-m", "mla_verify", "check", "up_projection_dirct"], "did you mean"),
        (["-m", "mla_verify", "replay", "tests/no_cases"], "there is no tests/no_cases"),
        (["-m", "mla_verify", "bench", "--repeats", "many"], "valid int"),
        (["tests/gpu/table.py", "--divice", "cuda"], "does not take"),
        (["tests/gpu/absent.py"], "neither a command of ours"),
        (["-m", "pytest", "tests/gpu/test_absent.py"], "test_absent.py"),
    ],
    ids=("option", "command", "kernel", "case", "number", "script_option", "script", "test"),
)
def test_a_command_that_would_be_refused_is_seen(command: list[str], words: str) -> None:
    """The test above can fail: a wrong word anywhere is told."""
    assert words in dry_run.understood(command)


def test_a_wrong_word_for_the_script_is_refused() -> None:
    """The script itself takes one option."""
    done = subprocess.run(["bash", str(SCRIPT), "--dry"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_the_table_has_a_row_for_every_path_and_dtype(monkeypatch: Any, capsys: Any) -> None:
    """Both optimised paths beside their baselines; AITER's rows say why they are unavailable here."""
    monkeypatch.setattr(table, "DTYPES", ("float32",))
    monkeypatch.setattr(table, "PATHS", (table.PATHS[0], table.PATHS[3]))
    assert table.main(["--device", "cpu", "--examples", "3"]) == 0
    shown = capsys.readouterr().out
    (plain,) = [line for line in shown.splitlines() if line.startswith("up-projection ")]
    assert "ok / ok" in plain
    assert "AITER persistent: unavailable: " in shown
    assert "optimised / zero-filled baseline on cpu, 3 problems each, seed 0" in shown


def test_every_path_of_the_table_has_a_baseline() -> None:
    """What the table compares is registered, beside the form that it replaced."""
    from mla_verify.registry import resolve

    assert all(resolve(name).baseline is not None for _, name in table.PATHS)
