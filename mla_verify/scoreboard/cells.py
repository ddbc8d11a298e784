"""One cell of the board: one method, one kernel, and after how many examples it complained."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from hypothesis import Phase

from mla_verify.check import Aim, check
from mla_verify.contracts import contract_named
from mla_verify.devices import one_thread_for_good
from mla_verify.drawing import drawn_into
from mla_verify.faults.corpus import faults, kernel_named
from mla_verify.faults.fault import Fault, kernel_of
from mla_verify.interpreting import interpret_on
from mla_verify.kernel import Kernel, limits_of
from mla_verify.loading import open_bench
from mla_verify.parts import PARTS, WHOLE, without
from mla_verify.scoreboard.methods import METHODS, Method, complaint, fixed_problems
from mla_verify.within import why_outside
from sanitizer.sandbox import Death, Sandbox
from strategies.limits import Limits
from strategies.serial import problem_from_json, problem_to_json

__all__ = ["COLUMNS", "SUITE", "Cell", "Job", "run_job", "serve"]

SUITE: Final = "suite"
WITHOUT: Final = "without "
COLUMNS: Final = (*(method.name for method in METHODS), *(WITHOUT + part.replace("_", " ") for part in PARTS), SUITE)
"""The methods in the order in which they are shown: others' first, then the suite without one part, then all of it."""

