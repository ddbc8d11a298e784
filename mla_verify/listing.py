"""What `mla-verify list` shows: every registered kernel, and why one cannot run here."""

from __future__ import annotations

from typing import TypedDict

from rich.console import Console
from rich.table import Table

from mla_verify.devices import resolve_device
from mla_verify.kernel import Kernel, Unavailable
from mla_verify.registry import registered
from mla_verify.table import console

__all__ = ["Row", "list_rows", "print_rows"]


class Row(TypedDict):
    """One kernel of the list. `available` is "yes" or the reason why not."""

    kernel: str
    contract: str
    devices: list[str]
    available: str
    baseline: str | None
    summary: str


def list_rows(*, device: str) -> list[Row]:
    """Every registered kernel on `device`. Loads each to learn whether it is available."""
    where = resolve_device(device)
    return [
        Row(
            kernel=kernel.name,
            contract=kernel.contract,
            devices=list(kernel.devices),
            available=_availability(kernel, where.type),
            baseline=kernel.baseline,
            summary=kernel.summary,
        )
        for kernel in registered()
    ]


def print_rows(rows: list[Row], *, to: Console | None = None) -> None:
    """Print the list as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("kernel", "contract", "devices", "available here", "what it is"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row["kernel"], row["contract"], ", ".join(row["devices"]), row["available"], row["summary"])
    (to or console()).print(table, markup=False)


def _availability(kernel: Kernel, device_type: str) -> str:
    if device_type not in kernel.devices:
        return f"no: not on {device_type}"
    try:
        kernel.load()
    except Unavailable as reason:
        return f"no: {reason}"
    return "yes"
