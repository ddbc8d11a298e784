"""Runs requests in a worker process that may die: a death becomes an answer, and the worker is replaced.

Note [Servers]: workers that are forked come from a server with everything imported. Starting one takes over a second,
so all sandboxes of a process with the same preloaded modules and the same environment share one. It ends with the
process, and sooner where nobody uses it and another environment is asked for. Each sandbox has a branch of it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, Literal

from sanitizer.faults import Fault, read_fault
from sanitizer.messages import Garbled, TimedOut, receive, send
from sanitizer.worker import LOST_ITS_SOCKET

__all__ = ["Death", "Sandbox", "ServiceBroken"]

_TAIL_BYTES: Final = 2_000  # of stderr, shown with a death
_START_SECONDS: Final = 120.0  # importing torch on a loaded machine takes a while
_DYING_SECONDS: Final = 0.5  # between a closed socket and the exit status
_SERVER_SECONDS: Final = 5.0  # for a server to answer beyond the time it was asked to wait
_DEADLY: Final = 1 << (signal.SIGKILL - 1) | 1 << (signal.SIGSTOP - 1)
_PF_EXITING_OR_SIGNALED: Final = 0x4 | 0x400  # Linux's flags of a task that is going
# Changes with every test without meaning anything to a worker; and the import path, which workers are told.
_NOT_COMPARED: Final = frozenset({"PYTEST_CURRENT_TEST", "PYTHONPATH"})


class ServiceBroken(RuntimeError):
    """The service in the worker failed by itself: a defect of this tool, not of what it runs."""


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended while it was answering.

    how: a phrase such as "killed by SIGSEGV". fault: the access that ended it, where that is known.
    """

    kind: Literal["signal", "exit", "timeout", "garbled"]
    how: str
    stderr: str
    fault: Fault | None = None


