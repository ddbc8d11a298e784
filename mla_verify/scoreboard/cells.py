"""One cell of the board: one method, one kernel, and after how many examples it complained."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import Phase

from mla_verify.check import Aim, check
from mla_verify.contracts import contract_named
from mla_verify.devices import one_thread_for_good
from mla_verify.drawing import TimeUp, drawn_into
from mla_verify.faults.corpus import faults, kernel_named
from mla_verify.faults.fault import Fault, kernel_of
from mla_verify.interpreting import interpret_on
from mla_verify.loading import open_bench
from mla_verify.parts import PARTS, WHOLE, without
from mla_verify.scoreboard.methods import METHODS, Method, complaint, fixed_problems
from mla_verify.within import why_outside
from sanitizer.sandbox import Death, Sandbox
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

    The kernel runs in a worker, for some die; a death is a complaint like any other.
    """
    kernel, method = kernel_named(job.kernel), _method(job.column)
    contract = contract_named(kernel.contract)
    seen: dict[str, Any] = {"examples": 0, "false_alarms": 0}
    started = time.perf_counter()

    def one_problem(problem: Any) -> None:
        seen["examples"] += 1
        answer = sandbox.request({"problem": problem_to_json(problem)}, timeout=_SECONDS)
        wrong, unjust = (answer.how, False) if isinstance(answer, Death) else (answer["complaint"], answer["unjust"])
        seen["false_alarms"] += bool(wrong) and (unjust or job.control)
        if not wrong or unjust or job.control:
            return
        seen.update(
            found_after=seen["examples"],
            complaint=wrong,
            problem=contract.describe(problem),
            seconds=time.perf_counter() - started,
        )
        raise TimeUp

    with Sandbox(_SERVICE, {"kernel": job.kernel, "column": job.column}, preload=_PRELOAD) as sandbox:
        try:
            if method.fixed:
                for problem in fixed_problems(kernel):
                    one_problem(problem)
            else:
                problems, phases = contract.problems(kernel), (Phase.generate,)
                drawn_into(one_problem, problems, examples=job.examples, seed=job.seed, phases=phases)()
        except TimeUp:
            pass
    return Cell(kernel=job.kernel, column=job.column, **seen)


def _method(name: str) -> Method:
    return next(method for method in METHODS if method.name == name)


def serve(arguments: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The handler of a worker that tests one kernel by one of the others' methods."""
    one_thread_for_good("cpu")
    interpret_on("cpu")
    kernel, method = kernel_named(str(arguments["kernel"])), _method(str(arguments["column"]))
    bench, right = open_bench(kernel), open_bench(kernel_named(_RIGHT[kernel.contract]))

    def handle(request: Mapping[str, Any]) -> dict[str, Any]:
        problem = problem_from_json(request["problem"])
        wrong = complaint(method, problem, bench)
        unjust = bool(wrong) and not why_outside(problem, right.kernel) and bool(complaint(method, problem, right))
        return {"complaint": wrong, "unjust": unjust}

    return handle
