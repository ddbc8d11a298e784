"""Mutation testing: do the tests notice when a line of the sanitizer or of a contract is wrong?

    python -m tests.mutation.run [--mutants 300] [--seed 20261130] [--jobs N] [--keep] [KEY …]

mutmut writes every mutant down below mutants/; the seed draws some (or the KEYs name them), and each is run against
those tests of its own room that call the mutated function. Exit code 0 where docs/mutation.md explains exactly those
that survive, 1 otherwise. Takes an hour or more on two cores; --keep uses again what the last run prepared, and leaves
out what it killed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.mutation.explaining import Fate, Verdict, explained, fate_of, verdict
from tests.mutation.hiding import hide_wrappers
from tests.mutation.mutants import Mutant, drawn, row, written

_ROOT: Final = Path(__file__).resolve().parents[2]
_MUTANTS: Final = _ROOT / "mutants"
_DOCUMENT: Final = _ROOT / "docs" / "mutation.md"
_FAILING: Final = "failing.txt"  # written by tests.mutation.noting, which pytest alone may import
_KILLED: Final = "killed.txt"
_SEED: Final = 20261130
# A mutant that takes the memory limit off must not take the machine's memory.
_ADDRESS_SPACE: Final = 24 << 30

# A room's mutants are killed by the room's own tests: those say what it promises, and are quick.
_TESTS_OF: Final = {
    "sanitizer.triton": ("tests/triton/",),
    "sanitizer": ("tests/sanitizer/", "tests/gpu/"),
    "mla_verify": ("tests/contracts/", "tests/formats/"),
}
# Called while their module is imported, which in a fork has happened already; and the tests that tell.
_AT_IMPORT: Final = {
    "sanitizer.secrets._float_formats": ("tests/sanitizer/test_patterns.py", "tests/sanitizer/test_dtypes.py"),
    "sanitizer.interception._overloads": ("tests/sanitizer/test_interception.py",),
}
_PLUGIN: Final = ("-p", "tests.mutation.hiding")
_QUICKEST: Final = 30  # tests of a first round: nearly every mutant that is killed dies in it
# What runs in another process leaves no trace in mutmut's records of who calls what.
_ELSEWHERE: Final = tuple(f"sanitizer.{name}" for name in ("worker", "forkserver", "faults", "fatal", "messages"))
_TESTS_ELSEWHERE: Final = ("tests/sanitizer/test_sandbox.py", "tests/sanitizer/test_fences.py")


def main(arguments: Sequence[str]) -> int:
    """Run the command line and say what survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.run", description=__doc__)
    parser.add_argument("keys", nargs="*", metavar="KEY", help="run these mutants instead of drawing some")
    parser.add_argument("--mutants", type=int, default=300, help="how many to draw (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=_SEED, help="of the draw (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--keep", action="store_true", help="keep the mutants and records of the last run")
    asked = parser.parse_args(arguments)
    os.chdir(_ROOT)  # where mutmut looks for its settings
    os.environ["OMP_NUM_THREADS"] = "1"  # forking after a parallel torch operation deadlocks
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    if not asked.keep:
        shutil.rmtree(_MUTANTS, ignore_errors=True)
    _MUTANTS.mkdir(exist_ok=True)
    print("writing the mutants down, and running the tests once to see what they call …", flush=True)
    with _unheard():
        tests = _prepared(asked.jobs)
    if failing := _failing():
        print(f"left out, because they fail without a mutation already: {', '.join(sorted(failing))}")
    mutants = written(_MUTANTS)
    unknown = set(asked.keys) - {mutant.key for mutant in mutants}
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}; a run prints the keys that exist")
    chosen = [mutant for mutant in mutants if mutant.key in asked.keys]
    chosen = chosen or drawn(mutants, count=asked.mutants, seed=asked.seed)
    print(f"{len(chosen)} of {len(mutants)} mutants, " + ("by key" if asked.keys else f"seed {asked.seed}"), flush=True)
    killed = _killed_before()
    fates: dict[Mutant, Fate] = {mutant: killed[mutant.key] for mutant in chosen if mutant.key in killed}
    if fates:
        print(f"{len(fates)} of them were killed in an earlier run, whose mutants were kept", flush=True)
    fates |= _fates([mutant for mutant in chosen if mutant not in fates], tests, asked.jobs)
    print(_table(fates))
    found = verdict(fates, explained(_DOCUMENT.read_text()), existing={mutant.key for mutant in mutants})
    print(_said(found))
    return 0 if found.good else 1


@contextmanager
def _unheard() -> Generator[None, None, None]:
    """Send what mutmut and the tests print to mutants/log.txt: a spinner alone prints megabytes."""
    sys.stdout.flush()
    kept = [os.dup(stream) for stream in (1, 2)]
    log = os.open(_MUTANTS / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for stream in (1, 2):
            os.dup2(log, stream)
        yield
    finally:
        sys.stdout.flush()
        for stream, number in zip(kept, (1, 2), strict=True):
            os.dup2(stream, number)
            os.close(stream)
        os.close(log)


def _prepared(jobs: int) -> Mapping[str, list[str]]:
    """Write the mutants down; per function the tests that call it, quickest first."""
    mutmut: Any = importlib.import_module("mutmut.__main__")
    hide_wrappers()
    mutation: Any = importlib.import_module("mutmut.mutation.file_mutation")
    mutation.NEVER_MUTATE_FUNCTION_NAMES.add("_should_skip_dynamo")  # called before its wrapper is complete
    mutmut.set_mutant_under_test("mutant_generation")
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.setup_source_paths()
    mutmut.create_mutants(jobs)
    _run_under_own_names()
    _record_calls(mutmut, mutmut.get_mutant_runner(1))
    mutmut.set_mutant_under_test("")
    state = mutmut.state()
    seconds: dict[str, float] = state.duration_by_test
    called: dict[str, set[str]] = state.tests_by_mangled_function_name
    failing = _failing()
    return {name: sorted(tests - failing, key=seconds.__getitem__) for name, tests in called.items()}


def _run_under_own_names() -> None:
    """Have `python -m` run a module by its name: wrappers look for their mutant by module, and that is not __main__."""
    guard = 'if __name__ == "__main__":\n'
    for path in (_MUTANTS / "sanitizer").rglob("*.py"):
        source, module = path.read_text(), ".".join(path.relative_to(_MUTANTS).with_suffix("").parts)
        again = f"{guard}    from {module} import main\n\n"
        if guard in source and again not in source:
            path.write_text(source.replace(guard, again))


def _record_calls(mutmut: Any, runner: Any) -> None:
    """Run every test that is not on record once, to learn how long it takes and what it calls."""
    tests: set[str] = set()  # all of them
    if mutmut.load_stats():
        mutmut.set_mutant_under_test("list_all_tests")
        tests = runner.list_all_tests().new_tests()
        if not tests:
            return
    config: Any = mutmut.config()
    usual = config.pytest_add_cli_args
    config.pytest_add_cli_args = [*usual, "--maxfail=1000", "-p", "tests.mutation.noting"]
    mutmut.set_mutant_under_test("stats")
    runner.collect_stats(sorted(tests))
    config.pytest_add_cli_args = usual
    if not mutmut.state().tests_by_mangled_function_name:
        raise SystemExit(f"the tests could not be run, see {_MUTANTS / 'log.txt'}")
    mutmut.save_stats()


def _failing() -> frozenset[str]:
    noted = _MUTANTS / _FAILING
    return frozenset(noted.read_text().splitlines() if noted.exists() else ())


def _killed_before() -> dict[str, Fate]:
    """What earlier runs have noted, by key. Tests are added and not taken away: killed stays killed."""
    noted = _MUTANTS / _KILLED
    lines = noted.read_text().splitlines() if noted.exists() else []
    fates: dict[str, Fate] = {}
    for line in lines:
        key, fate = line.split()
        fates[key] = "timeout" if fate == "timeout" else "killed"
    return fates


def _note_killed(mutant: Mutant, fate: Fate) -> None:
    if fate in ("killed", "timeout"):
        with (_MUTANTS / _KILLED).open("a", encoding="utf-8") as noted:
            noted.write(f"{mutant.key} {fate}\n")


def _tests_of(mutant: Mutant, called: Mapping[str, list[str]], every: Sequence[str]) -> list[str]:
    folders = next(folders for room, folders in _TESTS_OF.items() if mutant.module.startswith(room))
    calling = [test for test in called.get(mutant.tested_as, ()) if test.startswith(folders)]
    if mutant.module not in _ELSEWHERE:
        return calling
    return [*calling, *(test for test in every if test.startswith(_TESTS_ELSEWHERE) and test not in calling)]


def _fates(chosen: Sequence[Mutant], called: Mapping[str, list[str]], jobs: int) -> dict[Mutant, Fate]:
    """Run every mutant against its quickest tests, and what survives those against the others."""
    seconds: dict[str, float] = importlib.import_module("mutmut.state").state().duration_by_test
    every = sorted(seconds.keys() - _failing(), key=seconds.__getitem__)
    tests = {mutant: _tests_of(mutant, called, every) for mutant in chosen}
    early = {mutant: those for mutant, those in tests.items() if mutant.function in _AT_IMPORT}
    fates: dict[Mutant, Fate] = {mutant: _alone(mutant) for mutant in early}
    first = {mutant: those[:_QUICKEST] for mutant, those in tests.items() if mutant not in early}
    fates |= _round(first, seconds, jobs)
    others = {mutant: tests[mutant][_QUICKEST:] for mutant in first if fates[mutant] == "survived"}
    return fates | _round({mutant: those for mutant, those in others.items() if those}, seconds, jobs)


def _alone(mutant: Mutant) -> Fate:
    """Run a mutant in an interpreter of its own, from the first import on."""
    path = os.pathsep.join([str(_MUTANTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    config: Any = importlib.import_module("mutmut.configuration").config()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            *config.pytest_add_cli_args,
            *_PLUGIN,
            *_AT_IMPORT[mutant.function],
        ],
        cwd=_MUTANTS,
        env={**os.environ, "MUTANT_UNDER_TEST": mutant.name, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    fate = fate_of(done.returncode)
    _note_killed(mutant, fate)
    print(f"from the first import: {fate} ({done.returncode}) {row(mutant)}", flush=True)
    return fate


def _round(tests: Mapping[Mutant, Sequence[str]], seconds: Mapping[str, float], jobs: int) -> dict[Mutant, Fate]:
    """Run every mutant against these tests, `jobs` at a time."""
    mutmut: Any = importlib.import_module("mutmut.__main__")
    runner: Any = mutmut.get_mutant_runner(jobs)
    by_name = {mutant.name: mutant for mutant in tests}
    fates: dict[Mutant, Fate] = {}
    began = time.monotonic()

    def take_one() -> None:
        result = runner.wait_for_result()
        mutant = by_name[result.mutant_name]
        fate = fates[mutant] = fate_of(result.exit_code)
        _note_killed(mutant, fate)
        passed = f"{time.monotonic() - began:.0f} s"
        print(f"{len(fates)}/{len(tests)} {passed} {fate} ({result.exit_code}) {row(mutant)}", flush=True)

    runner.startup()
    try:
        for mutant, those in tests.items():
            needed = sum(seconds[test] for test in those)
            while not runner.has_capacity():
                take_one()
            # The runner allows half of this on the wall clock. Ten times what the tests took is a hang.
            runner.submit(mutant.name, list(those), int(2 * (30 + 10 * needed)), needed)
        runner.signal_work_complete()
        while runner.pending_count():
            take_one()
    finally:
        runner.shutdown()
    return fates


def _table(fates: Mapping[Mutant, Fate]) -> str:
    """Markdown: modules × fates."""
    kinds: Sequence[Fate] = ("killed", "timeout", "survived", "no tests")
    counts = Counter((mutant.module, fate) for mutant, fate in fates.items())
    lines = [f"| module | mutants | {' | '.join(kinds)} |", "|---|" + "--:|" * (len(kinds) + 1)]
    for module in sorted({mutant.module for mutant in fates}):
        row_counts = [counts[module, fate] for fate in kinds]
        lines.append(f"| `{module}` | {sum(row_counts)} | {' | '.join(map(str, row_counts))} |")
    totals = Counter(fates.values())
    lines.append(f"| all | {len(fates)} | {' | '.join(str(totals[fate]) for fate in kinds)} |")
    return "\n".join(lines)


def _said(found: Verdict) -> str:
    """What has to be done about the verdict."""
    if found.good:
        return "every survivor is explained in docs/mutation.md"
    lines: list[str] = []
    if found.unexplained:
        lines += [
            "survived, and docs/mutation.md does not explain them: write a test that kills each, or say why none can:"
        ]
        lines += [row(mutant) for mutant in sorted(found.unexplained, key=lambda mutant: mutant.function)]
    if found.killed_after_all:
        lines.append(f"explained in docs/mutation.md, but killed: delete {', '.join(found.killed_after_all)}")
    if found.gone:
        lines.append(f"explained in docs/mutation.md, but the code has no such mutant: delete {', '.join(found.gone)}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
