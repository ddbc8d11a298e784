"""The command `prove`: what holds of a Triton kernel at every size, as a table or JSON, and cases for what does not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mla_verify.errors import ExitCode
from mla_verify.proofs.declaring import Flow, Proof
from mla_verify.proofs.launches import launches_of
from mla_verify.proofs.proving import Proved, prove, prove_flow
from mla_verify.proofs.verdicts import PROPERTIES, Outcome, Verdict
from mla_verify.refutations import Refutation, declarations_of, declared_names, save_refutation

__all__ = ["Proven", "exit_code", "prove_command", "proven_json"]

_WORST: Final[tuple[Outcome, ...]] = ("refuted", "unknown", "out of class", "proved")
_STYLES: Final = {"proved": "green", "refuted": "bold red", "unknown": "yellow", "out of class": "yellow"}


@dataclass(frozen=True, slots=True)
class Proven:
    """Everything that was decided about one target, and in what its declaration is not what is launched."""

    target: str
    results: tuple[Proved, ...]
    complaints: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst of all verdicts."""
        outcomes = {verdict.outcome for result in self.results for verdict in result.verdicts}
        for outcome in _WORST:
            if outcome in outcomes:
                return outcome
        return "unknown"


def prove_command(
    targets: Sequence[str], *, cache: bool, launches: bool, cases: Path | None, as_json: bool
) -> ExitCode:
    """Decide, print, and save what is refuted."""
    proven = [_proven(target, cache=cache, launches=launches) for target in targets]
    saved = {} if cases is None else _saved(proven, cases)
    if as_json:
        print(json.dumps([proven_json(part) for part in proven], indent=2))
    else:
        for part in proven:
            _print(part, saved)
    return exit_code(proven)


def exit_code(proven: Sequence[Proven]) -> ExitCode:
    """0 where everything is proved; 1 for a refutation or an untrue declaration; 3 where something is undecided."""
    if any(part.outcome == "refuted" or part.complaints for part in proven):
        return ExitCode.VIOLATION
    return ExitCode.HOLDS if all(part.outcome == "proved" for part in proven) else ExitCode.UNAVAILABLE


def _proven(target: str, *, cache: bool, launches: bool) -> Proven:
    declared = declarations_of(target)
    results: list[Proved] = []
    for part in declared.values():
        results += prove_flow(part, cache=cache) if isinstance(part, Flow) else prove(part, cache=cache)
    complaints: list[str] = []
    if launches and target in declared_names():
        complaints = launches_of(target, [name for name, part in declared.items() if isinstance(part, Proof)])
    return Proven(target, tuple(results), tuple(complaints))


# JSON and cases


def proven_json(part: Proven) -> dict[str, Any]:
    """One target as plain data."""
    return {
        "kernel": part.target,
        "verdict": part.outcome,
        "complaints": list(part.complaints),
        "proofs": [
            {
                "name": result.name,
                "constexprs": dict(result.configuration),
                "seconds": round(result.seconds, 3),
                "remembered": result.remembered,
                "preconditions": list(result.promises),
                "properties": [asdict(verdict) for verdict in result.verdicts],
            }
            for result in part.results
        ],
    }


def _saved(proven: Sequence[Proven], folder: Path) -> dict[str, str]:
    """Write every refutation as a case; the path by what it is about."""
    saved: dict[str, str] = {}
    for part in proven:
        for result in part.results:
            for verdict in (verdict for verdict in result.verdicts if verdict.outcome == "refuted" and verdict.sizes):
                refutation = Refutation(
                    target=part.target,
                    name=result.name,
                    constexprs=dict(result.configuration),
                    property=verdict.property,
                    tensor=verdict.tensor,
                    sizes=verdict.sizes,
                    tables=verdict.tables,
                    detail=verdict.detail,
                )
                saved[_key(result, verdict)] = str(save_refutation(refutation, folder))
    return saved


def _key(result: Proved, verdict: Verdict) -> str:
    return f"{result.name} {dict(result.configuration)} {verdict.property} {verdict.tensor}"


# The table


def _print(part: Proven, saved: Mapping[str, str]) -> None:
    from rich.table import Table
    from rich.text import Text

    from mla_verify.table import console

    out = console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("kernel", "property", "tensor", "verdict", "configurations", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left", no_wrap=column != "kernel")
    below: list[str] = []
    for (name, asked, tensor), verdicts in _grouped(part.results).items():
        worst = min((verdict for _, verdict in verdicts), key=lambda verdict: _WORST.index(verdict.outcome))
        count = sum(verdict.outcome == worst.outcome for _, verdict in verdicts)
        seconds = sum(verdict.seconds for _, verdict in verdicts)
        table.add_row(
            name,
            asked,
            tensor,
            Text(worst.outcome, style=_STYLES[worst.outcome]),
            f"{count} of {len(verdicts)}",
            f"{seconds:.1f}",
        )
        for result, verdict in verdicts:
            if verdict.outcome != "proved":
                below.append(_words(result, verdict, saved))
    out.print(table)
    for text in (*below, *(f"the declaration is not what is launched: {text}" for text in part.complaints)):
        out.print()
        out.print(Text(text), soft_wrap=True)
    out.print()
    out.print(Text(_claim(part)), soft_wrap=True)


def _grouped(results: Sequence[Proved]) -> dict[tuple[str, str, str], list[tuple[Proved, Verdict]]]:
    grouped: dict[tuple[str, str, str], list[tuple[Proved, Verdict]]] = {}
    for result in results:
        for verdict in result.verdicts:
            grouped.setdefault((result.name, verdict.property, verdict.tensor), []).append((result, verdict))
    return grouped


def _words(result: Proved, verdict: Verdict, saved: Mapping[str, str]) -> str:
    constexprs = ", ".join(f"{name}={value}" for name, value in result.configuration.items())
    text = (
        f"{verdict.outcome}: {verdict.property} of {verdict.tensor or result.name} ({constexprs})\n  {verdict.detail}"
    )
    if verdict.sizes:
        text += "\n  at " + ", ".join(f"{name}={value}" for name, value in verdict.sizes.items())
        text += "".join(f"\n  {name} = {list(held)}" for name, held in verdict.tables.items())
    path = saved.get(_key(result, verdict))
    return text if path is None else f"{text}\n  case: {path}"


def _claim(part: Proven) -> str:
    """What is proved, in plain words, and what it rests on."""
    proved = {verdict.property for result in part.results for verdict in result.verdicts}
    held = [PROPERTIES[asked] for asked in PROPERTIES if asked in proved and _all_proved(part.results, asked)]
    promises = list(dict.fromkeys(text for result in part.results for text in result.promises))
    widths = list(
        dict.fromkeys(
            verdict.detail
            for result in part.results
            for verdict in result.verdicts
            if verdict.property == "overflow" and verdict.outcome == "proved"
        )
    )
    lines = [f"{part.target}, at every size:" if held else f"{part.target}: nothing is proved."]
    lines += [f"  * {text}" for text in held]
    lines += [f"    (32 bits: {text})" for text in widths]
    if held:
        lines.append("as long as the caller keeps: " + "; ".join(promises) + "; layouts whose elements do not overlap,")
        lines.append(
            "tensors that do not overlap, and these constexprs. Nothing is said of values, nor of what becomes of TTIR."
        )
    return "\n".join(lines)


def _all_proved(results: Sequence[Proved], asked: str) -> bool:
    return all(
        verdict.outcome == "proved" for result in results for verdict in result.verdicts if verdict.property == asked
    )