class Sandbox:
    """One persistent worker, started when first needed and replaced when it dies.

    service: "module:function" in the worker's interpreter; called with `arguments` (JSON data), it returns the handler
    of requests. start: "fork" from a server with `preload` imported, or "spawn" a new interpreter (where a GPU is in
    use: CUDA cannot be forked). memory: bytes of address space that the worker may take beyond its start.
    """

    def __init__(
        self,
        service: str,
        arguments: Any,
        *,
        start: Literal["fork", "spawn"] = "fork",
        preload: Sequence[str] = ("torch",),
        memory: int | None = None,
    ) -> None:
        self._setup = {"service": service, "arguments": arguments, "memory": memory}
        self._start: Literal["fork", "spawn"] = start
        self._preload = tuple(preload)
        self._branch: _Branch | None = None
        self._worker: _Worker | None = None
        self.deaths = 0

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, payload: Any, *, timeout: float | None) -> Any | Death:
        """The handler's answer to `payload` (JSON data both ways), or how the worker died over it.

        timeout: seconds, None for no limit. Raises ServiceBroken when the service itself failed.
        """
        worker = self._living()
        try:
            send(worker.sock, payload)
            message = receive(worker.sock, timeout=timeout)
        except TimedOut:
            return self._bury("timeout", f"still running after {timeout:.3g} s")
        except (Garbled, UnicodeDecodeError) as error:
            return self._bury("garbled", f"wrote into the answer's socket ({error})")
        except (EOFError, OSError):
            return self._bury("exit", "")
        if not isinstance(message, Mapping) or not message.keys() & {"answer", "broken"}:
            return self._bury("garbled", "wrote into the answer's socket")
        if worker.branch is not None and worker.branch.doomed():
            # Both would die in a moment, and the next request be blamed for it.
            self._cut_branch()
            return self._bury("exit", "")
        if "broken" in message:
            raise ServiceBroken(str(message["broken"]))
        return message["answer"]

    def start(self) -> None:
        """Start the worker now instead of with the first request."""
        self._living()

    def drop(self) -> None:
        """End the worker; the next request gets a fresh one."""
        if self._worker is not None:
            self._worker.end(seconds=0.0)
            self._worker.close()
            self._worker = None

    def close(self) -> None:
        """End the worker; the server behind it stays for other sandboxes. See Note [Servers]."""
        self.drop()
        self._cut_branch()

    def _cut_branch(self) -> None:
        if self._branch is not None:
            self._branch.close()
            self._branch = None

    def _living(self) -> _Worker:
        if self._worker is None:
            self._worker = self._launch()
            try:
                hello = receive(self._worker.sock, timeout=_START_SECONDS)
            except (TimedOut, Garbled, EOFError, OSError) as error:
                death = self._bury("exit", "")
                raise ServiceBroken(f"the worker did not start: {death.how}\n{death.stderr}") from error
            if "broken" in hello:
                self.close()
                raise ServiceBroken(str(hello["broken"]))
        return self._worker

    def _launch(self) -> _Worker:
        if self._start == "spawn":
            return _spawn(self._setup)
        for _ in range(2):  # a kernel may have killed the branch, or the server: then there is another
            try:
                if self._branch is None:
                    self._branch = _server_with(self._preload).branch()
                return self._branch.fork(_told_where(self._setup))
            except (OSError, EOFError, Garbled, TimedOut):
                self._cut_branch()
        raise ServiceBroken("the server of workers cannot be kept alive")

    def _bury(self, kind: Literal["signal", "exit", "timeout", "garbled"], how: str) -> Death:
        """End what is left of the worker and say how it died."""
        worker, self._worker = self._worker, None
        assert worker is not None
        self.deaths += 1
        status = worker.end(seconds=_DYING_SECONDS if kind == "exit" else 0.0)
        stderr, fault = worker.stderr_tail(), read_fault(worker.faults.fileno())
        worker.close()
        if kind != "exit":
            return Death(kind, how, stderr)
        if worker.branch is not None and not worker.branch.alive():
            self._cut_branch()
            return Death("exit", "killed the process that had started it", stderr)
        if status is None or status == LOST_ITS_SOCKET << 8:
            return Death("exit", "closed its socket to the parent", stderr)
        if os.WIFSIGNALED(status):
            return Death("signal", f"killed by {_signal_name(os.WTERMSIG(status))}", stderr, fault)
        return Death("exit", f"exited with status {os.WEXITSTATUS(status)}", stderr)


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker as its parent sees it."""

    pid: int
    sock: socket.socket
    stderr: IO[bytes]
    faults: IO[bytes]
    branch: _Branch | None
    process: subprocess.Popen[bytes] | None

    def end(self, *, seconds: float) -> int | None:
        """Wait so long for it to die by itself, then kill it and all it started. Its own exit status, or None."""
        status = self._status(seconds)
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        if status is None:
            self._status(5.0)
        return status

    def _status(self, seconds: float) -> int | None:
        if self.process is not None:
            try:
                code = self.process.wait(max(seconds, 0.001))
            except subprocess.TimeoutExpired:
                return None
            return -code if code < 0 else code << 8
        if self.branch is None:
            return None
        try:
            return self.branch.wait(self.pid, seconds)
        except (OSError, EOFError, Garbled, TimedOut):
            return None

    def stderr_tail(self) -> str:
        """The last lines that the worker wrote to stdout and stderr."""
        size = self.stderr.seek(0, os.SEEK_END)
        self.stderr.seek(max(0, size - _TAIL_BYTES))
        return self.stderr.read().decode(errors="replace").strip()

    def close(self) -> None:
        self.sock.close()
        self.stderr.close()
        self.faults.close()


class _Line:
    """A socket to a process that answers one question at a time."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._one_at_a_time = threading.Lock()

    def ask(self, question: Mapping[str, Any], descriptors: Sequence[int] = (), *, seconds: float = 0.0) -> Any:
        """The answer, which may take so long and a little more."""
        with self._one_at_a_time:
            send(self._control, question)
            if descriptors:
                socket.send_fds(self._control, [b"."], descriptors)
            return receive(self._control, timeout=seconds + _SERVER_SECONDS)

    def alive(self) -> bool:
        """Whether it answers. A process that has been sent SIGKILL never does, even if it is not dead yet."""
        try:
            return bool(self.ask({"alive": True})["alive"])
        except (OSError, EOFError, Garbled, TimedOut):
            return False

    def close(self) -> None:
        """Hang up, upon which the other end goes."""
        self._control.close()


