"""Survival: however a kernel ends its process, that is a finding at its smallest trigger, and the run goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from mla_verify import check as check_module
from mla_verify import isolation
from mla_verify.check import check
from mla_verify.errors import ExitCode
from mla_verify.fencing import fence_of
from mla_verify.isolation import Sandboxed
from mla_verify.kernel import Kernel, KnownDeviation
from mla_verify.registry import resolve
from mla_verify.report import Report
from sanitizer.fences import Fence
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem
from tests.survival.kernels import HEADS, TOKENS, WAYS
from tests.survival.overreads import SIDES, TENSORS, name_of
from tests.survival.right_kernels import NAMES

FOLDER: Final = Path(__file__).parent / "survival"
EXAMPLES: Final = 30
AFTER, BEFORE, UNFENCED = range(3)  # seeds
UP_PROJECTION: Final = UpProjectionProblem(num_tokens=3, num_heads=2, kv_lora_rank=5, v_head_dim=3)
DECODE: Final = DecodeProblem(
    kv_lens=(3, 5), q_lens=(1, 2), num_heads=2, kv_lora_rank=4, page_size=2, table_slack=1, index_tail=1
)
PROBLEMS: Final[dict[str, Problem]] = {"up-projection": UP_PROJECTION, "decode": DECODE}


def target(file: str, name: str) -> Kernel:
    """A kernel of the folder beside this file, as a worker can load it."""
    return resolve(f"{FOLDER / file}:{name}")


def checked(name: str, **settings: Any) -> Report:
    """A small check of one of the kernels that die."""
    return check(target("kernels.py", name), examples=EXAMPLES, seed=0, **settings)


@pytest.fixture(name="hasty")
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hangs are told from slow calls after a moment, so that a test of them takes seconds."""
    monkeypatch.setattr(isolation, "_SHORTEST", 0.25)
    monkeypatch.setattr(isolation, "_SURE", 4.0)
    monkeypatch.setattr(isolation, "_FIRST", {"fork": 3.0, "spawn": 60.0})
    monkeypatch.setattr(check_module, "_SHRINK_SECONDS", 10.0)


@pytest.mark.parametrize("name", sorted(way.__name__ for way in WAYS))
def test_every_way_to_die_is_a_finding_at_its_smallest_trigger(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """`survival` alone breaks, at three heads and nothing else; the case is saved, and exit code 1 says so."""
    if name == "loops":
        request.getfixturevalue("hasty")
    words = {way.__name__: words for way, words in WAYS.items()}[name]
    report = checked(f"{name}_at_three_heads", cases=tmp_path)
    (finding,) = report.findings
    assert (finding.clause, report.exit_code) == ("survival", ExitCode.VIOLATION)
    assert words in finding.detail
    smallest = UpProjectionProblem(num_heads=HEADS)
    assert replace(finding.problem, seed=0) == smallest  # type: ignore[type-var]
    assert finding.case is not None
    assert json.loads(Path(finding.case).read_text(encoding="utf-8"))["clause"] == "survival"


def test_a_segmentation_fault_is_shrunk_to_its_exact_threshold() -> None:
    """Seven tokens, where six are harmless."""
    (finding,) = checked("segfaults_at_seven_tokens").findings
    assert finding.detail == "the kernel was killed by SIGSEGV"
    assert finding.problem == UpProjectionProblem(num_tokens=TOKENS)


def test_the_run_goes_on_with_other_clauses_and_kernels() -> None:
    """After a death the rest of the examples is run, and the other clauses keep their verdicts."""
    report = checked("segfaults_at_three_heads")
    assert report.examples == EXAMPLES
    assert report.clauses["coverage"].verdict == "pass"


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("contract", "tensor"), [(contract, tensor) for contract, tensors in TENSORS.items() for tensor in tensors]
)
def test_a_read_of_one_element_beside_any_tensor_is_found(contract: str, tensor: str, side: str) -> None:
    """Past the last element or before the first, of inputs, outputs and tables alike: tensor and distance are told."""
    problem = replace(PROBLEMS[contract], seed=AFTER if side == "past" else BEFORE)
    examiner = Sandboxed(target("overreads.py", name_of(contract, side, tensor)), device="cpu")
    try:
        shown = examiner(problem)
    finally:
        examiner.close()
    (finding,) = shown.findings
    assert (finding.clause, finding.tensor, finding.elements) == ("survival", tensor, 1)
    beside = "past the end" if side == "past" else "before the beginning"
    assert finding.detail == (f"the kernel read 4 bytes {beside} of {tensor} (1 element): killed by SIGSEGV")


@pytest.mark.parametrize("name", NAMES)
def test_right_kernels_pass_between_fences(name: str) -> None:
    """None of them reads beside a tensor, so none of them dies."""
    report = check(target("right_kernels.py", name), examples=EXAMPLES, seed=3)
    assert report.findings == ()
    assert report.clauses["survival"].verdict == "pass"


def test_the_side_of_the_fence_belongs_to_the_problem() -> None:
    """Equal problems have equal fences, so that a replay meets the same one; both sides and guards alone are drawn."""
    kernel = Kernel(name="any", contract="up-projection", load=lambda: print)
    fences = [fence_of(replace(UP_PROJECTION, seed=seed), kernel) for seed in (AFTER, BEFORE, UNFENCED)]
    assert fences == [Fence("after"), Fence("before"), None]
    aligned = replace(kernel, preconditions=("aligned_16",))
    assert fence_of(UP_PROJECTION, aligned) == Fence("after", 16)


def test_what_is_declared_or_invalid_is_run_without_fences() -> None:
    """A declared stray write shows as what was declared, and an invalid problem is judged by its refusal."""
    known = KnownDeviation(clause="containment", problems=lambda _: True, reason="writes beside its output")
    strays = Kernel(name="any", contract="up-projection", load=lambda: print, known_deviations=(known,))
    assert fence_of(UP_PROJECTION, strays) is None
    assert fence_of(replace(UP_PROJECTION, invalid="rows"), replace(strays, known_deviations=())) is None


def test_survival_is_only_passed_in_a_process_of_its_own() -> None:
    """Without isolation nobody would have survived a death, and the verdict says so."""
    report = check(target("right_kernels.py", NAMES[0]), examples=3, seed=0, isolation="none")
    assert report.clauses["survival"].verdict == "not checked"
    assert "isolation is off" in report.clauses["survival"].reason
