"""The commands and their options. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from mla_verify.errors import ExitCode, UsageError

__all__ = ["app"]

app = typer.Typer(
    name="mla-verify",
    help="Fuzz and verify the memory safety of multi-head latent attention kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Targets = Annotated[
    list[str] | None,
    typer.Argument(metavar="TARGET…", help="A registered name, module:callable or file.py:callable."),
]
ContractName = Annotated[
    str | None, typer.Option("--contract", help="The contract of a bare callable: up-projection or decode.")
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N (cuda also for ROCm).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON array instead of the table.")]


@app.command("list")
def list_kernels(device: Device = "cpu", json: AsJson = False) -> None:
    """Show every kernel: contract, device, and why one is unavailable here."""
    from mla_verify.listing import list_rows, print_rows

    rows = list_rows(device=device)
    if json:
        typer.echo(json_module.dumps(rows, indent=2))
    else:
        print_rows(rows)


@app.command()
def check(
    targets: Targets = None,
    everything: Annotated[bool, typer.Option("--all", help="Check every kernel that is available here.")] = False,
    contract: ContractName = None,
    device: Device = "cpu",
    examples: Annotated[int, typer.Option("--examples", help="Valid problems per kernel.")] = 200,
    seed: Annotated[int, typer.Option("--seed", help="The same seed draws the same problems.")] = 0,
    dtype: Annotated[
        list[str] | None, typer.Option("--dtype", help="Draw only this dtype (may be given again).")
    ] = None,
    isolation: Annotated[
        str, typer.Option("--isolation", help="process: run kernels in a worker that they may take down; none: here.")
    ] = "process",
    cases: Annotated[
        Path | None, typer.Option("--cases", help="A folder for failures, each a file that `replay` runs again.")
    ] = None,
    no_known: Annotated[
        bool, typer.Option("--no-known", help="Report known deviations as violations, each at its smallest problem.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Fuzz kernels on every clause of their contract. Exit code 0: all hold; 1: a violation."""
    from mla_verify.checking import check_targets, isolation_named

    if examples < 1:
        raise UsageError(f"--examples must be at least 1, got {examples}")
    if everything == bool(targets):
        raise UsageError("name the kernels to check, or --all for every one that is available here, not both")
    code = check_targets(
        targets or [],
        contract=contract,
        device=device,
        examples=examples,
        seed=seed,
        dtypes=tuple(dtype or ()),
        known_excused=not no_known,
        isolation=isolation_named(isolation),
        cases=cases,
        as_json=json,
    )
    raise typer.Exit(code)


@app.command()
def bench(
    contract: Annotated[
        str | None, typer.Argument(metavar="CONTRACT", help="up-projection or decode; both if left out.")
    ] = None,
    device: Device = "cpu",
    repeats: Annotated[int, typer.Option("--repeats", help="Checks per row; the median is printed.")] = 5,
    json: AsJson = False,
) -> None:
    """Show what a check costs, phase by phase, at a small problem and at model size."""
    from mla_verify.bench import bench_rows, print_bench

    if repeats < 1:
        raise UsageError(f"--repeats must be at least 1, got {repeats}")
    rows = bench_rows(contract, device=device, repeats=repeats)
    if json:
        typer.echo(json_module.dumps(rows, indent=2))
    else:
        print_bench(rows)
    raise typer.Exit(ExitCode.HOLDS)
