"""Decides every property of a declared kernel: a short search for a launch that breaks it, then the proof.

The search comes first because a small counterexample is found faster than a proof fails, and because it shows that
the caller's promises can be kept: what follows from promises that nobody can keep is proved and worth nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mla_verify.proofs.caching import key_of, recall, remember
from mla_verify.proofs.declaring import Flow, Layout, Proof
from mla_verify.proofs.lowering import Lowered, Request, lower
from mla_verify.proofs.model import Model, build
from mla_verify.proofs.obligations import Answer, bounds, containment, coverage, defined, flow, race
from mla_verify.proofs.replaying import Disagreement, Reenactment, Result, describe, reenact
from mla_verify.proofs.searching import Breach, Found, at_largest, search, shrink
from mla_verify.proofs.sizing import Setting
from mla_verify.proofs.solving import z3_here
from mla_verify.proofs.terms import Terms
from mla_verify.proofs.verdicts import OutOfClass, Property, Verdict
from mla_verify.proofs.widths import grid_fits, largest_factor, widths_hold

__all__ = ["Proved", "configurations_of", "prove", "prove_flow", "prove_lowered", "prove_lowered_flow", "scene_of"]

_FIRST_SEARCH: Final = 1.0  # seconds, for the smallest sizes
_FIRST_LAUNCHES: Final = 120
_SECOND_SEARCH: Final = 6.0  # seconds, where a proof has failed
_LONGEST: Final = 240  # characters of what stands in a proof's way
_TESTED: Final = ("containment", "race", "coverage", "bounds", "flow")  # what a launch can show


@dataclass(frozen=True, slots=True)
class Proved:
    """All verdicts on one configuration of one kernel."""

    name: str
    configuration: Mapping[str, Any]
    verdicts: tuple[Verdict, ...]
    promises: tuple[str, ...]
    seconds: float
    remembered: bool = False

    @property
    def holds(self) -> bool:
        """Whether every property is proved."""
        return all(verdict.outcome == "proved" for verdict in self.verdicts)


@dataclass(frozen=True, slots=True)
class _Question:
    """One property of one tensor."""

    property: Property
    tensor: str
    ask: Callable[[], Answer]


def configurations_of(proof: Proof) -> list[Lowered]:
    """The TTIR of every configuration."""
    return lower([Request(proof.kernel, proof.pointers, proof.scalars, part) for part in proof.configurations])


def prove(proof: Proof, *, cache: bool = True, replay: bool = True) -> list[Proved]:
    """Decide every property, for each configuration. Raises Unavailable without Triton or z3.

    replay: launch what is refuted, and raise Disagreement where the kernel does not show it.
    """
    z3_here()
    return [
        prove_lowered(proof, configuration, lowered, cache=cache, replay=replay)
        for configuration, lowered in zip(proof.configurations, configurations_of(proof), strict=True)
    ]


def prove_lowered(
    proof: Proof, configuration: Mapping[str, Any], lowered: Lowered, *, cache: bool = True, replay: bool = True
) -> Proved:
    """The same for one configuration whose TTIR is there."""
    start = time.monotonic()
    key = key_of(lowered.text, lowered.error, replace(proof, configurations=()), configuration, replay)
    known = recall(key) if cache else None
    if known is not None:
        return Proved(
            proof.name, configuration, tuple(known), proof.promises, time.monotonic() - start, remembered=True
        )
    try:
        model = build(proof, configuration, lowered)
    except OutOfClass as lost:
        verdicts = [_lost(question, tensor, lost) for question, tensor in _asked(proof)]
    else:
        verdicts = _decide([model], list(_questions(model)), (), replay=replay)
    if cache:
        remember(key, verdicts)
    return Proved(proof.name, configuration, tuple(verdicts), proof.promises, time.monotonic() - start)


def prove_flow(pair: Flow, *, cache: bool = True, replay: bool = True) -> list[Proved]:
    """Whether the consumer loads nothing that the producer has not stored, for all configurations that agree.

    Two configurations agree where they give the same value to every constexpr that both kernels have.
    """
    z3_here()
    made: list[Proved] = []
    sides = [(part, configurations_of(part)) for part in (pair.producer, pair.consumer)]
    (producer, first), (consumer, second) = sides
    for constants, text in zip(producer.configurations, first, strict=True):
        for others, other_text in zip(consumer.configurations, second, strict=True):
            shared = set(constants) & set(others)
            if any(constants[name] != others[name] for name in shared):
                continue
            start = time.monotonic()
            both = {**constants, **others}
            key = key_of(
                text.text,
                other_text.text,
                replace(producer, configurations=()),
                replace(consumer, configurations=()),
                both,
                pair.tensors,
                replay,
            )
            verdicts = recall(key) if cache else None
            remembered = verdicts is not None
            if verdicts is None:
                verdicts = prove_lowered_flow(pair, (constants, text), (others, other_text), replay=replay)
                if cache:
                    remember(key, verdicts)
            promises = tuple(dict.fromkeys((*producer.promises, *consumer.promises)))
            made.append(Proved(pair.name, both, tuple(verdicts), promises, time.monotonic() - start, remembered))
    return made


def prove_lowered_flow(
    pair: Flow,
    producer: tuple[Mapping[str, Any], Lowered],
    consumer: tuple[Mapping[str, Any], Lowered],
    *,
    replay: bool = True,
) -> list[Verdict]:
    """The same as `prove_flow`, for two configurations whose TTIR is there."""
    terms = Terms()
    try:
        one = build(pair.producer, *producer, terms, tag="producer's ")
        two = build(pair.consumer, *consumer, terms, tag="consumer's ")
    except OutOfClass as lost:
        return [_lost("flow", tensor, lost) for tensor in pair.tensors]
    questions = [_Question("flow", tensor, _flow_of(one, two, tensor)) for tensor in pair.tensors]
    return _decide([one, two], questions, pair.tensors, replay=replay)


def _flow_of(one: Model, two: Model, tensor: str) -> Callable[[], Answer]:
    return lambda: flow(one, two, tensor)


# Deciding


def _decide(
    models: Sequence[Model], questions: Sequence[_Question], flows: Sequence[str], *, replay: bool
) -> list[Verdict]:
    found = search(models, seconds=_FIRST_SEARCH, launches=_FIRST_LAUNCHES, flows=flows)
    verdicts: list[Verdict] = []
    refuted: list[tuple[int, Breach, Setting]] = []
    for question in questions:
        start = time.monotonic()
        lost = _in_the_way(models, question)
        breach = found.breaches.get((question.property, question.tensor))
        if lost is not None:
            verdict = _lost(question.property, question.tensor, lost)
        elif breach is not None:
            verdict = _refuted(models, *breach, flows=flows)
        else:
            verdict = _answered(models, question, found, flows)
        verdict = replace(verdict, seconds=round(time.monotonic() - start, 3))
        if verdict.outcome == "refuted" and verdict.property in _TESTED:
            refuted.append(
                (
                    len(verdicts),
                    Breach(verdict.property, verdict.tensor, verdict.detail),
                    Setting(verdict.sizes, verdict.tables),
                )
            )
        verdicts.append(verdict)
    verdicts = _resting_on_containment(verdicts)
    if replay and refuted:
        for (number, _, _), result in zip(refuted, _shown(models, refuted), strict=True):
            detail = f"{verdicts[number].detail}; launched at these sizes: {result.words}"
            verdicts[number] = replace(verdicts[number], detail=detail)
    return verdicts


def _resting_on_containment(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Distinct indices have distinct addresses within the tensor alone: no race is proved where a store may leave."""
    held = {part.tensor for part in verdicts if part.property == "containment" and part.outcome == "proved"}
    return [
        replace(part, outcome="unknown", detail="no two programs store one index, but not every index is contained")
        if part.property == "race" and part.outcome == "proved" and part.tensor not in held
        else part
        for part in verdicts
    ]


