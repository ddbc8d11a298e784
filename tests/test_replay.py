"""Replaying: a saved case says what became of it, loads nothing by itself, and never passes on other values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import Phase

from mla_verify.cases import Case, case_text, load_case
from mla_verify.contracts import contract_named
from mla_verify.drawing import drawn_into
from mla_verify.errors import ExitCode, UsageError
from mla_verify.journal import digests_of
from mla_verify.kernel import Kernel, KnownDeviation
from mla_verify.registry import registered, resolve
from mla_verify.replaying import Replayed, Replayer, is_case_of, replay_paths
from mla_verify.within import why_outside
from strategies.limits import UpProjectionLimits
from strategies.problems import Problem, UpProjectionProblem

ROOT: Final = Path(__file__).resolve().parent.parent
SAVED: Final = Path(__file__).resolve().parent / "cases"

KERNELS: Final = """
import pathlib
import torch
from mla_verify import register

pathlib.Path("loaded").touch()  # whoever imports this file leaves a trace

@register(contract="up-projection")
def right(x, w_uv, out, **_):
    out.copy_(torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1))

@register(contract="up-projection")
def last_row_missing(x, w_uv, out, **_):
    out[:-1].copy_(torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1)[:-1])

@register(contract="up-projection")
def zero(x, w_uv, out, **_):
    out.zero_()

@register(contract="up-projection", dtypes=("float16",))
def half_only(x, w_uv, out, **_):
    raise AssertionError("never to be launched with another dtype")
