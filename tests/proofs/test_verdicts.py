"""Every verdict on every subject: faults are refuted, their right twins proved, the rest is said to be undecided."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mla_verify.proofs.lowering import Lowered
from mla_verify.proofs.proving import Proved, prove_lowered_flow, scene_of
from mla_verify.proofs.replaying import Reenactment, reenact
from tests.proofs.subjects import FLOWS, SUBJECTS


@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_a_fault_is_refuted_and_everything_else_proved(name: str, decided: Callable[[str], Proved]) -> None:
    """Exactly the properties that a kernel breaks are refuted, at its smallest sizes where those are known."""
    subject = SUBJECTS[name]
    result = decided(name)
    found = {
        outcome: {f"{part.tensor}: {part.property}" for part in result.verdicts if part.outcome == outcome}
        for outcome in ("refuted", "out of class", "unknown")
    }
    assert found == {
        "refuted": subject.refuted,
        "out of class": subject.out_of_class,
        "unknown": subject.unknown,
    }, [part for part in result.verdicts if part.outcome != "proved"]
    for part in result.verdicts:
        if part.outcome == "refuted" and len(subject.refuted) == 1:
            assert [(size, part.sizes[size]) for size, _ in subject.sizes] == list(subject.sizes)
    assert result.holds == (not subject.refuted and not subject.out_of_class and not subject.unknown)


@pytest.mark.parametrize("key", sorted(FLOWS))
def test_the_second_kernel_reads_only_what_the_first_one_stored(
    key: tuple[int, int], lowered: dict[str, Lowered]
) -> None:
    """Two kernels that count splits alike are proved; a reader that counts one more, or does not guard, is refuted."""
    pair, wanted = FLOWS[key]
    sides = [(part.configurations[0], lowered[part.name]) for part in (pair.producer, pair.consumer)]
    verdicts = prove_lowered_flow(pair, sides[0], sides[1], replay=False)
    assert [part.outcome for part in verdicts] == [wanted], verdicts


# One of every kind of refutation, launched.
_LAUNCHED = (
    "bmm, mask N - 1",
    "bmm, mask N + 1",
    "bmm, floor grid",
    "bmm, K unmasked",
    "overlapping tiles",
    "ragged, fault 1",
    "tail, moved back",
    "in place, from a neighbour",
    "column-major tiles, strides swapped",
    "merge, guard 1, any D",
)

_TWINS = {"bmm, mask N + 1": "bmm", "in place, from a neighbour": "in place"}


def _twin_of(right: str, result: Proved) -> Reenactment:
    """What refutes one kernel, as a launch of the right one."""
    twin = SUBJECTS[right].proof
    (refuted,) = [part for part in result.verdicts if part.outcome == "refuted"]
    return scene_of([twin], [twin.configurations[0]], refuted)


def test_a_refutation_shows_in_the_kernel_itself(lowered: dict[str, Lowered], decided: Callable[[str], Proved]) -> None:
    """At refuted sizes the recorder and the secrets find the same; at the same sizes the right twin shows nothing."""
    scenes: list[Reenactment] = []
    for name in _LAUNCHED:
        proof = SUBJECTS[name].proof
        refuted = [part for part in decided(name).verdicts if part.outcome == "refuted"]
        scenes += [scene_of([proof], [proof.configurations[0]], part) for part in refuted]
    pair, _ = FLOWS[1, 0]
    sides = [(part.configurations[0], lowered[part.name]) for part in (pair.producer, pair.consumer)]
    (flow,) = prove_lowered_flow(pair, sides[0], sides[1], replay=False)
    scenes.append(scene_of([pair.producer, pair.consumer], [side[0] for side in sides], flow))
    twins = [_twin_of(right, decided(name)) for name, right in _TWINS.items()]
    results = reenact([*scenes, *twins])
    assert [result.shown for result in results] == [True] * len(scenes) + [False] * len(twins), results
