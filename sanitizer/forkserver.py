"""A small server that has torch loaded and computes nothing, so that a fresh worker is one fork away.

Forking a process in which a parallel torch operation has run deadlocks in the child; this one never runs any.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, Final

from sanitizer.messages import receive, send
from sanitizer.worker import become_worker

__all__ = ["main"]

_DESCRIPTORS: Final = 3  # sent with each request for a worker: its socket, its stderr and its fault report


def main(arguments: Sequence[str]) -> None:
    """Serve the parent at descriptor arguments[0], with the modules arguments[1:] loaded beforehand."""
    control = socket.socket(fileno=int(arguments[0]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in arguments[1:]:
        importlib.import_module(name)
    gc.freeze()  # pages stay shared with the workers
    children: set[int] = set()
    try:
        while True:
            request = receive(control)
            if "setup" in request:
                send(control, {"pid": _fork(control, request["setup"], children)})
            elif "alive" in request:
                send(control, {"alive": True})
            else:
                send(control, {"status": _wait(int(request["wait"]), float(request["seconds"]), children)})
    except (EOFError, OSError):
        pass  # the parent is gone
    finally:
        for pid in children:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)


def _fork(control: socket.socket, setup: dict[str, Any], children: set[int]) -> int:
    _, descriptors, _, _ = socket.recv_fds(control, 1, _DESCRIPTORS)
    pid = os.fork()
    if pid == 0:
        control.close()
        become_worker(descriptors, setup)
    for descriptor in descriptors:
        os.close(descriptor)
    children.add(pid)
    return pid


def _wait(pid: int, seconds: float, children: set[int]) -> int | None:
    """The exit status of a worker, as os.waitpid gives it; None while it lives on after `seconds`."""
    import time

    deadline = time.monotonic() + seconds
    pause = 0.0005
    while True:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if done:
            children.discard(pid)
            return status
        if time.monotonic() > deadline:
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


if __name__ == "__main__":
    main(sys.argv[1:])
