"""Failing problems as files: one JSON per distinct failure, written whole or not at all, and read as mere data."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, cast

from mla_verify.errors import UsageError
from sanitizer.finding import CLAUSES
from strategies.extents import elements_of
from strategies.layouts import Layout
from strategies.problems import Problem
from strategies.serial import ProblemError, problem_from_json, problem_to_json

__all__ = [
    "FORMAT",
    "REFUTATION_SUFFIX",
    "Case",
    "case_files",
    "case_text",
    "file_stem",
    "load_case",
    "make_folder",
    "save_case",
    "shape_of",
    "versions",
    "weight_of",
    "write_whole",
]

FORMAT: Final = 1
REFUTATION_SUFFIX: Final = ".refuted.json"  # of what `prove` saves in the same folder, which is no problem to check
_LARGEST: Final = 4 * 2**20  # bytes; a case takes one or two thousand
_MODE: Final = 0o666  # of a new file, before the user's umask
_TEXT: Final = 10_000  # characters of any text in a case
_FIELDS: Final[dict[str, type]] = {
    "format": int,
    "contract": str,
    "kernel": str,
    "clause": str,
    "tensor": str,
    "detail": str,
    "seed": int,
    "problem": dict,
    "digests": dict,
    "versions": dict,
}
_YOUNGER: Final[dict[str, Any]] = {"after": []}  # fields that older files do not have, and what they meant by that
_MOST_BEFORE: Final = 256  # problems in front of a case's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A failure that can be run again elsewhere.

    kernel: the name or target that it was found with; nothing is ever imported because a case names it.
    digests: tensor → SHA-256 of the values it held, so that another machine can tell that it has the same ones.
    after: the problems that the same process has to be given before this one; it fails only then.
    """

    contract: str
    kernel: str
    clause: str
    tensor: str
    detail: str
    seed: int
    problem: Problem
    digests: Mapping[str, str]
    versions: Mapping[str, str]
    after: tuple[Problem, ...] = ()


def save_case(case: Case, folder: Path) -> Path:
    """Write `case` into `folder`, unless it holds the same failure at a problem that is no larger. Its path.

    The file appears whole: it is written under another name and renamed.
    """
    make_folder(folder)
    path = folder / f"{_case_stem(case)}.json"
    if path.exists():
        try:
            known = load_case(path)
            if weight_of(known.problem, known.after) <= weight_of(case.problem, case.after):
                return path
        except UsageError:
            pass  # what lies there is no case: it makes room for one
    write_whole(path, case_text(case))
    return path


def case_text(case: Case) -> str:
    """The JSON of a case."""
    body = {
        "format": FORMAT,
        "contract": case.contract,
        "kernel": case.kernel,
        "clause": case.clause,
        "tensor": case.tensor,
        "detail": case.detail[:_TEXT],
        "seed": case.seed,
        "problem": problem_to_json(case.problem),
        **({"after": [problem_to_json(problem) for problem in case.after]} if case.after else {}),
        "digests": dict(case.digests),
        "versions": dict(case.versions),
    }
    return json.dumps(body, indent=2) + "\n"


def make_folder(folder: Path) -> None:
    """Make the folder of cases. Raises UsageError where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder of cases {folder}: {error.strerror}") from error


def write_whole(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a file that readers see whole or not at all. Raises UsageError where it cannot be written.

    durable: it also outlives the machine's sudden end; that costs milliseconds.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        Path(temporary).chmod(_MODE & ~_umask())  # temporary files are their owner's alone
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _umask() -> int:
    """What new files are not allowed. It can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def load_case(path: Path) -> Case:
    """Read one case. Raises UsageError with one sentence for whatever is not a whole, sane case."""
    try:
        size = path.stat().st_size
        if size > _LARGEST:
            raise UsageError(f"{path} is no case: it has {size} bytes, a case has at most {_LARGEST}")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no case: it is not UTF-8 text") from error
    if not text.strip():
        raise UsageError(f"{path} is no case: it is empty")
    try:
        data: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no case: it is not whole JSON ({str(error)[:100]})") from error
    try:
        return _case_of(data)
    except ProblemError as error:
        raise UsageError(f"{path} is no case: {error}") from error