class _Branch:
    """A copy of a server for one sandbox, which a kernel may kill: the parent of the sandbox's workers."""

    def __init__(self, server: _ForkServer) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._pid = int(server.line.ask({"branch": True}, [theirs.fileno()], seconds=_START_SECONDS)["pid"])
        self._line = _Line(ours)
        self._server = server
        self.alive = self._line.alive
        server.branches += 1

    def doomed(self) -> bool:
        """Whether it has been killed or stopped, even if it has not fallen yet.

        Looked up instead of asked: waking another process for every answer halves the rate on a busy machine.
        """
        try:
            with open(f"/proc/{self._pid}/status", encoding="ascii", errors="replace") as status:
                pending = [int(line.split()[1], 16) for line in status if line.startswith(("SigPnd", "ShdPnd"))]
            with open(f"/proc/{self._pid}/stat", encoding="ascii", errors="replace") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            return True
        state, flags = fields[0], int(fields[6])
        return any(word & _DEADLY for word in pending) or state in "TtZX" or bool(flags & _PF_EXITING_OR_SIGNALED)

    def fork(self, setup: Mapping[str, Any]) -> _Worker:
        """A new worker."""
        ours, theirs = socket.socketpair()
        files = _files()
        with theirs:
            descriptors = [theirs.fileno(), *(file.fileno() for file in files)]
            pid = int(self._line.ask({"setup": setup}, descriptors, seconds=_START_SECONDS)["pid"])
        return _Worker(pid, ours, *files, self, None)

    def wait(self, pid: int, seconds: float) -> int | None:
        """The exit status of a worker once it is dead; None if it still lives after so long."""
        return self._line.ask({"wait": pid, "seconds": seconds}, seconds=seconds)["status"]

    def close(self) -> None:
        """End it, and see it gone."""
        self._line.close()
        self._server.branches -= 1
        if self.doomed():  # one that was stopped would wait for ever
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(OSError, EOFError, Garbled, TimedOut):
            self._server.line.ask({"wait": self._pid, "seconds": _SERVER_SECONDS}, seconds=_SERVER_SECONDS)


class _ForkServer:
    """The parent's end of `sanitizer.forkserver`. `branches`: how many sandboxes have one of it."""

    def __init__(self, preload: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self.preload = preload
        self.environment = environment
        self.owner = os.getpid()
        self.branches = 0
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sanitizer.forkserver", str(theirs.fileno()), *preload],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=_environment(),
            )
        self.line = _Line(ours)

    def branch(self) -> _Branch:
        """A copy for one sandbox."""
        return _Branch(self)

    def close(self) -> None:
        """End it, with all branches and workers that have come from it."""
        if self in _servers:
            _servers.remove(self)
        self.line.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_SERVER_SECONDS)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def running(self) -> bool:
        """Whether its process is there at all."""
        return self._process.poll() is None


_servers: Final[list[_ForkServer]] = []


def _server_with(preload: tuple[str, ...]) -> _ForkServer:
    """The running server with these modules and the environment as it is now. See Note [Servers]."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_COMPARED}
    for server in [server for server in _servers if server.owner == os.getpid()]:
        if not server.running() or not server.line.alive():
            server.close()
        elif (server.preload, server.environment) == (preload, environment):
            return server
        elif server.branches <= 0:
            server.close()
    server = _ForkServer(preload, environment)
    _servers.append(server)
    return server


@atexit.register
def _end_servers() -> None:
    for server in list(_servers):
        if server.owner == os.getpid():
            server.close()


def _files() -> tuple[IO[bytes], IO[bytes]]:
    """Nameless files for what a worker writes and for its fault; closed when it is buried."""
    return tempfile.TemporaryFile(), tempfile.TemporaryFile()


def _told_where(setup: Mapping[str, Any]) -> dict[str, Any]:
    """`setup` with what a server that was started earlier cannot know: our folder, and where we import from."""
    return {**setup, "folder": os.getcwd(), "path": _import_path()}


def _spawn(setup: Mapping[str, Any]) -> _Worker:
    ours, theirs = socket.socketpair()
    files = _files()
    with theirs:
        descriptors = (theirs.fileno(), *(file.fileno() for file in files))
        process = subprocess.Popen(
            [sys.executable, "-m", "sanitizer.worker", *map(str, descriptors), json.dumps(_told_where(setup))],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            env=_environment(),
        )
    return _Worker(process.pid, ours, *files, None, process)


def _environment() -> dict[str, str]:
    """Ours, with the import path of this process, so that the worker finds the same packages uninstalled too."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())}


def _import_path() -> list[str]:
    return [entry or os.getcwd() for entry in sys.path]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