_SERVICE: Final = "mla_verify.scoreboard.cells:serve"
_PRELOAD: Final = ("torch", "numpy", "mla_verify.scoreboard.cells", "mla_verify.up_projection", "mla_verify.decode")
_SECONDS: Final = 600.0  # for one method of others and one kernel; a hang is as much of a complaint as a crash
_RIGHT: Final = {"up-projection": "up_projection_summed_then_copied", "decode": "decode_one_pass"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One cell to fill. kernel: its name in the corpus; control: it is a right one."""

    kernel: str
    column: str
    examples: int
    seed: int
    control: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a method said about a kernel.

    found_after: examples up to the first complaint that counts, None where there is none. clause: under which one (the
    suite only). complaint: its words. problem: where, in words; the smallest one for the whole suite. calls: how many
    problems one process has to be given for it. seconds, shrink_seconds: to the first sight, and from there to the
    smallest problem. false_alarms: problems at which the method complained about a right kernel as well.
    """

    kernel: str
    column: str
    examples: int
    found_after: int | None = None
    clause: str = ""
    complaint: str = ""
    problem: str = ""
    calls: int = 1
    seconds: float = 0.0
    shrink_seconds: float = 0.0
    false_alarms: int = 0
    others: tuple[str, ...] = ()  # further clauses that broke


def run_job(job: Job) -> Cell:
    """Fill one cell, in worker processes of this one."""
    one_thread_for_good("cpu")
    interpret_on("cpu")
    fault = None if job.control else _fault_named(job.kernel)
    if job.column in {method.name for method in METHODS}:
        return _by_others(job)
    return _by_the_suite(job, fault)


def _fault_named(name: str) -> Fault:
    return next(fault for fault in faults() if fault.name == name)


def _by_the_suite(job: Job, fault: Fault | None) -> Cell:
    kernel = kernel_named(job.kernel) if fault is None else kernel_of(fault)
    whole = job.column == SUITE
    parts = WHOLE if whole else without(job.column.removeprefix(WITHOUT).replace(" ", "_"))
    aim = None if fault is None else Aim(clauses=frozenset(fault.clauses), shrink=whole)
    report = check(kernel, examples=job.examples, seed=job.seed, parts=parts, aim=aim)
    if report.unavailable is not None:
        raise RuntimeError(f"{job.kernel}: {report.unavailable}")
    wanted = [found for found in report.findings if fault is None or found.clause in fault.clauses]
    others = tuple(found.clause for found in report.findings if found not in wanted)
    if not wanted:
        return Cell(kernel=job.kernel, column=job.column, examples=report.examples, others=others)
    first = min(wanted, key=lambda found: found.found_after)
    return Cell(
        kernel=job.kernel,
        column=job.column,
        examples=report.examples,
        found_after=first.found_after,
        clause=first.clause,
        complaint=first.detail,
        problem=first.problem_text,
        calls=1 + len(first.after),
        seconds=first.seconds,
        shrink_seconds=first.shrink_seconds,
        others=others,
    )


def _by_others(job: Job) -> Cell:
    """Another method, until its first complaint that it does not raise about a right kernel at the same problem too.

    The kernel runs in a worker, for some die; a death is a complaint like any other. Of a right kernel every complaint
    is counted.
    """
    kernel, method = kernel_named(job.kernel), _method(job.column)
    problems = fixed_problems(kernel) if method.fixed else _drawn(kernel, job.examples, job.seed)
    started = time.perf_counter()
    arguments = {"kernel": job.kernel, "column": job.column, "control": job.control}
    with Sandbox(_SERVICE, arguments, preload=_PRELOAD) as sandbox:
        answer = sandbox.request({"problems": [problem_to_json(one) for one in problems]}, timeout=_SECONDS)
        if isinstance(answer, Death):
            answer = _died_at(sandbox, problems)
    where = "" if answer["found_after"] is None else problems[answer["found_after"] - 1]
    text = contract_named(kernel.contract).describe(where) if where else ""
    seconds = time.perf_counter() - started
    return Cell(kernel=job.kernel, column=job.column, problem=text, seconds=seconds, **answer)


def _died_at(sandbox: Sandbox, problems: Sequence[Any]) -> dict[str, Any]:
    """The same once more, one problem at a time: at which one the worker dies."""
    for number, problem in enumerate(problems, start=1):
        answer = sandbox.request({"problems": [problem_to_json(problem)]}, timeout=_SECONDS)
        if isinstance(answer, Death):
            return {"examples": number, "found_after": number, "complaint": answer.how}
    raise RuntimeError("a worker died once, and not when it was given the same problems again")


@lru_cache(maxsize=8)
def _drawn_within(contract: str, limits: Limits, examples: int, seed: int) -> tuple[Any, ...]:
    """The first problems that a check with this seed draws."""
    problems: list[Any] = []

    def remember(problem: Any) -> None:
        problems.append(problem)

    kernel = Kernel(name="none", contract=contract, load=lambda: remember, limits=limits)
    strategy, phases = contract_named(contract).problems(kernel), (Phase.generate,)
    drawn_into(remember, strategy, examples=examples, seed=seed, phases=phases)()
    return tuple(problems)


def _drawn(kernel: Kernel, examples: int, seed: int) -> Sequence[Any]:
    return _drawn_within(kernel.contract, limits_of(kernel), examples, seed)


def _method(name: str) -> Method:
    return next(method for method in METHODS if method.name == name)


def serve(arguments: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The handler of a worker that tests one kernel by one of the others' methods."""
    one_thread_for_good("cpu")
    interpret_on("cpu")
    kernel, method = kernel_named(str(arguments["kernel"])), _method(str(arguments["column"]))
    bench, right = open_bench(kernel), open_bench(kernel_named(_RIGHT[kernel.contract]))

    def handle(request: Mapping[str, Any]) -> dict[str, Any]:
        false_alarms = 0
        for number, data in enumerate(request["problems"], start=1):
            problem = problem_from_json(data)
            wrong = complaint(method, problem, bench)
            if wrong and arguments["control"]:
                false_alarms += 1
            elif wrong:
                if why_outside(problem, right.kernel) or not complaint(method, problem, right):
                    found = {"found_after": number, "complaint": wrong}
                    return {"examples": number, "false_alarms": false_alarms, **found}
                false_alarms += 1
        return {"examples": len(request["problems"]), "false_alarms": false_alarms, "found_after": None}

    return handle
