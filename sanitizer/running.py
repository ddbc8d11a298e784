"""Runs a kernel once under one secret, and gathers what it left: outputs, stray writes, an exception."""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.fatal import broke_device
from sanitizer.finding import Finding
from sanitizer.global_state import ProcessState
from sanitizer.interception import Interceptor
from sanitizer.observing import Observer, Scene
from sanitizer.plan import Fills, TensorPlan
from sanitizer.secrets import Secret, carrier_of, carrier_view, fill_with_secret
from sanitizer.stopwatch import Stopwatch, synchronise

__all__ = ["Call", "Left", "Output", "Run", "Runner"]

Compare = Literal["all", "secrets", "later"]

_WORKSPACE_FILLS: Final = Fills()


class Call(Protocol):
    """The kernel, ready to be called with tensors alone."""

    def __call__(self, tensors: dict[str, Tensor], /) -> Mapping[str, Tensor] | None:
        """Run it. Returns the outputs that it allocated itself, by name; None if it wrote in place."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """One output after a run.

    bits: a compact copy as carrier words (complex128: two per element, in a last dimension).
    secret: what `bits` would be if nobody had written it; None where that is not known.
    """

    bits: Tensor
    dtype: torch.dtype
    secret: Callable[[], Tensor] | None

    def typed(self) -> Tensor:
        """[*shape] the bits as numbers."""
        values = self.bits.view(self.dtype)
        return values.squeeze(-1) if carrier_of(self.dtype)[1] > 1 else values


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What one run left behind. `moved`: outputs that a kernel re-pointed, or returned in a wrong form."""

    secret: Secret
    outputs: dict[str, Output]
    findings: list[Finding]
    moved: frozenset[str]
    error: BaseException | None
    interceptor: Interceptor


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """What the kernel itself left when it came back: what it returned, or what it raised."""

    returned: Mapping[str, Tensor]
    error: BaseException | None


