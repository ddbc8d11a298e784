"""Runs saved cases again and says what became of each: still fails, now passes, cannot run here, known deviation."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final, Literal

from mla_verify.cases import REFUTATION_SUFFIX, Case, case_files, load_case
from mla_verify.contracts import contract_named
from mla_verify.devices import one_thread, resolve_device
from mla_verify.errors import ExitCode, Unavailable, UsageError
from mla_verify.isolation import Examiner, Isolation, Sandboxed, examiner_for
from mla_verify.journal import digests_of
from mla_verify.kernel import Kernel
from mla_verify.mapped import maps_at
from mla_verify.maps import ElementMap
from mla_verify.proofs.replaying import Disagreement
from mla_verify.refutations import (
    Refutation,
    declared_names,
    is_refutation,
    launch_again,
    launchable,
    load_refutation,
    sizes_text,
)
from mla_verify.registry import registered, resolve
from mla_verify.sequences import broken_in_turn
from mla_verify.tally import Tally
from mla_verify.within import why_outside
from sanitizer.finding import Finding
from strategies.extents import elements_of

__all__ = ["Outcome", "Replayed", "Replayer", "case_paths", "is_case_of", "kernel_of_case", "replay_paths"]

Outcome = Literal["still fails", "now passes", "cannot run here", "known deviation", "unreadable"]
_CODES: Final[dict[Outcome, ExitCode]] = {
    "still fails": ExitCode.VIOLATION,
    "now passes": ExitCode.HOLDS,
    "known deviation": ExitCode.HOLDS,
    "cannot run here": ExitCode.UNAVAILABLE,
    "unreadable": ExitCode.USAGE,
}
_MOST_ELEMENTS: Final = 1 << 27  # 60 times what is ever drawn, and as much as a worker's memory allows
_OTHER_VALUES: Final = "the values made here differ from the case's: another version of the pools"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of one case. `finding` is there where it still fails: the case's clause, or another that broke."""

    path: Path
    outcome: Outcome
    detail: str
    case: Case | None = None
    kernel: str = ""
    finding: Finding | None = None
    problem_text: str = ""
    maps: tuple[ElementMap, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command about this case alone."""
        return _CODES[self.outcome]

    def to_json(self) -> dict[str, Any]:
        """One object of `replay --json`."""
        return {
            "case": str(self.path),
            "kernel": self.kernel,
            "clause": self.case.clause if self.case is not None else None,
            "outcome": self.outcome,
            "detail": self.detail,
            "broken": self.finding.clause if self.finding is not None else None,
            "problem": self.problem_text,
        }


class Replayer:
    """Runs cases on one kernel after the other, each kernel loaded once. Close it to let the workers go."""

    def __init__(self, *, device: str, isolation: Isolation) -> None:
        self._device = device
        self._isolation: Isolation = isolation
        self._examiners: dict[str, Examiner | Unavailable] = {}

    def __call__(self, path: Path, case: Case, kernel: Kernel) -> Replayed:
        """Run one case on `kernel`. Raises UsageError where the kernel can run nowhere."""
        outcome, detail, finding = self._outcome(case, kernel)
        return Replayed(
            path=path,
            outcome=outcome,
            detail=detail,
            case=case,
            kernel=kernel.name,
            finding=finding,
            problem_text=contract_named(case.contract).describe(case.problem),
            maps=self._maps(case, kernel, finding),
        )

    def _maps(self, case: Case, kernel: Kernel, finding: Finding | None) -> tuple[ElementMap, ...]:
        """What became of every element, where the case still fails."""
        if finding is None:
            return ()
        with one_thread(resolve_device(self._device)):
            return maps_at(self._examiner(kernel), case.problem, clause=finding.clause, after=case.after)

    def close(self) -> None:
        """End the workers."""
        for examiner in self._examiners.values():
            if not isinstance(examiner, Unavailable):
                examiner.close()

    def _outcome(self, case: Case, kernel: Kernel) -> tuple[Outcome, str, Finding | None]:
        tally = Tally(kernel, "")
        for problem in (*case.after, case.problem):
            elements = elements_of(problem)
            if elements > _MOST_ELEMENTS:
                detail = f"it spans {elements} elements, more than {_MOST_ELEMENTS} are not laid out"
                return "cannot run here", detail, None
            outside = why_outside(problem, kernel)
            if outside:
                return "cannot run here", outside, None
            if tally.quarantines(problem):
                return "known deviation", f"quarantined, not launched: {_reasons(kernel, problem)}", None
        try:
            examiner = self._examiner(kernel)
        except Unavailable as reason:
            return "cannot run here", str(reason), None
        if case.after and not isinstance(examiner, Sandboxed):
            return "cannot run here", f"it takes several problems in a new process: {examiner.why_not}", None
        with one_thread(resolve_device(self._device)):
            same_values = not case.digests or digests_of(case.problem, kernel) == dict(case.digests)
            findings = _shown(case, examiner, tally)
        blamed = tally.unexcused(case.problem, findings, count=False)
        if blamed:
            finding = next((one for one in blamed if one.clause == case.clause), blamed[0])
            other = "" if finding.clause == case.clause else f"; the case was saved for {case.clause}"
            values = "" if same_values else f"; {_OTHER_VALUES}"
            return "still fails", f"{finding.clause}: {finding.detail}{other}{values}", finding
        if not same_values:
            return "cannot run here", f"{_OTHER_VALUES}, so that a pass would prove nothing", None
        if findings:
            return "known deviation", _reasons(kernel, case.problem), None
        return "now passes", f"every clause that this problem exercises holds, {case.clause} too", None

    def _examiner(self, kernel: Kernel) -> Examiner:
        known = kernel.target or kernel.name
        if known not in self._examiners:
            try:
                self._examiners[known] = examiner_for(kernel, device=self._device, isolation=self._isolation)
            except Unavailable as reason:
                self._examiners[known] = reason
        examiner = self._examiners[known]
        if isinstance(examiner, Unavailable):
            raise examiner
        return examiner


def replay_paths(
    paths: Sequence[Path],
    *,
    kernel: str | None,
    device: str,
    isolation: Isolation,
    tell: Callable[[Replayed], None] = lambda _: None,
) -> list[Replayed]:
    """Run every case among files and folders; `tell` hears of each.

    kernel: the target to try them on, instead of the registered kernel that each was found with. One that is no case,
    or that names a kernel which only the command line may load, is `unreadable`; the others run. Raises UsageError for
    a path that is not there and for a folder without cases.
    """
    resolve_device(device)
    files = list(case_paths(paths, refutations=True))
    replayer = Replayer(device=device, isolation=isolation)
    done: list[Replayed] = []
    try:
        for path in files:
            try:
                if is_refutation(path):
                    shown = _launched_again(path, load_refutation(path), kernel)
                else:
                    case = load_case(path)
                    shown = replayer(path, case, kernel_of_case(path, case, kernel))
            except UsageError as error:
                shown = Replayed(path=path, outcome="unreadable", detail=str(error))
            done.append(shown)
            tell(shown)
    finally:
        replayer.close()
    return done


def kernel_of_case(path: Path, case: Case, target: str | None) -> Kernel:
    """The kernel to run a case on: `target` from the command line, else what the registry has under the case's name.

    Nothing is imported because a case names it. Raises UsageError that says which option to give.
    """
    if target is not None:
        return resolve(target, contract=case.contract)
    ours = {kernel.name: kernel for kernel in registered()}
    kernel = ours.get(case.kernel)
    if kernel is None:
        shown = shlex.quote(case.kernel) if case.kernel.isprintable() and len(case.kernel) < 200 else "TARGET"
        raise UsageError(
            f"{path} was found with {case.kernel[:200]!r}, which is no registered kernel, and a case may load "
            f"nothing by itself: name the kernel with --kernel {shown}"
        )
    if kernel.contract != case.contract:
        raise UsageError(
            f"{path} is of the contract {case.contract!r}, its kernel {kernel.name} of {kernel.contract!r}"
        )
    return kernel


def _launched_again(path: Path, refutation: Refutation, target: str | None) -> Replayed:
    """A refutation of a proof, launched on what is declared now, whatever the device: interpreted, on the CPU.

    target: whose declaration, instead of that of the registered kernel that was refuted.
    """

    def shown(outcome: Outcome, detail: str) -> Replayed:
        return Replayed(
            path=path,
            outcome=outcome,
            detail=detail,
            kernel=refutation.name,
            problem_text=sizes_text(refutation),
        )

    if target is None and refutation.target not in declared_names():
        raise UsageError(
            f"{path} was found with {refutation.target[:200]!r}, which is no registered kernel, and a file may load "
            "nothing by itself: name the declaration with --kernel file.py:NAME"
        )
    if not launchable(refutation):
        again = f"decide it again with mla-verify prove {shlex.quote(target or refutation.target)}"
        return shown("cannot run here", f"{refutation.property} is computed, not launched: {again}")
    try:
        result = launch_again(refutation, target=target or refutation.target)
    except (Unavailable, Disagreement) as reason:
        return shown("cannot run here", str(reason))
    if result.shown:
        return shown("still fails", f"{refutation.property}: {result.words}")
    return shown("now passes", f"{refutation.property} of {refutation.tensor} holds at these sizes")


def is_case_of(case: Case, kernel: Kernel) -> bool:
    """Whether a case was found with this kernel: by its name, its target, or the same file seen from another folder."""
    if case.contract != kernel.contract:
        return False
    if case.kernel in (kernel.name, kernel.target):
        return True
    file, colon, function = case.kernel.rpartition(":")
    own_file, own_colon, own_function = (kernel.target or "").rpartition(":")
    if not (colon and own_colon) or function != own_function:
        return False
    parts, own_parts = _parts(file), _parts(own_file)
    common = min(len(parts), len(own_parts))
    return parts[-common:] == own_parts[-common:]


def _parts(file: str) -> tuple[str, ...]:
    return tuple(part for part in PurePath(file).parts if part not in (".", ".."))


def case_paths(paths: Iterable[Path], *, refutations: bool = False) -> Iterator[Path]:
    """Every file that is named, and every case in a folder. Raises UsageError for a folder that holds none.

    refutations: those of proofs as well.
    """
    for path in paths:
        found = list(case_files([path]))
        if refutations and path.is_dir():
            found += sorted(path.glob(f"*{REFUTATION_SUFFIX}"))
        if not found:
            raise UsageError(f"there is no case in the folder {path}")
        yield from found


def _shown(case: Case, examiner: Examiner, tally: Tally) -> Sequence[Finding]:
    """What a case's problem shows, by itself or after those that have to come before it."""
    if not (case.after and isinstance(examiner, Sandboxed)):
        return examiner(case.problem, economy=case.clause == "economy").findings
    describe = contract_named(case.contract).describe
    finding = broken_in_turn(examiner, tally, (*case.after, case.problem), describe)
    return () if finding is None else (finding,)


def _reasons(kernel: Kernel, problem: Any) -> str:
    return "; ".join(dict.fromkeys(known.reason for known in kernel.known_deviations if known.problems(problem)))
