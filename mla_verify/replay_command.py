"""What `mla-verify replay` does: runs cases, prints a line or an object for each, and ends with their exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from mla_verify.errors import ExitCode
from mla_verify.isolation import Isolation
from mla_verify.replaying import Replayed, replay_paths
from mla_verify.reports.terminal import map_lines
from mla_verify.table import console
from mla_verify.under import replay_under, tool_named

__all__ = ["replay_command"]

_STYLES = {"still fails": "bold red", "now passes": "green", "known deviation": "yellow", "cannot run here": "dim"}


def replay_command(
    paths: Sequence[Path], *, kernel: str | None, device: str, isolation: Isolation, under: str | None, as_json: bool
) -> ExitCode:
    """Replay the cases at `paths` and print what became of each; what is no case gets its sentence on stderr.

    under: another tool that watches the device meanwhile (`mla_verify.under`), which has nothing to watch on a CPU.
    """
    tell = _unreadable_only if as_json else _print
    if under is None:
        shown = replay_paths(paths, kernel=kernel, device=device, isolation=isolation, tell=tell)
    else:
        on = "cuda" if device == "cpu" else device
        shown = replay_under(paths, tool_named(under), kernel=kernel, device=on, tell=tell)
    if as_json:
        print(json.dumps([one.to_json() for one in shown], indent=2))
    elif len(shown) > 1:
        outcomes = [one.outcome for one in shown]
        counts = ", ".join(f"{outcomes.count(word)} {word}" for word in dict.fromkeys(outcomes))
        console().print(Text(f"{len(shown)} cases: {counts}"), soft_wrap=True)
    return ExitCode.of_several([one.exit_code for one in shown])


def _unreadable_only(shown: Replayed) -> None:
    if shown.outcome == "unreadable":
        print(f"mla-verify: {shown.detail}", file=sys.stderr)


def _print(shown: Replayed) -> None:
    if shown.outcome == "unreadable":
        _unreadable_only(shown)
        return
    out = console()
    line = Text.assemble((shown.outcome, _STYLES[shown.outcome]), f": {shown.path} [{shown.kernel}]")
    out.print(line, soft_wrap=True)
    out.print(Text(f"  {shown.detail}"), soft_wrap=True)
    out.print(Text(f"  problem: {shown.problem_text}"), soft_wrap=True)
    if shown.finding is not None:
        for row in map_lines(shown.maps, shown.finding.tensor, width=out.width - 2):
            out.print(Text("  ") + row, soft_wrap=True)
