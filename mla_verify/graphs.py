"""Replays of a kernel from graphs: which problems share one capture, and what is said where nothing can be replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.contract import Contract, Placement
from mla_verify.kernel import Kernel
from mla_verify.within import why_outside
from sanitizer.arena import Arena
from sanitizer.finding import Finding
from sanitizer.graphs import GraphBackend, Inputs, audit_graphs
from sanitizer.plan import Element, TensorPlan
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem

__all__ = ["GRAPHS", "Replayed", "replayed_from_graphs", "variants"]

GRAPHS: Final = "graphs"
"""What every note about graphs begins with."""

_OTHER_SEED: Final = 7_919  # from a problem's seed to that of the inputs it is replayed on
_Call = Callable[[dict[str, Tensor]], Mapping[str, Tensor] | None]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What replays showed. notes: that there were some, or why there were none. error: what spoils the process."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    error: BaseException | None = None


def replayed_from_graphs(
    problem: Problem,
    *,
    kernel: Kernel,
    contract: Contract,
    call: Callable[[Placement], _Call],
    arena: Arena,
    backend: GraphBackend,
    workspaces: Callable[[], Sequence[Tensor]] = tuple,
) -> Replayed:
    """Capture a kernel on `problem`, on which it has been found right, and replay it there and on its variants.

    call: the kernel with a placement's plain arguments, ready for tensors: those of the captured problem hold for all.
    """
    captured = replace(problem, out_form="view")  # a graph's buffers stay where they are
    placements = [(name, contract.place(one, kernel, arena.device)) for name, one in variants(captured, kernel)]
    inputs = [Inputs(name, placement.tensors) for name, placement in placements]
    if isinstance(captured, UpProjectionProblem):
        inputs += _with_fewer_tokens(captured, placements[0][1].tensors)
    inputs = [which for which in inputs if _alike(which.plans, inputs[0].plans)]
    shown = audit_graphs(
        call(placements[0][1]),
        arena,
        inputs,
        backend,
        deterministic=kernel.deterministic,
        workspaces=workspaces,
        zeroed_workspace="zeroed_workspace" in kernel.preconditions,
    )
    if shown.why_not:
        return Replayed((), (f"{GRAPHS} not checked: {shown.why_not}",), shown.error)
    names = ", ".join(which.name for which in inputs if which.name not in shown.skipped)
    return Replayed(shown.findings, (f"{GRAPHS}: captured twice into one pool and replayed on {names}",), shown.error)


def variants(problem: Problem, kernel: Kernel) -> Iterator[tuple[str, Problem]]:
    """Problems whose tensors have the same shapes: the problem itself first, then what a graph of it must serve too.

    A kernel that plans ahead gets no others: its plan belongs to one problem, and a graph has baked that in.
    """
    yield "the same inputs", problem
    if kernel.prepare is not None:
        return
    others = [("other inputs", _other_inputs(problem))]
    if isinstance(problem, DecodeProblem):
        others += [("fewer requests than were captured", one) for one in _padded(problem)]
    seen: set[str] = set()
    for name, other in others:
        if name not in seen and other != problem and _promised(other, kernel):
            seen.add(name)
            yield name, other


def _promised(problem: Problem, kernel: Kernel) -> bool:
    """Whether the kernel takes the problem, and nothing is known to be wrong with it there."""
    return not why_outside(problem, kernel) and not any(known.problems(problem) for known in kernel.known_deviations)


def _other_inputs(problem: Problem) -> Problem:
    """Other values; and where there is a cache, shorter requests in tables and a pool of the same sizes."""
    other = replace(problem, seed=problem.seed + _OTHER_SEED)
    if not isinstance(other, DecodeProblem):
        return other
    lens = tuple(
        max(min(q_len, kv_len), kv_len // 2) for q_len, kv_len in zip(other.q_lens, other.kv_lens, strict=True)
    )
    return _in_the_same_tables(replace(other, kv_lens=lens), other)


def _padded(problem: DecodeProblem) -> Iterator[DecodeProblem]:
    """The batch with its last requests gone, as an engine pads one: first without rows, then with rows but no keys."""
    live = len(problem.kv_lens) // 2
    gone = len(problem.kv_lens) - live
    if not problem.kv_lens:
        return
    kv_lens = (*problem.kv_lens[:live], *(0,) * gone)
    rows = sum(problem.q_lens[live:])
    q_lens = (*problem.q_lens[:live], *(0,) * gone)
    flat = replace(problem, kv_lens=kv_lens, q_lens=q_lens, padding_rows=problem.padding_rows + rows)
    yield _in_the_same_tables(flat, problem)
    yield _in_the_same_tables(replace(problem, kv_lens=kv_lens), problem)


def _in_the_same_tables(problem: DecodeProblem, captured: DecodeProblem) -> DecodeProblem:
    """`problem` with as much slack as makes its tables and its pool as large as those of `captured`."""
    pages, before = problem.pages_per_request, captured.pages_per_request
    freed = sum(before) - sum(pages)
    return replace(
        problem,
        index_tail=captured.index_tail + freed,
        foreign_pages=captured.foreign_pages + freed,
        table_slack=captured.table_slack + max(before, default=0) - max(pages, default=0),
    )


def _with_fewer_tokens(problem: UpProjectionProblem, plans: Sequence[TensorPlan]) -> list[Inputs]:
    """The same tensors with the second half of the tokens being padding: secrets in, and nothing owed for them."""
    live = problem.num_tokens // 2
    if live == problem.num_tokens:
        return []
    is_live = torch.arange(problem.num_tokens) < live
    rules = torch.where(is_live, Element.DETERMINED, Element.FREE).to(torch.uint8).view(-1, 1, 1)
    padded: list[TensorPlan] = []
    for plan in plans:
        if plan.name == "x" and plan.values is not None:
            padded.append(replace(plan, live=is_live.to(plan.values.device).view(-1, 1, 1)))
        elif plan.name == "out":
            padded.append(replace(plan, rules=rules))
        else:
            padded.append(plan)
    return [Inputs("fewer tokens than were captured", tuple(padded))]


def _alike(plans: Sequence[TensorPlan], others: Sequence[TensorPlan]) -> bool:
    """Whether two problems lie at the same addresses: the same tensors, shapes, strides, offsets and guards."""

    def place(plan: TensorPlan) -> tuple[Any, ...]:
        return plan.name, plan.shape, plan.strides, plan.dtype, plan.offset, plan.guard

    return [place(plan) for plan in plans] == [place(plan) for plan in others]
