"""Prints both optimised paths beside their zero-filled baselines, per dtype, clause by clause."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # a script finds its own folder, and not the checkout
    sys.path.insert(0, str(ROOT))

from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

from mla_verify.check import check  # noqa: E402
from mla_verify.devices import platform_of, resolve_device  # noqa: E402
from mla_verify.errors import Unavailable  # noqa: E402
from mla_verify.interpreting import interpret_on  # noqa: E402
from mla_verify.kernel import Kernel, limits_of  # noqa: E402
from mla_verify.loading import open_bench  # noqa: E402
from mla_verify.registry import resolve  # noqa: E402
from mla_verify.report import Report  # noqa: E402
from mla_verify.table import console  # noqa: E402
from sanitizer.finding import CLAUSES  # noqa: E402

# The two founding changes (vLLM #42561 and #37539), and the same changes where the libraries are not installed.
PATHS: Final = (
    ("up-projection", "up_projection_direct"),
    ("decode", "decode_split_kv_empty"),
    ("AITER decode", "aiter_mla_decode"),
    ("AITER persistent", "aiter_mla_decode_persistent"),
)
DTYPES: Final = ("float32", "float16", "bfloat16")
_SHORT: Final = {"pass": "ok", "fail": "FAIL", "known": "known", "not checked": "-", "unavailable": "n/a"}


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cpu, cuda or cuda:N")
    parser.add_argument("--examples", type=int, default=40, help="problems per kernel and dtype")
    parser.add_argument("--seed", type=int, default=0, help="the same seed draws the same problems")
    return parser.parse_args(list(words))


def reports(kernel: Kernel, dtype: str, options: argparse.Namespace) -> tuple[Report, Report] | str:
    """The optimised kernel and its baseline, checked on the same dtype; or why that is not possible."""
    assert kernel.baseline is not None
    pair = (kernel, resolve(kernel.baseline))
    done: list[Report] = []
    for one in pair:
        try:
            open_bench(one, device=options.device)
        except Unavailable as reason:
            return f"unavailable: {reason}"
        if dtype not in limits_of(one).dtypes:
            return f"takes no {dtype}"
        only = replace(one, limits=replace(limits_of(one), dtypes=(dtype,)))
        done.append(check(only, examples=options.examples, seed=options.seed, device=options.device))
    return done[0], done[1]


def main(words: Sequence[str]) -> int:
    """Print the table; 0 where nothing failed, 1 otherwise, 3 where the device is absent."""
    options = parsed(words)
    interpret_on(options.device)
    try:
        where = platform_of(resolve_device(options.device))
    except Unavailable as reason:
        print(f"table.py: {reason}", file=sys.stderr)
        return 3
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.title = f"optimised / zero-filled baseline on {where}, {options.examples} problems each, seed {options.seed}"
    for column in ("path", "dtype", *CLAUSES):
        table.add_column(column, no_wrap=True)
    failed, why = False, dict[str, None]()
    for label, name in PATHS:
        kernel = resolve(name)
        for dtype in DTYPES:
            shown = reports(kernel, dtype, options)
            if isinstance(shown, str):
                why[f"{label}: {shown}"] = None
                table.add_row(label, dtype, *(_SHORT["unavailable"] for _ in CLAUSES))
                continue
            failed |= any(report.verdict == "fail" for report in shown)
            cells = [" / ".join(_SHORT[report.clauses[clause].verdict] for report in shown) for clause in CLAUSES]
            table.add_row(label, dtype, *cells)
    console().print(table)
    for line in why:
        console().print(Text(line, style="dim"), soft_wrap=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
