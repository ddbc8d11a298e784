"""Cases: one file per distinct failure, replaced only by a smaller one, written whole, read back exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import Phase

from mla_verify.cases import Case, case_files, case_text, load_case, save_case
from mla_verify.contracts import contract_named
from mla_verify.drawing import drawn_into
from mla_verify.errors import UsageError
from mla_verify.registry import resolve
from strategies.layouts import Layout
from strategies.problems import Problem, UpProjectionProblem

ROOT: Final = Path(__file__).resolve().parent.parent


def case(problem: Problem | None = None, **changes: Any) -> Case:
    """A case of some kernel."""
    plain = Case(
        contract="up-projection",
        kernel="dir/my.py:kernel",
        clause="coverage",
        tensor="out",
        detail="never written",
        seed=0,
        problem=problem or UpProjectionProblem(num_tokens=2),
        digests={"x": "0" * 64},
        versions={"torch": "2"},
    )
    return replace(plain, **changes)


def test_one_failure_is_one_file_and_only_a_smaller_one_replaces_it(tmp_path: Path) -> None:
    """The same kernel, clause and shape of problem: three tokens, then five, then two are one file with two."""
    paths = {save_case(case(UpProjectionProblem(num_tokens=tokens)), tmp_path) for tokens in (3, 5, 2)}
    (path,) = paths
    assert load_case(path).problem == UpProjectionProblem(num_tokens=2)
    assert list(tmp_path.iterdir()) == [path]


def test_others_may_read_a_file_as_the_umask_has_it(tmp_path: Path) -> None:
    """A file that was written under a temporary name is no more private than any other."""
    path = save_case(case(), tmp_path)
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize(
    "other",
    [
        case(clause="agreement"),
        case(kernel="dir/my.py:other"),
        case(UpProjectionProblem(num_tokens=2, dtype="float16")),
        case(UpProjectionProblem(num_tokens=2, out_layout=Layout("padded_rows", 1))),
        case(UpProjectionProblem(num_tokens=2, num_heads=2)),
    ],
    ids=["clause", "kernel", "dtype", "layout", "heads"],
)
def test_distinct_failures_are_distinct_files(tmp_path: Path, other: Case) -> None:
    """Another clause, kernel or shape of problem is another failure."""
    assert save_case(case(), tmp_path) != save_case(other, tmp_path)


@pytest.mark.parametrize("name", ["decode_split_kv_zeros", "up_projection_copy"])
def test_every_drawn_problem_is_read_back_as_it_was(tmp_path: Path, name: str) -> None:
    """A case of any problem of both contracts survives the way through its file."""
    kernel = resolve(name)
    path = tmp_path / "case.json"

    def there_and_back(problem: Problem) -> None:
        path.write_text(case_text(case(problem, contract=kernel.contract)), encoding="utf-8")
        assert load_case(path).problem == problem

    problems = contract_named(kernel.contract).problems(kernel)
    drawn_into(there_and_back, problems, examples=60, seed=0, phases=(Phase.generate,))()


def test_a_case_is_read_back_as_it_was(tmp_path: Path) -> None:
    """Every field, non-ASCII words too."""
    saved = case(detail="nicht geschrieben: „out“", seed=12)
    assert load_case(save_case(saved, tmp_path)) == saved


def test_a_broken_file_makes_room(tmp_path: Path) -> None:
    """What lies at a case's place and is no case is replaced by one."""
    path = save_case(case(), tmp_path)
    path.write_text("{")
    assert save_case(case(), tmp_path) == path
    assert load_case(path) == case()


def test_no_half_written_file_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the file system gives up in the middle, the old case is still whole and nothing else lies there."""
    path = save_case(case(UpProjectionProblem(num_tokens=9)), tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device"):
        save_case(case(), tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    assert load_case(path).problem == UpProjectionProblem(num_tokens=9)


def test_a_folder_that_cannot_be_made_is_a_wrong_request(tmp_path: Path) -> None:
    """A file stands where the folder should."""
    (tmp_path / "cases").write_text("")
    with pytest.raises(UsageError, match="cannot make the folder of cases"):
        save_case(case(), tmp_path / "cases")


def test_the_files_of_a_folder_come_in_a_stable_order(tmp_path: Path) -> None:
    """By name, so that the workers of one run agree."""
    for name in ("b.json", "a.json", "note.txt"):
        (tmp_path / name).write_text("")
    assert [path.name for path in case_files([tmp_path])] == ["a.json", "b.json"]


KERNELS: Final = """
import torch
from mla_verify import register

@register(contract="up-projection")
def mine(x, w_uv, out, **_):
    out{0}.copy_(torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1){0})

@register(contract="up-projection", dtypes=("float16",))
def half_only(x, w_uv, out, **_):
    out.copy_(torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1))
"""


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with our plugin in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "mla_verify.pytest_plugin", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_pytest_saves_failures_and_runs_them_first_the_next_time(tmp_path: Path) -> None:
    """New failures go into the folder, under xdist too; the next run has an item for each, in front of the fuzzing."""
    fuzz = ("--mla-kernel", "my.py:mine", "--mla-shards", "2", "--hypothesis-profile=dev", "--mla-cases", "cases")
    (tmp_path / "my.py").write_text(KERNELS.format("[:-1]"))
    found = pytest_in(tmp_path, *fuzz, "-n", "2")
    assert found.returncode == 1, found.stdout + found.stderr
    (case_file,) = (tmp_path / "cases").glob("*.json")
    assert f"replay: mla-verify replay {case_file} --kernel my.py:mine" in found.stdout
    (tmp_path / "my.py").write_text(KERNELS.format(""))
    mended = pytest_in(tmp_path, *fuzz, "-v")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "3 passed" in mended.stdout
    lines = [line for line in mended.stdout.splitlines() if "PASSED" in line]
    assert case_file.stem in lines[0]
    assert not any(case_file.stem in line for line in lines[1:])


def test_saved_cases_alone_fail_skip_and_pass_as_pytest_items(tmp_path: Path) -> None:
    """One that is no case fails, one whose kernel is not to be had or cannot take it is skipped and says why."""
    (tmp_path / "my.py").write_text(KERNELS.format(""))
    folder = tmp_path / "cases"
    folder.mkdir()
    (folder / "a.json").write_text(case_text(case(kernel="my.py:mine", digests={})))
    (folder / "b.json").write_text(case_text(case(kernel="my.py:half_only", digests={})))
    (folder / "c.json").write_text(case_text(case(kernel="elsewhere.py:kernel")))
    (folder / "d.json").write_text("{")
    done = pytest_in(
        tmp_path,
        *("--mla-kernel", "my.py:mine", "--mla-kernel", "my.py:half_only", "--mla-cases", "cases"),
        *("--mla-shards", "1", "--hypothesis-profile=dev", "-ra"),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 3 passed, 2 skipped" in done.stdout
    assert "is no case: it is not whole JSON" in done.stdout
    assert "takes dtype float16, not float32" in done.stdout
    assert "'elsewhere.py:kernel', which is not registered and was not named by --mla-kernel" in done.stdout
