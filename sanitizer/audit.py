"""Runs a kernel under three secrets and says which elements it never wrote, took from elsewhere, or damaged.

Note [Verdicts]: per live output element, bits are compared between runs. Still the secret in every run: never
written (`coverage`). Different in any other way: computed from memory that is no input (`independence`), or not the
same twice (`repeatability`), which a second run under A decides. The same in all: a function of the inputs, and the
oracle's to judge.

Note [Thrift]: comparing tens of megabytes after every run costs as much as a kernel. Declared bytes are the same under
every secret, so damage to them stays visible: large problems look at them once, after the last run, and at bytes that
hold secrets after every run, the warm-up together with the first. When that shows anything, the audit is repeated
thoroughly, because runs on damaged inputs say nothing about each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.classification import classify
from sanitizer.fatal import broke_device, exception_words, fatal_words
from sanitizer.finding import Finding
from sanitizer.observing import Observer
from sanitizer.running import Call, Output, Run, Runner
from sanitizer.secrets import Secret
from sanitizer.stopwatch import Stopwatch

__all__ = ["Audit", "Call", "audit", "audit_refusal"]


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """What an audit found.

    findings: one per broken clause and tensor, in the order of the runs. outputs: compact copies from the run under A,
    by name, for the oracle; empty if a run raised. runs: the outputs of all runs, for a kernel that is not
    deterministic. blamed: per output a bool mask of elements that a finding names already; by_clause: the same, told
    apart. by_secret: the outputs under each secret, by its letter. error: the first exception.
    intercepted, allocations, allocated_bytes: of the run under A, as far as torch's dispatcher sees them.
    notes: what an observer saw that broke no clause.
    """

    findings: tuple[Finding, ...]
    outputs: dict[str, Tensor]
    blamed: dict[str, Tensor]
    error: BaseException | None = None
    runs: tuple[dict[str, Tensor], ...] = ()
    intercepted: int = 0
    allocations: int = 0
    allocated_bytes: int = 0
    notes: tuple[str, ...] = ()
    by_clause: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict[str, Mapping[str, Tensor]])
    by_secret: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict[str, Mapping[str, Tensor]])


def audit(
    call: Call,
    arena: Arena,
    *,
    deterministic: bool = True,
    workspaces: Callable[[], Sequence[Tensor]] | None = None,
    zeroed_workspace: bool = False,
    stopwatch: Stopwatch | None = None,
    returned_rules: Mapping[str, Tensor] | None = None,
    observer: Observer | None = None,
    secrets: Sequence[Secret] = tuple(Secret),
    guards: bool = True,
) -> Audit:
    """Audit `call` on the problem that `arena` has loaded.

    workspaces: memory that the kernel declares as scratch, poisoned before every run; zero if `zeroed_workspace`.
    returned_rules: `Element` values of outputs that the kernel allocates itself, where they differ from the plan's.
    observer: watches every run, and adds what it saw to the findings.
    secrets, guards: which secrets to run under, A first, and whether bytes beside the outputs are looked at. An audit
    with less than all of that shows what the rest is worth.
    """
    stopwatch = stopwatch or Stopwatch()
    runner = Runner(call, arena, workspaces, zeroed_workspace, stopwatch, observer, tuple(secrets))
    result = _audited_in_full(runner, deterministic=deterministic, returned_rules=returned_rules or {})
    if observer is not None:
        findings, notes = observer.joined(result.findings)
        result = replace(result, findings=findings, notes=notes)
    if guards:
        return result
    return replace(result, findings=tuple(found for found in result.findings if found.clause != "containment"))


def _audited_in_full(runner: Runner, *, deterministic: bool, returned_rules: Mapping[str, Tensor]) -> Audit:
    arena = runner.arena
    arena.kept.begin()
    try:
        result = _audited(runner, deterministic=deterministic, returned_rules=returned_rules, thrifty=arena.huge)
        if arena.huge and any(finding.clause == "containment" for finding in result.findings):
            # See Note [Thrift]: again, with every byte looked at after every run.
            arena.kept.end()
            arena.kept.begin()
            thorough = _audited(runner, deterministic=deterministic, returned_rules=returned_rules, thrifty=False)
            if any(finding.clause == "containment" for finding in thorough.findings):
                return thorough
        return result
    finally:
        arena.kept.end()


def _audited(runner: Runner, *, deterministic: bool, returned_rules: Mapping[str, Tensor], thrifty: bool) -> Audit:
    arena, stopwatch = runner.arena, runner.stopwatch
    warm_up = runner.run(Secret.A, marked=True, tracking=True, compare="later" if thrifty else "all")
    if fatal_words(warm_up.error):
        return _exited(warm_up)
    if arena.kept.learn(warm_up.interceptor, foreign=arena.storages()):
        runner.run(Secret.A, probing=True, compare="later" if thrifty else "all")
        arena.kept.learn_probe()
    warm_up.interceptor.scratches.clear()
    runs: dict[Secret, Run] = {}
    for secret in runner.secrets:
        thorough = not thrifty or secret is runner.secrets[-1]
        run = runs[secret] = runner.run(secret, compare="all" if thorough else "secrets")
        if fatal_words(run.error):
            return _exited(run)
        arena.kept.adopt(run.interceptor)
        run.interceptor.scratches.clear()

    def again() -> Run:
        return runner.run(Secret.A)

    every = [warm_up, *runs.values()]
    findings = _first_of_each(every)
    if any(run.error is not None for run in every):
        return _raised(every, findings, again)
    stopwatch.start()
    rules = {plan.name: plan.rules for plan in arena.plans if plan.role == "output" and plan.rules is not None}
    verdicts = classify(
        warm_up,
        list(runs.values()),
        again=again,
        deterministic=deterministic,
        rules={**rules, **returned_rules},
        damaged=any(finding.clause == "containment" for finding in warm_up.findings + runs[Secret.A].findings),
    )
    blamed = dict(verdicts.blamed)
    first = runs[Secret.A]
    shapes = {plan.name: plan.shape for plan in arena.plans}
    for name in frozenset[str]().union(*(run.moved for run in every)):
        if name in shapes:
            blamed[name] = torch.ones(shapes[name], dtype=torch.bool, device=arena.device)
    result = Audit(
        findings=(*findings, *verdicts.findings),
        outputs=_typed(first.outputs),
        blamed=blamed,
        runs=() if deterministic else tuple(_typed(run.outputs) for run in every),
        intercepted=first.interceptor.intercepted,
        allocations=first.interceptor.allocations,
        allocated_bytes=first.interceptor.allocated_bytes,
        by_clause=verdicts.by_clause,
        by_secret={secret.name: _typed(run.outputs) for secret, run in runs.items()},
    )
    stopwatch.lap("compare")
    return result


def audit_refusal(
    call: Call,
    arena: Arena,
    *,
    workspaces: Callable[[], Sequence[Tensor]] | None = None,
    zeroed_workspace: bool = False,
    stopwatch: Stopwatch | None = None,
    observer: Observer | None = None,
) -> Audit:
    """Run an invalid problem once: a kernel has to raise, with every byte as it was.

    `error` is what it raised. Accepting the problem is a finding, and so is having written before refusing it.
    """
    runner = Runner(call, arena, workspaces, zeroed_workspace, stopwatch or Stopwatch(), observer)
    arena.kept.begin()
    try:
        run = runner.run(Secret.A, outputs_may_change=False)
        if not broke_device(run.error):
            arena.kept.adopt(run.interceptor)
    finally:
        arena.kept.end()
    if fatal_words(run.error):
        return _exited(run)
    if run.error is None:
        finding = Finding("refusal", "", 0, "accepted: an invalid problem was computed without an exception")
        return Audit((finding,), {}, {})
    findings = tuple(
        Finding(
            "refusal",
            found.tensor,
            found.elements,
            f"refused with {type(run.error).__name__}, but had already written: {found.detail}",
        )
        for found in run.findings
    )
    return Audit(findings, {}, {}, error=run.error)


def _first_of_each(runs: Sequence[Run]) -> list[Finding]:
    """The runs' findings, each thing that was hit only once: later runs hit it again."""
    seen: dict[tuple[str, str, str], Finding] = {}
    for run in runs:
        for finding in run.findings:
            seen.setdefault((finding.clause, finding.tensor, finding.detail.split(":")[0]), finding)
    return list(seen.values())


