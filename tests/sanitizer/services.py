"""What the sandbox's own tests run in a worker: one handler that does as the request says."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.audit import audit
from sanitizer.fences import Fence
from sanitizer.plan import TensorPlan

__all__ = ["BIG", "obeying", "refusing"]

BIG: Final = 2_000_000  # elements: enough for torch to share the work between threads


def obeying(arguments: Any) -> Callable[[Any], Any]:
    """A handler of requests {"do": word, …}; `arguments` come back under the word "arguments"."""
    actions: dict[str, Callable[[dict[str, Any]], Any]] = {
        "arguments": lambda _: arguments,
        "echo": lambda request: request["what"],
        "where": lambda _: {"pid": os.getpid(), "server": _server(), "folder": os.getcwd(), "path": sys.path},
        "signal": lambda request: os.kill(os.getpid(), request["number"]),
        "crash": lambda request: ctypes.string_at(request.get("address", 8), 1).hex(),
        "abort": lambda _: os.abort(),
        "exit": lambda request: os._exit(request["status"]),
        "sleep": lambda request: time.sleep(request["seconds"]),
        "complain": lambda _: (print("last words"), os.abort()),
        "fail": lambda _: 1 // 0,
        "chatter": lambda _: _each_socket(lambda sock: sock.sendall(b"this is no message of ours")),
        "hang up": lambda _: _each_socket(lambda sock: sock.shutdown(socket.SHUT_RDWR)),
        "close all": lambda _: os.closerange(0, 4096),
        "allocate": lambda _: len([bytearray(1 << 25) for _ in range(1 << 10)]),
        "kill parent": lambda _: os.kill(os.getppid(), signal.SIGKILL),
        "overflow": lambda _: _overflow(),
        "fence": lambda request: _beside(**{name: value for name, value in request.items() if name != "do"}),
    }
    return lambda request: actions[request["do"]](request)


def refusing(_: Any) -> Callable[[Any], Any]:
    """A service that cannot be set up."""
    raise RuntimeError("no service today")


def _server() -> int:
    """The parent of our parent: where branches come from."""
    with open(f"/proc/{os.getppid()}/stat", encoding="ascii") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def _each_socket(act: Callable[[socket.socket], None]) -> None:
    for descriptor in range(3, 300):
        with contextlib.suppress(OSError):
            act(socket.socket(fileno=os.dup(descriptor)))


def _overflow() -> None:
    """Fill the stack from C: qsort calls back into Python, which calls qsort."""
    sys.setrecursionlimit(10**9)
    libc = ctypes.PyDLL(None)
    numbers = (ctypes.c_int * 2)(2, 1)

    def sort(_first: int, _second: int) -> int:
        libc.qsort(numbers, 2, 4, compare)
        return 0

    compare = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(sort)
    sort(0, 0)


def _beside(*, side: str, distance: int, what: str = "read", alignment: int = 1, elements: int = 5) -> list[str]:
    """Audit a kernel that touches x, `distance` bytes from its end or beginning; what containment says if it lives."""
    place = Fence("after" if side == "past" else "before", alignment)
    x = TensorPlan(
        name="x", shape=(elements,), strides=(1,), dtype=torch.float32, role="input", values=torch.ones(elements)
    )
    out = TensorPlan(name="out", shape=(elements,), strides=(1,), dtype=torch.float32, role="output")
    arena = Arena()
    arena.load((x, out), fence=place)

    def kernel(tensors: dict[str, Tensor]) -> None:
        torch.mul(tensors["x"], 2, out=tensors["out"])
        touched = torch.empty(elements) if what == "scratch" else tensors["x"]
        address = touched.data_ptr() + (elements * 4 + distance if side == "past" else -distance)
        if what == "write":
            ctypes.memset(address, 1, 1)
        elif what == "thread":
            _read_on_two_threads(tensors["x"], elements + 1)
        else:
            ctypes.string_at(address, 1)

    return [finding.detail for finding in audit(kernel, arena).findings]


def _read_on_two_threads(tensor: Tensor, elements: int) -> None:
    """Add up so many elements from the first on; the last ones are another thread's share."""
    torch.set_num_threads(2)
    bytes_of = (ctypes.c_char * (elements * 4)).from_address(tensor.data_ptr())
    torch.frombuffer(bytes_of, dtype=torch.float32).sum().item()
