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
IsolationName = Annotated[
    str, typer.Option("--isolation", help="process: run kernels in a worker that they may take down; none: here.")
]
ReportFolder = Annotated[
    Path | None,
    typer.Option("--report", metavar="DIR", help="Write what was found to this folder, for `mla-verify report DIR`."),
]
SarifFile = Annotated[
    Path | None, typer.Option("--sarif", metavar="FILE", help="Write SARIF: findings beside the kernel's source line.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON array instead of the table.")]


@app.command("list")
def list_kernels(device: Device = "cpu", json: AsJson = False) -> None:
    """Show every kernel: contract, device, and why one is unavailable here."""
    from mla_verify.interpreting import interpret_on
    from mla_verify.listing import list_rows, print_rows

    interpret_on(device)
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
    examples: Annotated[
        int | None,
        typer.Option(
            "--examples", help="Valid problems per kernel. [default: 200; 50 of one that Triton's interpreter runs]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed draws the same problems.")] = 0,
    dtype: Annotated[
        list[str] | None, typer.Option("--dtype", help="Draw only this dtype (may be given again).")
    ] = None,
    isolation: IsolationName = "process",
    processes: Annotated[
        int | None, typer.Option("--processes", help="How many kernels at a time. [default: one per core or GPU]")
    ] = None,
    cases: Annotated[
        Path | None, typer.Option("--cases", help="A folder for failures, each a file that `replay` runs again.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option("--database", help="A folder or redis://…: failures of earlier runs are tried first."),
    ] = None,
    shared_database: Annotated[
        str | None, typer.Option("--shared-database", help="One more database, which is read and never written.")
    ] = None,
    report: ReportFolder = None,
    sarif: SarifFile = None,
    no_known: Annotated[
        bool, typer.Option("--no-known", help="Report known deviations as violations, each at its smallest problem.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Fuzz kernels on every clause of their contract. Exit code 0: all hold; 1: a violation."""
    from mla_verify.checking import CheckRequest, check_targets
    from mla_verify.databases import Databases
    from mla_verify.interpreting import interpret_on
    from mla_verify.isolation import isolation_named

    if examples is not None and examples < 1:
        raise UsageError(f"--examples must be at least 1, got {examples}")
    if everything == bool(targets):
        raise UsageError("name the kernels to check, or --all for every one that is available here, not both")
    interpret_on(device)
    if processes is not None and processes < 1:
        raise UsageError(f"--processes must be at least 1, got {processes}")
    request = CheckRequest(
        targets=targets or [],
        contract=contract,
        device=device,
        examples=examples,
        seed=seed,
        dtypes=tuple(dtype or ()),
        known_excused=not no_known,
        isolation=isolation_named(isolation),
        processes=processes,
        cases=cases,
        databases=Databases(own=database, shared=shared_database),
        as_json=json,
        report=report,
        sarif=sarif,
    )
    raise typer.Exit(check_targets(request))


@app.command()
def replay(
    paths: Annotated[list[Path], typer.Argument(metavar="CASE|DIR…", help="Saved cases, or folders of them.")],
    kernel: Annotated[
        str | None,
        typer.Option("--kernel", metavar="TARGET", help="Run them on this kernel instead of the registered one."),
    ] = None,
    device: Device = "cpu",
    isolation: IsolationName = "process",
    under: Annotated[
        str | None,
        typer.Option(
            "--under",
            metavar="TOOL",
            help="Run each once under compute-sanitizer[:memcheck|initcheck|racecheck] or rocm-asan, on a GPU.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Run saved cases again. Exit code 0: they pass now; 1: one still fails; 3: one cannot run here."""
    from mla_verify.interpreting import interpret_on
    from mla_verify.isolation import isolation_named
    from mla_verify.replay_command import replay_command

    interpret_on(device)
    code = replay_command(
        paths, kernel=kernel, device=device, isolation=isolation_named(isolation), under=under, as_json=json
    )
    raise typer.Exit(code)


@app.command()
def gate(
    targets: Annotated[
        list[str], typer.Argument(metavar="TARGET…", help="A registered name, module:callable or file.py:callable.")
    ],
    contract: ContractName = None,
    device: Device = "cpu",
    since: Annotated[
        str | None, typer.Option("--since", metavar="REV", help="Only kernels whose files differ from this revision.")
    ] = None,
    cases: Annotated[
        Path | None, typer.Option("--cases", help="Saved cases, run first; new failures are saved there.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", help="Time for all of it: 120s, 5m, 1h. [default: 120s]")
    ] = None,
    examples: Annotated[int | None, typer.Option("--examples", help="Valid problems per kernel, instead.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed and examples give the same verdict.")] = 0,
    isolation: IsolationName = "process",
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None,
    report: ReportFolder = None,
    sarif: SarifFile = None,
    github: Annotated[bool, typer.Option("--github", help="Write the summary of a GitHub Actions step.")] = False,
    json: AsJson = False,
) -> None:
    """For CI: saved cases first, then fuzzing on all cores. Exit code 0: all hold; 1: a violation."""
    from mla_verify.gating import GateRequest, seconds_of
    from mla_verify.gating import gate as run_gate
    from mla_verify.interpreting import interpret_on
    from mla_verify.isolation import isolation_named

    if budget is not None and examples is not None:
        raise UsageError("give --budget or --examples, not both: one of them ends the search")
    if examples is not None and examples < 1:
        raise UsageError(f"--examples must be at least 1, got {examples}")
    interpret_on(device)
    request = GateRequest(
        targets=targets,
        contract=contract,
        device=device,
        since=since,
        cases=cases,
        budget=seconds_of(budget or "120s") if examples is None else None,
        examples=examples,
        seed=seed,
        isolation=isolation_named(isolation),
        junit=junit,
        report=report,
        sarif=sarif,
        github=github,
        as_json=json,
    )
    raise typer.Exit(run_gate(request))


@app.command("report")
def make_report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="What `check --report DIR` or `gate --report DIR` wrote.")
    ],
    images: Annotated[
        bool, typer.Option("--images", help="Draw the map of each failure as PNG and SVG as well, in DIR/images.")
    ] = False,
) -> None:
    """Make DIR/index.html, one page with everything that was found; it needs no network and no server."""
    from mla_verify.reports.page import write_page

    typer.echo(write_page(folder))
    if images:
        from mla_verify.reports.images import write_images

        for path in write_images(folder):
            typer.echo(path)


@app.command()
def bench(
    contract: Annotated[
        str | None, typer.Argument(metavar="CONTRACT", help="up-projection or decode; both if left out.")
    ] = None,
    device: Device = "cpu",
    repeats: Annotated[int, typer.Option("--repeats", help="Checks per row; the median is printed.")] = 5,
    economy: Annotated[
        bool, typer.Option("--economy", help="Only compare optimised kernels with the forms they replaced.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show what a check costs, phase by phase, and what optimised kernels save: launches, memory, time."""
    from mla_verify.bench import bench_rows, print_bench

    if repeats < 1:
        raise UsageError(f"--repeats must be at least 1, got {repeats}")
    rows = bench_rows(contract, device=device, repeats=repeats, only_economy=economy)
    if json:
        typer.echo(json_module.dumps(rows, indent=2))
    else:
        print_bench(rows)
    raise typer.Exit(ExitCode.HOLDS)


@app.command()
def scoreboard(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="Only faults and right kernels with this in their name.")
    ] = None,
    examples: Annotated[int, typer.Option("--examples", help="Problems per fault and method at most.")] = 300,
    control_examples: Annotated[
        int, typer.Option("--control-examples", help="Problems for all right kernels together.")
    ] = 20_000,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same board, seconds excepted.")] = 0,
    processes: Annotated[
        int | None, typer.Option("--processes", help="How many at a time. [default: one per core]")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, with every fault and its source.")
    ] = False,
    update: Annotated[
        list[Path] | None, typer.Option("--update", metavar="FILE", help="Put it between the markers of this document.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show which seeded faults which method finds. Exit code 1: one is missed, or a right kernel is blamed."""
    from mla_verify.scoreboard.command import scoreboard_command

    if markdown and json:
        raise UsageError("give --markdown or --json, not both")
    for option, value, least in (("--examples", examples, 1), ("--control-examples", control_examples, 0)):
        if value < least:
            raise UsageError(f"{option} must be at least {least}, got {value}")
    if processes is not None and processes < 1:
        raise UsageError(f"--processes must be at least 1, got {processes}")
    code = scoreboard_command(
        names or [],
        examples=examples,
        control_examples=control_examples,
        seed=seed,
        processes=processes,
        as_markdown=markdown,
        as_json=json,
        into=update or (),
    )
    raise typer.Exit(code)


@app.command()
def prove(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="TARGET…", help="A registered name, or module:NAME or file.py:NAME of a declaration."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every registered kernel that has a declaration.")] = False,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Remember verdicts by TTIR and declaration.")
    ] = True,
    launches: Annotated[
        bool, typer.Option("--launches/--no-launches", help="Compare declarations with real launches.")
    ] = True,
    cases: Annotated[
        Path | None, typer.Option("--cases", help="A folder for refutations, each a file that `replay` launches again.")
    ] = None,
    replay_case: Annotated[
        Path | None, typer.Option("--replay", metavar="FILE", help="Launch a saved refutation of the one target again.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Prove memory properties of Triton kernels for every size. Exit code 0: all proved; 1: refuted; 3: undecided."""
    from mla_verify.proving import prove_command
    from mla_verify.refutations import declared_names, launch_again, load_refutation

    if everything == bool(targets):
        raise UsageError("name the kernels to prove, or --all for every one that has a declaration, not both")
    chosen = targets or list(declared_names())
    if replay_case is not None:
        if len(chosen) != 1:
            raise UsageError(f"--replay is about one target, got {len(chosen)}")
        result = launch_again(load_refutation(replay_case), target=chosen[0])
        typer.echo(f"{replay_case}: {f'still shows: {result.words}' if result.shown else 'shows no more'}")
        raise typer.Exit(ExitCode.VIOLATION if result.shown else ExitCode.HOLDS)
    raise typer.Exit(prove_command(chosen, cache=cache, launches=launches, cases=cases, as_json=json))
