"""The process in which a kernel runs: answers one request after the other until its parent is gone."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

from sanitizer.messages import receive, send

__all__ = ["become_worker", "serve"]

Handler = Callable[[Any], Any]
_PR_SET_PDEATHSIG: Final = 1
# Kept for the worker's whole life, out of the way of a kernel that closes the first few descriptors.
_HIGH_DESCRIPTOR: Final = 200


def become_worker(sock: socket.socket, stderr: int, setup: Mapping[str, Any]) -> None:
    """Turn this fresh process into a worker and never return. `setup` names the service and the memory limit."""
    os.setpgid(0, 0)  # so that whatever a kernel starts is ended with it
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(stderr, 1)
    os.dup2(stderr, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    code = 0
    try:
        serve(sock, setup)
    except BaseException:  # noqa: BLE001 - the process runner: whatever it was, it is written down and the process ends
        traceback.print_exc()
        code = 70
    finally:
        os._exit(code)


def serve(sock: socket.socket, setup: Mapping[str, Any]) -> None:
    """Build the service's handler and answer requests until the parent closes its end."""
    module, _, name = str(setup["service"]).partition(":")
    try:
        handler: Handler = getattr(importlib.import_module(module), name)(setup["arguments"])
    except Exception:  # noqa: BLE001 - told to the parent, which raises it
        send(sock, {"broken": traceback.format_exc()})
        return
    _limit_memory(setup.get("memory"))
    send(sock, {"ready": True})
    while True:
        try:
            request = receive(sock)
        except (EOFError, OSError):
            return
        try:
            answer = {"answer": handler(request)}
        except Exception:  # noqa: BLE001 - an error of ours, not the kernel's: told to the parent, which raises it
            answer = {"broken": traceback.format_exc()}
        send(sock, answer)


def _limit_memory(extra: int | None) -> None:
    """Let the address space grow by `extra` bytes from here on, and no further."""
    if extra is None:
        return
    with open("/proc/self/statm", encoding="ascii") as statm:
        pages = int(statm.read().split()[0])
    now = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + extra, now + extra))


def main() -> None:
    """Entry of a spawned worker: descriptors and set-up come on the command line."""
    import json

    sock = socket.socket(fileno=int(sys.argv[1]))
    become_worker(sock, int(sys.argv[2]), json.loads(sys.argv[3]))


if __name__ == "__main__":
    main()
