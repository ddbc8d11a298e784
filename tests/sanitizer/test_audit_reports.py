"""What an audit hands over beside its verdict: what each secret gave, what an observer saw, words that fit."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from sanitizer.arena import Arena
from sanitizer.audit import audit
from sanitizer.fences import Fence
from sanitizer.finding import Finding
from sanitizer.observing import Scene
from sanitizer.plan import Element, TensorPlan
from sanitizer.secrets import Secret
from tests.sanitizer.problems import COLUMNS, ROWS, clauses, doubling, output, run_audit, source


def test_each_secrets_outputs_are_handed_over_by_its_letter() -> None:
    """Whoever draws a map needs to see what became of an element under each of them."""

    def leaking(tensors: dict[str, Tensor]) -> None:
        tensors["out"][1:].copy_(tensors["x"][1:])

    by_secret = run_audit(leaking).by_secret
    assert sorted(by_secret) == ["A", "B", "Z"]
    first = {letter: outputs["out"][0] for letter, outputs in by_secret.items()}
    assert first["A"].isnan().all()
    assert (first["B"].isfinite() & (first["B"] != 0)).all()
    assert (first["Z"] == 0).all()
    assert all(torch.equal(outputs["out"][1:], source().values[1:]) for outputs in by_secret.values())  # type: ignore[index]


def test_without_guards_nothing_is_said_about_bytes_beside_the_outputs() -> None:
    """An audit with a part left out shows what that part finds, and the rest stays what it is."""

    def straying(tensors: dict[str, Tensor]) -> None:
        tensors["out"][:-1] = 1.0
        tensors["x"].zero_()

    assert clauses(run_audit(straying)) == {"containment", "coverage"}
    assert clauses(run_audit(straying, guards=False)) == {"coverage"}


def test_under_one_secret_alone_nothing_can_differ() -> None:
    """Coverage is still found; dependence needs another secret to show."""

    def leaking(tensors: dict[str, Tensor]) -> None:
        tensors["out"][1:] = torch.where(tensors["out"][1:] == 0, 0.5, tensors["x"][1:])

    assert clauses(run_audit(leaking, secrets=(Secret.A,))) == {"coverage"}
    assert clauses(run_audit(leaking)) == {"coverage", "independence"}


def test_a_finding_about_no_tensor_names_none() -> None:
    """An exception and an exit concern the whole call."""

    def raising_on_nan(tensors: dict[str, Tensor]) -> None:
        if bool(tensors["out"].isnan().any()):
            raise ValueError("NaN in the output buffer")
        doubling(tensors)

    def raising(_: dict[str, Tensor]) -> None:
        raise ValueError("no such problem")

    def exiting(_: dict[str, Tensor]) -> None:
        raise SystemExit(3)

    (dependent,) = run_audit(raising_on_nan).findings
    assert dependent == Finding(
        "independence",
        "",
        0,
        "raised only under A, secrets in memory that is no input: ValueError: NaN in the output buffer",
    )
    (refused,) = run_audit(raising).findings
    assert refused == Finding("refusal", "", 0, "raised on a valid problem: ValueError: no such problem")
    (ended,) = run_audit(exiting).findings
    assert ended == Finding("survival", "", 0, "the kernel ended the process: SystemExit(3)")


@pytest.mark.parametrize(
    ("raises_in", "words"),
    [
        ({0}, "raised only on the first call: RuntimeError: now"),
        ({1, 2, 3}, "raised only when called again: RuntimeError: now"),
        ({2}, "raised only under B, secrets in memory that is no input: RuntimeError: now"),
        ({2, 3}, "raised only under B and Z, secrets in memory that is no input: RuntimeError: now"),
        ({3, 4}, "raised in some calls and not in others: RuntimeError: now"),
    ],
    ids=["first", "later", "B", "B-and-Z", "unsteady"],
)
def test_an_exception_in_some_calls_is_told_by_which(raises_in: set[int], words: str) -> None:
    """Calls come in this order: the warm-up and A, then A, B, Z, and A once more where that decides."""
    calls = iter(range(100))

    def kernel(tensors: dict[str, Tensor]) -> None:
        if next(calls) in raises_in:
            raise RuntimeError("now")
        doubling(tensors)

    (finding,) = run_audit(kernel).findings
    assert finding.detail == words
    assert finding.clause == ("independence" if "secrets" in words else "repeatability")


def test_a_write_to_a_dead_element_is_told_from_one_to_an_input() -> None:
    """Nobody owns an unused slot, so nobody's input was changed; both at once are two findings."""
    live = torch.ones(ROWS, 1, dtype=torch.bool)
    live[1] = False

    def kernel(tensors: dict[str, Tensor]) -> None:
        tensors["out"].copy_(torch.full((ROWS, COLUMNS), 2.0))
        tensors["x"][1:, 2].fill_(5.0)

    input_changed, slot_changed = run_audit(kernel, source(live=live), output()).findings
    assert (input_changed.tensor, input_changed.elements) == ("x", 1)
    assert input_changed.detail.startswith("input x[2, 2] was changed")
    assert (slot_changed.tensor, slot_changed.elements) == ("x", 1)
    assert slot_changed.detail.startswith("x[1, 2] was changed, where no request owns it")


