"""Verdicts on kernels that nobody chose, against brute force over all sizes up to 20.

By default 12 kernels; `MLA_VERIFY_RANDOM_KERNELS=200 python -m pytest -s tests/proofs/test_random_kernels.py` for more.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from mla_verify.proofs.lowering import Request, lower
from mla_verify.proofs.proving import prove_lowered
from tests.proofs.random_kernels import Recipe, all_sizes, brute_force, proof_of, recipes, source_of

_KERNELS: Final = int(os.environ.get("MLA_VERIFY_RANDOM_KERNELS", "12"))
_HEAD: Final = "import triton\nimport triton.language as tl\n\n"


def drawn(count: int) -> list[Recipe]:
    """So many different recipes, always the same ones."""
    found: dict[Recipe, None] = {}

    @settings(
        max_examples=count * 2,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
        deadline=None,
    )
    @given(recipes)
    def collect(recipe: Recipe) -> None:
        found[recipe] = None

    collect()
    return list(found)[:count]


def test_no_verdict_is_contradicted_by_brute_force(tmp_path: Path) -> None:
    """Nothing proved is false at any size up to 20, nothing refuted is true at its sizes, and most is decided."""
    chosen = drawn(_KERNELS)
    file = tmp_path / "random_kernels_in_triton.py"
    file.write_text(_HEAD + "\n\n".join(source_of(recipe, f"kernel_{n}") for n, recipe in enumerate(chosen)))
    proofs = [proof_of(recipe, f"{file}:kernel_{n}") for n, recipe in enumerate(chosen)]
    texts = lower([Request(proof.kernel, proof.pointers, {}, {}) for proof in proofs])
    undecided: list[str] = []
    proved = refuted = resting = 0
    for recipe, proof, text in zip(chosen, proofs, texts, strict=True):
        truths = {sizes: brute_force(recipe, *sizes) for sizes in all_sizes()}
        for verdict in prove_lowered(proof, {}, text, cache=False, replay=False).verdicts:
            attribute = {"coverage": "covered", "containment": "contained", "race": "alone"}.get(verdict.property)
            if attribute is None:
                continue
            if verdict.outcome == "proved":
                proved += 1
                broken = [sizes for sizes, truth in truths.items() if not getattr(truth, attribute)]
                assert not broken, (recipe, verdict, broken[:3])
            elif verdict.outcome == "refuted":
                refuted += 1
                at = brute_force(recipe, verdict.sizes["M"], verdict.sizes["N"])
                assert not getattr(at, attribute), (recipe, verdict)
            elif "not every index is contained" in verdict.detail:
                resting += 1
            else:
                undecided.append(f"{recipe}: {verdict.property}: {verdict.detail}")
    print(  # seen with -s
        f"{len(chosen)} kernels: {proved} verdicts proved, {refuted} refuted, {len(undecided)} undecided, "
        f"{resting} races undecided because a store leaves its tensor"
    )
    assert proved > len(chosen) // 2
    assert refuted > len(chosen) // 4
    if len(undecided) > len(chosen) // 3:
        pytest.fail(f"{len(undecided)} of {3 * len(chosen)} verdicts are undecided: {undecided[:3]}")
