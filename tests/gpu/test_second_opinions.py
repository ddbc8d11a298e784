"""Second opinions: what other tools report becomes findings, and a report that is not whole proves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import torch

from mla_verify.cases import Case, save_case, versions
from mla_verify.errors import ExitCode, Unavailable, UsageError
from mla_verify.replaying import Replayed
from mla_verify.second_opinions import Allocation, address_sanitizer_opinion, compute_sanitizer_opinion
from mla_verify.under import replay_under, tool_named
from sanitizer.apart import laid_apart
from sanitizer.plan import Fills, TensorPlan
from strategies.layouts import Layout
from strategies.problems import DecodeProblem, UpProjectionProblem

ROOT: Final = Path(__file__).resolve().parents[2]
RECORDED: Final = ROOT / "tests" / "recorded"
FAKE: Final = ROOT / "tests" / "gpu" / "fakes" / "fake_compute_sanitizer.py"
CPU: Final = torch.device("cpu")


def recorded(name: str) -> str:
    """A report as the tool prints it (tests/recorded/README.md)."""
    return (RECORDED / f"{name}.txt").read_text(encoding="utf-8")


def test_an_access_out_of_bounds_is_a_survival_finding() -> None:
    """One finding for one instruction, with the tensor that it missed; the launch failure that followed is none."""
    kv = Allocation("kv_indices", 0x74505BCCC800, 1024)
    opinion = compute_sanitizer_opinion(recorded("compute_sanitizer_memcheck"), tool="memcheck", allocations=[kv])
    (finding,) = opinion.findings
    assert opinion.complete
    assert (finding.clause, finding.tensor, finding.elements) == ("survival", "kv_indices", 2)
    assert finding.detail == (
        "compute-sanitizer memcheck: invalid read of 16 bytes of global memory at matmul_kernel+0xec0 in "
        "matmul_triton2.py:43, 161 bytes after kv_indices, by thread (18,0,0) in block (0,0,0) (2 such)"
    )


def test_an_unknown_allocation_is_told_by_its_size() -> None:
    """Memory that is no tensor of the problem, such as the kernel's own scratch, has no name."""
    (finding,) = compute_sanitizer_opinion(recorded("compute_sanitizer_memcheck"), tool="memcheck").findings
    assert finding.tensor == ""
    assert "161 bytes after an allocation of 1,024 bytes" in finding.detail


def test_an_uninitialised_read_is_dependence_on_memory_that_is_no_input() -> None:
    """initcheck's errors are findings under `independence`, with the tensor that was read."""
    out = Allocation("out", 0x7F3C7EC00000, 256)
    opinion = compute_sanitizer_opinion(recorded("compute_sanitizer_initcheck"), tool="initcheck", allocations=[out])
    (finding,) = opinion.findings
    assert (finding.clause, finding.tensor) == ("independence", "out")
    assert (
        "read 4 uninitialised bytes of global memory at vectorAdd(int *)+0x70 in memset_error.cu:41 of out"
        in finding.detail
    )


def test_a_race_is_a_repeatability_finding_and_a_warning_is_none() -> None:
    """racecheck's errors count; what it only warns of does not."""
    (finding,) = compute_sanitizer_opinion(recorded("compute_sanitizer_racecheck"), tool="racecheck").findings
    assert finding.clause == "repeatability"
    assert "racecheck.cu:12" in finding.detail
    assert "reduce.cu" not in finding.detail


def test_a_launch_failure_alone_is_what_happened() -> None:
    """Where nothing else is reported, the error that the device ended with is the finding."""
    report = "\n".join(
        line
        for line in recorded("compute_sanitizer_memcheck").splitlines()
        if "Invalid" not in line and "  " not in line
    )
    (finding,) = compute_sanitizer_opinion(report, tool="memcheck").findings
    assert (finding.clause, finding.detail.split(": ")[1]) == (
        "survival",
        "the device ended with cudaErrorLaunchFailure (error 719)",
    )


def test_only_a_whole_report_without_errors_is_clean() -> None:
    """A report that breaks off, or none at all, is no pass."""
    clean = compute_sanitizer_opinion(recorded("compute_sanitizer_clean"), tool="memcheck")
    assert (clean.findings, clean.complete) == ((), True)
    for broken in ("", "========= COMPUTE-SANITIZER\n", "no such device\n"):
        assert not compute_sanitizer_opinion(broken, tool="memcheck").complete


def test_the_address_sanitizer_s_first_error_is_read() -> None:
    """What overflowed, where it was written, and on which device; without one, how the program ended decides."""
    (finding,) = address_sanitizer_opinion(recorded("rocm_asan"), finished=False).findings
    assert finding.detail == (
        "address sanitizer: heap-buffer-overflow on amdgpu device 0, a write of 4 bytes in TestKernel(int*) at "
        "hip-dynamic-direct-lbo.cpp:19:10"
    )
    assert address_sanitizer_opinion("", finished=True).complete
    assert not address_sanitizer_opinion("", finished=False).complete


