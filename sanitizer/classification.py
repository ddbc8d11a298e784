"""Compares what the runs left in each output, element by element, and gives every difference its clause."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sanitizer.finding import Finding
from sanitizer.indices import describe_mask, index_text
from sanitizer.plan import Element
from sanitizer.running import Output, Run
from sanitizer.secrets import carrier_of

__all__ = ["Verdicts", "classify", "same_bits"]


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """Findings, and per output a bool mask of the elements that they name; `by_clause`: the same, told apart."""

    findings: list[Finding]
    blamed: dict[str, Tensor]
    by_clause: dict[str, dict[str, Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class _Masks:
    """Which elements of one output deserve what, each of the output's shape."""

    coverage: Tensor
    differing: Tensor  # between secrets, and not unwritten
    first_call: Tensor  # between the warm-up and the first run alone


def same_bits(one: Output, other: Output) -> bool:
    """Whether two outputs are alike, bit for bit."""
    return one.bits.shape == other.bits.shape and torch.equal(one.bits, other.bits)


def classify(
    warm_up: Run,
    runs: Sequence[Run],
    *,
    again: Callable[[], Run],
    deterministic: bool,
    rules: Mapping[str, Tensor],
    damaged: bool,
) -> Verdicts:
    """Judge the outputs of `runs`, one per secret, the first under the warm-up's secret.

    again: runs the kernel once more under that secret; called at most once, and only after a disagreement.
    damaged: the kernel changed its inputs early on, so the warm-up's outputs say nothing.
    """
    verdicts = Verdicts([], {}, {})
    pending: list[tuple[str, _Masks, list[Output]]] = []
    for name in runs[0].outputs:
        if not all(name in run.outputs for run in runs):
            continue
        outputs = [run.outputs[name] for run in runs]
        warm = None if damaged else warm_up.outputs.get(name)
        # Under one secret alone the bits of an element that nobody wrote do not differ either.
        alike = len(outputs) > 1 and all(same_bits(outputs[0], output) for output in outputs[1:])
        if alike and (warm is None or same_bits(warm, outputs[0])):
            continue
        if any(output.bits.shape != outputs[0].bits.shape for output in (*outputs, *([warm] if warm else []))):
            detail = f"{name} has another shape in another run on the same inputs"
            verdicts.findings.append(Finding("independence", name, outputs[0].bits.numel(), detail))
            continue
        masks = _masks(outputs, warm, rules.get(name), deterministic=deterministic)
        _add(verdicts, "coverage", name, masks.coverage, "{} never written: still the secret in every run")
        pending.append((name, masks, outputs))
    _blame_differences(verdicts, pending, runs[0], again if deterministic else None)
    return verdicts


def _blame_differences(
    verdicts: Verdicts,
    pending: Sequence[tuple[str, _Masks, list[Output]]],
    first: Run,
    again: Callable[[], Run] | None,
) -> None:
    differ = any(bool(masks.differing.any()) for _, masks, _ in pending)
    control = again() if differ and again is not None else None
    unstable = control is not None and any(
        _changed(control, name, outputs[0], masks.differing) for name, masks, outputs in pending
    )
    for name, masks, outputs in pending:
        if bool(masks.differing.any()):
            where = _first_index(masks.differing)
            a, b, z = (_value(output, where) for output in outputs)
            at = index_text(name, where)
            if unstable:
                words = "{} is not the same when called again with the same memory; " + f"{at} was {a}, {b} and {z}"
                _add(verdicts, "repeatability", name, masks.differing, words)
            else:
                words = (
                    "{} depends on memory that is no input; "
                    f"{at} is {a} under secret A (NaN), {b} under B (ordinary), {z} under Z (zero)"
                )
                _add(verdicts, "independence", name, masks.differing, words)
        _add(verdicts, "repeatability", name, masks.first_call, "{} differs between the first call and the next ones")


def _changed(control: Run, name: str, before: Output, mask: Tensor) -> bool:
    """Whether the control run gave other bits than the run that it repeats, where it matters."""
    now = control.outputs.get(name)
    if now is None or now.bits.shape != before.bits.shape:
        return True
    return bool((_any_word(now.bits != before.bits, before) & mask).any())


def _masks(outputs: Sequence[Output], warm: Output | None, rules: Tensor | None, *, deterministic: bool) -> _Masks:
    first = outputs[0]
    if deterministic:
        differing = torch.zeros_like(first.bits, dtype=torch.bool)
        for output in outputs[1:]:
            differing |= output.bits != first.bits
        differing = _any_word(differing, first)
        early = differing & False if warm is None else _any_word(warm.bits != first.bits, first)
    else:
        # Held to the same pattern of finite values: a secret NaN that leaks shows as one.
        patterns = [_finite(output) for output in (*outputs, *([warm] if warm else []))]
        differing = torch.zeros_like(patterns[0])
        for pattern in patterns[1:]:
            differing |= pattern != patterns[0]
        early = differing & False
    unwritten = _unwritten(outputs)
    determined = owed = ~(differing & False)
    if rules is not None:
        rules = rules.to(first.bits.device).expand(differing.shape)
        determined, owed = rules == Element.DETERMINED, rules <= Element.WRITTEN
    # What the caller's memory must still hold, arena comparison has judged; returned memory has no such elements.
    coverage = unwritten & owed
    differing = differing & determined & ~unwritten
    return _Masks(coverage, differing, early & determined & ~unwritten & ~differing)


def _unwritten(outputs: Sequence[Output]) -> Tensor:
    """[*shape] bool: still the secret in every run. Nothing is, where what a secret looks like is not known."""
    first = outputs[0]
    same: Tensor | None = None
    for output in outputs:
        if output.secret is None:
            return torch.zeros_like(_any_word(first.bits != first.bits, first))
        still = ~_any_word(output.bits != output.secret(), output)
        same = still if same is None else same & still
    return ~(first.bits != first.bits) if same is None else same


def _any_word(words: Tensor, output: Output) -> Tensor:
    """[*shape] from a mask over carrier words."""
    return words.any(-1) if carrier_of(output.dtype)[1] > 1 else words


def _finite(output: Output) -> Tensor:
    values = output.typed()
    if output.dtype == getattr(torch, "float4_e2m1fn_x2", None) or not (
        values.is_floating_point() or values.is_complex()
    ):
        return torch.ones(values.shape, dtype=torch.bool, device=values.device)
    return (values.float() if values.itemsize == 1 else values).isfinite()


def _first_index(mask: Tensor) -> tuple[int, ...]:
    return tuple(int(part) for part in mask.nonzero()[0])


def _value(output: Output, index: tuple[int, ...]) -> str:
    word = output.bits[index]
    if output.dtype == getattr(torch, "float4_e2m1fn_x2", None):
        return f"0x{int(word):02x}"
    number = word.reshape(-1).view(output.dtype)[0]
    if output.dtype.is_floating_point:
        number = number.double()
    return f"{number.item():.6g}" if output.dtype.is_floating_point else str(number.item())


def _add(verdicts: Verdicts, clause: str, name: str, mask: Tensor, words: str) -> None:
    """Add a finding about the true elements of `mask`, if there are any."""
    count = int(mask.sum())
    if count == 0:
        return
    verdicts.findings.append(Finding(clause, name, count, words.replace("{}", describe_mask(name, mask), 1)))
    blamed = verdicts.blamed.get(name)
    verdicts.blamed[name] = mask if blamed is None else blamed | mask
    of_clause = verdicts.by_clause.setdefault(name, {})
    of_clause[clause] = mask | of_clause[clause] if clause in of_clause else mask
