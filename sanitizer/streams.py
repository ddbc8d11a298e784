"""Runs a kernel on one stream and reads its result on another: whoever waits for the kernel's stream must see it all.

Note [Order]: a kernel is given the current stream. What was put there before it has to be done before it reads, and
whoever waits for what has been put there by the time that it returns may read its results. Work that it gives to other
streams has to wait for the current one first, and be waited for by it. The audit makes late whatever is not: inputs are
laid by the producer's stream itself, after a delay, and all other streams are held back for longer than that. A result
that then is not an eager call's was not ordered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.bare_runs import BareRuns, Seen, elements_with
from sanitizer.fatal import exception_words, fatal_words
from sanitizer.finding import Finding
from sanitizer.indices import describe_mask
from sanitizer.plan import Element
from sanitizer.running import Call
from sanitizer.secrets import Secret

__all__ = ["ON_A_STREAM", "StreamAudit", "StreamBackend", "audit_streams"]

ON_A_STREAM = "on a stream of its own: "
"""What every finding of this module begins with."""


class StreamBackend(Protocol):
    """Two streams, and power over all others."""

    def hold_back(self) -> None:
        """Make the producer's stream wait for a moment before its next work, and every other one for longer."""
        ...

    def producer(self) -> AbstractContextManager[object]:
        """Within it, work goes to the producer's stream."""
        ...

    def consumer(self) -> AbstractContextManager[object]:
        """Within it, work goes to the consumer's stream."""
        ...

    def hand_over(self) -> None:
        """Let the consumer's stream wait for everything that the producer's has been given so far."""
        ...

    def finish(self) -> None:
        """Wait for all work on the device."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class StreamAudit:
    """What became of it. error: what the device or the process will not get over."""

    findings: tuple[Finding, ...] = ()
    why_not: str = ""
    error: BaseException | None = None


def audit_streams(
    call: Call,
    arena: Arena,
    backend: StreamBackend,
    *,
    deterministic: bool = True,
    workspaces: Callable[[], Sequence[Tensor]] = tuple,
    zeroed_workspace: bool = False,
) -> StreamAudit:
    """Audit `call` on the problem that `arena` has loaded, on which an eager audit has found nothing.

    A kernel that is not deterministic is held to writing what it owes in time, and not to the same bits.
    """
    runs = BareRuns(call, arena, workspaces, zeroed_workspace)
    arena.kept.begin()
    try:
        eager = runs.eager(Secret.A)
        # A and Z: a late read finds zeros where inputs are still to come, a late write leaves either secret.
        seen = [_on_streams(runs, backend, secret) for secret in (Secret.A, Secret.Z)]
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the kernel's own code and the driver's word on it
        fatal = error if fatal_words(error) else None
        return StreamAudit(why_not=f"raised on a side stream: {exception_words(error)}", error=fatal)
    finally:
        backend.finish()
        arena.kept.end()
    arena.stray()
    return StreamAudit(tuple(_compared(arena, eager, seen, deterministic=deterministic)))


def _on_streams(runs: BareRuns, backend: StreamBackend, secret: Secret) -> Seen:
    runs.arena.blank()
    backend.finish()
    backend.hold_back()
    with backend.producer():
        runs.launch(runs.lay(secret))
    backend.hand_over()
    with backend.consumer():
        seen = runs.look()
    backend.finish()
    return seen


def _compared(arena: Arena, eager: Seen, seen: Sequence[Seen], *, deterministic: bool) -> list[Finding]:
    """Which outputs the consumer did not find as an eager call leaves them."""
    findings: list[Finding] = []
    for plan in arena.plans:
        if plan.role != "output":
            continue
        name, wanted = plan.name, eager.bits[plan.name]
        determined = elements_with(plan, Element.DETERMINED).to(wanted.device)
        if deterministic:
            late = torch.stack([one.bits[name] != wanted for one in seen]).any(0) & determined
        elif name in seen[0].secret:
            late = torch.stack([one.bits[name] == one.secret[name] for one in seen]).all(0) & determined
        else:
            continue
        if plan.dtype == torch.complex128:
            late = late.any(-1)
        if bool(late.any()):
            detail = (
                f"{ON_A_STREAM}{describe_mask(name, late)} is not what an eager call gives, for a reader that waits "
                "for the kernel's stream: work on another stream does not wait for it, or is not waited for"
            )
            findings.append(Finding("repeatability", name, int(late.sum()), detail))
    return findings
