"""The process in which a kernel runs: answers one request after the other until its parent is gone."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sanitizer.faults import catch_faults
from sanitizer.messages import receive, send

__all__ = ["LOST_ITS_SOCKET", "become_worker", "end_with_parent", "serve"]

Handler = Callable[[Any], Any]
_PR_SET_PDEATHSIG: Final = 1
LOST_ITS_SOCKET: Final = 71  # exit status of a worker whose socket has been closed under it
# Kept for the worker's whole life, out of the way of a kernel that closes the first few descriptors.
_HIGH_DESCRIPTOR: Final = 200


def become_worker(descriptors: Sequence[int], setup: Mapping[str, Any]) -> None:
    """Turn this fresh process into a worker and never return.

    descriptors: the socket to the parent, and two files: one for stderr and one for faults. setup: the service, its
    arguments, the memory limit, and where the parent is and imports from.
    """
    control, stderr, faults = (_out_of_the_way(descriptor) for descriptor in descriptors)
    os.setpgid(0, 0)  # so that whatever a kernel starts is ended with it
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(stderr, 1)
    os.dup2(stderr, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    sys.path[:] = setup["path"]
    code = 0
    try:
        os.chdir(setup["folder"])
        serve(socket.socket(fileno=control), setup, faults)
    except BaseException:  # noqa: BLE001 - the process runner: whatever it was, it is written down and the process ends
        traceback.print_exc()
        code = 70
    finally:
        os._exit(code)


def end_with_parent() -> None:
    """Have this process killed as soon as its parent is gone."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _out_of_the_way(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    os.close(descriptor)
    return moved


def serve(sock: socket.socket, setup: Mapping[str, Any], faults: int) -> None:
    """Build the service's handler and answer requests until the parent closes its end."""
    module, _, name = str(setup["service"]).partition(":")
    try:
        handler: Handler = getattr(importlib.import_module(module), name)(setup["arguments"])
    except Exception:  # noqa: BLE001 - told to the parent, which raises it
        send(sock, {"broken": traceback.format_exc()})
        return
    catch_faults(faults)
    _limit_memory(setup.get("memory"))
    send(sock, {"ready": True})
    while True:
        try:
            request = receive(sock)
        except EOFError:
            return
        except OSError:
            os._exit(LOST_ITS_SOCKET)
        try:
            answer = {"answer": handler(request)}
        except Exception:  # noqa: BLE001 - an error of ours, not the kernel's: told to the parent, which raises it
            answer = {"broken": traceback.format_exc()}
        try:
            send(sock, answer)
        except OSError:
            os._exit(LOST_ITS_SOCKET)


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

    *descriptors, setup = sys.argv[1:]
    become_worker([int(descriptor) for descriptor in descriptors], json.loads(setup))


if __name__ == "__main__":
    main()