"""


def replay(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `mla-verify replay` from `cwd`, uninstalled."""
    return subprocess.run(
        [sys.executable, "-m", "mla_verify", "replay", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def case(**changes: Any) -> Case:
    """A case of a kernel that left its only element unwritten."""
    plain = Case(
        contract="up-projection",
        kernel="my.py:last_row_missing",
        clause="coverage",
        tensor="out",
        detail="out[0, 0, 0] never written",
        seed=0,
        problem=UpProjectionProblem(num_tokens=2),
        digests={},
        versions={},
    )
    return replace(plain, **changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with kernels and one saved case of theirs."""
    (tmp_path / "my.py").write_text(KERNELS)
    (tmp_path / "saved.json").write_text(case_text(case()))
    return tmp_path


def outcome(kernel: Kernel, saved: Case) -> Replayed:
    """What becomes of a case on a kernel of this process."""
    replayer = Replayer(device="cpu", isolation="none")
    try:
        return replayer(Path("saved.json"), saved, kernel)
    finally:
        replayer.close()


def local(function: Any, **declarations: Any) -> Kernel:
    """An up-projection, registered nowhere."""
    return Kernel(name="k", contract="up-projection", load=lambda: function, **declarations)


def zeros(out: Any, **_: Any) -> None:
    """Writes everywhere, and wrongly."""
    out.zero_()


def test_a_case_that_still_fails_exits_1_and_one_that_passes_exits_0(folder: Path) -> None:
    """The kernel is named on the command line; the same case on a right one passes."""
    failing = replay("saved.json", "--kernel", "my.py:last_row_missing", cwd=folder)
    assert failing.returncode == 1, failing.stdout + failing.stderr
    assert "still fails: saved.json [last_row_missing]" in failing.stdout
    assert "coverage: out[" in failing.stdout
    passing = replay("saved.json", "--kernel", "my.py:right", cwd=folder)
    assert passing.returncode == 0, passing.stdout + passing.stderr
    assert "now passes" in passing.stdout


def test_a_failure_under_another_clause_still_fails_and_says_which(folder: Path) -> None:
    """A kernel that has traded one fault for another is not mended."""
    done = replay("saved.json", "--kernel", "my.py:zero", "--json", "--isolation", "none", cwd=folder)
    assert done.returncode == 1, done.stdout + done.stderr
    (shown,) = json.loads(done.stdout)
    assert (shown["outcome"], shown["clause"], shown["broken"]) == ("still fails", "coverage", "agreement")
    assert "saved for coverage" in shown["detail"]


def test_a_case_that_names_a_file_is_not_loaded(folder: Path) -> None:
    """Only the command line may load a file: the sentence says which option to give, and nothing is imported."""
    done = replay("saved.json", cwd=folder)
    assert done.returncode == 2
    assert "--kernel my.py:last_row_missing" in done.stderr
    assert not (folder / "loaded").exists()
    assert done.stdout == ""


HOSTILE: Final[dict[str, tuple[str, str]]] = {
    "empty": ("", "is empty"),
    "truncated": (case_text(case())[:-40], "not whole JSON"),
    "deep": ("[" * 200_000, "not whole JSON"),
    "number": ("7", "not a JSON object"),
    "future": (case_text(case()).replace('"format": 1', '"format": 99'), "another version of mla-verify"),
    "nan": (case_text(case()).replace('"num_tokens": 2', '"num_tokens": NaN'), "num_tokens"),
    "huge size": (case_text(case()).replace('"num_tokens": 2', f'"num_tokens": {10**18}'), "num_tokens"),
    "huge digits": (case_text(case()).replace('"num_tokens": 2', f'"num_tokens": {"9" * 5000}'), "is no case"),
    "boolean size": (case_text(case()).replace('"num_tokens": 2', '"num_tokens": true'), "num_tokens"),
    "clause": (case_text(case(clause="coverages")), "wanted one of coverage"),
    "path": (case_text(case(kernel="my.py:right")), "--kernel my.py:right"),
    "absolute path": (case_text(case(kernel="/etc/passwd")), "no registered kernel"),
    "module": (case_text(case(kernel="my:right")), "no registered kernel"),
    "expression": (case_text(case(kernel="__import__('my')")), "no registered kernel"),
    "newline": (case_text(case(kernel="a\nb")), "--kernel TARGET"),
    "shell": (case_text(case(kernel="x; touch loaded")), "--kernel 'x; touch loaded'"),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_case_gets_one_sentence_and_executes_nothing(folder: Path, name: str) -> None:
    """Truncated, empty, of another version, out of range, or naming what is no kernel: exit code 2."""
    text, sentence = HOSTILE[name]
    (folder / "saved.json").write_text(text)
    (shown,) = replay_paths([folder / "saved.json"], kernel=None, device="cpu", isolation="process")
    assert shown.outcome == "unreadable"
    assert shown.exit_code is ExitCode.USAGE
    assert sentence in shown.detail
    assert "\n" not in shown.detail
    assert not (folder / "loaded").exists()
    assert not {"my"} & set(sys.modules)


def test_a_huge_or_binary_file_is_refused_unread(folder: Path) -> None:
    """Five megabytes are no case, whatever they hold; neither is what is not UTF-8."""
    (folder / "huge.json").write_bytes(b" " * 5_000_000)
    (folder / "binary.json").write_bytes(b"\xff\xfe\x00")
    shown = replay_paths([folder / "huge.json", folder / "binary.json"], kernel=None, device="cpu", isolation="process")
    assert [one.outcome for one in shown] == ["unreadable", "unreadable"]
    assert "5000000 bytes" in shown[0].detail
    assert "not UTF-8" in shown[1].detail


@pytest.mark.parametrize("path", ["empty", "absent.json"])
def test_a_path_without_cases_is_a_wrong_request(folder: Path, path: str) -> None:
    """A folder without cases proves nothing, and a path that is not there neither."""
    (folder / "empty").mkdir()
    with pytest.raises(UsageError, match="there is no case"):
        replay_paths([folder / path], kernel=None, device="cpu", isolation="process")


def test_one_unreadable_case_does_not_stop_the_others(folder: Path) -> None:
    """All readable ones are run, and exit code 2 outweighs theirs."""
    (folder / "broken.json").write_text("{")
    done = replay("broken.json", "saved.json", "--kernel", "my.py:right", "--isolation", "none", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "now passes: saved.json" in done.stdout


def test_a_problem_outside_the_kernel_s_limits_cannot_run_here(folder: Path) -> None:
    """The kernel is not launched with what it does not promise to take; exit code 3."""
    done = replay("saved.json", "--kernel", "my.py:half_only", cwd=folder)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "cannot run here" in done.stdout
    assert "takes dtype float16, not float32" in done.stdout


def test_a_pass_on_other_values_is_not_claimed() -> None:
    """When the tensors made here are not the case's, a pass is `cannot run here`; a failure is still one."""
    other = {"x": "0" * 64, "w_uv": "0" * 64}
    right = resolve("up_projection_copy")
    passed = outcome(right, case(digests=other))
    assert passed.outcome == "cannot run here"
    assert "values made here differ" in passed.detail
    failed = outcome(local(zeros), case(digests=other, clause="agreement"))
    assert failed.outcome == "still fails"
    assert "values made here differ" in failed.detail


def test_a_problem_that_would_take_all_memory_is_not_laid_out() -> None:
    """A case within every limit of its format can still ask for gigabytes: nothing is made of it."""
    large = UpProjectionProblem(num_tokens=1 << 20, num_heads=16, kv_lora_rank=16)
    shown = outcome(resolve("up_projection_copy"), case(problem=large, digests={"x": "0" * 64}))
    assert shown.outcome == "cannot run here"
    assert "elements" in shown.detail


def test_a_known_deviation_is_told_from_a_pass() -> None:
    """A failure that the registration excuses is neither a failure nor a pass; a quarantined one is not launched."""
    known = KnownDeviation(clause="agreement", problems=lambda _: True, reason="zero by design")
    shown = outcome(local(zeros, known_deviations=(known,)), case(clause="agreement"))
    assert (shown.outcome, shown.detail) == ("known deviation", "zero by design")
    assert shown.exit_code is ExitCode.HOLDS

    def explodes(**_: Any) -> None:
        raise AssertionError("launched")

    quarantined = replace(known, quarantine=True)
    shown = outcome(local(explodes, known_deviations=(quarantined,)), case())
    assert shown.outcome == "known deviation"
    assert "not launched" in shown.detail


@pytest.mark.parametrize("path", sorted(SAVED.glob("*.json")), ids=lambda path: path.stem)
def test_a_case_of_another_machine_has_the_same_values_here(path: Path) -> None:
    """Golden digests: the tensors made from a saved problem are bit for bit those it was found with."""
    saved = load_case(path)
    assert saved.digests
    assert digests_of(saved.problem, resolve(saved.kernel)) == saved.digests


def test_a_case_belongs_to_its_kernel_wherever_it_is_seen_from() -> None:
    """By registered name, by target, by the same file from another folder; not by name alone across files."""
    kernel = replace(local(zeros), name="right", target="kernels/my.py:right")
    assert is_case_of(case(kernel="kernels/my.py:right"), kernel)
    assert is_case_of(case(kernel="/home/me/kernels/my.py:right"), kernel)
    assert is_case_of(case(kernel="my.py:right"), kernel)
    assert not is_case_of(case(kernel="other/my.py:right"), kernel)
    assert not is_case_of(case(kernel="kernels/my.py:wrong"), kernel)
    assert not is_case_of(case(kernel="kernels/my.py:right", contract="decode"), kernel)


@pytest.mark.parametrize("name", [kernel.name for kernel in registered()])
def test_every_problem_that_is_drawn_for_a_kernel_lies_within_its_limits(name: str) -> None:
    """Otherwise a saved failure could be put aside as one that cannot run."""
    kernel = resolve(name)
    contract = contract_named(kernel.contract)
    reasons: set[str] = set()

    def look(problem: Problem) -> None:
        reasons.add(why_outside(problem, kernel))

    drawn_into(look, contract.problems(kernel), examples=60, seed=0, phases=(Phase.generate,))()
    if kernel.validates:
        drawn_into(look, contract.invalid_problems(kernel), examples=30, seed=0, phases=(Phase.generate,))()
    assert reasons == {""}


@pytest.mark.parametrize(
    ("problem", "limits", "reason"),
    [
        (UpProjectionProblem(num_heads=3), UpProjectionLimits(num_heads=(1, 2)), "takes num_heads 1, 2, not 3"),
        (UpProjectionProblem(num_tokens=9), UpProjectionLimits(max_num_tokens=8), "takes num_tokens up to 8, not 9"),
        (UpProjectionProblem(invalid="out_is_x"), UpProjectionLimits(), "does not declare that it validates overlap"),
    ],
)
def test_a_problem_outside_the_limits_is_seen(problem: Problem, limits: UpProjectionLimits, reason: str) -> None:
    """The test above can fail."""
    assert reason in why_outside(problem, local(zeros, limits=limits))