def test_a_write_to_an_untouched_row_is_told_from_one_by_who_must_not_write_at_all() -> None:
    """Before refusing, no element may be written; of a valid problem's output only the untouched ones."""
    rules = torch.tensor([[Element.DETERMINED], [Element.DETERMINED], [Element.UNTOUCHED]], dtype=torch.uint8)
    arena = Arena()
    arena.load((source(), output(rules=rules)))
    arena.poison(Secret.A)
    arena.tensors()["out"][1:, 0] = 1.0
    untouched, written = arena.stray(outputs=False)
    assert untouched.detail.startswith("out[2, 0] was written, which had to stay untouched")
    assert written.detail.startswith("out[1, 0] was written")
    assert "untouched" not in written.detail


class Watching:
    """Keeps the scenes that it was shown, and one remark."""

    def __init__(self) -> None:
        self.scenes: list[Scene] = []
        self.inside = 0

    @contextmanager
    def watching(self, scene: Scene) -> Generator[None, None, None]:
        """Counts the calls that happen in here."""
        self.scenes.append(scene)
        self.inside += 1
        yield
        self.inside -= 1

    def joined(self, findings: Sequence[Finding]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
        """The findings, and how many runs there were."""
        return (*findings, Finding("repeatability", "out", 1, "seen")), (f"{len(self.scenes)} runs",)


def test_an_observer_sees_every_run_and_has_the_last_word() -> None:
    """It is shown the tensors, what is known about them, all scratch, and where nobody may look."""
    observer, workspace, kept = Watching(), torch.zeros(5), list[Tensor]()

    def kernel(tensors: dict[str, Tensor]) -> None:
        assert observer.inside == 1
        if not kept:
            kept.append(torch.empty(7))
        kept[0].fill_(1.0)
        doubling(tensors)

    arena = Arena()
    arena.load((source(), output()), fence=Fence())
    result = audit(kernel, arena, observer=observer, workspaces=lambda: [workspace], zeroed_workspace=True)
    assert [finding.detail for finding in result.findings] == ["seen"]
    assert result.notes == (f"{len(observer.scenes)} runs",)
    assert len(observer.scenes) >= 4
    last = observer.scenes[-1]
    assert last.tensors.keys() == last.plans.keys() == {"x", "out"}
    assert all(isinstance(plan, TensorPlan) and plan.name == name for name, plan in last.plans.items())
    assert last.tensors["x"].data_ptr() == arena.tensors()["x"].data_ptr()
    assert (last.interceptor.secret, last.zeroed_workspace) == (Secret.Z, True)
    assert [tensor.data_ptr() for tensor in last.workspaces] == [workspace.data_ptr()]
    assert [scratch.shape for scratch in last.kept] == [(7,)]
    assert list(last.strips) == list(arena.strips)
    assert len(last.strips) == 3


def test_a_kept_tail_is_found_by_every_audit_and_not_only_the_first() -> None:
    """What a kept workspace never had written stays a secret for as long as it is kept."""
    kept: list[Tensor] = []

    def kernel(tensors: dict[str, Tensor]) -> None:
        if not kept:
            kept.append(torch.empty(ROWS + 1, COLUMNS))
        kept[0][:ROWS] = tensors["x"]
        tensors["out"].copy_(kept[0][:ROWS] * 2 + kept[0][-1].nan_to_num(0.0))

    arena = Arena()
    for _ in range(3):
        assert clauses(run_audit(kernel, arena=arena)) == {"independence"}


def test_outputs_that_a_kernel_returns_may_owe_less() -> None:
    """Rules for returned outputs stand beside those of the plans."""

    def kernel(tensors: dict[str, Tensor]) -> Mapping[str, Tensor]:
        made = torch.empty(ROWS, COLUMNS)
        made[:-1] = tensors["x"][:-1]
        return {"made": made}

    rules = torch.tensor([[Element.DETERMINED], [Element.DETERMINED], [Element.FREE]], dtype=torch.uint8)
    assert clauses(run_audit(kernel, source())) == {"coverage"}
    assert run_audit(kernel, source(), returned_rules={"made": rules}).findings == ()


def test_a_returned_part_of_the_callers_memory_is_judged_like_the_whole() -> None:
    """What nobody wrote there is known to be the secret, wherever the view begins."""

    def kernel(tensors: dict[str, Tensor]) -> Mapping[str, Tensor]:
        tensors["out"][:-1].copy_(tensors["x"][:-1])
        return {"head": tensors["out"][0], "tail": tensors["out"][-1, 1:]}

    found = {finding.tensor: (finding.clause, finding.elements) for finding in run_audit(kernel).findings}
    assert found == {"out": ("coverage", COLUMNS), "tail": ("coverage", COLUMNS - 1)}
