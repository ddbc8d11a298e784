"""`check` of several kernels: one process a core, and the same reports as one kernel after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from mla_verify.cases import load_case
from tests.running import ROOT, interrupted, running, wait_until

KERNELS: Final = """
import os, pathlib, time
import torch
from mla_verify import register

limits = dict(contract="up-projection", num_heads=(1, 2), kv_lora_rank=(1, 3), v_head_dim=(1, 2), max_num_tokens=5)

def product(x, w_uv):
    return torch.bmm(x.float().transpose(0, 1), w_uv.float()).transpose(0, 1)

@register(**limits)
def right(x, w_uv, out, **_):
    out.copy_(product(x, w_uv))

@register(**limits)
def forgets_a_row(x, w_uv, out, **_):
    out[:-1].copy_(product(x, w_uv)[:-1])

@register(**limits)
def doubles_float16(x, w_uv, out, **_):
    out.copy_(product(x, w_uv) * (2 if out.dtype == torch.float16 else 1))

@register(in_process=True, **limits)
def dies_in_the_process_of_its_search(x, w_uv, out, **_):
    out.copy_(product(x, w_uv))
    if x.shape[0] == 3:
        os.abort()

@register(**limits)
def tells_that_it_runs(x, w_uv, out, **_):
    out.copy_(product(x, w_uv))
    pathlib.Path("launched").touch()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with kernels in it."""
    (tmp_path / "my.py").write_text(KERNELS)
    return tmp_path


def command(*arguments: str) -> list[str]:
    """`mla-verify check` with two processes, whatever the machine, and JSON."""
    processes = () if "--processes" in arguments else ("--processes", "2")
    return [sys.executable, "-m", "mla_verify", "check", "--json", *processes, *arguments]


def check(*arguments: str, cwd: Path) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the reports, seconds excepted."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command(*arguments), cwd=cwd, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, [_timeless(report) for report in json.loads(done.stdout)]


def _timeless(report: dict[str, Any]) -> dict[str, Any]:
    return {
        key: [_timeless(finding) for finding in value] if key == "findings" else value
        for key, value in report.items()
        if key not in ("seconds", "shrink_seconds")
    }


def test_reports_do_not_depend_on_how_many_kernels_run_at_a_time(folder: Path) -> None:
    """Verdicts, problems and counts are those of a check from one process; no case is named that nobody asked for."""
    kernels = ("my.py:right", "my.py:forgets_a_row", "up_projection_copy", "aiter_mla_decode")
    options = (*kernels, "--examples", "40", "--seed", "3")
    code, reports = check(*options, cwd=folder)
    assert (code, reports) == check(*options, "--processes", "1", cwd=folder)
    assert [report["kernel"] for report in reports] == [
        "right",
        "forgets_a_row",
        "up_projection_copy",
        "aiter_mla_decode",
    ]
    assert [report["verdict"] for report in reports][:3] == ["pass", "fail", "pass"]
    assert {finding["case"] for finding in reports[1]["findings"]} == {None}


def test_every_process_is_told_what_was_asked_for(folder: Path) -> None:
    """A dtype, cases and a database hold in all of them: a failure is saved, and tried first the next time."""
    options = ("my.py:doubles_float16", "my.py:right", "--cases", "cases", "--database", "known")
    code, (wrong, right) = check(*options, "--dtype", "float16", "--examples", "30", cwd=folder)
    assert (code, wrong["clauses"]["agreement"], right["verdict"]) == (1, "fail", "pass")
    assert load_case(folder / wrong["findings"][0]["case"]).problem.dtype == "float16"
    _, (again, _) = check(*options, "--dtype", "float16", "--examples", "1", cwd=folder)
    assert again["findings"][0]["found_after"] == 1


def test_a_kernel_that_takes_its_search_down_costs_no_other_its_report(folder: Path) -> None:
    """Without a worker of its own its death is `survival`, at the problem that was in flight."""
    kernels = ("my.py:dies_in_the_process_of_its_search", "my.py:right")
    code, (dead, right) = check(*kernels, "--examples", "120", "--cases", "cases", cwd=folder)
    assert code == 1
    assert dead["clauses"]["survival"] == "fail"
    assert dead["clauses"]["coverage"] == "not checked"
    assert "SIGABRT" in dead["findings"][0]["detail"]
    assert load_case(folder / dead["findings"][0]["case"]).problem.num_tokens == 3  # type: ignore[union-attr]
    assert (right["verdict"], right["examples"]) == ("pass", 120)


def test_ctrl_c_reports_what_was_seen_and_passes_nothing(folder: Path) -> None:
    """The whole group is interrupted, as by a terminal: no clause passes, exit code 130."""
    asked = command("my.py:tells_that_it_runs", "my.py:right", "--examples", "1000000")
    with running(asked, cwd=folder) as process:
        wait_until((folder / "launched").exists, process)
        stdout, stderr = interrupted(process)
    assert process.returncode == 130, stdout + stderr
    assert "Traceback" not in stderr
    reports = json.loads(stdout)
    assert [report["kernel"] for report in reports] == ["tells_that_it_runs", "right"]
    assert "pass" not in {verdict for report in reports for verdict in report["clauses"].values()}
    assert "interrupted" in reports[0]["reasons"]["coverage"]


def test_what_triton_s_interpreter_runs_gets_fewer_examples_unless_told(folder: Path) -> None:
    """50 in place of 200; a number that was asked for is everybody's."""
    _, reports = check("triton_up_projection", "my.py:right", cwd=folder)
    assert [report["examples"] for report in reports] == [50, 200]
    _, reports = check("triton_up_projection", "my.py:right", "--examples", "3", cwd=folder)
    assert [report["examples"] for report in reports] == [3, 3]
