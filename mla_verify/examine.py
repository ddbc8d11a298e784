"""Examines one kernel on one problem: lay it out, audit the memory, judge the values, compare with the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mla_verify.consumers import misled
from mla_verify.contract import Contract, Expectation, Judgement, Placement
from mla_verify.economy import economy_findings
from mla_verify.fencing import fence_of
from mla_verify.interpreting import interpreting, recorder
from mla_verify.kernel import Kernel
from mla_verify.mapping import maps_of, stray_maps
from mla_verify.maps import ElementMap
from mla_verify.on_device import Backends, OnDevice, looked_at, seen_on_device
from mla_verify.parts import WHOLE, Parts
from mla_verify.remembering import not_as_before
from mla_verify.watchdog import Watchdog
from sanitizer.arena import Arena
from sanitizer.audit import Audit, audit, audit_refusal
from sanitizer.fatal import exception_words, fatal_words, spoils_process
from sanitizer.finding import Finding
from sanitizer.secrets import Secret
from sanitizer.stopwatch import Stopwatch

__all__ = ["Bench", "Examination", "examine", "kernel_call"]


@dataclass(slots=True, eq=False, kw_only=True)
class Bench:
    """What is kept between the problems of one run: the loaded kernel, its contract and the arena.

    fenced: put tensors between fences. Only where the process may die: a kernel that touches one ends it.
    no_fences: why there can be none on this device.
    parts: what an examination is made of. backends: what a GPU has beside calls: graphs and streams.
    earlier: what problems of a sequence gave when they came first (`mla_verify.remembering`).
    """

    kernel: Kernel
    contract: Contract
    function: Callable[..., Any]
    device: torch.device
    arena: Arena
    fenced: bool = False
    no_fences: str = ""
    parts: Parts = WHOLE
    backends: Backends | None = None
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    earlier: dict[Any, dict[str, Tensor]] = field(default_factory=dict[Any, "dict[str, Tensor]"])

    @property
    def interpreted(self) -> bool:
        """Whether the kernel runs in Triton's interpreter."""
        return self.kernel.interpreted_on(self.device.type)


@dataclass(frozen=True, slots=True)
class Examination:
    """What one problem showed. `not_judged` counts elements for which no usable bound exists.

    notes: what was seen without effect; what stands before a colon is alike for every problem. maps: where it was
    asked for, what became of every output element.
    """

    findings: tuple[Finding, ...]
    not_judged: int = 0
    intercepted: int = 0
    returned: bool = False  # the kernel came back from every call
    elements: int = 0  # output elements that were looked at
    spoiled: bool = False  # the process can no longer be trusted: out of memory, or a broken device
    notes: tuple[str, ...] = ()
    maps: tuple[ElementMap, ...] = ()


def examine(
    problem: Any, bench: Bench, *, economy: bool = False, in_turn: bool = False, maps: bool = False
) -> Examination:
    """Run every clause that can be decided on one problem.

    economy: add a profiled run. in_turn: it is one of a sequence, and has to give what it gave earlier in it.
    maps: draw a map of what is wrong, which costs about as much again.
    """
    with interpreting(triton=bench.interpreted) as notes:
        shown = _examined(problem, bench, economy=economy, in_turn=in_turn, maps=maps)
    return replace(shown, notes=(*notes, *shown.notes))