@dataclass(slots=True, eq=False)
class Runner:
    """Everything that stays the same from run to run."""

    call: Call
    arena: Arena
    workspaces: Callable[[], Sequence[Tensor]] | None
    zeroed_workspace: bool
    stopwatch: Stopwatch
    observer: Observer | None = None
    secrets: tuple[Secret, ...] = tuple(Secret)
    _plans: dict[str, TensorPlan] = field(init=False)
    _state: ProcessState = field(init=False, default_factory=ProcessState)

    def __post_init__(self) -> None:
        self._plans = {plan.name: plan for plan in self.arena.plans if plan.role == "output"}

    def run(
        self,
        secret: Secret,
        *,
        marked: bool = False,
        tracking: bool = False,
        probing: bool = False,
        compare: Compare = "all",
        outputs_may_change: bool = True,
    ) -> Run:
        """One run.

        marked, tracking: of a warm-up, to learn what the kernel keeps (sanitizer.kept). probing: the run that tells
        kept scratch from tables. compare: which bytes to look at for stray writes: all, those that hold secrets, or
        "later", none before the next run under the same secret.
        outputs_may_change: false where the kernel has to refuse, and so must not write at all.
        """
        stopwatch, arena = self.stopwatch, self.arena
        stopwatch.start()
        arena.poison(secret)
        arena.kept.restore(secret, marked=marked)
        if probing:
            arena.kept.fill_probe()
        self._poison_workspaces(secret)
        tensors = arena.tensors()
        interceptor = Interceptor(
            secret,
            arena.device,
            handed_out=arena.handed_out,
            fence=arena.scratch_fence,
            marked=marked,
            tracking=tracking,
        )
        stopwatch.lap("fill")
        left = _called(self.call, tensors, interceptor, arena, self._observed(tensors, interceptor), self._state)
        stopwatch.lap("runs")
        stopwatch.move(interceptor.seconds, source="runs", target="intercept")
        if broke_device(left.error):  # nothing on it can be looked at any more
            return Run(secret, {}, [], frozenset(), left.error, interceptor)
        findings = arena.layout_changes(tensors)
        moved = {finding.tensor for finding in findings}
        outputs: dict[str, Output] = {}
        if left.error is None:
            for name, plan in self._plans.items():
                returned = left.returned.get(name)
                if returned is not None and not arena.same_place(name, returned):
                    wrong = _wrong_form(plan, returned, arena.device)
                    moved.discard(name)
                    if wrong is None:
                        outputs[name] = self._returned(returned, interceptor)
                    else:
                        findings.append(wrong)
                        moved.add(name)
                elif name not in moved:
                    outputs[name] = self._in_place(name, secret)
            for name in left.returned.keys() - self._plans.keys():
                outputs[name] = self._returned(left.returned[name], interceptor)
        if compare == "later":
            arena.put_outputs_back()
        else:
            findings += arena.stray(outputs=outputs_may_change, declared=compare == "all")
        findings += interceptor.guard_hits(arena.kept.scratches)
        stopwatch.lap("compare")
        return Run(secret, outputs, findings, frozenset(moved), left.error, interceptor)

    def _observed(
        self, tensors: dict[str, Tensor], interceptor: Interceptor
    ) -> contextlib.AbstractContextManager[object]:
        if self.observer is None:
            return contextlib.nullcontext()
        workspaces = () if self.workspaces is None else tuple(self.workspaces())
        plans = {plan.name: plan for plan in self.arena.plans}
        arena = self.arena
        scene = Scene(
            tensors, plans, interceptor, arena.kept.scratches, workspaces, self.zeroed_workspace, arena.strips
        )
        return self.observer.watching(scene)

    def _poison_workspaces(self, secret: Secret) -> None:
        if self.workspaces is None:
            return
        fill = 0 if self.zeroed_workspace else secret.fill(_WORKSPACE_FILLS)
        for workspace in self.workspaces():
            fill_with_secret(workspace, fill)

    def _in_place(self, name: str, secret: Secret) -> Output:
        arena = self.arena

        def never_written() -> Tensor:
            arena.poison(secret)
            return arena.secret_bits(name)

        return Output(arena.output_bits(name), self._plans[name].dtype, never_written)

    def _returned(self, returned: Tensor, interceptor: Interceptor) -> Output:
        """An output that the kernel allocated itself, or cut from what it was given."""
        bits = carrier_view(returned).clone(memory_format=torch.contiguous_format)
        return Output(bits, returned.dtype, self._never_written(returned, interceptor))

    def _never_written(self, returned: Tensor, interceptor: Interceptor) -> Callable[[], Tensor] | None:
        arena, secret = self.arena, interceptor.secret
        read = arena.arena_view(returned)
        if read is not None:

            def in_arena() -> Tensor:
                arena.poison(secret)
                return carrier_view(read()).clone(memory_format=torch.contiguous_format)

            return in_arena
        scratch = interceptor.scratch_of(returned)
        if scratch is None or scratch.dtype.itemsize != returned.itemsize:
            return None
        dtype, shape, strides, first = returned.dtype, returned.shape, returned.stride(), returned.storage_offset()
        fill = scratch.fill
        return lambda: carrier_view(
            scratch.pattern(fill).view(dtype).as_strided(shape, strides, first + scratch.pattern(fill).storage_offset())
        )


def _called(
    call: Call,
    tensors: dict[str, Tensor],
    interceptor: Interceptor,
    arena: Arena,
    observed: contextlib.AbstractContextManager[object],
    state: ProcessState,
) -> Left:
    """Call the kernel, with warnings recorded and never raised. This is the one place that catches everything."""
    try:
        with (
            warnings.catch_warnings(record=True),
            torch.no_grad(),
            interceptor,
            observed,
            arena.fences(),
        ):
            warnings.simplefilter("always")
            returned = call(dict(tensors))
            synchronise(arena.device)
    except KeyboardInterrupt:
        raise  # somebody wants the whole run to end
    except BaseException as error:  # noqa: BLE001 - whatever a kernel raises is what we are here to report
        return Left({}, _without_locals(error))
    finally:
        state.restore()
    return Left(returned or {}, None)


def _without_locals(error: BaseException) -> BaseException:
    """The exception with its traceback's lines but not its variables, which would keep the kernel's scratch alive."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next  # our own frame still runs, and holds the rest
    return error


def _wrong_form(plan: TensorPlan, returned: Tensor, device: torch.device) -> Finding | None:
    """What is wrong with the form of an output that the kernel returned."""
    complaints = [
        f"{what} {got}, wanted {wanted}"
        for what, got, wanted in (
            ("shape", list(returned.shape), list(plan.shape)),
            ("dtype", returned.dtype, plan.dtype),
            ("device", returned.device, device),
        )
        if got != wanted
    ]
    if not complaints:
        return None
    return Finding("layout", plan.name, returned.numel(), f"returned {plan.name} has {'; '.join(complaints)}")
