"""The command `prove`: what holds of a Triton kernel at every size, as a table or JSON, and cases for what does not."""

from __future__ import annotations

import hashlib
import importlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mla_verify.errors import ExitCode, UsageError
from mla_verify.proofs.declaring import Flow, Proof
from mla_verify.proofs.launches import launches_of
from mla_verify.proofs.lowering import resolve
from mla_verify.proofs.proving import Proved, prove, prove_flow, scene_of
from mla_verify.proofs.replaying import reenact
from mla_verify.proofs.verdicts import PROPERTIES, Outcome, Verdict

__all__ = ["Proven", "declared_names", "exit_code", "prove_command", "proven_json", "replay_refutation"]

_OWN: Final = "mla_verify.kernels.triton_proofs"
_FORMAT: Final = "mla-verify refutation 1"
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


def declared_names() -> tuple[str, ...]:
    """Registered kernels that have a declaration."""
    return tuple(importlib.import_module(_OWN).DECLARED)


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
    declared = importlib.import_module(_OWN)
    registered: Mapping[str, tuple[str, ...]] = declared.DECLARED
    references = [f"{_OWN}:{name}" for name in registered.get(target, ())]
    if not references:
        if ":" not in target:
            raise UsageError(
                f"{target!r} has no declaration for a proof; those that have one: {', '.join(registered)}; for a "
                "kernel of your own write one and name it as file.py:NAME (docs/proofs.md)"
            )
        references = [target]
    parts = [part for reference in references for part in _declarations(reference)]
    results: list[Proved] = []
    for part in parts:
        results += prove_flow(part, cache=cache) if isinstance(part, Flow) else prove(part, cache=cache)
    complaints: list[str] = []
    if launches and target in registered:
        proofs = [ref for ref in references if isinstance(resolve(ref), Proof)]
        complaints = launches_of(target, proofs)
    return Proven(target, tuple(results), tuple(complaints))


def _declarations(reference: str) -> list[Proof | Flow]:
    found = resolve(reference)
    parts: list[Any] = list(found) if isinstance(found, tuple | list) else [found]
    for part in parts:
        if not isinstance(part, Proof | Flow):
            raise UsageError(f"{reference} is a {type(part).__name__}, wanted a mla_verify.proofs.Proof or Flow")
    return parts


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
    folder.mkdir(parents=True, exist_ok=True)
    for part in proven:
        for result in part.results:
            for verdict in (verdict for verdict in result.verdicts if verdict.sizes):
                case = {
                    "format": _FORMAT,
                    "target": part.target,
                    "name": result.name,
                    "constexprs": dict(result.configuration),
                    "property": verdict.property,
                    "tensor": verdict.tensor,
                    "sizes": verdict.sizes,
                    "tables": {name: list(held) for name, held in verdict.tables.items()},
                    "detail": verdict.detail,
                    "versions": {
                        "python": platform.python_version(),
                        "triton": _version("triton"),
                        "z3": _version("z3"),
                    },
                }
                text = json.dumps(case, indent=2)
                about = f"{result.name}-{verdict.property}-{verdict.tensor}"
                name = "".join(char if char.isalnum() or char in "._-" else "-" for char in about)
                path = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.refuted.json"
                path.write_text(text + "\n", encoding="utf-8")
                saved[_key(result, verdict)] = str(path)
    return saved


def replay_refutation(path: Path, *, target: str) -> bool:
    """Launch a saved refutation again on what `target` declares now. Whether it still shows."""
    try:
        case = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a refutation: {error}") from error
    if not isinstance(case, dict) or case.get("format") != _FORMAT:
        raise UsageError(f"{path} is no refutation, wanted a file that `mla-verify prove --cases` has written")
    registered: Mapping[str, tuple[str, ...]] = importlib.import_module(_OWN).DECLARED
    references = [f"{_OWN}:{name}" for name in registered.get(target, ())] or [target]
    parts = {part.name: part for reference in references for part in _declarations(reference)}
    part = parts.get(case["name"])
    if part is None:
        raise UsageError(
            f"{target} declares no {case['name']!r}, which {path} is about; it declares {', '.join(parts)}"
        )
    proofs = (part.producer, part.consumer) if isinstance(part, Flow) else (part,)
    constants = [{name: case["constexprs"][name] for name in proof.configurations[0]} for proof in proofs]
    verdict = Verdict(case["property"], "refuted", case["tensor"], "", case["sizes"], case["tables"])
    scene = scene_of(proofs, constants, verdict)
    return reenact([scene])[0].shown


def _version(package: str) -> str:
    try:
        return str(
            getattr(importlib.import_module(package), "__version__", "")
            or importlib.import_module(package).get_version_string()
        )
    except ImportError:
        return ""


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
