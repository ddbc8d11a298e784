"""Tables that other commands leave in a report's folder: scoreboard.json, economy.json, proofs.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from mla_verify.reports.folder import read_extra
from mla_verify.reports.page_proofs import proof_rows

__all__ = ["PageTable", "extra_tables", "tables_of"]

_EXTRAS: Final = {
    "scoreboard.json": "Scoreboard: which seeded fault is found by what",
    "economy.json": "Economy: time and memory beside the baseline",
    "proofs.json": "Proofs: memory safety for every size",
}
_MOST_ROWS: Final = 500
_MOST_COLUMNS: Final = 24
_MOST_TEXT: Final = 200  # characters of a cell


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of texts. left_out: rows that are in the file and not here."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0


def extra_tables(folder: Path) -> list[PageTable]:
    """The tables of whatever other files lie in the folder. Raises UsageError for one that is not JSON."""
    made: list[PageTable] = []
    for name, title in _EXTRAS.items():
        data = read_extra(folder, name)
        if data is not None:
            made += tables_of((proof_rows(data) or data) if name == "proofs.json" else data, title)
    return made


def tables_of(data: Any, title: str) -> list[PageTable]:
    """A table for every list of objects in `data`, and one of what stands beside them; objects inside are flattened."""
    if isinstance(data, list):
        rows = [cast("Mapping[str, Any]", row) for row in cast("list[object]", data) if isinstance(row, dict)]
        return [_table(rows, title)] if rows else []
    if not isinstance(data, dict):
        return []
    made: list[PageTable] = []
    single: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", data).items():
        inner = tables_of(value, f"{title}, {name}") if isinstance(value, list) else []
        made += inner
        if not inner:
            single[name] = value
    flat = _flat(single)
    if flat:
        made.append(PageTable(f"{title}, in all" if made else title, ("what", "value"), tuple(flat.items())))
    return made


def _table(rows: Sequence[Mapping[str, Any]], title: str) -> PageTable:
    flat = [_flat(row) for row in rows[:_MOST_ROWS]]
    head = tuple(dict.fromkeys(name for row in flat for name in row))[:_MOST_COLUMNS]
    body = tuple(tuple(row.get(name, "") for name in head) for row in flat)
    return PageTable(title, head, body, max(0, len(rows) - _MOST_ROWS))


def _flat(row: Mapping[str, Any], before: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in row.items():
        inner = cast("dict[str, Any]", value) if isinstance(value, dict) else None
        if inner is not None and "found_after" in inner:
            flat[f"{before}{name}".removeprefix("cells ")] = _cell(inner)
        elif inner is not None:
            flat.update(_flat(inner, f"{before}{name} "))
        else:
            flat[f"{before}{name}"] = _text(value)
    return flat


def _cell(cell: Mapping[str, Any]) -> str:
    """What one method made of one fault, as the scoreboard has it."""
    if cell.get("found_after") is None:
        return "not found"
    return f"{_text(cell.get('clause')) or 'found'}, after {_text(cell['found_after'])}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        text = f"{value:.4g}"
    elif isinstance(value, list):
        text = ", ".join(map(_text, cast("list[object]", value)))
    elif isinstance(value, dict):
        text = " ".join(filter(None, map(_text, cast("dict[str, Any]", value).values())))
    else:
        text = str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"
