"""The worker's side of a check: loads a kernel once, then examines the problems that it is sent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final, cast

from mla_verify.devices import one_thread_for_good
from mla_verify.errors import Unavailable, UsageError
from mla_verify.examine import Bench, Examination, examine
from mla_verify.interpreting import interpret_on
from mla_verify.loading import open_bench
from mla_verify.maps import ElementMap
from mla_verify.parts import Parts
from mla_verify.registry import resolve
from mla_verify.watchdog import Watchdog
from sanitizer.finding import Finding
from strategies.serial import problem_from_json

__all__ = ["SERVICE", "examination_from_json", "serve"]

SERVICE: Final = "mla_verify.serving:serve"
_STREAMS: Final = ((0, "stdin"), (1, "stdout"), (2, "stderr"))


def serve(arguments: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The handler of one worker.

    arguments: target, contract and device of the kernel, and the parts of the check. The first request must be
    {"open": true}; the kernel is loaded then, and what keeps it from running here is an answer like any other.
    """
    benches: list[Bench] = []

    def handle(request: Mapping[str, Any]) -> dict[str, Any]:
        if "open" in request:
            return _open(arguments, benches)
        (bench,) = benches
        watchdog = cast("Watchdog", bench.function)
        watchdog.begin(limit=request["limit"], warm_up_limit=request["warm_up_limit"])
        place = request.get("place")
        if place == 0:
            bench.earlier.clear()
        problem = problem_from_json(request["problem"])
        shown = examine(
            problem, bench, economy=bool(request["economy"]), in_turn=place is not None, maps=bool(request.get("maps"))
        )
        closed = _closed_streams()
        if closed:
            detail = f"the kernel closed {', '.join(closed)} of its process"
            shown = Examination((*shown.findings, Finding("survival", "", 0, detail)), spoiled=True)
        maps = [element_map.to_json() for element_map in shown.maps]
        return {**asdict(replace(shown, maps=())), "maps": maps, "slowest": watchdog.slowest}

    return handle


def _open(arguments: Mapping[str, Any], benches: list[Bench]) -> dict[str, Any]:
    one_thread_for_good(arguments["device"])
    interpret_on(arguments["device"])
    try:
        kernel = resolve(arguments["target"], contract=arguments["contract"])
        bench = open_bench(kernel, device=arguments["device"])
        bench.parts = Parts.from_json(arguments["parts"])
        bench.fenced = bench.arena.fencing is not None and bench.parts.fences
        bench.function = Watchdog(bench.function, bench.device)
        if kernel.prepare is not None:
            prepare = Watchdog(kernel.prepare, bench.device)
            prepare.begin(limit=arguments["prepare_limit"], warm_up_limit=arguments["prepare_limit"])
            bench.kernel = replace(bench.kernel, prepare=prepare)
        benches.append(bench)
        opened = {"opened": True, "no_fences": bench.no_fences}
    except Unavailable as reason:
        return {"unavailable": str(reason)}
    except UsageError as error:
        return {"usage": str(error)}
    return opened


def _closed_streams() -> list[str]:
    """Which of the standard streams a kernel has closed."""
    closed: list[str] = []
    for descriptor, name in _STREAMS:
        try:
            os.fstat(descriptor)
        except OSError:
            closed.append(name)
    if (sys.stdout is None or sys.stdout.closed) and "stdout" not in closed:
        closed.append("stdout")
    return closed


def examination_from_json(data: Mapping[str, Any]) -> Examination:
    """What a worker answered, as the data that it was."""
    return Examination(
        findings=tuple(
            Finding(str(one["clause"]), str(one["tensor"]), int(one["elements"]), str(one["detail"]))
            for one in data["findings"]
        ),
        not_judged=int(data["not_judged"]),
        intercepted=int(data["intercepted"]),
        returned=bool(data["returned"]),
        elements=int(data["elements"]),
        spoiled=bool(data["spoiled"]),
        notes=tuple(map(str, data["notes"])),
        maps=tuple(map(ElementMap.from_json, data["maps"])),
    )
