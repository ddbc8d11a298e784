"""Sequences: what only earlier problems spoil is `repeatability`, cut to the fewest problems, saved and replayed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from hypothesis.database import InMemoryExampleDatabase

from mla_verify import check as check_module
from mla_verify.cases import Case, case_text, load_case, save_case
from mla_verify.check import check
from mla_verify.errors import UsageError
from mla_verify.histories import shortened
from mla_verify.isolation import Sandboxed
from mla_verify.journal import Journal
from mla_verify.kernel import Kernel, KnownDeviation
from mla_verify.registry import resolve
from mla_verify.remembering import not_as_before
from mla_verify.replaying import Replayer, replay_paths
from mla_verify.report import Report
from sanitizer.audit import Audit
from sanitizer.plan import Element, TensorPlan
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem
from tests.sequences_kernels import FAULTS, RIGHT

FILE: Final = Path(__file__).parent / "sequences_kernels.py"
SEQUENCES: Final = 18  # what a check of 300 problems has
SIMPLEST: Final = UpProjectionProblem()


def number(sequences: int) -> Callable[..., int]:
    """What takes the place of the function that says how many sequences there are."""

    def how_many(*_: object) -> int:
        return sequences

    return how_many


def no_search(*_: object, **__: object) -> None:
    """What takes the place of a search that finds nothing."""


def target(name: str) -> Kernel:
    """A kernel that remembers, as a worker can load it."""
    return resolve(f"{FILE}:kernel_{name}")


@pytest.fixture(name="only_sequences")
def _only_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """One problem by itself, then as many sequences as come with three hundred."""
    monkeypatch.setattr(check_module, "_how_many_sequences", number(SEQUENCES))


def checked(name: str, **settings: Any) -> Report:
    """A check of one of the kernels that remember."""
    options: dict[str, Any] = {"examples": 1, "seed": 0, **settings}
    return check(target(name), **options)


@pytest.mark.parametrize("name", sorted(kernel.name for kernel in FAULTS))
@pytest.mark.usefixtures("only_sequences")
def test_what_a_kernel_remembers_wrongly_is_found_and_cut_to_the_fewest_problems(name: str) -> None:
    """One problem before the one that fails, where one is enough; the finding names it and says how it shows."""
    (finding,) = checked(name).findings
    assert finding.clause == "repeatability"
    assert finding.detail.startswith("after (")
    assert len(finding.after) == (6 if name == "wrong_after_calls" else 1)


@pytest.mark.parametrize("name", sorted(kernel.name for kernel in RIGHT))
def test_a_kernel_that_remembers_rightly_is_not_blamed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for these shapes and lengths, a workspace that grows: sequences pass, and the report counts them."""
    monkeypatch.setattr(check_module, "_how_many_sequences", number(8))
    report = checked(name)
    assert report.verdict == "pass"
    assert report.to_json()["sequences"] == report.sequences >= 8


def test_a_problem_that_fails_only_after_others_is_no_failure_of_its_own() -> None:
    """The search among single problems shares a process too: what a new one does not show is traced to its cause."""
    report = checked("ticket_not_reset", examples=30)
    assert {finding.clause for finding in report.findings} == {"repeatability"}
    (finding,) = report.findings
    assert finding.after
    assert "coverage" in finding.detail


