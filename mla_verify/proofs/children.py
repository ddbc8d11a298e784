"""Runs a module of this room in a process of its own, where Triton compiles, or where it interprets.

Triton decides when it is imported which of the two it does, for the whole process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final

__all__ = ["ChildFailed", "answer_of"]

_VARIABLE: Final = "TRITON_INTERPRET"
_SECONDS: Final = 300.0


class ChildFailed(Exception):
    """The process ended with an error. In words: the end of what it wrote to standard error."""


def answer_of(module: str, request: Any, *, interprets: bool, seconds: float = _SECONDS) -> Any:
    """What `python -m module` answers to a request: JSON in, and JSON out as its last line. Raises ChildFailed."""
    environment = {name: value for name, value in os.environ.items() if name != _VARIABLE}
    if interprets:
        environment[_VARIABLE] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(request),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    if done.returncode:
        raise ChildFailed(done.stderr.strip()[-2000:] or "it said nothing")
    return json.loads(done.stdout.splitlines()[-1])
