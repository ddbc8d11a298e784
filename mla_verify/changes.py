"""Which kernels a change touches: what git says differs from a revision, against the files a kernel is made of."""

from __future__ import annotations

import inspect
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mla_verify.errors import Unavailable, UsageError
from mla_verify.kernel import Kernel

__all__ = ["changed_files", "is_touched", "sources_of"]

_GIT_SECONDS = 60.0


def changed_files(revision: str, *, folder: Path | None = None) -> frozenset[Path]:
    """Files that differ from `revision` in the repository around `folder` (the current one), untracked ones included.

    Deleted files are among them. Raises UsageError where there is no repository, no git, or no such revision.
    """
    where = folder or Path.cwd()
    top = Path(_git(where, "rev-parse", "--show-toplevel", sentence=f"{where} lies in no git repository").rstrip("\n"))
    commit = _git(
        where,
        *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"),
        sentence=f"--since {revision!r} is no revision of this repository; fetch it, or name another",
    ).strip()
    listing = _git(top, "diff", "--name-only", "--no-renames", "-z", commit, "--")
    listing += _git(top, "ls-files", "--others", "--exclude-standard", "--full-name", "-z")
    return frozenset((top / name).resolve() for name in listing.split("\0") if name)


def sources_of(kernel: Kernel) -> frozenset[Path]:
    """The files that a kernel is made of: its callable's, its target's, its `prepare`'s, and those that it declares.

    A relative path in `source_files` is one beside the callable's file.
    """
    found: set[Path] = set()
    file, _, _ = (kernel.target or "").rpartition(":")
    if file.endswith(".py"):
        found.add(Path(file).resolve())
    home = _file_of(_loaded(kernel))
    found.update(path for path in (home, kernel.prepare and _file_of(kernel.prepare)) if path)
    beside = home.parent if home is not None else Path.cwd()
    found.update((beside / declared).resolve() for declared in kernel.source_files)
    return frozenset(found)


def is_touched(kernel: Kernel, changed: frozenset[Path]) -> bool:
    """Whether a change touches a kernel: one of its files, or a file below a folder that it declares.

    A kernel whose files are unknown is always touched.
    """
    sources = sources_of(kernel)
    return not sources or any(path in sources or not sources.isdisjoint(path.parents) for path in changed)


def _loaded(kernel: Kernel) -> Callable[..., Any]:
    """The kernel's callable; where its library is missing, the function that would have loaded it."""
    try:
        return kernel.load()
    except Unavailable:
        return kernel.load


def _file_of(function: Callable[..., Any]) -> Path | None:
    plain = inspect.unwrap(function)
    try:
        file = inspect.getsourcefile(plain)
    except TypeError:  # an instance is as old as its class, a built-in has no file
        try:
            file = inspect.getsourcefile(type(plain))
        except TypeError:
            return None
    return Path(file).resolve() if file is not None else None


def _git(folder: Path, *arguments: str, sentence: str = "") -> str:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except FileNotFoundError as error:
        raise UsageError("--since needs git, which is not installed here") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"git {arguments[0]} did not answer within {_GIT_SECONDS:.0f} s") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise UsageError(sentence or f"git {arguments[0]} failed: {said[-1] if said else done.returncode}")
    return done.stdout