def test_a_suspicion_that_no_sequence_confirms_is_traced_through_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sequences find nothing, what the process had been given before is cut down instead."""
    monkeypatch.setattr("mla_verify.sequences.SequenceSearch.run", no_search)
    (finding,) = checked("wrong_after_calls", examples=20).findings
    assert (finding.clause, len(finding.after)) == ("repeatability", 6)


@pytest.mark.usefixtures("only_sequences")
def test_a_case_holds_the_problems_before_it_and_replays_with_them(tmp_path: Path) -> None:
    """The saved sequence still fails on its kernel, in a new process, and passes on a right one."""
    (finding,) = checked("plan_by_shapes", cases=tmp_path).findings
    assert finding.case is not None
    path = Path(finding.case)
    assert load_case(path).after == finding.after
    (still,) = replay_paths([path], kernel=f"{FILE}:kernel_plan_by_shapes", device="cpu", isolation="process")
    assert still.outcome == "still fails"
    assert still.finding is not None
    assert still.finding.clause == "repeatability"
    right = f"{FILE}:kernel_plan_by_shapes_and_lengths"
    (mended,) = replay_paths([path], kernel=right, device="cpu", isolation="process")
    assert mended.outcome == "now passes"
    (here,) = replay_paths([path], kernel=right, device="cpu", isolation="none")
    assert (here.outcome, "in a new process" in here.detail) == ("cannot run here", True)


def test_a_sequence_whose_last_problem_fails_by_itself_still_fails(tmp_path: Path) -> None:
    """What a process left behind in flight may have needed no sequence at all."""
    kernel = resolve("tests/survival/kernels.py:segfaults_at_three_heads")
    case = case_of(UpProjectionProblem(num_heads=3), (UpProjectionProblem(num_heads=2),), clause="survival")
    replayer = Replayer(device="cpu", isolation="process")
    try:
        shown = replayer(tmp_path, case, kernel)
    finally:
        replayer.close()
    assert shown.outcome == "still fails"
    assert shown.finding is not None
    assert shown.finding.clause == "survival"


@pytest.mark.usefixtures("only_sequences")
def test_a_known_deviation_excuses_a_sequence_and_is_seen() -> None:
    """Declared under `repeatability`, it is reported as known; nothing else breaks."""
    known = KnownDeviation(clause="repeatability", problems=lambda _: True, reason="its tickets are not taken back")
    report = check(replace(target("ticket_not_reset"), known_deviations=(known,)), examples=1, seed=0)
    assert report.findings == ()
    assert report.clauses["repeatability"].verdict == "known"


@pytest.mark.usefixtures("only_sequences")
def test_a_sequence_that_broke_is_tried_first_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the database of examples, whatever the seed is."""
    database = InMemoryExampleDatabase()
    assert checked("result_by_address", database=database).findings
    monkeypatch.setattr(check_module, "_how_many_sequences", number(1))
    report = checked("result_by_address", database=database, seed=7)
    assert [finding.clause for finding in report.findings] == ["repeatability"]


def test_where_there_is_no_new_process_the_report_says_that_no_sequence_ran() -> None:
    """In this process a sequence would prove nothing; left out on request, nothing is said."""
    kernel = target("ticket_not_reset")
    report = check(kernel, examples=1, seed=0, isolation="none")
    assert any(note.startswith("sequences of problems not run: isolation is off") for note in report.notes)
    report = check(kernel, examples=1, seed=0, isolation="none", sequences=False)
    assert not any("sequences" in note for note in report.notes)


def test_a_problem_that_comes_again_has_to_give_the_same_bits() -> None:
    """Compared in the worker, within a sequence: a new one begins with nothing to compare."""
    examiner = Sandboxed(target("wrong_after_calls"), device="cpu")
    try:
        before = list[Problem]()
        while len(before) < 6:
            assert examiner.in_turn(SIMPLEST, before).findings == ()
            before.append(SIMPLEST)
        clauses = {finding.clause for finding in examiner.in_turn(SIMPLEST, before).findings}
        assert clauses == {"agreement", "repeatability"}
        assert "repeatability" not in {finding.clause for finding in examiner.in_turn(SIMPLEST, ()).findings}
        examiner.afresh()
        assert examiner.in_turn(SIMPLEST, ()).findings == ()
    finally:
        examiner.close()


def outputs(*values: float) -> Audit:
    """What an audit found in a kernel with one output."""
    return Audit((), {"o": torch.tensor(values)}, {})