def _answered(models: Sequence[Model], question: _Question, found: Found, flows: Sequence[str]) -> Verdict:
    """A proof, or a longer search where there is none."""
    plain = question.property in ("overflow", "grid")
    try:
        answer = question.ask()
    except OutOfClass as lost:
        return _lost(question.property, question.tensor, lost)
    if answer.proved:
        empty = "" if plain else _vacuous(models, question, found)
        return Verdict(question.property, "unknown" if empty else "proved", question.tensor, empty or answer.detail)
    if plain:
        largest = at_largest(models[0], question.property)
        if largest is not None:
            breach, setting = largest
            return Verdict(question.property, "refuted", "", breach.detail, dict(setting.scalars), dict(setting.tables))
        return Verdict(question.property, "unknown", question.tensor, answer.detail)
    key = (question.property, question.tensor)
    more = search(models, seconds=_SECOND_SEARCH, seed=1, flows=flows, stop_at=[key])
    if key in more.breaches:
        return _refuted(models, *more.breaches[key], flows=flows)
    why = answer.detail if len(answer.detail) <= _LONGEST else f"{answer.detail[:_LONGEST]}…"
    return Verdict(question.property, "unknown", question.tensor, f"no proof and no counterexample: {why}")


def _vacuous(models: Sequence[Model], question: _Question, found: Found) -> str:
    """Why a proof is worth nothing: no launch keeps the promises, or none stores anything. Empty where it is sound."""
    if found.launches == 0:
        why = f", as {found.lost} stands in the way" if found.lost else ""
        return f"proved, but no launch that keeps all promises was found{why}: they may contradict each other"
    outputs = [layout.tensor for model in models for layout in model.proof.outputs]
    written = (
        [question.tensor]
        if question.tensor in outputs
        else [name for name in outputs if found.stored.get(name)][:1] or outputs[:1]
    )
    if not all(found.stored.get(name) for name in written):
        more = search(models, seconds=_SECOND_SEARCH, seed=1, stored=written)
        for name, count in more.stored.items():
            found.stored[name] = found.stored.get(name, 0) + count
    if not all(found.stored.get(name) for name in written):
        return f"proved, but no launch that keeps all promises stores to {written[0]}: they may contradict each other"
    return ""