def _exited(run: Run) -> Audit:
    finding = Finding("survival", "", 0, fatal_words(run.error) or "")
    return Audit((*run.findings, finding), {}, {}, error=run.error)


def _raised(every: Sequence[Run], findings: Sequence[Finding], again: Callable[[], Run]) -> Audit:
    """At least one run raised: always is a refusal, only under some secrets is dependence on them."""
    _, *others = every
    error = next(run.error for run in every if run.error is not None)
    words = exception_words(error)
    raised = [run.error is not None for run in every]
    if all(raised):
        finding = Finding("refusal", "", 0, f"raised on a valid problem: {words}")
    elif raised[0] != raised[1]:
        which = "only on the first call" if raised[0] else "only when called again"
        finding = Finding("repeatability", "", 0, f"raised {which}: {words}")
    elif (again().error is not None) != raised[1]:
        finding = Finding("repeatability", "", 0, f"raised in some calls and not in others: {words}")
    else:
        under = " and ".join(run.secret.name for run in others if run.error is not None)
        finding = Finding(
            "independence", "", 0, f"raised only under {under}, secrets in memory that is no input: {words}"
        )
    return Audit((*findings, finding), {}, {}, error=error)


def _typed(outputs: Mapping[str, Output]) -> dict[str, Tensor]:
    """Name → a tensor of the output's own dtype and shape."""
    return {name: output.typed() for name, output in outputs.items()}
