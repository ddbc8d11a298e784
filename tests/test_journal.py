"""The journal: whatever ends the process, the problem in flight is named and what was found is there, whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from mla_verify.cases import load_case
from mla_verify.journal import Journal
from mla_verify.kernel import Kernel
from strategies.problems import UpProjectionProblem

ROOT: Final = Path(__file__).resolve().parent.parent

KERNELS: Final = """
import os, pathlib, time
import torch
from mla_verify import register

def product(x, w_uv):
    return torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1)

@register(contract="up-projection", max_num_tokens=6)
def faulty_then_stuck(x, w_uv, out, **_):
    out[:-1].copy_(product(x, w_uv)[:-1])
    if any(pathlib.Path("cases").glob("*.json")) and x.shape[0] == 3:  # the first fault has been shrunk and saved
        pathlib.Path("stuck").touch()
        time.sleep(600)

@register(contract="up-projection", max_num_tokens=6)
def kills_its_process(x, w_uv, out, **_):
    out.copy_(product(x, w_uv))
    if x.shape[0] == 3:
        os.kill(os.getpid(), 9)
"""


def start(*arguments: str, cwd: Path) -> subprocess.Popen[bytes]:
    """A check that saves into `cases`, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "mla_verify", "check", "--cases", "cases", "--examples", "400", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_killing_the_parent_leaves_cases_and_the_problem_in_flight(tmp_path: Path, isolation: str) -> None:
    """kill -9 in mid-run: every case is whole and readable, and the journal holds the problem that was running."""
    (tmp_path / "my.py").write_text(KERNELS)
    process = start("my.py:faulty_then_stuck", "--isolation", isolation, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 100
        while not (tmp_path / "stuck").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait(20)
    (case,) = (tmp_path / "cases").glob("*.json")
    assert load_case(case).clause == "coverage"
    (journal,) = (tmp_path / "cases" / "journal").glob("*.json")
    in_flight = load_case(journal)
    assert in_flight.kernel == "my.py:faulty_then_stuck"
    assert in_flight.problem.num_tokens == 3  # type: ignore[union-attr]
    assert no_process_of(process.pid)


def no_process_of(session: int, *, seconds: float = 10.0) -> bool:
    """Whether every process that a killed parent had started in its session is gone, soon."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(_session_of(entry) == session for entry in Path("/proc").glob("[0-9]*")):
            return True
        time.sleep(0.1)
    return False


def _session_of(entry: Path) -> int | None:
    try:
        return os.getsid(int(entry.name))
    except OSError:
        return None


def test_a_kernel_that_kills_the_tool_itself_is_named(tmp_path: Path) -> None:
    """Without isolation the tool dies with its kernel; the journal says over which problem."""
    (tmp_path / "my.py").write_text(KERNELS)
    process = start("my.py:kills_its_process", "--isolation", "none", cwd=tmp_path)
    assert process.wait(100) == -signal.SIGKILL
    (journal,) = (tmp_path / "cases" / "journal").glob("*.json")
    assert load_case(journal).problem.num_tokens == 3  # type: ignore[union-attr]


def test_a_run_that_ends_well_leaves_no_journal(tmp_path: Path) -> None:
    """The note is there while something is in flight, and not afterwards."""
    kernel = Kernel(name="k", contract="up-projection", load=lambda: print)
    journal = Journal(tmp_path, kernel, 3)
    journal(UpProjectionProblem(num_tokens=2))
    journal(UpProjectionProblem(num_tokens=4))
    (path,) = (tmp_path / "journal").iterdir()
    noted = load_case(path)
    assert (noted.problem.num_tokens, noted.seed, noted.clause) == (4, 3, "survival")  # type: ignore[union-attr]
    journal(None)
    assert list((tmp_path / "journal").iterdir()) == []
