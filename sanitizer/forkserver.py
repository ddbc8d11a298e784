"""A small server that has torch loaded and computes nothing, so that a fresh worker is one fork away.

Forking a process in which a parallel torch operation has run deadlocks in the child; this one never runs any.

Note [Branches]: a kernel may kill the parent of its process. So workers are no children of the server, which took a
second to start, but of a branch: a copy of it that costs milliseconds, one for each sandbox.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from sanitizer.messages import receive, send
from sanitizer.worker import become_worker, end_with_parent

__all__ = ["main"]

_PR_SET_CHILD_SUBREAPER: Final = 36
_DESCRIPTORS: Final = 3  # sent with each request for a worker: its socket, its stderr and its fault report


def main(arguments: Sequence[str]) -> None:
    """Serve the parent at descriptor arguments[0], with the modules arguments[1:] loaded beforehand."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in arguments[1:]:
        importlib.import_module(name)
    gc.freeze()  # pages stay shared with the workers
    _adopt_orphans()
    _answer(socket.socket(fileno=int(arguments[0])))


def _adopt_orphans() -> None:
    """Become the parent of workers whose branch was killed: in a container nobody else might reap them."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _reap(children: set[int]) -> dict[int, int]:
    """pid → status of the children that have died, which are forgotten now, orphans included."""
    dead: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            children.discard(pid)
            dead[pid] = status
    return dead


def _answer(control: socket.socket) -> None:
    """Answer the parent, and take the children along when it is gone."""
    children: set[int] = set()
    dead: dict[int, int] = {}  # children nobody has asked about yet
    try:
        while True:
            request = receive(control)
            dead |= _reap(children)
            if "setup" in request or "branch" in request:
                pid = _fork(control, request["setup"]) if "setup" in request else _branch(control)
                children.add(pid)
                dead.pop(pid, None)  # of an earlier process with the same number
                send(control, {"pid": pid})
            elif "alive" in request:
                send(control, {"alive": True})
            else:
                send(control, {"status": _wait(int(request["wait"]), float(request["seconds"]), children, dead)})
    except (EOFError, OSError):
        pass  # the parent is gone
    finally:
        for pid in children:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _branch(control: socket.socket) -> int:
    """Become two: the child answers at a socket of its own."""
    _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    pid = os.fork()
    if pid == 0:
        try:
            control.close()
            os.setpgid(0, 0)
            end_with_parent()
            _answer(socket.socket(fileno=descriptors[0]))
        finally:
            os._exit(0)
    os.close(descriptors[0])
    return pid


def _fork(control: socket.socket, setup: dict[str, Any]) -> int:
    _, descriptors, _, _ = socket.recv_fds(control, 1, _DESCRIPTORS)
    pid = os.fork()
    if pid == 0:
        control.close()
        become_worker(descriptors, setup)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def _wait(pid: int, seconds: float, children: set[int], dead: dict[int, int]) -> int | None:
    """The exit status of a child, as os.waitpid gives it; None while it lives on after `seconds`."""
    deadline = time.monotonic() + seconds
    pause = 0.0005
    while True:
        dead |= _reap(children)
        if pid in dead:
            status = dead[pid]
            dead.clear()
            return status
        if pid not in children or time.monotonic() > deadline:
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


if __name__ == "__main__":
    main(sys.argv[1:])
