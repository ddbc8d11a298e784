"""Our own Triton kernels: every property of every declared configuration is proved."""

from __future__ import annotations

from typing import Any

import pytest

from mla_verify.kernels.triton_proofs import ATTEND, MERGE, MERGE_WITHOUT_LSE, SPLITS, UP_PROJECTION
from mla_verify.proofs import Proof
from mla_verify.proofs.lowering import Lowered, Request, lower
from mla_verify.proofs.proving import prove_lowered, prove_lowered_flow

_PROOFS = {proof.name: proof for proof in (UP_PROJECTION, ATTEND, MERGE, MERGE_WITHOUT_LSE)}
_CASES = [(name, number) for name, proof in _PROOFS.items() for number in range(len(proof.configurations))]


@pytest.fixture(scope="module")
def texts() -> dict[tuple[str, int], Lowered]:
    """The TTIR of every configuration."""
    requests = [_request(_PROOFS[name], _PROOFS[name].configurations[number]) for name, number in _CASES]
    return dict(zip(_CASES, lower(requests), strict=True))


def _request(proof: Proof, configuration: Any) -> Request:
    return Request(proof.kernel, proof.pointers, proof.scalars, configuration)


@pytest.mark.parametrize(("name", "number"), _CASES)
def test_every_property_is_proved(name: str, number: int, texts: dict[tuple[str, int], Lowered]) -> None:
    """At every size that the declaration allows, for four configurations each."""
    proof = _PROOFS[name]
    result = prove_lowered(proof, proof.configurations[number], texts[name, number], cache=False)
    assert [verdict for verdict in result.verdicts if verdict.outcome != "proved"] == []
    assert {verdict.property for verdict in result.verdicts} >= {"defined", "containment", "race", "bounds", "overflow"}


def test_merging_reads_only_splits_that_were_attended_to(texts: dict[tuple[str, int], Lowered]) -> None:
    """Stage 2 counts splits as stage 1 does: it never loads scratch that nobody stored."""
    sides = [(proof.configurations[0], texts[proof.name, 0]) for proof in (SPLITS.producer, SPLITS.consumer)]
    verdicts = prove_lowered_flow(SPLITS, sides[0], sides[1])
    assert [(verdict.tensor, verdict.outcome) for verdict in verdicts] == [
        ("parts_ptr", "proved"),
        ("part_lse_ptr", "proved"),
    ]
