"""The gate: a change to a kernel is let through or stopped, the same way every time, and nothing saved is forgotten."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import pytest
from rich.console import Console

from mla_verify.cases import Case, case_text, load_case
from mla_verify.changes import changed_files, is_touched
from mla_verify.errors import UsageError
from mla_verify.gating import seconds_of
from mla_verify.github_summary import summary_text
from mla_verify.junit import junit_text
from mla_verify.kernel import Kernel
from mla_verify.merging import merged
from mla_verify.registry import resolve
from mla_verify.report import ClauseVerdict, DeviationReport, Report, ReportedFinding
from mla_verify.shards import SHARDS, shards_of
from mla_verify.table import print_reports
from sanitizer.finding import CLAUSES
from strategies.problems import UpProjectionProblem
from tests.running import interrupted, running, wait_until

ROOT: Final = Path(__file__).resolve().parent.parent

RIGHT: Final = """
import torch
from mla_verify import register

@register(contract="up-projection", num_heads=(1, 2), kv_lora_rank=(1, 3), v_head_dim=(1, 2), max_num_tokens=5)
def mine(x, w_uv, out, **_):
    out.copy_(torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1))
"""
FAULTY: Final = RIGHT.replace("out.copy_(", "out[:-1].copy_(").replace("transpose(0, 1))\n", "transpose(0, 1)[:-1])\n")
DIES: Final = RIGHT + "    if x.shape[0] == 3:\n        import os\n        os.abort()\n"


def gate(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `mla-verify gate` from `cwd`, uninstalled."""
    return subprocess.run(
        [sys.executable, "-m", "mla_verify", "gate", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def git(folder: Path, *arguments: str) -> None:
    """Run git in `folder`, as nobody in particular."""
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A real git repository with two kernels, each in a file of its own, committed."""
    git(tmp_path, "init", "-q")
    (tmp_path / "first.py").write_text(RIGHT)
    (tmp_path / "second.py").write_text(RIGHT.replace("def mine", "def other"))
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "two kernels")
    return tmp_path


def saved_case(**changes: Any) -> str:
    """A case of the first kernel, as text."""
    plain = Case(
        contract="up-projection",
        kernel="first.py:mine",
        clause="coverage",
        tensor="out",
        detail="never written",
        seed=0,
        problem=UpProjectionProblem(num_tokens=2),
        digests={},
        versions={},
    )
    return case_text(replace(plain, **changes))


def test_a_good_change_is_let_through_and_a_faulty_one_is_stopped(repository: Path) -> None:
    """With --since only the changed kernel is run: exit code 0 for the good change, 1 for the faulty one."""
    targets = ("first.py:mine", "second.py:other", "--since", "HEAD", "--examples", "24")
    (repository / "first.py").write_text("# a good change\n" + RIGHT)
    good = gate(*targets, "--json", cwd=repository)
    assert good.returncode == 0, good.stdout + good.stderr
    (report,) = json.loads(good.stdout)
    assert (report["kernel"], report["examples"], report["verdict"]) == ("mine", 24, "pass")
    assert "unchanged since HEAD, not run: other" in good.stderr
    git(repository, "commit", "-q", "-a", "-m", "good")
    (repository / "first.py").write_text(FAULTY)
    faulty = gate(*targets, "--cases", "cases", cwd=repository)
    assert faulty.returncode == 1, faulty.stdout + faulty.stderr
    assert "coverage: out[" in faulty.stdout
    (case,) = (repository / "cases").glob("*.json")
    assert f"mla-verify replay cases/{case.name} --kernel first.py:mine" in faulty.stdout
    assert load_case(case).clause == "coverage"


def test_nothing_changed_is_a_pass(repository: Path) -> None:
    """Where no kernel is touched the gate says so and exits 0."""
    done = gate("first.py:mine", "--since", "HEAD", "--examples", "8", cwd=repository)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no kernel to check" in done.stdout


def test_equal_seeds_and_examples_give_the_same_verdict(repository: Path) -> None:
    """Seconds aside the JSON is the same twice, on one core as on all."""
    (repository / "first.py").write_text(FAULTY)
    outputs: list[Any] = []
    for on_one_core in (False, shutil.which("taskset") is not None):
        command = [sys.executable, "-m", "mla_verify", "gate", "first.py:mine", "--json"]
        command += ["--examples", "30", "--seed", "7"]
        if on_one_core:
            command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *command]
        done = subprocess.run(
            command,
            cwd=repository,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        (report,) = json.loads(done.stdout)
        del report["seconds"]
        outputs.append(report)
    assert outputs[0] == outputs[1]
    assert outputs[0]["examples"] == 30


def test_a_saved_failure_fails_though_the_budget_is_spent(repository: Path) -> None:
    """Saved cases are run whatever the budget; what was not fuzzed is not checked, and nothing passes."""
    (repository / "first.py").write_text(FAULTY)
    (repository / "cases").mkdir()
    (repository / "cases" / "saved.json").write_text(saved_case())
    done = gate("first.py:mine", "--budget", "0.1s", "--cases", "cases", "--json", cwd=repository)
    assert done.returncode == 1, done.stdout + done.stderr
    (report,) = json.loads(done.stdout)
    assert report["clauses"]["coverage"] == "fail"
    assert set(report["clauses"].values()) == {"fail", "not checked"}
    assert report["findings"][0]["case"] == "cases/saved.json"


def test_a_budget_in_which_nothing_ran_is_no_success(repository: Path) -> None:
    """Without a saved failure, too: every clause is not checked, and the exit code is not 0."""
    done = gate("first.py:mine", "--budget", "0.1s", "--json", cwd=repository)
    assert done.returncode == 2
    (report,) = json.loads(done.stdout)
    assert set(report["clauses"].values()) == {"not checked"}
    assert "give more with --budget" in done.stderr


def test_a_kernel_that_takes_the_gate_s_own_process_down_is_a_finding(repository: Path) -> None:
    """Run without isolation, its death is `survival` at the problem that was in flight, saved like any other."""
    (repository / "first.py").write_text(DIES)
    done = gate(
        *("first.py:mine", "--isolation", "none", "--examples", "120", "--cases", "cases", "--json"), cwd=repository
    )
    assert done.returncode == 1, done.stdout + done.stderr
    (report,) = json.loads(done.stdout)
    assert report["clauses"]["survival"] == "fail"
    assert "SIGABRT" in report["findings"][0]["detail"]
    assert load_case(repository / report["findings"][0]["case"]).problem.num_tokens == 3  # type: ignore[union-attr]
    assert list((repository / "cases" / "journal").iterdir()) == []


GATE_OF_AN_HOUR: Final = (
    *(sys.executable, "-m", "mla_verify", "gate", "first.py:mine"),
    *("--budget", "1h", "--json", "--cases", "cases"),
)


def test_ctrl_c_ends_cleanly_with_what_was_found(repository: Path) -> None:
    """The whole group is interrupted, as by a terminal: a report is printed, no clause passes, exit code 130."""
    telling = RIGHT.replace("    out.copy_", "    __import__('pathlib').Path('launched').touch()\n    out.copy_")
    (repository / "first.py").write_text(telling)
    with running(GATE_OF_AN_HOUR, cwd=repository) as process:
        wait_until((repository / "launched").exists, process)
        stdout, stderr = interrupted(process)
    assert process.returncode == 130, stdout + stderr
    (report,) = json.loads(stdout)
    assert "pass" not in report["clauses"].values()
    assert "interrupted" in report["reasons"]["coverage"]
    assert "Traceback" not in stderr
    assert list((repository / "cases" / "journal").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("first.py:mine", "--since", "nowhere"), "--since 'nowhere' is no revision"),
        (("first.py:mine", "--since", "--output=x"), "--since '--output=x' is no revision"),
        (("first.py:mine", "--budget", "soon"), "--budget 'soon' is no time"),
        (("first.py:mine", "--budget", "0s"), "--budget '0s' is no time"),
        (("first.py:mine", "--budget", "1m", "--examples", "3"), "not both"),
        (("first.py:mine", "--examples", "0"), "--examples must be at least 1, got 0"),
        (("first.py:mine", "--github"), "needs the variable GITHUB_STEP_SUMMARY"),
        (("absent",), "no kernel is called 'absent'"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_request_gets_one_sentence_and_exit_code_2(
    repository: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    """Before anything is run."""
    done = gate(*arguments, cwd=repository, GITHUB_STEP_SUMMARY="")
    assert done.returncode == 2, done.stdout + done.stderr
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_broken_case_stops_the_gate(repository: Path) -> None:
    """A failure that cannot be read back is not passed over."""
    (repository / "cases").mkdir()
    (repository / "cases" / "saved.json").write_text(saved_case()[:-30])
    done = gate("first.py:mine", "--examples", "8", "--cases", "cases", cwd=repository)
    assert done.returncode == 2
    assert "is no case: it is not whole JSON" in done.stderr


def test_what_git_calls_changed(repository: Path) -> None:
    """Edited, untracked and deleted files, seen from a folder below the top; not what is ignored."""
    (repository / "below").mkdir()
    (repository / ".gitignore").write_text("ignored.py\n")
    (repository / "ignored.py").write_text("")
    (repository / "first.py").write_text(FAULTY)
    (repository / "second.py").unlink()
    (repository / "below" / "new ü.py").write_text("")
    names = {".gitignore", "first.py", "second.py", "below/new ü.py"}
    assert changed_files("HEAD", folder=repository / "below") == {(repository / name).resolve() for name in names}


def test_outside_a_repository_since_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--since means nothing where there is no git repository."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UsageError, match="lies in no git repository"):
        changed_files("HEAD", folder=tmp_path)


def test_a_kernel_is_touched_by_its_files_and_those_that_it_declares(repository: Path) -> None:
    """Its own file, a declared file beside it, and whatever lies below a declared folder."""
    text = RIGHT.replace('contract="up-projection"', 'contract="up-projection", source_files=("lib.cu", "inc")')
    (repository / "first.py").write_text(text)
    kernel = resolve(f"{repository / 'first.py'}:mine")
    for name, touched in (("first.py", True), ("lib.cu", True), ("inc/a/b.h", True), ("second.py", False)):
        assert is_touched(kernel, frozenset({(repository / name).resolve()})) is touched
    assert not is_touched(kernel, frozenset())


def test_a_budget_is_read_in_seconds_minutes_and_hours() -> None:
    """A bare number is seconds."""
    assert [seconds_of(text) for text in ("120s", "5m", "1h", "90", "0.5s")] == [120, 300, 3600, 90, 0.5]
    with pytest.raises(UsageError, match="write seconds, minutes or hours"):
        seconds_of("5 days")


def test_shards_share_the_examples_whatever_the_number_of_cores() -> None:
    """They add up, differ in their seeds, and none is empty."""
    for examples in (1, 3, 4, 30, 1001):
        shards = shards_of(0, target="k", contract="decode", examples=examples, seed=5, alone=False)
        assert sum(shard.examples for shard in shards) == examples
        assert len(shards) == min(SHARDS, examples)
        assert len({shard.seed for shard in shards}) == len(shards)
        assert shards[0].seed == 5


def part(verdict: ClauseVerdict, *, examples: int = 50, **changes: Any) -> Report:
    """A shard's report with one verdict for every clause."""
    plain = Report(
        kernel="k",
        contract="up-projection",
        device="cpu",
        seed=0,
        examples=examples,
        seconds=1.0,
        clauses=dict.fromkeys(CLAUSES, verdict),
    )
    return replace(plain, **changes)


def joined(*parts: Report, interrupted: bool = False) -> Report:
    """Shards made into one report."""
    kernel = Kernel(name="k", contract="up-projection", load=lambda: print)
    return merged(kernel, parts, (), device="cpu", seed=0, nothing_ran="the budget ended", interrupted=interrupted)


def test_the_gravest_verdict_of_all_shards_counts() -> None:
    """Fail over known over not checked over pass; a shard that ran nothing does not count beside one that did."""
    good, bad = ClauseVerdict("pass"), ClauseVerdict("fail")
    known, open_ = ClauseVerdict("known", "because"), ClauseVerdict("not checked", "no time")
    assert joined(part(good), part(bad), part(known)).clauses["coverage"] == bad
    assert joined(part(open_), part(known), part(good)).clauses["coverage"] == known
    assert joined(part(good), part(open_)).clauses["coverage"] == open_
    assert joined(part(good), part(open_, examples=0)).clauses["coverage"] == good
    assert joined().clauses["coverage"] == ClauseVerdict("not checked", "the budget ended")
    assert joined(part(good), interrupted=True).clauses["coverage"].verdict == "not checked"


def test_the_smallest_problem_of_a_clause_is_kept_and_counts_are_added() -> None:
    """One finding per clause; a deviation is stale by the sum of what all shards saw."""

    def found(tokens: int) -> ReportedFinding:
        problem = UpProjectionProblem(num_tokens=tokens)
        return ReportedFinding("coverage", "out", 1, f"{tokens} tokens", problem, "", 1)

    deviation = DeviationReport("agreement", "r", "", 30, 0, quarantined=False)
    bad = ClauseVerdict("fail")
    report = joined(
        part(bad, findings=(found(5),), deviations=(deviation,)),
        part(bad, findings=(found(2),), deviations=(deviation,)),
    )
    assert [finding.detail for finding in report.findings] == ["2 tokens"]
    assert report.deviations[0].matched == 60
    assert report.deviations[0].state == "stale"
    assert report.examples == 100


def test_junit_has_one_test_case_per_clause() -> None:
    """Failures carry the finding and how to replay it, what was not checked is skipped, control characters are gone."""
    problem = UpProjectionProblem()
    finding = ReportedFinding("coverage", "out", 1, "bad \x00 & <worse>", problem, "the simplest", 1, case="c.json")
    clauses = {
        **dict.fromkeys(CLAUSES, ClauseVerdict("pass")),
        "coverage": ClauseVerdict("fail"),
        "economy": ClauseVerdict("not checked", "why not"),
    }
    report = part(ClauseVerdict("pass"), findings=(finding,), target="my.py:k")
    root = ElementTree.fromstring(junit_text([replace(report, clauses=clauses)]))
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert set(cases) == set(CLAUSES)
    failure = cases["coverage"].find("failure")
    assert failure is not None
    assert "mla-verify replay c.json --kernel my.py:k" in (failure.text or "")
    assert "& <worse>" in (failure.get("message") or "")
    skipped = cases["economy"].find("skipped")
    assert skipped is not None
    assert "why not" in (skipped.get("message") or "")
    assert len(cases["agreement"]) == 0
    suite = root.find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("9", "1", "1")


def test_the_summary_is_a_markdown_table_that_no_message_can_break() -> None:
    """Pipes and backticks of a kernel's own stay text."""
    finding = ReportedFinding("coverage", "out", 1, "a `b` | c\nd", UpProjectionProblem(), "the simplest", 1)
    text = summary_text([part(ClauseVerdict("fail"), findings=(finding,), kernel="k|l")])
    lines = text.splitlines()
    assert "| k\\|l | ❌ fail" in text
    assert lines[2].count("|") == lines[3].count("|")
    assert "* coverage: `a 'b' | c d`, smallest problem `the simplest`" in lines


def test_files_asked_for_are_written(repository: Path) -> None:
    """--junit and --github write theirs; the summary is appended to what other steps wrote."""
    summary = repository / "summary.md"
    summary.write_text("before\n")
    done = gate(
        *("first.py:mine", "--examples", "4", "--junit", "junit.xml", "--github"),
        cwd=repository,
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary.read_text().startswith("before\n### mla-verify")
    assert ElementTree.parse(repository / "junit.xml").getroot().tag == "testsuites"


def test_ctrl_c_after_a_failure_reports_and_keeps_it(repository: Path) -> None:
    """What has been found makes it exit code 1, in the report and as a case."""
    (repository / "first.py").write_text(FAULTY)
    with running(GATE_OF_AN_HOUR, cwd=repository) as process:
        wait_until(lambda: list((repository / "cases").glob("*.json")), process)
        stdout, stderr = interrupted(process)
    assert process.returncode == 1, stdout + stderr
    (report,) = json.loads(stdout)
    assert report["clauses"]["coverage"] == "fail"
    assert Path(repository / report["findings"][0]["case"]).exists()


def test_a_stale_deviation_names_the_registration_to_delete() -> None:
    """The message has the kernel, the clause and the reason of the declaration that must go."""
    stream = StringIO()
    stale = DeviationReport("agreement", "zero at two tokens", "", 60, 0, quarantined=False)
    report = part(ClauseVerdict("pass"), kernel="mine", deviations=(stale,))
    print_reports([report], to=Console(file=stream, width=200))
    (line,) = [line for line in stream.getvalue().splitlines() if "STALE" in line]
    for word in ("agreement", "delete", "KnownDeviation", "registration of mine", "zero at two tokens"):
        assert word in line
