"""The command line: verdicts as exit codes, and one clear sentence for whatever cannot be done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent

RIGHT: Final = """
import torch

def kernel(x, w_uv, out, **_):
    torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1).to(out.dtype).clone()
    out.copy_(torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1))

def last_row_missing(x, w_uv, out, **_):
    out[:-1].copy_(torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1)[:-1])

def takes_something_else(x, weight, **_): ...
def takes_too_little(x, out): ...
def by_position(x, /, w_uv, out): ...
async def later(x, w_uv, out): ...
class Kernel:
    def __call__(self, x, w_uv, out): ...
not_callable = 7
"""

DECODE: Final = """
import torch

def kernel(q, kv_buffer, o, lse, qo_indptr, block_table, seq_lens, page_size, sm_scale, **_):
    for r in range(len(seq_lens)):
        first, last = int(qo_indptr[r]), int(qo_indptr[r + 1])
        n, width = int(seq_lens[r]), o.shape[-1]
        pages = block_table[r, : -(-n // page_size)].long()
        kv = kv_buffer[pages].flatten(0, 2)[:n].float()
        for row in range(first, last):
            seen = max(0, n - (last - 1 - row))
            scores = q[row].float() @ kv[:seen].T * sm_scale
            o[row] = (scores.softmax(-1) @ kv[:seen, :width]).to(o.dtype) if seen else 0
            if lse is not None:
                lse[row] = scores.logsumexp(-1) if seen else -float("inf")
"""


def run(*arguments: str, cwd: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the command line from `cwd`, uninstalled."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "mla_verify", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder outside the repository with a user's kernels in it."""
    (tmp_path / "my.py").write_text(RIGHT)
    (tmp_path / "mine.py").write_text(DECODE)
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    return tmp_path


def test_a_right_kernel_in_a_file_of_fifteen_lines_passes(folder: Path) -> None:
    """A user's decode outside the repository is checked with one command, and exit code 0 says that all holds."""
    assert len(DECODE.strip().splitlines()) <= 15
    done = run("check", "mine.py:kernel", "--contract", "decode", "--examples", "30", "--json", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = json.loads(done.stdout)
    assert report["verdict"] == "pass"
    assert report["examples"] == 30
    for clause in ("coverage", "independence", "containment", "agreement", "layout", "repeatability"):
        assert report["clauses"][clause] == "pass"


def test_what_was_not_exercised_is_never_shown_as_pass(folder: Path) -> None:
    """A kernel that declares no validation and no allocations has those clauses not checked, with the reason."""
    done = run("check", "my.py:kernel", "--contract", "up-projection", "--examples", "10", "--json", cwd=folder)
    (report,) = json.loads(done.stdout)
    for clause in ("refusal", "economy"):
        assert report["clauses"][clause] == "not checked"
        assert report["reasons"][clause]


def test_a_violation_exits_1_and_shows_the_smallest_problem(folder: Path) -> None:
    """The table names the clause, the elements and the simplest problem that shows them."""
    done = run("check", "my.py:last_row_missing", "--contract", "up-projection", "--examples", "60", cwd=folder)
    assert done.returncode == 1
    assert "FAIL" in done.stdout
    assert "coverage: out[0, 0, 0] never written" in done.stdout
    assert "again: mla-verify check my.py:last_row_missing --contract up-projection --seed 0" in done.stdout


def test_several_kernels_exit_with_the_worst_of_their_codes(folder: Path) -> None:
    """One right and one faulty kernel together exit with 1, and both are in the array."""
    done = run(
        "check",
        *("my.py:kernel", "my.py:last_row_missing"),
        *("--contract", "up-projection", "--examples", "20", "--json"),
        cwd=folder,
    )
    assert done.returncode == 1
    assert [report["verdict"] for report in json.loads(done.stdout)] == ["pass", "fail"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("check", "up_projection_dirct"), "did you mean 'up_projection_direct'"),
        (("check", "nowhere.py:kernel"), "there is no file nowhere.py"),
        (("check", "no_such_module:kernel"), "cannot import no_such_module"),
        (("check", "os.path;print:kernel"), "is no module name"),
        (("check", "broken.py:kernel"), "cannot import broken.py: ModuleNotFoundError"),
        (("check", "leaves.py:kernel"), "cannot import leaves.py: SystemExit"),
        (
            ("check", "my.py:absent", "--contract", "decode"),
            "my.py has no 'absent'; it has Kernel, by_position, kernel",
        ),
        (("check", "my.py:kernel"), "say which contract it keeps"),
        (("check", "my.py:kernel", "--contract", "prefill"), "unknown contract 'prefill'"),
        (("check", "my.py:not_callable", "--contract", "decode"), "not a callable"),
        (("check", "my.py:takes_something_else", "--contract", "up-projection"), "takes weight, which the contract"),
        (("check", "my.py:takes_too_little", "--contract", "up-projection"), "end its parameters with **_"),
        (("check", "my.py:by_position", "--contract", "up-projection"), "takes x by position only"),
        (("check", "my.py:later", "--contract", "up-projection"), "later is an async function or a generator"),
        (("check", "my.py:Kernel", "--contract", "up-projection"), "Kernel is a class; name an instance"),
        (("check", "up_projection_copy", "--device", "abacus"), "'abacus' is no device"),
        (("check", "up_projection_copy", "--dtype", "float64"), "does not support dtype 'float64'"),
        (("check", "up_projection_copy", "--examples", "-3"), "--examples must be at least 1, got -3"),
        (("check", "up_projection_copy", "--processes", "0"), "--processes must be at least 1, got 0"),
        (("check",), "name the kernels to check, or --all"),
        (("check", "up_projection_copy", "--all"), "not both"),
        (("bench", "prefill"), "unknown contract 'prefill'"),
        (("bench", "--repeats", "0"), "--repeats must be at least 1"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_request_gets_one_sentence_and_exit_code_2(
    folder: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    """What, got, wanted, how to mend it; never a traceback, and nothing on stdout."""
    done = run(*arguments, cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_kernel_whose_library_is_missing_exits_3(folder: Path) -> None:
    """It is unavailable in every clause, and says what is missing."""
    (folder / "vllm.py").write_text("raise ImportError('not the real one')\n")  # shadows an installed vLLM
    done = run("check", "vllm_v_up_proj", "--examples", "5", "--json", cwd=folder)
    assert done.returncode == 3, done.stdout + done.stderr
    (report,) = json.loads(done.stdout)
    assert set(report["clauses"].values()) == {"unavailable"}
    assert "vllm" in report["unavailable"].lower()


def test_another_package_called_strategies_is_refused_by_name(folder: Path) -> None:
    """When somebody else's `strategies` shadows ours, commands say so instead of failing in the middle."""
    (folder / "strategies").mkdir()
    (folder / "strategies" / "__init__.py").write_text("")
    done = run("check", "up_projection_copy", "--examples", "5", cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "shadows ours" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_same_seed_draws_the_same_problems(folder: Path) -> None:
    """Two runs with one seed give the same findings, seconds aside."""
    outputs: list[object] = []
    for _ in range(2):
        done = run(
            "check",
            "my.py:last_row_missing",
            *("--contract", "up-projection", "--examples", "40", "--seed", "3", "--json"),
            cwd=folder,
        )
        (report,) = json.loads(done.stdout)
        del report["seconds"]
        outputs.append(report)
    assert outputs[0] == outputs[1]


def test_list_says_why_a_kernel_is_unavailable(folder: Path) -> None:
    """Every registered kernel is listed, the unavailable ones with their reason."""
    (folder / "vllm.py").write_text("raise ImportError('not the real one')\n")
    done = run("list", "--json", cwd=folder)
    assert done.returncode == 0
    rows = {row["kernel"]: row for row in json.loads(done.stdout)}
    assert rows["up_projection_direct"]["available"] == "yes"
    assert rows["up_projection_direct"]["baseline"] == "up_projection_copy"
    assert rows["vllm_v_up_proj"]["available"].startswith("no: ")
