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
from dataclasses import dataclass, field
from typing import Final, Protocol

import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.fatal import exception_words, fatal_words
from sanitizer.finding import Finding
from sanitizer.indices import describe_mask
from sanitizer.plan import Element, Fills, TensorPlan
from sanitizer.running import Call
from sanitizer.secrets import Secret, carrier_view, fill_with_secret
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


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """The outputs after one call or replay, as carrier words, and what they would be if nobody had written them."""

    bits: dict[str, Tensor]
    secret: dict[str, Tensor]


@dataclass(slots=True, eq=False)
class _Session:
    """One audit: where everything lies, and how the kernel is called."""

    call: Call
    arena: Arena
    backend: GraphBackend
    workspaces: Callable[[], Sequence[Tensor]]
    zeroed_workspace: bool
    returned: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    replays: int = 0

    def load(self, inputs: Inputs) -> None:
        self.arena.load(inputs.plans)

    def lay(self, secret: Secret) -> dict[str, Tensor]:
        """Everything as it must be before a call under `secret`; the tensors to call it with."""
        self.arena.poison(secret)
        self.arena.kept.restore(secret)
        fill = 0 if self.zeroed_workspace else secret.fill(_POOL_FILLS)
        for workspace in self.workspaces():
            fill_with_secret(workspace, fill)
        return self.arena.tensors()

    def eager(self, secret: Secret) -> _Seen:
        tensors = self.lay(secret)
        with torch.no_grad():
            returned = self.call(dict(tensors)) or {}
        synchronise(self.arena.device)
        seen = self._look(returned)
        self.arena.stray()  # what it damages is the eager audit's to say; here it is only mended
        return seen

    def capture(self) -> Capture:
        tensors = self.lay(Secret.A)

        def call() -> None:
            self.returned = self.call(dict(tensors)) or {}

        with torch.no_grad():
            return self.backend.capture(call)

    def replay(self, graph: Capture, secret: Secret) -> tuple[_Seen, list[Finding]]:
        self.lay(secret)
        for memory in self.backend.pool():
            # Whatever type the kernel sees there: a NaN of 4 bytes is one for each narrower float too, or large.
            whole = memory[: memory.numel() // 4 * 4].view(torch.float32)
            fill_with_secret(whole, secret.fill(_POOL_FILLS))
        synchronise(self.arena.device)
        graph.replay()
        synchronise(self.arena.device)
        self.replays += 1
        seen = self._look(self.returned)
        return seen, self.arena.stray()

    def _look(self, returned: Mapping[str, Tensor]) -> _Seen:
        bits: dict[str, Tensor] = {}
        secret: dict[str, Tensor] = {}
        for plan in self.arena.plans:
            if plan.role != "output":
                continue
            own = returned.get(plan.name)
            if own is not None and not self.arena.same_place(plan.name, own):
                bits[plan.name] = carrier_view(own).clone(memory_format=torch.contiguous_format)
            else:
                bits[plan.name] = self.arena.output_bits(plan.name)
                secret[plan.name] = self.arena.secret_bits(plan.name)
        return _Seen(bits, secret)


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
    session = _Session(call, arena, backend, workspaces, zeroed_workspace)
    arena.kept.begin()
    try:
        return _audited(session, inputs, deterministic=deterministic)
    finally:
        arena.kept.end()


def _audited(session: _Session, inputs: Sequence[Inputs], *, deterministic: bool) -> GraphAudit:
    eager, skipped = _eager(session, inputs, deterministic=deterministic)
    if inputs[0] not in eager:
        return GraphAudit(why_not="eager calls do not agree with each other", skipped=tuple(skipped))
    session.load(inputs[0])
    try:
        tensors = session.lay(Secret.A)
        with torch.no_grad():
            session.backend.warm_up(lambda: session.call(dict(tensors)))
        graphs: list[tuple[Capture, Mapping[str, Tensor]]] = []
        for _ in range(2):
            graph = session.capture()
            graphs.append((graph, session.returned))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the kernel's own code and the driver's word on it
        # Ending a capture that has failed raises once more: what the kernel did comes first in the chain.
        words = exception_words(_first(error)).split("\\n")[0]
        fatal = error if fatal_words(error) else None
        return GraphAudit(why_not=f"cannot be captured: {words}", skipped=tuple(skipped), error=fatal)
    session.arena.stray()  # the warm-up has written
    findings: dict[tuple[str, str], Finding] = {}
    for which in inputs:
        if which not in eager:
            continue
        session.load(which)
        seen: list[_Seen] = []
        for (graph, session.returned), secret in _order(graphs, first=which is inputs[0]):
            after, stray = session.replay(graph, secret)
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


def _eager(
    session: _Session, inputs: Sequence[Inputs], *, deterministic: bool
) -> tuple[dict[Inputs, _Seen], list[str]]:
    """What eager calls give on each of the inputs, and the names of those on which they do not agree."""
    eager: dict[Inputs, _Seen] = {}
    skipped: list[str] = []
    addresses: dict[str, int] | None = None
    # The arena may move while it grows; largest first would not help, for all are of one size. So: once in vain.
    for which in inputs:
        session.load(which)
    for which in inputs:
        session.load(which)
        here = {name: tensor.data_ptr() for name, tensor in session.arena.tensors().items()}
        if addresses is not None and here != addresses:
            raise ValueError(f"{which.name}: its tensors do not lie where the captured ones do; every plan must agree")
        addresses = here
        first, second = session.eager(Secret.A), session.eager(Secret.B)
        masks = _determined(which)
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


def _determined(which: Inputs) -> dict[str, Tensor]:
    """Per output, a bool mask of the elements that are a function of the inputs."""
    masks: dict[str, Tensor] = {}
    for plan in which.plans:
        if plan.role == "output":
            masks[plan.name] = _mask(plan, (Element.DETERMINED,))
    return masks


def _mask(plan: TensorPlan, wanted: Sequence[Element]) -> Tensor:
    """[shape] bool (complex128: [shape, 2], as carrier words are): elements with one of the wanted rules."""
    if plan.rules is None:
        mask = torch.full(plan.shape, Element.DETERMINED in wanted)
    else:
        mask = torch.stack([plan.rules == rule for rule in wanted]).any(0).expand(plan.shape)
    return mask.unsqueeze(-1).expand(*plan.shape, 2) if plan.dtype == torch.complex128 else mask


def _compared(which: Inputs, seen: Sequence[_Seen], eager: _Seen, *, deterministic: bool) -> Iterator[Finding]:
    """What replays on one set of inputs did other than an eager call."""
    for plan in which.plans:
        if plan.role != "output":
            continue
        name = plan.name
        device = eager.bits[name].device
        owed = _mask(plan, (Element.DETERMINED, Element.WRITTEN)).to(device)
        determined = _mask(plan, (Element.DETERMINED,)).to(device)
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