def test_tensors_lie_apart_and_undeclared_elements_are_not_written() -> None:
    """Each tensor has an allocation of exactly its extent; of an input only declared elements are written."""
    values = torch.arange(6.0).view(2, 3)
    live = torch.tensor([[True], [False]])
    plans = [
        TensorPlan(name="x", shape=(2, 3), strides=(5, 1), dtype=torch.float32, role="input", values=values, live=live),
        TensorPlan(
            name="table",
            shape=(4,),
            strides=(1,),
            dtype=torch.int32,
            role="input",
            values=torch.tensor([3, 0, 0, 0], dtype=torch.int32),
            live=torch.tensor([True, False, False, False]),
            fills=Fills(a=7, b=8, z=0),
        ),
        TensorPlan(name="out", shape=(2, 2), strides=(3, 1), dtype=torch.float16, role="output"),
    ]
    laid = laid_apart(plans, CPU)
    assert {name: tensor.untyped_storage().nbytes() for name, tensor in laid.items()} == {
        "x": 8 * 4,
        "table": 4 * 4,
        "out": 5 * 2,
    }
    assert laid["x"][0].tolist() == [0.0, 1.0, 2.0]
    # A kernel that may expect valid page ids in the tail finds them there.
    assert laid["table"].tolist() == [3, 7, 7, 7]


@pytest.mark.parametrize("layout", ["broadcast", "overlapping"])
def test_inputs_that_lie_over_themselves_are_laid_apart(layout: str) -> None:
    """Rows of an input may share memory."""
    from strategies.layouts import strides_of

    strides, _ = strides_of((3, 4), Layout(layout))  # type: ignore[arg-type]  # one of the layouts, as parametrized
    values = torch.ones(3, 4)
    plan = TensorPlan(name="x", shape=(3, 4), strides=strides, dtype=torch.float32, role="input", values=values)
    assert torch.equal(laid_apart([plan], CPU)["x"], values)


PROBLEM: Final = DecodeProblem(kv_lens=(5, 2), q_lens=(1, 1), num_heads=2, kv_lora_rank=4, page_size=2, index_tail=3)


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A saved case of a kernel of ours, which passes by itself."""
    found = Case(
        contract="decode",
        kernel="decode_split_kv_empty",
        clause="independence",
        tensor="o",
        detail="made up",
        seed=0,
        problem=PROBLEM,
        digests={},
        versions=versions(),
    )
    return save_case(found, tmp_path / "cases")


def under(
    case: Path, report: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, check: str = "memcheck"
) -> Replayed:
    """The case under the fake, which reports what it is told to."""
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!{sys.executable}\n{FAKE.read_text(encoding='utf-8')}", encoding="utf-8")
    program.chmod(0o755)
    text = tmp_path / "report.txt"
    text.write_text(report, encoding="utf-8")
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_REPORT", str(text))
    (shown,) = replay_under([case], tool_named(f"compute-sanitizer:{check}"), kernel=None, device="cpu")
    return shown


def test_a_case_fails_where_the_tool_reports_something(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel runs once with tensors of its own, and the report's addresses are told as the problem's tensors."""
    report = recorded("compute_sanitizer_memcheck").replace("0x74505bccc800", "@kv_indices@")
    shown = under(case, report, tmp_path, monkeypatch)
    assert (shown.outcome, shown.exit_code) == ("still fails", ExitCode.VIOLATION)
    assert shown.finding is not None
    assert shown.finding.tensor == "kv_indices"
    assert shown.detail.startswith("survival: compute-sanitizer memcheck: invalid read of 16 bytes")


def test_a_case_passes_where_the_tool_reports_nothing(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole report without errors is a pass under that tool."""
    shown = under(case, recorded("compute_sanitizer_clean"), tmp_path, monkeypatch, check="initcheck")
    assert shown.outcome == "now passes"
    assert shown.detail == "compute-sanitizer:initcheck has nothing to report on one bare call"


def test_a_report_that_breaks_off_is_no_pass(case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is claimed of a tool that did not finish."""
    shown = under(case, "========= COMPUTE-SANITIZER\n", tmp_path, monkeypatch)
    assert (shown.outcome, shown.exit_code) == ("cannot run here", ExitCode.UNAVAILABLE)
    assert "did not finish its report" in shown.detail


def test_invalid_problems_are_not_run_under_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A problem whose tensors lie over each other cannot be laid apart."""
    problem = replace(UpProjectionProblem(), invalid="out_is_x")
    found = Case(
        contract="up-projection",
        kernel="up_projection_direct",
        clause="refusal",
        tensor="",
        detail="made up",
        seed=0,
        problem=problem,
        digests={},
        versions=versions(),
    )
    shown = under(save_case(found, tmp_path / "cases"), recorded("compute_sanitizer_clean"), tmp_path, monkeypatch)
    assert shown.outcome == "cannot run here"


def test_a_tool_that_is_not_installed_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One sentence that says where it comes from; an unknown tool is wrong usage."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    for words in ("compute-sanitizer", "compute-sanitizer:racecheck", "rocm-asan"):
        with pytest.raises(Unavailable, match="is not installed here"):
            tool_named(words)
    for words in ("valgrind", "compute-sanitizer:", "compute-sanitizer:leakcheck", "rocm-asan:all"):
        with pytest.raises(UsageError, match=f"--under '{words}' is unknown"):
            tool_named(words)


def test_the_command_says_what_is_missing(case: Path) -> None:
    """`replay --under` without the tool ends with exit code 3 and one sentence."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
    done = subprocess.run(
        [sys.executable, "-m", "mla_verify", "replay", str(case), "--under", "rocm-asan"],
        cwd=ROOT,
        env={**environment, "ROCM_PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == ExitCode.UNAVAILABLE
    assert done.stderr.startswith("mla-verify: ROCm's address sanitizer is not installed here")
    assert done.stderr.count("\n") == 1
