"""Every seeded fault of a Triton kernel is reported with a program id, by the recorder and where secrets can see it."""

from __future__ import annotations

import pytest

from mla_verify import examine as examining
from mla_verify.examine import Examination, examine
from mla_verify.faults.fault import kernel_of
from mla_verify.faults.triton import RIGHT_SEEDED, SEEDED, Seeded
from mla_verify.loading import open_bench


def shown(seeded: Seeded) -> Examination:
    """What an examination in this process shows of one fault at its problem."""
    return examine(seeded.problem, open_bench(kernel_of(seeded.fault)))


def ids(faults: tuple[Seeded, ...]) -> list[str]:
    """Stable names."""
    return [f"{seeded.fault.name}-{index}" for index, seeded in enumerate(faults)]


@pytest.mark.parametrize("seeded", SEEDED, ids=ids(SEEDED))
def test_a_seeded_fault_is_reported_with_a_program(seeded: Seeded) -> None:
    """The fault's clause fails, and the finding names the kernel and a program of its grid."""
    findings = shown(seeded).findings
    named = [finding for finding in findings if finding.clause == seeded.fault.clauses[0]]
    assert named, findings
    assert seeded.unnamed or "_kernel program" in named[0].detail
    assert all(finding.clause in (*seeded.fault.clauses, "agreement") for finding in findings), findings


@pytest.mark.parametrize("seeded", SEEDED, ids=ids(SEEDED))
def test_the_recorder_finds_whatever_the_secrets_find(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a recorder no clause fails that does not fail with it; its findings have no program ids."""
    with_recorder = shown(seeded)

    def nobody(*, triton: bool) -> None:
        del triton

    monkeypatch.setattr(examining, "recorder", nobody)
    secrets = shown(seeded)
    found = {(finding.clause, finding.tensor) for finding in secrets.findings}
    assert found <= {(finding.clause, finding.tensor) for finding in with_recorder.findings}
    assert seeded.hidden or seeded.fault.clauses[0] in {clause for clause, _ in found}
    told = [finding for finding in with_recorder.findings if finding.clause != "agreement"]
    assert all("program" in finding.detail for finding in told if (finding.clause, finding.tensor) in found), told


@pytest.mark.parametrize("seeded", RIGHT_SEEDED, ids=ids(RIGHT_SEEDED))
def test_a_right_kernel_has_neither_finding_nor_note(seeded: Seeded) -> None:
    """The faulty kernels without their faults pass, and nothing is noted but the interpreter."""
    seen = shown(seeded)
    assert seen.findings == ()
    assert [note.split()[0] for note in seen.notes] == ["interpreted"]
