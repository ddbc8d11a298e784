"""TTIR of all subjects, made once."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable

import pytest

from mla_verify.proofs.lowering import Lowered, Request, lower
from mla_verify.proofs.proving import Proved, prove_lowered
from tests.proofs.subjects import FLOWS, SUBJECTS

if importlib.util.find_spec("triton") is None:  # importing it would decide that it compiles, for this whole process
    pytest.skip("needs Triton: pip install triton", allow_module_level=True)
pytest.importorskip("z3", reason="needs z3: pip install z3-solver")


@pytest.fixture(scope="session")
def lowered() -> dict[str, Lowered]:
    """By the declaration's name."""
    proofs = {name: subject.proof for name, subject in SUBJECTS.items()}
    proofs |= {part.name: part for flow, _ in FLOWS.values() for part in (flow.producer, flow.consumer)}
    requests = [Request(part.kernel, part.pointers, part.scalars, part.configurations[0]) for part in proofs.values()]
    return dict(zip(proofs, lower(requests), strict=True))


@pytest.fixture(scope="session")
def decided(lowered: dict[str, Lowered]) -> Callable[[str], Proved]:
    """What comes of a subject, decided once."""

    @functools.cache
    def decide(name: str) -> Proved:
        proof = SUBJECTS[name].proof
        return prove_lowered(proof, proof.configurations[0], lowered[name], cache=False, replay=False)

    return decide
