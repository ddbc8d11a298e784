"""Spreads a search over processes: a fixed number of shares with fixed seeds, whatever the number of cores."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final

from mla_verify.check import check
from mla_verify.databases import NO_DATABASES, Databases
from mla_verify.errors import UsageError
from mla_verify.isolation import Isolation
from mla_verify.kernel import Kernel
from mla_verify.narrowing import narrowed
from mla_verify.registry import resolve
from mla_verify.report import Report

__all__ = ["SHARDS", "Crashed", "Shard", "ShardResults", "run_shards", "shards_of"]

SHARDS: Final = 4  # per kernel: the verdict must not depend on how many cores there are
_SHARD_SEEDS: Final = 7_368_787  # between the seeds of a kernel's shards
_SHORTEST: Final = 0.5  # seconds; with less than this left no shard is begun
_GRACE: Final = 20.0  # seconds to come to an end once asked to stop; a hanging kernel is found out in ten
_TELL_EVERY: Final = 0.2  # seconds between two signs of life

Tell = Callable[[int, int, int], None]  # shard, examples it has seen, clauses it has seen broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One share of one kernel's search. `alone`: it gets a process of its own, as the kernel runs inside it.

    dtypes, known_excused: see `narrowed`.
    """

    kernel: int
    target: str
    contract: str
    examples: int
    seed: int
    alone: bool
    dtypes: tuple[str, ...] = ()
    known_excused: bool = True

    def resolved(self) -> Kernel:
        """The kernel, loaded by its target in whatever process this is."""
        kernel = resolve(self.target, contract=self.contract)
        return narrowed(kernel, dtypes=self.dtypes, known_excused=self.known_excused)


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process of a shard died under a kernel that ran inside it. `journal`: the case in flight, if it was noted."""

    how: str
    journal: Path | None


@dataclass(slots=True, eq=False)
class ShardResults:
    """What became of each shard, by its place in the list; one that was never begun is missing."""

    done: dict[int, Report | Crashed] = field(default_factory=dict[int, "Report | Crashed"])
    interrupted: bool = False


def shards_of(
    kernel: int, *, target: str, contract: str, examples: int, seed: int, alone: bool, shards: int = SHARDS
) -> list[Shard]:
    """The shares of one kernel: `examples` split over at most so many seeds, which follow from `seed`."""
    shares = [examples // shards + (number < examples % shards) for number in range(shards)]
    return [
        Shard(
            kernel=kernel,
            target=target,
            contract=contract,
            examples=share,
            seed=seed + _SHARD_SEEDS * number,
            alone=alone,
        )
        for number, share in enumerate(shares)
        if share
    ]


def run_shards(
    shards: Sequence[Shard],
    *,
    devices: Sequence[str],
    isolation: Isolation,
    folder: Path,
    until: float | None,
    tell: Tell,
    databases: Databases = NO_DATABASES,
) -> ShardResults:
    """Run every shard in one of `len(devices)` processes, each with its device.

    folder: where failures are saved. until: the `time.monotonic()` at which all ends; what is left of the time is
    shared out evenly. databases: each process opens them for itself. An interrupt (SIGINT, SIGTERM) ends the search
    early with what was found; a second one at once. Raises UsageError where a kernel cannot be loaded.
    """
    settings = _Settings(isolation, folder, databases)
    pool = _Pool(shards, settings=settings, until=until, tell=tell)
    with _interrupts() as interrupts:
        try:
            return pool.run(devices, interrupts)
        finally:
            pool.close()


@dataclass(frozen=True, slots=True)
class _Settings:
    """What holds for every shard of a search."""

    isolation: Isolation
    folder: Path
    databases: Databases


@dataclass(slots=True, eq=False)
class _Worker:
    device: str
    process: Any  # a spawned process
    connection: Connection[Any, Any]
    shard: int | None = None


class _Pool:
    """The processes of one search, as their parent sees them."""

    def __init__(self, shards: Sequence[Shard], *, settings: _Settings, until: float | None, tell: Tell) -> None:
        self._shards = shards
        self._settings = settings
        self._until = until
        self._tell = tell
        self._waiting = deque(range(len(shards)))
        self._workers: list[_Worker] = []
        self._results = ShardResults()
        self._count = 1  # of processes at work, among which the time is shared out

    def run(self, devices: Sequence[str], interrupts: list[int]) -> ShardResults:
        idle = list(devices[: len(self._shards)])
        self._count = len(idle)
        stop_by: float | None = None
        while True:
            if interrupts and stop_by is None:
                stop_by = time.monotonic() + _GRACE
                self._stop()
            while idle and self._may_begin():
                self._give(self._start(idle.pop()))
            if not self._workers:
                return self._results
            if len(interrupts) > 1 or (stop_by is not None and time.monotonic() > stop_by):
                return self._results
            for ready in wait([worker.connection for worker in self._workers], timeout=_TELL_EVERY):
                worker = next(one for one in self._workers if one.connection is ready)
                if not self._heard(worker):
                    self._workers.remove(worker)
                    idle.append(worker.device)

    def close(self) -> None:
        """End the processes: those that wait for work by themselves, those at work by force."""
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
            worker.connection.close()
        self._workers.clear()

    def _may_begin(self) -> bool:
        """Whether there is a shard to begin and time to begin it in."""
        if self._until is not None and self._until - time.monotonic() < _SHORTEST:
            self._waiting.clear()
        return bool(self._waiting)

    def _start(self, device: str) -> _Worker:
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=_work, args=(theirs, device, self._settings), daemon=False
        )
        # A Ctrl-C reaches the whole group: the parent alone decides what becomes of it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        worker = _Worker(device, process, ours)
        self._workers.append(worker)
        return worker

    def _give(self, worker: _Worker) -> None:
        """Hand a worker its next shard, with its part of the time."""
        seconds = None
        if self._until is not None:
            turns = -(-len(self._waiting) // self._count)
            seconds = (self._until - time.monotonic()) / turns
        worker.shard = self._waiting.popleft()
        worker.connection.send((self._shards[worker.shard], seconds))

    def _heard(self, worker: _Worker) -> bool:
        """Take one message. Whether the worker lives on."""
        shard = worker.shard
        assert shard is not None
        try:
            kind, content = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            worker.connection.close()
            self._results.done[shard] = self._crash(worker)
            return False
        if kind == "progress":
            self._tell(shard, *content)
            return True
        if kind == "usage":
            raise UsageError(content)
        if kind == "broken":
            raise RuntimeError(f"a shard could not be examined:\n{content}")
        self._results.done[shard] = content
        self._tell(shard, content.examples, len(content.findings))
        if not self._shards[shard].alone and self._may_begin():
            self._give(worker)
            return True
        worker.connection.close()
        worker.process.join()
        return False

    def _crash(self, worker: _Worker) -> Crashed:
        code: int = worker.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        journal = next((self._settings.folder / "journal").glob(f"*.{worker.process.pid}.json"), None)
        return Crashed(how, journal)

    def _stop(self) -> None:
        self._results.interrupted = True
        self._waiting.clear()
        for worker in self._workers:
            try:
                worker.connection.send("stop")
            except OSError:
                continue  # it has just died, which is heard of in its turn


@contextmanager
def _interrupts() -> Generator[list[int], None, None]:
    """The interrupts that have come in, as a list that grows; they raise nothing."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield seen  # signals are the main thread's
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(connection: Connection[Any, Any], device: str, settings: _Settings) -> None:
    """The life of one process: examine shards until the parent hangs up. Its hanging up also stops a search."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    orders: SimpleQueue[tuple[Shard, float | None] | None] = SimpleQueue()
    stop = threading.Event()
    threading.Thread(target=_listen, args=(connection, orders, stop), daemon=True).start()
    while (order := orders.get()) is not None:
        try:
            answer: tuple[str, Any] = ("report", _examined(*order, connection, device, settings, stop))
        except UsageError as error:
            answer = ("usage", str(error))
        except Exception:  # noqa: BLE001 - the process runner: a defect of ours is told to the parent, which raises
            answer = ("broken", traceback.format_exc())
        try:
            connection.send(answer)
        except OSError:
            return  # nobody is left to tell


def _listen(
    connection: Connection[Any, Any], orders: SimpleQueue[tuple[Shard, float | None] | None], stop: threading.Event
) -> None:
    try:
        while (order := connection.recv()) != "stop":
            orders.put(order)
    except (EOFError, OSError):
        pass  # the parent has hung up, or is gone
    stop.set()
    orders.put(None)


def _examined(
    shard: Shard,
    seconds: float | None,
    connection: Connection[Any, Any],
    device: str,
    settings: _Settings,
    stop: threading.Event,
) -> Report:
    told = time.monotonic()

    def progress(done: int, _total: int, broken: int) -> None:
        nonlocal told
        if time.monotonic() - told > _TELL_EVERY and not stop.is_set():
            told = time.monotonic()
            try:
                connection.send(("progress", (done, broken)))
            except OSError:
                stop.set()  # nobody is left to tell

    return check(
        shard.resolved(),
        examples=shard.examples,
        seed=shard.seed,
        device=device,
        deadline_s=seconds,
        progress=progress,
        isolation=settings.isolation,
        cases=settings.folder,
        database=settings.databases.open(),
        stopped=stop.is_set,
    )