def case_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The case files among files and folders, in a stable order. Raises UsageError for a path that is neither.

    Refutations of proofs that lie in a folder are left out.
    """
    for path in paths:
        if path.is_dir():
            yield from (file for file in sorted(path.glob("*.json")) if not file.name.endswith(REFUTATION_SUFFIX))
        elif path.is_file():
            yield path
        else:
            raise UsageError(f"there is no case file or folder {path}")


def versions() -> dict[str, str]:
    """What a case was found with."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("mla-verify", "torch", "hypothesis", "numpy", "triton"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def shape_of(problem: Problem) -> str:
    """What kind of problem this is, sizes and numbers left out: two failures of one kind are kept as one case."""
    words: list[str] = []
    plain = type(problem)()
    for field in fields(problem):
        value, default = getattr(problem, field.name), getattr(plain, field.name)
        if isinstance(value, Layout):
            words.append(f"{field.name}:{value.kind}")
        elif isinstance(value, str) or value is None:
            words.append(f"{field.name}:{value}")
        elif value != default and field.name != "seed":
            words.append(field.name)
    return " ".join(words)


def file_stem(kernel: str) -> str:
    """A kernel's name or target as the beginning of a file name."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", kernel.rpartition("/")[2]).strip("-")[:60] or "kernel"


def weight_of(problem: Problem, after: Sequence[Problem] = ()) -> tuple[int, int, int]:
    """How large a failure is: how many problems come before it, their elements, how much there is to say about them."""
    every = (problem, *after)
    return len(after), sum(map(elements_of, every)), sum(len(json.dumps(problem_to_json(one))) for one in every)


def _case_stem(case: Case) -> str:
    words = (case.contract, case.kernel, case.clause, shape_of(case.problem), *(["after others"] if case.after else []))
    identity = "\n".join(words)
    return f"{file_stem(case.kernel)}.{case.clause}.{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def _case_of(data: object) -> Case:
    if not isinstance(data, dict):
        raise ProblemError("it is not a JSON object")
    members = {**_YOUNGER, **cast("dict[str, Any]", data)}
    version = members.get("format")
    if type(version) is not int or version != FORMAT:
        raise ProblemError(
            f"format: got {str(version)[:40]!r}, wanted {FORMAT}; another version of mla-verify wrote it"
        )
    for name, kind in _FIELDS.items():
        if name not in members:
            raise ProblemError(f"{name} is missing")
        value = members[name]
        if type(value) is not kind:
            raise ProblemError(f"{name}: got {str(value)[:40]!r}, wanted {kind.__name__}")
        if isinstance(value, str) and len(value) > _TEXT:
            raise ProblemError(f"{name}: {len(value)} characters, wanted at most {_TEXT}")
    unknown = sorted(set(members) - set(_FIELDS) - set(_YOUNGER))
    if unknown:
        raise ProblemError(f"unknown field {str(unknown[0])[:40]!r}")
    if members["clause"] not in CLAUSES:
        raise ProblemError(f"clause: got {members['clause'][:40]!r}, wanted one of {', '.join(CLAUSES)}")
    problem = problem_from_json(members["problem"])
    after = _problems_before(members["after"], type(problem))
    if members["problem"].get("contract") != members["contract"]:
        raise ProblemError(f"contract: got {members['contract'][:40]!r}, the problem is of another")
    return Case(
        contract=members["contract"],
        kernel=members["kernel"],
        clause=members["clause"],
        tensor=members["tensor"],
        detail=members["detail"],
        seed=members["seed"],
        problem=problem,
        digests=_texts("digests", members["digests"]),
        versions=_texts("versions", members["versions"]),
        after=after,
    )


def _problems_before(members: object, kind: type[Problem]) -> tuple[Problem, ...]:
    """The problems of `after`: few, whole, valid, and of the case's own contract."""
    if not isinstance(members, list) or len(cast("list[object]", members)) > _MOST_BEFORE:
        raise ProblemError(f"after: got {str(members)[:40]!r}, wanted a list of at most {_MOST_BEFORE} problems")
    problems: list[Problem] = []
    for number, member in enumerate(cast("list[object]", members)):
        try:
            problem = problem_from_json(member)
        except ProblemError as error:
            raise ProblemError(f"after, number {number}: {error}") from error
        if type(problem) is not kind or problem.invalid is not None:
            raise ProblemError(f"after, number {number}: wanted a valid problem of the case's own contract")
        problems.append(problem)
    return tuple(problems)


def _texts(name: str, members: Mapping[str, Any]) -> dict[str, str]:
    for key, value in members.items():
        if not isinstance(value, str) or len(value) > _TEXT or len(key) > _TEXT:
            raise ProblemError(f"{name}: {str(key)[:40]!r} is no short text")
    return dict(members)