def test_only_determined_elements_that_nobody_blames_are_compared() -> None:
    """−0 is not 0; an element without a promise, or with a finding, may be anything."""
    rules = torch.tensor([Element.DETERMINED, Element.DETERMINED, Element.FREE], dtype=torch.uint8)
    plan = TensorPlan(name="o", shape=(3,), strides=(1,), dtype=torch.float32, role="output", rules=rules)
    earlier: dict[Any, dict[str, torch.Tensor]] = {}
    assert not_as_before(earlier, SIMPLEST, outputs(0.0, 1.0, 2.0), [plan]) == []
    assert not_as_before(earlier, SIMPLEST, outputs(0.0, 1.0, 9.0), [plan]) == []
    (finding,) = not_as_before(earlier, SIMPLEST, outputs(-0.0, 1.0, 2.0), [plan])
    assert finding.detail.startswith("o[0] differs from what the same problem gave the first time")
    blamed = replace(outputs(-0.0, 1.0, 2.0), blamed={"o": torch.tensor([True, False, False])})
    assert not_as_before(earlier, SIMPLEST, blamed, [plan]) == []


@pytest.mark.parametrize("needed", [(), (3,), (0, 7), (1, 2, 30), tuple(range(9))])
def test_a_history_is_cut_to_what_is_needed(needed: tuple[int, ...]) -> None:
    """The culprits and nothing else, wherever they lie, in their order."""
    history = list(range(31))
    kept = shortened(history, lambda left: set(needed) <= set(left), is_over=lambda: False)
    assert kept == list(needed)


def test_a_history_that_breaks_nothing_is_given_up() -> None:
    """Nothing is left where nothing breaks, and where there is no time."""
    assert shortened([1, 2, 3], lambda _: False, is_over=lambda: False) is None
    assert shortened([1, 2, 3], lambda _: True, is_over=lambda: True) is None


def case_of(problem: Problem, after: tuple[Problem, ...], clause: str = "repeatability") -> Case:
    """A case with problems before its own."""
    return Case(
        contract="up-projection",
        kernel="my.py:kernel",
        clause=clause,
        tensor="out",
        detail="after others",
        seed=0,
        problem=problem,
        after=after,
        digests={},
        versions={},
    )


def test_the_case_with_fewer_problems_before_it_is_kept(tmp_path: Path) -> None:
    """One file for one failure; a sequence is never taken for the failure of its last problem alone."""
    long, short = (case_of(SIMPLEST, (SIMPLEST,) * count) for count in (3, 1))
    assert {save_case(long, tmp_path), save_case(short, tmp_path), save_case(long, tmp_path)} == {
        save_case(short, tmp_path)
    }
    assert load_case(save_case(long, tmp_path)) == short
    assert save_case(case_of(SIMPLEST, ()), tmp_path) != save_case(short, tmp_path)


def test_a_case_without_problems_before_it_is_written_as_it_always_was() -> None:
    """Older versions can read it."""
    assert "after" not in json.loads(case_text(case_of(SIMPLEST, ())))


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ("no list", "wanted a list of at most 256 problems"),
        ([{}] * 257, "wanted a list of at most 256 problems"),
        ([7], "after, number 0: problem: got 7, wanted a JSON object"),
        ([{"contract": "up-projection"}], "after, number 0: problem: "),
        ("decode", "wanted a valid problem of the case's own contract"),
        ("invalid", "wanted a valid problem of the case's own contract"),
    ],
)
def test_a_hostile_sequence_is_refused_with_one_sentence(tmp_path: Path, after: object, words: str) -> None:
    """What is no list of a few valid problems of the same contract is no case."""
    others: dict[object, Problem] = {
        "decode": DecodeProblem(),
        "invalid": UpProjectionProblem(invalid="out_has_fewer_rows"),
    }
    path = tmp_path / "case.json"
    if isinstance(after, str) and after in others:
        path.write_text(case_text(case_of(SIMPLEST, (others[after],))))
    else:
        path.write_text(json.dumps({**json.loads(case_text(case_of(SIMPLEST, ()))), "after": after}))
    with pytest.raises(UsageError, match=words):
        load_case(path)


def test_the_journal_names_the_problems_before_the_one_in_flight(tmp_path: Path) -> None:
    """What is left behind can be replayed as a sequence."""
    journal = Journal(tmp_path, target("ticket_not_reset"), 0)
    journal(SIMPLEST, (UpProjectionProblem(num_tokens=2),))
    (path,) = (tmp_path / "journal").iterdir()
    assert load_case(path).after == (UpProjectionProblem(num_tokens=2),)
