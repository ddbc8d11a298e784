"""What `prove --json` printed, as rows of a table: each property of each tensor once, over all configurations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from mla_verify.reports.folder import mapping_of

__all__ = ["proof_rows"]

_WORST: Final = ("refuted", "unknown", "out of class", "proved")


def proof_rows(data: Any) -> list[dict[str, str]]:
    """One row per kernel, property and tensor, with its worst verdict, what is refuted first; none for other data."""
    grouped: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for name, verdict in _verdicts(data):
        key = (name, str(verdict.get("property", "")), str(verdict.get("tensor", "")))
        grouped.setdefault(key, []).append(verdict)
    rows = [_row(*key, verdicts) for key, verdicts in grouped.items()]
    return sorted(rows, key=lambda row: _rank(row["verdict"]))


def _verdicts(data: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for part in _objects(data):
        for text in _list(part.get("complaints")):
            detail = f"the declaration is not what is launched: {text}"
            yield str(part.get("kernel", "")), {"property": "declaration", "outcome": "refuted", "detail": detail}
        for proof in _objects(part.get("proofs")):
            for verdict in _objects(proof.get("properties")):
                yield str(proof.get("name", "")), verdict


def _list(data: Any) -> list[Any]:
    return cast("list[Any]", data) if isinstance(data, list) else []


def _objects(data: Any) -> list[Mapping[str, Any]]:
    return [cast("Mapping[str, Any]", part) for part in _list(data) if isinstance(part, dict)]


def _row(kernel: str, asked: str, tensor: str, verdicts: list[Mapping[str, Any]]) -> dict[str, str]:
    worst = min(verdicts, key=lambda verdict: _rank(str(verdict.get("outcome", ""))))
    count = sum(verdict.get("outcome") == worst.get("outcome") for verdict in verdicts)
    return {
        "kernel": kernel,
        "property": asked,
        "tensor": tensor,
        "verdict": str(worst.get("outcome", "")),
        "configurations": f"{count} of {len(verdicts)}",
        "sizes": ", ".join(f"{name}={value}" for name, value in mapping_of(worst, "sizes").items()),
        "detail": str(worst.get("detail", "")),
    }


def _rank(verdict: str) -> int:
    """The worst first; a word that nobody knows is no success."""
    return _WORST.index(verdict) if verdict in _WORST else 0
