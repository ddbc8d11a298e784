"""The sandbox: whatever happens in the worker, the parent gets an answer or hears how the worker died."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from sanitizer.sandbox import Death, Sandbox, ServiceBroken

SERVICE: Final = "tests.sanitizer.services:obeying"
PRELOAD: Final = ("torch", "tests.sanitizer.services")
STARTS: Final = ("fork", "spawn")
CRASHES: Final = 1_000


@pytest.fixture(name="sandbox")
def _sandbox() -> Iterator[Sandbox]:
    with Sandbox(SERVICE, {"a": [1]}, preload=PRELOAD, memory=1 << 28) as sandbox:
        yield sandbox


def ask(sandbox: Sandbox, do: str, *, timeout: float | None = 60.0, **rest: Any) -> Any:
    """Send one request."""
    return sandbox.request({"do": do, **rest}, timeout=timeout)


def death(sandbox: Sandbox, do: str, *, timeout: float | None = 60.0, **rest: Any) -> Death:
    """Send a request that has to cost the worker its life; the next worker has to answer."""
    answer = ask(sandbox, do, timeout=timeout, **rest)
    assert isinstance(answer, Death)
    assert ask(sandbox, "echo", what="still here") == "still here"
    return answer


def living_children(*, of: int | None = None) -> set[int]:
    """Every process that descends from this one, or from another, zombies included."""
    found: set[int] = set()
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    front = {os.getpid() if of is None else of}
    while front:
        front = {pid for pid, parent in parents.items() if parent in front}
        found |= front
    return found


@pytest.mark.parametrize("start", STARTS)
def test_a_worker_answers_and_lives_on(start: Any) -> None:
    """Requests and answers are JSON data; the same process answers them all, where the parent is now."""
    with Sandbox(SERVICE, {"a": [1]}, start=start, preload=PRELOAD) as sandbox:
        assert ask(sandbox, "arguments") == {"a": [1]}
        first = ask(sandbox, "where")
        assert ask(sandbox, "where")["pid"] == first["pid"] != os.getpid()
        assert first["folder"] == os.getcwd()
        assert first["path"] == [entry or os.getcwd() for entry in sys.path]
        assert sandbox.deaths == 0


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGBUS, signal.SIGTERM])
def test_a_signal_is_named(sandbox: Sandbox, number: signal.Signals) -> None:
    """A worker that somebody sent a signal died of that signal, and of no access."""
    died = death(sandbox, "signal", number=int(number))
    assert (died.kind, died.how, died.fault) == ("signal", f"killed by {number.name}", None)


def test_every_other_end_is_named(sandbox: Sandbox) -> None:
    """Exits with their status, time-outs with their limit, and what a kernel does to the socket."""
    assert death(sandbox, "exit", status=0).how == "exited with status 0"
    assert death(sandbox, "exit", status=7).how == "exited with status 7"
    assert death(sandbox, "sleep", seconds=60, timeout=0.2).kind == "timeout"
    assert death(sandbox, "chatter").kind == "garbled"
    assert death(sandbox, "hang up").how == "closed its socket to the parent"
    assert death(sandbox, "close all").how == "closed its socket to the parent"


def test_the_last_words_are_kept(sandbox: Sandbox) -> None:
    """What the worker wrote before it died comes with the death, standard output included."""
    assert death(sandbox, "complain").stderr == "last words"


def test_memory_has_a_limit(sandbox: Sandbox) -> None:
    """A worker that allocates without end gets a MemoryError, not the machine's last byte."""
    with pytest.raises(ServiceBroken, match="MemoryError"):
        ask(sandbox, "allocate")


def test_a_service_that_fails_is_no_death(sandbox: Sandbox) -> None:
    """An exception in the service is raised in the parent: it is a defect of ours, not of a kernel."""
    with pytest.raises(ServiceBroken, match="ZeroDivisionError"):
        ask(sandbox, "fail")
    with Sandbox("tests.sanitizer.services:refusing", None) as other, pytest.raises(ServiceBroken, match="today"):
        other.start()


def test_killing_the_parent_is_blamed_on_who_did_it(sandbox: Sandbox) -> None:
    """The request in which it was killed is answered with a death, however late it falls; the server lives on."""
    server = ask(sandbox, "where")["server"]
    before = living_children(of=server)  # sandboxes of other tests may share the server
    for _ in range(20):
        died = death(sandbox, "kill parent")
        assert died.how == "killed the process that had started it"
    assert ask(sandbox, "where")["server"] == server
    sandbox.close()
    assert living_children(of=server) <= before


def test_sandboxes_share_a_server_as_long_as_the_environment_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting one costs more than a second; but a worker sees the environment that its sandbox was started in."""
    with Sandbox(SERVICE, 1, preload=PRELOAD) as one, Sandbox(SERVICE, 2, preload=PRELOAD) as two:
        assert ask(one, "where")["server"] == ask(two, "where")["server"]
        assert (ask(one, "arguments"), ask(two, "arguments")) == (1, 2)
        monkeypatch.setenv("OF_A_SERVER_OF_ITS_OWN", "1")
        with Sandbox(SERVICE, 3, preload=PRELOAD) as three:
            assert ask(three, "where")["server"] != ask(one, "where")["server"]


def test_a_wild_access_is_no_fence(sandbox: Sandbox) -> None:
    """An access near no tensor is a plain SIGSEGV; one without a valid address says what that may mean."""
    assert death(sandbox, "crash").fault is None
    wild = death(sandbox, "crash", address=1 << 62)
    assert wild.how == "killed by SIGSEGV"
    assert wild.fault is not None
    assert "aligned_16" in wild.fault.words


def test_a_full_stack_ends_the_worker_like_any_fault(sandbox: Sandbox) -> None:
    """The signal handler runs on a stack of its own."""
    assert death(sandbox, "overflow").how == "killed by SIGSEGV"


def test_a_thousand_crashes_leave_nothing_behind(sandbox: Sandbox) -> None:
    """No request is lost, and afterwards there is no process or descriptor, and so no file, that was not before."""
    ask(sandbox, "echo", what=0)
    sandbox.drop()

    def left() -> tuple[set[int], int]:
        return living_children(), len(os.listdir("/proc/self/fd"))

    before = left()
    deaths = [ask(sandbox, "crash") for _ in range(CRASHES)]
    sandbox.drop()
    assert {answer.how for answer in deaths} == {"killed by SIGSEGV"}
    assert sandbox.deaths == CRASHES
    assert left() == before
