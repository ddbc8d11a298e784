"""Looks whether a command of run.sh would be understood, without running it: `dry_run.py -m mla_verify check …`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

ROOT: Final = Path(__file__).resolve().parents[2]


def understood(command: Sequence[str]) -> str:
    """Why the command would be refused; empty where it would be understood."""
    match command:
        case ["-m", "mla_verify", *words]:
            return _of_ours(words)
        case ["-m", "pytest", *words]:
            return _of_pytest(words)
        case [script, *words] if script.endswith(".py") and (ROOT / script).is_file():
            return _of_a_script(ROOT / script, words)
        case _:
            return "neither a command of ours, nor pytest, nor a script that is there"


def _of_ours(words: Sequence[str]) -> str:
    """Parse as the command line does, and look for the files and kernels that are named."""
    import typer

    from mla_verify.cli import app
    from mla_verify.errors import UsageError
    from mla_verify.registry import resolve

    # The base of all that a command line is refused with.
    refused = cast("type[Exception]", typer.BadParameter.__bases__[0])
    group: Any = typer.main.get_command(app)
    command = group.commands.get(words[0])
    if command is None:
        return f"No such command {words[0]!r}"
    try:
        parameters = command.make_context(words[0], list(words[1:])).params
        for target in parameters.get("targets") or []:
            resolve(target)
    except (refused, UsageError) as error:
        return str(getattr(error, "message", error))
    absent = [str(path) for path in parameters.get("paths") or [] if not (ROOT / path).exists()]
    return f"there is no {', '.join(absent)}" if absent else ""


def _of_pytest(words: Sequence[str]) -> str:
    """Let pytest collect what it would run."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *(word for word in words if word not in ("-n", "4")), "--collect-only"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[-500:]


def _of_a_script(path: Path, words: Sequence[str]) -> str:
    """Parse the words with the script's own parser."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        return f"{path} is no script"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    try:
        module.parsed(words)
    except SystemExit:
        return f"{path.name} does not take {' '.join(words)}"
    return ""


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    why = understood(sys.argv[1:])
    if why:
        print(f"  not understood: {why}", file=sys.stderr)
        raise SystemExit(1)
    print("  understood")
