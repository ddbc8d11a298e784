"""What the page says in words: kernels and findings, out of report.json, whatever is missing in it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from mla_verify.errors import UsageError
from mla_verify.maps import ElementMap
from mla_verify.reports.folder import REPORT, list_of, mapping_of
from sanitizer.finding import CLAUSES

__all__ = ["MANY", "FindingFacts", "KernelFacts", "facts_of"]

MANY: Final = 1_000  # findings from which each has to be brief
_LONG: Final = 4_000  # characters of a text, where there are few
_BRIEF: Final = 240
_STEPS: Final = 100  # problems of a history
_VERDICTS: Final = ("pass", "fail", "known", "not checked", "unavailable")


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingFacts:
    """A finding. `number` counts over the whole report, from 1; `kernel` is its kernel's place."""

    number: int
    kernel: int
    kernel_name: str
    clause: str
    tensor: str
    elements: int
    detail: str
    problem: str
    after: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]
    found_after: int
    again: str
    replay: str
    history: tuple[str, ...]
    maps: tuple[ElementMap, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """A kernel's verdicts and what stands beside them. verdicts: per clause a word and a reason."""

    number: int
    name: str
    contract: str
    device: str
    verdict: str
    seed: str
    examples: int
    seconds: float
    source: str
    verdicts: tuple[tuple[str, str, str], ...]
    preconditions: tuple[str, ...]
    declarations: tuple[str, ...]
    notes: tuple[str, ...]
    not_judged: int
    deviations: tuple[Mapping[str, str], ...]
    unavailable: str
    findings: tuple[FindingFacts, ...]


def facts_of(data: Mapping[str, Any]) -> list[KernelFacts]:
    """The kernels of a report. Raises UsageError where a map in it is none."""
    kernels = [cast("Mapping[str, Any]", one) for one in list_of(data, "kernels") if isinstance(one, dict)]
    many = sum(len(list_of(kernel, "findings")) for kernel in kernels) > MANY
    made: list[KernelFacts] = []
    count = 0
    for number, kernel in enumerate(kernels):
        found = [cast("Mapping[str, Any]", one) for one in list_of(kernel, "findings") if isinstance(one, dict)]
        findings = tuple(
            _finding(one, kernel, place=number, number=count + index, most=_BRIEF if many else _LONG)
            for index, one in enumerate(found, start=1)
        )
        count += len(findings)
        made.append(_kernel(kernel, number, findings))
    return made


def _kernel(kernel: Mapping[str, Any], number: int, findings: tuple[FindingFacts, ...]) -> KernelFacts:
    words, reasons, source = (mapping_of(kernel, name) for name in ("clauses", "reasons", "source"))
    return KernelFacts(
        number=number,
        name=_text(kernel, "kernel"),
        contract=_text(kernel, "contract"),
        device=_text(kernel, "device"),
        verdict=_text(kernel, "verdict"),
        seed=_text(kernel, "seed"),
        examples=_whole(kernel, "examples"),
        seconds=_number(kernel, "seconds"),
        source=f"{_text(source, 'file')}:{_text(source, 'line')}" if source else "",
        verdicts=tuple(
            (clause, word if (word := str(words.get(clause))) in _VERDICTS else "not checked", _text(reasons, clause))
            for clause in CLAUSES
        ),
        preconditions=_texts(kernel, "preconditions"),
        declarations=_texts(kernel, "declarations"),
        notes=_texts(kernel, "notes"),
        not_judged=_whole(kernel, "not_judged"),
        deviations=tuple(
            {str(name): str(value) for name, value in cast("Mapping[str, Any]", one).items()}
            for one in list_of(kernel, "known_deviations")
            if isinstance(one, dict)
        ),
        unavailable=_text(kernel, "unavailable"),
        findings=findings,
    )


def _finding(
    finding: Mapping[str, Any], kernel: Mapping[str, Any], *, place: int, number: int, most: int
) -> FindingFacts:
    clause = _text(finding, "clause")
    if clause not in CLAUSES:
        raise UsageError(f"{REPORT}: got the clause {clause[:40]!r}, wanted one of {', '.join(CLAUSES)}")
    after = _texts(finding, "after")
    found_after = _whole(finding, "found_after")
    return FindingFacts(
        number=number,
        kernel=place,
        kernel_name=_cut(_text(kernel, "kernel"), most),
        clause=clause,
        tensor=_cut(_text(finding, "tensor"), most),
        elements=_whole(finding, "elements"),
        detail=_cut(_text(finding, "detail"), most),
        problem=_cut(_text(finding, "problem"), most),
        after=tuple(_cut(one, most) for one in after[:_STEPS]),
        fields=tuple((str(name), _cut(str(value), most)) for name, value in mapping_of(finding, "fields").items())
        if most == _LONG
        else (),
        found_after=found_after,
        again=_again(kernel) if found_after and most == _LONG else "",
        replay=_text(finding, "replay"),
        history=tuple(_cut(one, most) for one in _texts(finding, "history")[-_STEPS:]) if most == _LONG else (),
        maps=tuple(_map(one) for one in list_of(finding, "maps")),
    )


def _map(data: Any) -> ElementMap:
    try:
        return ElementMap.from_json(data)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{REPORT} holds something that is no map: {str(error)[:100]}") from error


def _again(kernel: Mapping[str, Any]) -> str:
    """The command that draws the same problems again."""
    target = _text(kernel, "target") or _text(kernel, "kernel")
    options = f"--contract {shlex.quote(_text(kernel, 'contract'))} --seed {shlex.quote(_text(kernel, 'seed'))}"
    return f"mla-verify check {shlex.quote(target)} {options}"


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    return "" if value is None else str(value)


def _texts(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(map(str, list_of(data, name)))


def _number(data: Mapping[str, Any], name: str) -> float:
    value = data.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _whole(data: Mapping[str, Any], name: str) -> int:
    return int(_number(data, name))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
