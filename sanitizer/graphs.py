"""Captures a kernel into graphs, replays them under other secrets and inputs, and compares with eager calls.

Note [Replays]: a replay runs the same work on the same addresses, whatever the host has learnt since the capture. So a
right graph is a function of what its tensors hold when it is replayed. What its memory pool holds before its first
replay is undefined, because capturing runs nothing: no right graph reads there what it has not written before, and the
pool is a secret before every replay. Two graphs are captured into one pool, and the second is replayed first, as an
engine with a graph per batch size may do: memory that the first graph initialises and both use shows then.

What cannot be captured raises while it is being captured. That breaks no clause; the audit says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.bare_runs import BareRuns, Seen, elements_with
from sanitizer.fatal import exception_words, fatal_words
from sanitizer.finding import Finding
from sanitizer.indices import describe_mask
from sanitizer.plan import Element, Fills, TensorPlan
from sanitizer.running import Call
from sanitizer.secrets import Secret, fill_with_secret
from sanitizer.stopwatch import synchronise

__all__ = ["FROM_A_GRAPH", "Capture", "GraphAudit", "GraphBackend", "Inputs", "audit_graphs"]

_POOL_FILLS: Final = Fills()
FROM_A_GRAPH: Final = "replayed from a graph: "
"""What every finding of this module begins with."""


class Capture(Protocol):
    """One captured call."""

    def replay(self) -> None:
        """Launch the captured work again; the caller waits for it."""
        ...


class GraphBackend(Protocol):
    """Something that captures calls. All its captures share one pool of memory."""

    def warm_up(self, call: Callable[[], object]) -> None:
        """Call it as often, and where, as the backend wants that done before a capture."""
        ...

    def capture(self, call: Callable[[], object]) -> Capture:
        """Record what `call` launches without running it. Raises whatever capturing raises."""
        ...

    def pool(self) -> Sequence[Tensor]:
        """[bytes] uint8 each: all memory that captures have allocated."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What one replay finds in its tensors: plans of the same shapes, strides and guards as all others have.

    name: for a reader, such as "other inputs".
    """

    name: str
    plans: Sequence[TensorPlan]


@dataclass(frozen=True, slots=True, eq=False)
class GraphAudit:
    """What became of it. why_not: why nothing could be replayed; empty where it was. replays: how many there were.

    skipped: names of inputs on which eager calls do not agree with each other, so that nothing can be said of replays.
    error: what the device or the process will not get over.
    """

    findings: tuple[Finding, ...] = ()
    why_not: str = ""
    replays: int = 0
    skipped: tuple[str, ...] = ()
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class _Session:
    """One audit: the kernel's calls, and what captures them."""

    runs: BareRuns
    backend: GraphBackend
    replays: int = 0

    def capture(self) -> tuple[Capture, Mapping[str, Tensor]]:
        """A graph of one call, and the outputs that belong to it."""
        tensors = self.runs.lay(Secret.A)
        graph = self.backend.capture(lambda: self.runs.launch(tensors))
        return graph, self.runs.returned

    def replay(self, graph: Capture, returned: Mapping[str, Tensor], secret: Secret) -> tuple[Seen, list[Finding]]:
        """What one replay gives, and what it damages."""
        device = self.runs.arena.device
        self.runs.lay(secret)
        for memory in self.backend.pool():
            # Whatever type the kernel sees there: a NaN of 4 bytes is one for each narrower float too, or large.
            whole = memory[: memory.numel() // 4 * 4].view(torch.float32)
            fill_with_secret(whole, secret.fill(_POOL_FILLS))
        synchronise(device)
        graph.replay()
        synchronise(device)
        self.replays += 1
        self.runs.returned = returned
        return self.runs.look(), self.runs.arena.stray()


def audit_graphs(
    call: Call,
    arena: Arena,
    inputs: Sequence[Inputs],
    backend: GraphBackend,
    *,
    deterministic: bool = True,
    workspaces: Callable[[], Sequence[Tensor]] = tuple,
    zeroed_workspace: bool = False,
) -> GraphAudit:
    """Capture `call` on the first of `inputs`, and replay it on all of them under changing secrets.

    An eager audit without findings must have come before: it is what replays are compared with. A kernel that is not
    deterministic is held to what it writes, and where, but not to the same bits.
    """
    session = _Session(BareRuns(call, arena, workspaces, zeroed_workspace), backend)
    arena.kept.begin()
    try:
        return _audited(session, inputs, deterministic=deterministic)
    finally:
        arena.kept.end()


def _audited(session: _Session, inputs: Sequence[Inputs], *, deterministic: bool) -> GraphAudit:
    eager, skipped = _eager(session, inputs, deterministic=deterministic)
    if inputs[0] not in eager:
        return GraphAudit(why_not="eager calls do not agree with each other", skipped=tuple(skipped))
    arena = session.runs.arena
    arena.load(inputs[0].plans)
    try:
        tensors = session.runs.lay(Secret.A)
        session.backend.warm_up(lambda: session.runs.launch(tensors))
        graphs = [session.capture(), session.capture()]
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the kernel's own code and the driver's word on it
        # Ending a capture that has failed raises once more: what the kernel did comes first in the chain.
        words = exception_words(_first(error)).split("\\n")[0]
        fatal = error if fatal_words(error) else None
        return GraphAudit(why_not=f"cannot be captured: {words}", skipped=tuple(skipped), error=fatal)
    arena.stray()  # the warm-up has written
    findings: dict[tuple[str, str], Finding] = {}
    for which in inputs:
        if which not in eager:
            continue
        arena.load(which.plans)
        seen: list[Seen] = []
        for (graph, returned), secret in _order(graphs, first=which is inputs[0]):
            after, stray = session.replay(graph, returned, secret)
            seen.append(after)
            for finding in stray:
                findings.setdefault((finding.clause, finding.tensor), _said(finding, which))
        for finding in _compared(which, seen, eager[which], deterministic=deterministic):
            findings.setdefault((finding.clause, finding.tensor), finding)
    return GraphAudit(tuple(findings.values()), replays=session.replays, skipped=tuple(skipped))


def _first(error: BaseException) -> BaseException:
    """The exception that the others were raised in the handling of."""
    seen = {id(error)}
    while error.__context__ is not None and id(error.__context__) not in seen:
        error = error.__context__
        seen.add(id(error))
    return error


def _eager(session: _Session, inputs: Sequence[Inputs], *, deterministic: bool) -> tuple[dict[Inputs, Seen], list[str]]:
    """What eager calls give on each of the inputs, and the names of those on which they do not agree."""
    eager: dict[Inputs, Seen] = {}
    skipped: list[str] = []
    addresses: dict[str, int] | None = None
    # The arena may move while it grows; largest first would not help, for all are of one size. So: once in vain.
    arena = session.runs.arena
    for which in inputs:
        arena.load(which.plans)
    for which in inputs:
        arena.load(which.plans)
        here = {name: tensor.data_ptr() for name, tensor in arena.tensors().items()}
        if addresses is not None and here != addresses:
            raise ValueError(f"{which.name}: its tensors do not lie where the captured ones do; every plan must agree")
        addresses = here
        first, second = session.runs.eager(Secret.A), session.runs.eager(Secret.B)
        masks = {plan.name: elements_with(plan, Element.DETERMINED) for plan in which.plans if plan.role == "output"}
        agree = all(torch.equal(first.bits[name][mask], second.bits[name][mask]) for name, mask in masks.items())
        if agree or not deterministic:
            eager[which] = first
        else:
            skipped.append(which.name)
    return eager, skipped


def _order(
    graphs: Sequence[tuple[Capture, Mapping[str, Tensor]]], *, first: bool
) -> Iterator[tuple[tuple[Capture, Mapping[str, Tensor]], Secret]]:
    """Which graph is replayed under which secret. See Note [Replays]."""
    one, two = graphs
    yield two, Secret.A
    yield one, Secret.B
    yield two, Secret.Z
    if first:
        yield one, Secret.A


def _compared(which: Inputs, seen: Sequence[Seen], eager: Seen, *, deterministic: bool) -> Iterator[Finding]:
    """What replays on one set of inputs did other than an eager call."""
    for plan in which.plans:
        if plan.role != "output":
            continue
        name = plan.name
        device = eager.bits[name].device
        owed = elements_with(plan, Element.DETERMINED, Element.WRITTEN).to(device)
        determined = elements_with(plan, Element.DETERMINED).to(device)
        unwritten = torch.zeros_like(owed)
        if name in seen[0].secret:
            unwritten = owed & torch.stack([one.bits[name] == one.secret[name] for one in seen]).all(0)
        if bool(unwritten.any()):
            yield _finding("coverage", plan, unwritten, which, "never written")
        if not deterministic:
            continue
        wrong = torch.stack([one.bits[name] != eager.bits[name] for one in seen]) & determined & ~unwritten
        varying = wrong.any(0) & torch.stack([one.bits[name] != seen[0].bits[name] for one in seen]).any(0)
        if bool(varying.any()):
            words = "depends on what the pool, or memory that is no input, held before the replay"
            yield _finding("independence", plan, varying, which, words)
        steady = wrong.any(0) & ~varying
        if bool(steady.any()):
            yield _finding("repeatability", plan, steady, which, "is not what an eager call gives on the same inputs")


def _finding(clause: str, plan: TensorPlan, mask: Tensor, which: Inputs, words: str) -> Finding:
    if plan.dtype == torch.complex128:
        mask = mask.any(-1)
    detail = f"{FROM_A_GRAPH}{describe_mask(plan.name, mask)} {words} ({which.name})"
    return Finding(clause, plan.name, int(mask.sum()), detail)


def _said(finding: Finding, which: Inputs) -> Finding:
    """A finding of the arena's, with where it comes from."""
    return Finding(finding.clause, finding.tensor, finding.elements, f"{FROM_A_GRAPH}{finding.detail} ({which.name})")
