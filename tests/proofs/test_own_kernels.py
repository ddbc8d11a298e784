"""Our own Triton kernels: every property of every declared configuration is proved.

By default one configuration of each; all of them with `MLA_VERIFY_ALL_PROOFS=1 python -m pytest
tests/proofs/test_own_kernels.py`, and with `mla-verify prove --all`.
"""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

from mla_verify.kernels import triton_proofs
from mla_verify.proofs import Flow, Proof
from mla_verify.proofs.lowering import Lowered, Request, lower
from mla_verify.proofs.proving import prove_lowered, prove_lowered_flow

_ALL: Final = os.environ.get("MLA_VERIFY_ALL_PROOFS", "0") not in ("", "0")
_DECLARED: Final = tuple(getattr(triton_proofs, name) for names in triton_proofs.DECLARED.values() for name in names)
_PROOFS: Final = {part.name: part for part in _DECLARED if isinstance(part, Proof)}
_FLOWS: Final = {part.name: part for part in _DECLARED if isinstance(part, Flow)}
_CASES: Final = [
    (name, number) for name, proof in _PROOFS.items() for number in range(len(proof.configurations) if _ALL else 1)
]


@pytest.fixture(scope="module")
def texts() -> dict[tuple[str, int], Lowered]:
    """The TTIR of every configuration."""
    requests = [_request(_PROOFS[name], _PROOFS[name].configurations[number]) for name, number in _CASES]
    return dict(zip(_CASES, lower(requests), strict=True))


def _request(proof: Proof, configuration: Any) -> Request:
    return Request(proof.kernel, proof.pointers, proof.scalars, configuration)


@pytest.mark.parametrize(("name", "number"), _CASES)
def test_every_property_is_proved(name: str, number: int, texts: dict[tuple[str, int], Lowered]) -> None:
    """At every size that the declaration allows."""
    proof = _PROOFS[name]
    result = prove_lowered(proof, proof.configurations[number], texts[name, number], cache=False)
    assert [verdict for verdict in result.verdicts if verdict.outcome != "proved"] == []
    assert {verdict.property for verdict in result.verdicts} >= {"defined", "containment", "race", "bounds", "overflow"}


@pytest.mark.parametrize("name", sorted(_FLOWS))
def test_a_second_kernel_reads_only_what_the_first_one_stored(name: str, texts: dict[tuple[str, int], Lowered]) -> None:
    """Both count splits alike: scratch that nobody stored is never loaded."""
    pair = _FLOWS[name]
    sides = [(proof.configurations[0], texts[proof.name, 0]) for proof in (pair.producer, pair.consumer)]
    verdicts = prove_lowered_flow(pair, sides[0], sides[1])
    assert [(verdict.tensor, verdict.outcome) for verdict in verdicts] == [
        (tensor, "proved") for tensor in pair.tensors
    ]


@pytest.mark.parametrize("name", sorted(_PROOFS))
def test_there_are_four_configurations(name: str) -> None:
    """Of every kernel at least four, all of them different."""
    configurations = _PROOFS[name].configurations
    assert len({tuple(sorted(part.items())) for part in configurations}) == len(configurations) >= 4