def _examined(problem: Any, bench: Bench, *, economy: bool, in_turn: bool, maps: bool) -> Examination:
    watch = bench.stopwatch
    watch.start()
    placement = bench.contract.place(problem, bench.kernel, bench.device)
    watch.lap("place")
    bench.arena.load(placement.tensors, fence=fence_of(problem, bench.kernel) if bench.fenced else None)
    if maps:
        bench.arena.watch_strays()
    watch.lap("fill")
    observer = recorder(triton=bench.interpreted)
    if problem.invalid is not None:
        refused = audit_refusal(_prepared_call(bench, placement), bench.arena, observer=observer)
        return Examination(
            refused.findings,
            spoiled=spoils_process(refused.error),
            maps=stray_maps(bench.arena.plans, bench.arena.strays()),
        )
    state: Any = None
    if bench.kernel.prepare is not None:
        bench.arena.poison(Secret.A)
        try:
            with bench.arena.fences():
                state = bench.kernel.prepare(**bench.arena.tensors(), **placement.arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the kernel's own code: whatever it raises is reported
            fatal = fatal_words(error)
            detail = fatal or f"prepare raised on a valid problem: {exception_words(error)}"
            finding = Finding("survival" if fatal else "refusal", "", 0, detail)
            return Examination((finding,), spoiled=spoils_process(error))
    ignored: list[str] = []
    call = kernel_call(bench, placement, state=state, ignored=ignored)
    result = audit(
        call,
        bench.arena,
        deterministic=bench.kernel.deterministic,
        workspaces=lambda: _workspaces(state),
        zeroed_workspace="zeroed_workspace" in bench.kernel.preconditions,
        stopwatch=watch,
        observer=observer,
        secrets=tuple(Secret) if bench.parts.secrets else (Secret.A,),
        guards=bench.parts.guards,
    )
    if result.error is not None:
        return Examination(result.findings, spoiled=spoils_process(result.error), notes=result.notes)
    findings = list(result.findings)
    not_judged = 0
    expectation: Expectation | None = None
    judgements: list[Judgement] = []
    if result.outputs:
        expectation, judgements = _judge(problem, bench, result)
        findings += [
            Finding("agreement", wrong.tensor, int(wrong.wrong.sum()), wrong.detail)
            for judgement in judgements
            for wrong in judgement.disagreements
        ]
        not_judged = judgements[0].not_judged
        findings += _of_consumers(problem, bench, result)
    if in_turn and bench.kernel.deterministic:
        findings += not_as_before(bench.earlier, problem, result, bench.arena.plans)
    declared = (bench.kernel.allocations, bench.kernel.launches)
    if economy and declared != (None, None):
        findings += economy_findings(call, bench.arena, allocations=declared[0], launches=declared[1])
    drawn = maps_of(result, bench.arena.plans, expectation, judgements, bench.arena.strays(), observer) if maps else ()
    launched = OnDevice()
    if bench.backends is not None and looked_at(problem) and not findings:
        launched = _launched(problem, bench, bench.backends, state)
    return Examination(
        (*findings, *launched.findings),
        not_judged,
        result.intercepted,
        returned=True,
        elements=sum(output.numel() for output in result.outputs.values()),
        spoiled=launched.error is not None,
        notes=(*result.notes, *ignored, *launched.notes),
        maps=drawn,
    )


def _launched(problem: Any, bench: Bench, backends: Backends, state: Any) -> OnDevice:
    """What graphs and streams show; what breaks the device there is a finding like any other."""
    # A watchdog waits for the device after each call, and would bring what is not in order into it.
    function = bench.function.function if isinstance(bench.function, Watchdog) else bench.function
    bare = replace(bench, function=function)
    shown = seen_on_device(
        problem,
        kernel=bench.kernel,
        contract=bench.contract,
        call=lambda placement: kernel_call(bare, placement, state=state),
        arena=bench.arena,
        backends=backends,
        workspaces=lambda: _workspaces(state),
    )
    if shown.error is None:
        return shown
    return replace(shown, findings=(*shown.findings, Finding("survival", "", 0, fatal_words(shown.error) or "")))


def _of_consumers(problem: Any, bench: Bench, result: Audit) -> tuple[Finding, ...]:
    """What declared consumers of the first output would make of its padding."""
    name = bench.contract.outputs[0]
    if not bench.kernel.consumers or bench.contract.real_rows is None:
        return ()
    by_secret = {secret: outputs[name] for secret, outputs in result.by_secret.items() if name in outputs}
    real = bench.contract.real_rows(problem).to(bench.device)
    return misled(bench.kernel.consumers, name, by_secret, real, blamed=result.blamed.get(name))


def _judge(problem: Any, bench: Bench, result: Audit) -> tuple[Expectation, list[Judgement]]:
    """What was expected, and the oracle's and the baseline's opinion of what the kernel computed, in that order."""
    watch = bench.stopwatch
    tensors = bench.arena.tensors()  # the inputs as the kernel saw them
    watch.start()
    expectation: Expectation = bench.contract.expect(problem, bench.kernel, tensors)
    watch.lap("oracle")
    runs = [result.outputs] if bench.kernel.deterministic else list(result.runs)
    judgements = [expectation.judge(outputs, skip=result.blamed) for outputs in runs]
    watch.lap("bound")
    if any(judgement.disagreements for judgement in judgements):
        return expectation, judgements  # the oracle has spoken; the baseline could only repeat it
    baseline = bench.contract.baseline(problem, bench.kernel, tensors)
    judgements += [expectation.differential(outputs, baseline, skip=result.blamed) for outputs in runs]
    watch.lap("baseline")
    return expectation, judgements


def _prepared_call(bench: Bench, placement: Placement) -> Callable[[dict[str, Tensor]], Mapping[str, Tensor] | None]:
    """A call that plans first: an invalid problem may be refused by either."""
    prepare = bench.kernel.prepare

    def call(tensors: dict[str, Tensor]) -> Mapping[str, Tensor] | None:
        state = None if prepare is None else prepare(**tensors, **placement.arguments)
        return kernel_call(bench, placement, state=state)(tensors)

    return call


def kernel_call(
    bench: Bench, placement: Placement, *, state: Any, ignored: list[str] | None = None
) -> Callable[[dict[str, Tensor]], Mapping[str, Tensor] | None]:
    """A call of the kernel in its convention, telling outputs that it returned from those it was given."""
    arguments = dict(placement.arguments)
    if bench.kernel.prepare is not None:
        arguments["state"] = state
    function, names = bench.function, bench.contract.outputs

    def call(tensors: dict[str, Tensor]) -> Mapping[str, Tensor] | None:
        returned = function(**tensors, **arguments)
        if returned is None:
            return None
        pieces = returned if isinstance(returned, tuple) else (returned,)
        if ignored is not None and not ignored:
            ignored.extend(_ignored(pieces, names))
        own = {
            name: piece
            for name, piece in zip(names, pieces, strict=False)
            if isinstance(piece, Tensor) and not _is_given(piece, tensors.get(name))
        }
        return own or None

    return call


def _ignored(pieces: tuple[Any, ...], names: tuple[str, ...]) -> list[str]:
    """A note where a kernel returned something that is no output: it is not under test."""
    odd = [type(piece).__name__ for piece in pieces if piece is not None and not isinstance(piece, Tensor)]
    odd += [f"{len(pieces)} values"] if len(pieces) > len(names) else []
    wanted = " and ".join(names)
    return [f"what the kernel returned is partly ignored: {', '.join(odd)}; its outputs are {wanted}"] if odd else []


def _is_given(piece: Tensor, given: Tensor | None) -> bool:
    """Whether a returned tensor is the very output that was handed in (kernels often return it for convenience)."""
    return piece is given or (
        given is not None
        and piece.data_ptr() == given.data_ptr()
        and piece.shape == given.shape
        and piece.stride() == given.stride()
    )


def _workspaces(state: Any) -> list[Tensor]:
    """The tensors that a kernel's `prepare` declares as workspace: poisoned before every run."""
    if not isinstance(state, Mapping) or "workspace" not in state:
        return []
    workspace = state["workspace"]
    return [workspace] if isinstance(workspace, Tensor) else list(workspace)