def _refuted(models: Sequence[Model], breach: Breach, setting: Setting, *, flows: Sequence[str]) -> Verdict:
    breach, setting = shrink(models, breach, setting, flows=flows)
    return Verdict(
        breach.property, "refuted", breach.tensor, breach.detail, dict(setting.scalars), dict(setting.tables)
    )


def _shown(models: Sequence[Model], refuted: Sequence[tuple[int, Breach, Setting]]) -> list[Result]:
    scenes = [
        scene_of(
            [model.proof for model in models],
            [model.constants for model in models],
            Verdict(breach.property, "refuted", breach.tensor, "", dict(setting.scalars), dict(setting.tables)),
        )
        for _, breach, setting in refuted
    ]
    results = reenact(scenes)
    for (_, breach, setting), result in zip(refuted, results, strict=True):
        if not result.shown:
            raise Disagreement(
                f"internal error: TTIR of {models[-1].proof.name} breaks {breach.property} of {breach.tensor} at "
                f"{dict(setting.scalars)} {dict(setting.tables)} ({breach.detail}); the kernel not: {result.words} "
                "(please report)"
            )
    return results


def scene_of(proofs: Sequence[Proof], constants: Sequence[Mapping[str, Any]], verdict: Verdict) -> Reenactment:
    """The launch that a refutation speaks of."""
    return Reenactment(
        proofs=tuple(describe(replace(proof, configurations=())) for proof in proofs),
        constants=tuple(constants),
        scalars=verdict.sizes,
        tables=verdict.tables,
        property=verdict.property,
        tensor=verdict.tensor,
    )


def _in_the_way(models: Sequence[Model], question: _Question) -> OutOfClass | None:
    """What was not followed and could break this property."""
    for model in models:
        for lost in model.program.lost:
            near = not lost.tensor or lost.tensor == question.tensor
            writes = question.property in ("containment", "race", "coverage", "flow") and not lost.loads
            reads = question.property in ("bounds", "flow", "race") and lost.loads
            if near and (writes or reads):
                return lost
    return None


def _lost(question: Property, tensor: str, lost: OutOfClass) -> Verdict:
    return Verdict(question, "out of class", tensor, str(lost))


def _asked(proof: Proof) -> Iterator[tuple[Property, str]]:
    """Every property of every tensor that a declaration asks about."""
    yield "defined", ""
    for layout in proof.outputs:
        yield "containment", layout.tensor
        yield "race", layout.tensor
        if layout.covered:
            yield "coverage", layout.tensor
    for layout in proof.layouts:
        if not layout.output:
            yield "bounds", layout.tensor
    if proof.most:
        yield "overflow", ""
        yield "grid", ""


def _questions(model: Model) -> Iterator[_Question]:
    stray = sorted(
        {site.base for site in model.program.sites if site.stores} - {part.tensor for part in model.proof.outputs}
    )
    outputs = {part.tensor for part in model.proof.outputs}
    stray += sorted({lost.tensor for lost in model.program.lost if lost.tensor and not lost.loads} - {*outputs, *stray})
    for tensor in stray:
        yield _Question("containment", tensor, lambda: Answer(False, "it is stored to and is no declared output"))
    layouts = {layout.tensor: layout for layout in model.proof.layouts}
    asks: dict[str, Callable[[Model, Any], Answer]] = {
        "containment": containment,
        "race": race,
        "coverage": coverage,
        "bounds": bounds,
    }
    for asked, tensor in _asked(model.proof):
        if asked in asks:
            layout: Layout = layouts[tensor]
            yield _Question(asked, tensor, _bound(asks[asked], model, layout))
        elif asked == "defined":
            yield _Question(asked, "", lambda: defined(model))
        elif asked == "overflow":
            yield _Question(asked, "", lambda: _width_answer(model))
        else:
            yield _Question(asked, "", lambda: grid_fits(model, model.proof.most))


def _bound(ask: Callable[[Model, Any], Answer], model: Model, layout: Layout) -> Callable[[], Answer]:
    return lambda: ask(model, model.places[layout.tensor])


def _width_answer(model: Model) -> Answer:
    answer = widths_hold(model, model.proof.most)
    if not answer.proved:
        return answer
    factor = largest_factor(model)
    sizes = ", ".join(f"{name} ≤ {value}" for name, value in model.proof.most.items())
    return Answer(True, f"for {sizes}" + (f"; and for {factor} times as much" if factor > 1 else ""))
