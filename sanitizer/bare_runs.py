"""Calls a kernel as its users do, with nothing intercepted, and reads what it left: for graphs and streams.

Under graphs and streams the moment at which work runs is what is looked at. Filling scratch, or guarding it, would be
recorded and replayed with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.plan import Element, Fills, TensorPlan
from sanitizer.running import Call
from sanitizer.secrets import Secret, carrier_view, fill_with_secret
from sanitizer.stopwatch import synchronise

__all__ = ["BareRuns", "Seen", "elements_with"]

_FILLS = Fills()


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The outputs after one call, as carrier words by name, and what they would be if nobody had written them.

    secret: without outputs that the kernel allocates itself.
    """

    bits: dict[str, Tensor]
    secret: dict[str, Tensor]


@dataclass(slots=True, eq=False)
class BareRuns:
    """One kernel on what `arena` has loaded. `returned`: the outputs of the last call that it allocated itself."""

    call: Call
    arena: Arena
    workspaces: Callable[[], Sequence[Tensor]] = tuple
    zeroed_workspace: bool = False
    returned: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])

    def lay(self, secret: Secret) -> dict[str, Tensor]:
        """Put everything as it must be before a call under `secret`; the tensors to call with."""
        self.arena.poison(secret)
        self.arena.kept.restore(secret)
        fill = 0 if self.zeroed_workspace else secret.fill(_FILLS)
        for workspace in self.workspaces():
            fill_with_secret(workspace, fill)
        return self.arena.tensors()

    def launch(self, tensors: dict[str, Tensor]) -> None:
        """Call the kernel, and do not wait for it."""
        with torch.no_grad():
            self.returned = self.call(dict(tensors)) or {}

    def eager(self, secret: Secret) -> Seen:
        """What an ordinary call gives. What it damages is the eager audit's to say; here it is only mended."""
        self.launch(self.lay(secret))
        synchronise(self.arena.device)
        seen = self.look()
        self.arena.stray()
        return seen

    def look(self) -> Seen:
        """What the outputs hold now."""
        bits: dict[str, Tensor] = {}
        secret: dict[str, Tensor] = {}
        for plan in self.arena.plans:
            if plan.role != "output":
                continue
            own = self.returned.get(plan.name)
            if own is not None and not self.arena.same_place(plan.name, own):
                bits[plan.name] = carrier_view(own).clone(memory_format=torch.contiguous_format)
            else:
                bits[plan.name] = self.arena.output_bits(plan.name)
                secret[plan.name] = self.arena.secret_bits(plan.name)
        return Seen(bits, secret)


def elements_with(plan: TensorPlan, *wanted: Element) -> Tensor:
    """[shape] bool (complex128: [shape, 2], as carrier words are): elements of an output with one of the wanted rules.

    On the device of the plan's rules; on the CPU where it has none.
    """
    if plan.rules is None:
        mask = torch.full(plan.shape, Element.DETERMINED in wanted)
    else:
        mask = torch.stack([plan.rules == rule for rule in wanted]).any(0).expand(plan.shape)
    return mask.unsqueeze(-1).expand(*plan.shape, 2) if plan.dtype == torch.complex128 else mask
