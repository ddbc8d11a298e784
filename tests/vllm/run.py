"""Check the kernels of several vLLM versions, one process each, and compare the verdicts with expected.json.

    python tests/vllm/run.py [--folder .vllm] [--examples 500] [--seed 0] [--details]

Installs first what is missing (install.py). Exit code 0 where every verdict is the expected one, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_HERE: Final = Path(__file__).resolve().parent
_ROOT: Final = _HERE.parents[1]
_DEFAULT_FOLDER: Final = _ROOT / ".vllm"
_SHARED: Final = "common"  # where install.py puts what all versions need


@dataclass(frozen=True, slots=True)
class Expectation:
    """The verdict that each clause must have for one kernel of one version, and why; "a or b" allows both."""

    version: str
    kernel: str
    why: str
    clauses: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One object of the report, None where there is none, and what was printed beside it."""

    report: Mapping[str, Any] | None
    trouble: str


def expectations() -> list[Expectation]:
    """What expected.json says, in its order."""
    return [Expectation(**entry) for entry in json.loads((_HERE / "expected.json").read_text())]


def check(expected: Expectation, folder: Path, *, examples: int, seed: int) -> Outcome:
    """Run `mla_verify check` in a process of its own that sees one version of vLLM."""
    command = [sys.executable, "-m", "mla_verify", "check", expected.kernel, "--json"]
    command += ["--examples", str(examples), "--seed", str(seed)]
    path = [str(folder / expected.version), str(folder / _SHARED), str(_ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=_ROOT)
    if done.returncode < 0:
        return Outcome(None, f"killed by signal {-done.returncode}")
    try:
        (report,) = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        return Outcome(None, f"exit code {done.returncode}, no report: {''.join(last)}")
    return Outcome(report, report.get("unavailable") or "")


def differences(expected: Expectation, outcome: Outcome) -> list[str]:
    """One sentence for each verdict that is not the expected one."""
    if outcome.report is None or outcome.report["verdict"] == "unavailable":
        return [outcome.trouble]
    found: Mapping[str, str] = outcome.report["clauses"]
    wrong = [
        f"{clause} is {found.get(clause, 'missing')!r}, expected {verdict!r}"
        for clause, verdict in expected.clauses.items()
        if found.get(clause) not in verdict.split(" or ")
    ]
    wrong += [
        f"{clause} fails" for clause, verdict in found.items() if verdict == "fail" and clause not in expected.clauses
    ]
    wrong += [
        f"stale: {known['clause']}, {known['reason']}"
        for known in outcome.report["known_deviations"]
        if known["state"] == "stale"
    ]
    return wrong


def lines(expected: Expectation, outcome: Outcome, wrong: Sequence[str], *, details: bool) -> Iterator[str]:
    """What is printed about one kernel of one version."""
    report = outcome.report or {
        "examples": 0,
        "seconds": 0.0,
        "clauses": {},
        "findings": [],
        "known_deviations": [],
    }
    verdict = "as expected" if not wrong else "NOT AS EXPECTED"
    ran = f"{report['examples']:5} examples {report['seconds']:7.1f} s"
    yield f"{expected.version:8} {expected.kernel:20} {ran}  {verdict}"
    rest = ["  ".join(f"{clause} {found}" for clause, found in report["clauses"].items())]
    rest += [f"! {sentence}" for sentence in wrong]
    rest += [f"{finding['clause']}: {finding['detail']}  ({finding['problem']})" for finding in report["findings"]]
    for known in report["known_deviations"] if details else ():
        counts = f"{known['state']}, {known['deviated']} of {known['matched']}"
        rest.append(f"known {known['clause']}, {counts}: {known['reason']}")
    yield from (f"         {line}" for line in rest)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, check, print a table."""
    parser = argparse.ArgumentParser(description="Check vLLM's kernels version by version.")
    parser.add_argument("--folder", type=Path, default=_DEFAULT_FOLDER, help="where the versions lie")
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--details", action="store_true", help="also print what became of each known deviation")
    options = parser.parse_args(arguments)
    versions = sorted({expected.version for expected in expectations()})
    installer = [sys.executable, str(_HERE / "install.py"), "--into", str(options.folder), *versions]
    subprocess.run(installer, check=True)
    surprises = 0
    for expected in expectations():
        outcome = check(expected, options.folder, examples=options.examples, seed=options.seed)
        wrong = differences(expected, outcome)
        surprises += bool(wrong)
        print("\n".join(lines(expected, outcome, wrong, details=options.details)), flush=True)
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
