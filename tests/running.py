"""Commands that run while a test looks on, each in a session of its own, as from a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


@contextmanager
def running(command: Sequence[str], *, cwd: Path) -> Generator[subprocess.Popen[str], None, None]:
    """The command, uninstalled; whatever is left of it at the end is killed."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_until(sign: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait for a sign of a command that goes on running."""
    deadline = time.monotonic() + 60
    while not sign():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a command printed, to stdout and to stderr, once its whole group was interrupted."""
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=60)
