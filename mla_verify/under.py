"""Replays cases under another tool that watches a device's memory, and turns its report into findings.

The tool sees the kernel alone: one bare call per problem, each tensor in an allocation of its own, torch's cache off.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mla_verify.cases import Case, load_case
from mla_verify.contracts import contract_named
from mla_verify.devices import resolve_device
from mla_verify.errors import Unavailable, UsageError
from mla_verify.kernel import Kernel
from mla_verify.replaying import Replayed, case_paths, kernel_of_case
from mla_verify.second_opinions import (
    Allocation,
    Opinion,
    address_sanitizer_opinion,
    compute_sanitizer_opinion,
    environment_of,
)
from mla_verify.tally import Tally
from mla_verify.within import why_outside

__all__ = ["Tool", "replay_under", "tool_named"]

_TOOLS: Final = ("memcheck", "initcheck", "racecheck")
_SECONDS: Final = 300.0  # for one case: initcheck makes a model-sized call a hundred times as slow
_PRINTED: Final = 1_000  # errors; beyond, more of the same are only counted


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as it was found here. name: compute-sanitizer or rocm-asan; check: which of its checks."""

    name: str
    check: str
    program: str

    @property
    def words(self) -> str:
        """How it was asked for."""
        return f"{self.name}:{self.check}" if self.check else self.name


def tool_named(words: str) -> Tool:
    """The tool that `--under` names. Raises UsageError for an unknown one, Unavailable for one that is not here."""
    name, colon, check = words.partition(":")
    if name == "compute-sanitizer" and (check in _TOOLS or not colon):
        program = shutil.which(name) or shutil.which(name, path=_toolkit(name))
        if program is None:
            raise Unavailable(
                "compute-sanitizer is not installed here: it comes with the CUDA toolkit; set CUDA_HOME to that"
            )
        return Tool(name, check or "memcheck", program)
    if words == "rocm-asan":
        runtime = _asan_runtime()
        if runtime is None:
            raise Unavailable(
                "ROCm's address sanitizer is not installed here: its runtime libclang_rt.asan comes with ROCm's clang; "
                "set ROCM_PATH"
            )
        return Tool(name, "", runtime)
    known = ", ".join(f"compute-sanitizer:{tool}" for tool in _TOOLS)
    raise UsageError(f"--under {words!r} is unknown; there are {known} and rocm-asan")


def _toolkit(name: str) -> str:
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    return os.pathsep.join(f"{home}/{folder}" for home in homes if home for folder in ("bin", name))


def _asan_runtime() -> str | None:
    root = Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
    found = sorted(root.glob("**/clang/*/lib/**/libclang_rt.asan-x86_64.so")) if root.is_dir() else []
    return str(found[-1]) if found else None


def replay_under(
    paths: Sequence[Path],
    tool: Tool,
    *,
    kernel: str | None,
    device: str,
    tell: Callable[[Replayed], None] = lambda _: None,
) -> list[Replayed]:
    """Run every case among files and folders under `tool`, each in a process of its own; `tell` hears of each.

    Raises Unavailable where the device is absent, UsageError for a path that is not there.
    """
    resolve_device(device)
    done: list[Replayed] = []
    for path in case_paths(paths):
        try:
            case = load_case(path)
            shown = _replayed(path, case, kernel_of_case(path, case, kernel), tool, kernel, device)
        except UsageError as error:
            shown = Replayed(path=path, outcome="unreadable", detail=str(error))
        done.append(shown)
        tell(shown)
    return done


def _replayed(path: Path, case: Case, kernel: Kernel, tool: Tool, target: str | None, device: str) -> Replayed:
    def shown(outcome: Any, detail: str, opinion: Opinion | None = None) -> Replayed:
        return Replayed(
            path=path,
            outcome=outcome,
            detail=detail,
            case=case,
            kernel=kernel.name,
            finding=opinion.findings[0] if opinion is not None and opinion.findings else None,
            problem_text=contract_named(case.contract).describe(case.problem),
        )

    why = "its invalid problem lies over itself" if case.problem.invalid else why_outside(case.problem, kernel)
    if why:
        return shown("cannot run here", why)
    if Tally(kernel, "").quarantines(case.problem):
        return shown("known deviation", "quarantined, not launched")
    opinion, said = _asked(path, tool, target, device)
    if opinion.findings:
        details = "; ".join(f"{finding.clause}: {finding.detail}" for finding in opinion.findings)
        if not Tally(kernel, "").unexcused(case.problem, opinion.findings, count=False):
            return shown("known deviation", details)
        return shown("still fails", details, opinion)
    if "unavailable" in said:
        return shown("cannot run here", str(said["unavailable"]))
    if not opinion.complete:
        return shown("cannot run here", f"{tool.words} did not finish its report{_last(said)}")
    if "raised" in said:
        return shown("cannot run here", f"{tool.words} has nothing to report, but the kernel raised {said['raised']}")
    return shown("now passes", f"{tool.words} has nothing to report on one bare call")


def _asked(path: Path, tool: Tool, target: str | None, device: str) -> tuple[Opinion, dict[str, Any]]:
    """The tool's opinion of one case, and what the watched process said."""
    inner = [sys.executable, "-m", "mla_verify.bare_replay", str(path.absolute()), device, target or ""]
    with tempfile.TemporaryDirectory(prefix="mla-verify-") as folder:
        log = Path(folder, "report.txt")
        environment = {**os.environ, **environment_of(tool.name), "PYTHONPATH": os.pathsep.join(_import_path())}
        command = inner
        if tool.name == "compute-sanitizer":
            command = [*_compute_sanitizer(tool, log), *inner]
        else:
            environment["LD_PRELOAD"] = f"{tool.program}:{os.environ.get('LD_PRELOAD', '')}".rstrip(":")
        try:
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=_SECONDS,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            return Opinion((), complete=False), {"last": f"it was still running after {_SECONDS:g} s"}
        report = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    said = _said(done.stdout)
    said.setdefault("last", (done.stderr.strip().splitlines() or [""])[-1][:200])
    if tool.name != "compute-sanitizer":
        return address_sanitizer_opinion(done.stderr, finished=done.returncode == 0), said
    tensors: Mapping[str, Sequence[int]] = said.get("tensors", {})
    allocations = [Allocation(name, address, size) for name, (address, size) in tensors.items()]
    return compute_sanitizer_opinion(report, tool=tool.check, allocations=allocations), said


def _compute_sanitizer(tool: Tool, log: Path) -> list[str]:
    options = [
        "--tool",
        tool.check,
        "--log-file",
        str(log),
        "--print-limit",
        str(_PRINTED),
        "--target-processes",
        "all",
    ]
    if tool.check == "memcheck":  # torch asks drivers for what they may not have; that is no fault of a kernel
        options += ["--report-api-errors", "no"]
    return [tool.program, *options]


def _said(stdout: str) -> dict[str, Any]:
    """The JSON lines of the watched process, later ones over earlier ones; whatever a kernel printed is left out."""
    said: dict[str, Any] = {}
    for line in stdout.splitlines():
        if line.startswith('{"'):
            try:
                said.update(json.loads(line))
            except ValueError:
                continue
    return said


def _last(said: Mapping[str, Any]) -> str:
    return f": {said['last']}" if said.get("last") else ""


def _import_path() -> list[str]:
    return [entry or os.getcwd() for entry in sys.path]
