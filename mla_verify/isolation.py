"""Where a kernel runs while it is examined: in this process, or in a worker that it may take down with it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

from mla_verify.errors import Unavailable, UsageError
from mla_verify.examine import Bench, Examination, examine
from mla_verify.kernel import Kernel
from mla_verify.loading import open_bench
from mla_verify.parts import WHOLE, Parts
from mla_verify.serving import SERVICE, examination_from_json
from mla_verify.watchdog import HUNG
from sanitizer.fatal import clean
from sanitizer.finding import Finding
from sanitizer.sandbox import Death, Sandbox
from strategies.serial import problem_to_json

__all__ = ["Examiner", "InProcess", "Isolation", "Journal", "Sandboxed", "examiner_for", "isolation_named"]

Isolation = Literal["process", "none"]


def isolation_named(word: str) -> Isolation:
    """The isolation that a user asked for by name. Raises UsageError for another word."""
    if word not in ("process", "none"):
        raise UsageError(f"isolation {word!r} is unknown; there are process and none")
    return word


class Journal(Protocol):
    """Is told what is about to be launched; None when nothing is any more."""

    def __call__(self, problem: Any | None, after: Sequence[Any] = (), /) -> None:
        """Note a problem, and which ones the same process was given before it."""
        ...


_SHORTEST: Final = 1.0  # seconds before a kernel is called hung
_SLOWER: Final = 20.0  # times the slowest right run
_FIRST: Final = {"fork": 10.0, "spawn": 120.0}  # seconds, while no right call is known
_SURE: Final = 10.0  # times the limit that a first time-out is given to prove itself merely slow
_BACKSTOP: Final = 60.0  # seconds for everything around the calls of one problem, on a busy machine
_MEMORY: Final = 2 * 2**30  # bytes of address space beyond what the worker starts with
_REMEMBERED: Final = 256  # problems, of those that a worker was given: as many as a case may hold
_NO_FENCES: Final = "no fences on this device: survival does not cover accesses past a tensor that end in mapped memory"
# Loaded by the server of workers, so that a new worker has them at once. Importing these computes nothing.
_PRELOAD: Final = ("torch", "numpy", "mla_verify.serving", "mla_verify.up_projection", "mla_verify.decode")


class Examiner(Protocol):
    """Examines problems one after the other. `why_not` says why deaths cannot be survived; empty where they can.

    notes: what a reader of the verdict has to know about the place. lost: seconds spent on problems that cost a worker
    its life or its soundness.
    """

    why_not: str
    notes: tuple[str, ...]
    lost: float

    def __call__(self, problem: Any, *, economy: bool = False, maps: bool = False) -> Examination:
        """Examine one problem."""
        ...

    def close(self) -> None:
        """Let go of whatever is held."""
        ...


class InProcess:
    """Examines in this process: fastest, and a crash is the end of everything."""

    def __init__(self, bench: Bench, *, why_not: str, journal: Journal | None = None) -> None:
        self.bench = bench
        self.why_not = why_not
        self.notes = ()
        self.lost = 0.0
        self._journal = journal

    def __call__(self, problem: Any, *, economy: bool = False, maps: bool = False) -> Examination:
        """Examine one problem here."""
        if self._journal is not None:
            self._journal(problem)
        return examine(problem, self.bench, economy=economy, maps=maps)

    def close(self) -> None:
        """Nothing is held but the journal."""
        if self._journal is not None:
            self._journal(None)


class Sandboxed:
    """Examines in a worker process. However it ends, that is a `survival` finding, and the next problem gets a new one.

    The time limit of a call follows the kernel: 20 times its slowest right call, warm-ups aside, and never under a
    second. A first time-out is confirmed with ten times the limit before anything is called hung, so that a busy
    machine blames nobody. Raises Unavailable and UsageError as `open_bench` does.
    """

    def __init__(self, kernel: Kernel, *, device: str, journal: Journal | None = None, parts: Parts = WHOLE) -> None:
        start: Literal["fork", "spawn"] = "fork" if device == "cpu" else "spawn"
        self._first = _FIRST[start]
        self._arguments = {
            "target": kernel.target,
            "contract": kernel.contract,
            "device": device,
            "prepare_limit": self._first,
            "parts": parts.to_json(),
        }
        memory = _MEMORY if device == "cpu" else None  # a GPU maps far more than it takes
        self._sandbox = Sandbox(SERVICE, self._arguments, start=start, preload=_PRELOAD, memory=memory)
        self._journal = journal
        self._slowest: float | None = None
        self._warm_up_limit = 0.0  # raised once a warm-up has turned out to be slow, not hung
        self._opened = False
        self.given: deque[Any] = deque(maxlen=_REMEMBERED)  # what the worker has been asked since it started
        self.renews_quickly = start == "fork"  # in milliseconds, not in seconds
        self.why_not = ""
        self.notes: tuple[str, ...] = ()
        self.lost = 0.0
        self._hangs = False
        self._open()

    def __call__(self, problem: Any, *, economy: bool = False, maps: bool = False) -> Examination:
        """Examine one problem in the worker."""
        if self._journal is not None:
            self._journal(problem)
        started = time.perf_counter()
        return self._kept_sound(self._examined(problem, economy=economy, maps=maps), started)

    def in_turn(self, problem: Any, after: Sequence[Any], *, maps: bool = False) -> Examination:
        """Examine one problem in the worker that has just examined those `after` which it comes, in their order.

        Where it came before, it has to give the same bits again. With nothing before it, a sequence begins: what the
        worker was asked earlier is not compared. See `afresh` for a worker that was asked nothing.
        """
        if self._journal is not None:
            self._journal(problem, after)
        started = time.perf_counter()
        # A second try would come without the problems before it: the limit is what a second try would have.
        limit = _SURE * self._limit() if self._slowest is not None else self._limit()
        options = {"economy": False, "place": len(after), "maps": maps}
        return self._kept_sound(self._shown(self._ask(problem, options, limit), limit), started)

    def afresh(self) -> None:
        """Have the next problem examined by a worker that has examined none. See `renews_quickly` for what it costs."""
        if self.given or not self._opened:
            self.replace_worker()

    def _kept_sound(self, shown: Examination, started: float) -> Examination:
        """Drop a worker that is no longer to be trusted."""
        if shown.spoiled:
            self._sandbox.drop()
            self._opened = False
            self.lost += time.perf_counter() - started
        return shown

    def _examined(self, problem: Any, *, economy: bool, maps: bool) -> Examination:
        options = {"economy": economy, "maps": maps}
        limit = self._limit()
        answer = self._ask(problem, options, limit)
        if _hung(answer) and not self._hangs and self._slowest is not None:
            limit = _SURE * limit
            answer = self._ask(problem, options, limit)
            if not isinstance(answer, Death):
                self._warm_up_limit = limit
        return self._shown(answer, limit)

    def _shown(self, answer: Any | Death, limit: float) -> Examination:
        """What an answer, or a death in place of one, says about the problem."""
        if isinstance(answer, Death):
            self._hangs = self._hangs or _hung(answer)
            tensor, elements = (answer.fault.tensor, answer.fault.elements) if answer.fault else ("", 0)
            return Examination((Finding("survival", tensor, elements, _words(answer, limit)),), spoiled=True)
        return examination_from_json(answer)

    def replace_worker(self) -> None:
        """Kill the worker, and load the kernel in a new one."""
        self._sandbox.drop()
        self._open()

    def close(self) -> None:
        """End the worker."""
        self._sandbox.close()
        if self._journal is not None:
            self._journal(None)

    def _limit(self) -> float:
        if self._slowest is None:
            return _SHORTEST if self._hangs else self._first
        return max(_SHORTEST, _SLOWER * self._slowest)

    def _ask(self, problem: Any, options: dict[str, Any], limit: float) -> Any | Death:
        """Send one problem. The worker keeps the limits of calls itself; ours is for one that cannot."""
        if not self._opened:
            started = time.perf_counter()
            self._open()
            self.lost += time.perf_counter() - started
        self.given.append(problem)
        request = {"problem": problem_to_json(problem), **options}
        limits = {"limit": limit, "warm_up_limit": max(limit, self._warm_up_limit)}
        answer = self._sandbox.request({**request, **limits}, timeout=_BACKSTOP + 6 * max(limits.values()))
        if isinstance(answer, Death):
            self._opened = False
        elif not answer["findings"]:
            self._slowest = max(self._slowest or 0.0, answer["slowest"])
        return answer

    def _open(self) -> None:
        """Load the kernel in a fresh worker."""
        answer = self._sandbox.request({"open": True}, timeout=None)
        if isinstance(answer, Death):
            self._sandbox.close()
            raise UsageError(f"loading {self._arguments['target']} ended its process: {_words(answer, 0.0)}")
        if "unavailable" in answer:
            self._sandbox.close()
            raise Unavailable(answer["unavailable"])
        if "usage" in answer:
            self._sandbox.close()
            raise UsageError(answer["usage"])
        self.notes = (f"{_NO_FENCES} ({answer['no_fences']})",) if answer["no_fences"] else ()
        self._opened = True
        self.given.clear()


def examiner_for(
    kernel: Kernel, *, device: str, isolation: Isolation, journal: Journal | None = None, parts: Parts = WHOLE
) -> Examiner:
    """The place where `kernel` is examined: a worker, unless it is declared `in_process` or cannot be loaded again."""
    why = ""
    if isolation == "none":
        why = "isolation is off: the kernel runs in this process"
    elif kernel.in_process:
        why = "declared in_process: it runs in this process"
    elif kernel.target is None:
        why = "the kernel has no name or file by which a worker could load it"
    if why:
        bench = open_bench(kernel, device=device)
        bench.parts = parts
        return InProcess(bench, why_not=why, journal=journal)
    return Sandboxed(kernel, device=device, journal=journal, parts=parts)


def _hung(answer: Any | Death) -> bool:
    """Whether a worker was ended because a call did not come back in time."""
    return isinstance(answer, Death) and (answer.kind == "timeout" or answer.how.endswith(HUNG))


def _words(death: Death, limit: float) -> str:
    """A death in one sentence, with the last lines of what the worker wrote."""
    if _hung(death):
        how = f"the kernel was still running after {limit:.3g} s"
    elif death.fault is not None:
        how = f"the kernel {death.fault.words}: {death.how}"
    elif death.kind == "signal":
        how = f"the kernel was {death.how}"
    else:
        how = f"the kernel {death.how}"
    said = [line.strip() for line in death.stderr.splitlines() if line.strip(" ^~\t")]  # no lines of mere carets
    return f"{how}; its last words: {clean(' / '.join(said[-3:]))}" if said else how
