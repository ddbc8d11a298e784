"""The command `prove`: exit codes, JSON, cases, what is remembered, and what is said of a wrong request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mla_verify.cases import case_files
from mla_verify.errors import ExitCode, UsageError
from mla_verify.proofs import Layout, Proof
from mla_verify.proofs.caching import key_of, recall, remember
from mla_verify.proofs.launches import Seen, complaints
from mla_verify.proofs.proving import Proved
from mla_verify.proofs.verdicts import Outcome, Verdict
from mla_verify.proving import Proven, exit_code, prove_command
from mla_verify.refutations import launchable, load_refutation
from mla_verify.replaying import replay_paths
from mla_verify.reports.page_tables import extra_tables
from tests.proofs.subjects import RIGHT, WRONG

_WORST_FIRST = ("refuted", "unknown", "out of class", "proved")
_SUBJECTS = str(Path(__file__).with_name("subjects.py"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(*names: str, cases: Path | None = None) -> ExitCode:
    """`mla-verify prove --json` on subjects."""
    targets = [f"{_SUBJECTS}:{name}" for name in names]
    return prove_command(targets, cache=True, launches=False, cases=cases, as_json=True)


def test_only_what_is_proved_is_success(capsys: pytest.CaptureFixture[str]) -> None:
    """All proved is 0, and the second time it is remembered; what is out of class is 3."""
    assert run("RIGHT") == ExitCode.HOLDS
    first = json.loads(capsys.readouterr().out)
    assert first[0]["verdict"] == "proved"
    assert run("RIGHT") == ExitCode.HOLDS
    second = json.loads(capsys.readouterr().out)
    assert second[0]["proofs"][0]["remembered"]
    assert second[0]["proofs"][0]["properties"] == first[0]["proofs"][0]["properties"]
    assert run("UNDECIDED") == ExitCode.UNAVAILABLE


def test_of_several_targets_a_refutation_comes_before_what_is_undecided() -> None:
    """1 comes before 3, an untrue declaration is 1 as well, and nothing decided is no success."""

    def target(*outcomes: Outcome, complaints: tuple[str, ...] = ()) -> Proven:
        verdicts = tuple(Verdict("race", outcome) for outcome in outcomes)
        return Proven("k.py:K", (Proved("k", {}, verdicts, (), 0.0),), complaints)

    assert exit_code([target("unknown"), target("refuted"), target("proved")]) == ExitCode.VIOLATION
    assert exit_code([target("proved"), target("out of class", "proved")]) == ExitCode.UNAVAILABLE
    assert exit_code([target("proved", complaints=("another grid",))]) == ExitCode.VIOLATION
    assert exit_code([target("proved")]) == ExitCode.HOLDS
    assert exit_code([target()]) == ExitCode.UNAVAILABLE


def test_a_refutation_is_launched_saved_and_launched_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A refutation is 1, says what the secrets found, and its case still shows on the kernel and not on its twin."""
    assert run("WRONG", cases=tmp_path) == ExitCode.VIOLATION
    wrong = json.loads(capsys.readouterr().out)[0]["proofs"][0]["properties"]
    (refuted,) = [part for part in wrong if part["outcome"] == "refuted"]
    assert refuted["sizes"]["N"] == 1
    assert "never written" in refuted["detail"]
    (case,) = tmp_path.glob("*.refuted.json")
    text = case.read_text().replace("early return, too early", "early return")
    twin = tmp_path / "twins" / "one.json"
    twin.parent.mkdir()
    twin.write_text(text.replace('"FAULT": 1', '"FAULT": 0'))
    (shown,) = replay_paths([twin], kernel=f"{_SUBJECTS}:RIGHT", device="cpu", isolation="none")
    assert (shown.outcome, shown.kernel) == ("now passes", "early return")
    (again,) = replay_paths([tmp_path], kernel=f"{_SUBJECTS}:WRONG", device="cpu", isolation="none")
    (unnamed,) = replay_paths([tmp_path], kernel=None, device="cpu", isolation="none")
    assert (again.outcome, again.exit_code, again.to_json()["problem"]) == ("still fails", 1, "N=1, sc=2")
    assert "never written" in again.detail
    assert (unnamed.outcome, unnamed.exit_code) == ("unreadable", ExitCode.USAGE)
    assert "name the declaration with --kernel" in unnamed.detail


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nobody", "no declaration"),
        (f"{_SUBJECTS}:SUBJECTS", "wanted a mla_verify.proofs.Proof or Flow"),
        (f"{_SUBJECTS}:NOTHING", "holds no NOTHING"),
        ("no_such_file.py:X", "there is no file"),
    ],
)
def test_a_wrong_target_is_told(target: str, said: str) -> None:
    """One sentence that says what is wanted."""
    with pytest.raises(UsageError, match=said):
        prove_command([target], cache=False, launches=False, cases=None, as_json=True)


def refutation(**changes: Any) -> dict[str, Any]:
    """A whole file."""
    return {
        "format": "mla-verify refutation 1",
        "target": "triton_up_projection",
        "name": "triton_up_projection",
        "constexprs": {"BLOCK_TOKENS": 16, "BLOCK_RANK": 16, "BLOCK_VALUE": 16},
        "property": "coverage",
        "tensor": "out_ptr",
        "sizes": {"num_tokens": 1},
        "tables": {},
        "detail": "",
        "versions": {},
    } | changes


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({}, "is no refutation, wanted"),
        ([], "is no refutation, wanted"),
        (refutation(sizes={"num_tokens": "1"}), "its sizes is"),
        (refutation(property=["coverage"]), "its property is"),
        (refutation(property="beauty"), "its property is 'beauty'"),
        (refutation(tables={"t": [1, None]}), "its tables is"),
        (refutation(more=1), "it holds more"),
    ],
)
def test_a_file_that_is_no_refutation_is_refused(held: object, said: str, tmp_path: Path) -> None:
    """Nothing is launched because of a file that is not whole."""
    path = tmp_path / "other.json"
    path.write_text(json.dumps(held))
    with pytest.raises(UsageError, match=said):
        load_refutation(path)


@pytest.mark.parametrize(
    ("changes", "outcome", "said"),
    [
        (
            {"property": "overflow", "tensor": ""},
            "cannot run here",
            "computed, not launched: decide it again",
        ),
        ({"name": "another"}, "unreadable", "declares no 'another'; it declares triton_up_projection"),
        ({"constexprs": {}}, "unreadable", "takes the constexpr BLOCK_RANK now"),
        ({"sizes": {}}, "cannot run here", "could not be launched"),
    ],
)
def test_a_refutation_that_cannot_be_launched_is_told(
    changes: dict[str, Any], outcome: str, said: str, tmp_path: Path
) -> None:
    """`mla-verify replay` says why, in a sentence, and goes on with the other files."""
    path = tmp_path / "one.json"
    path.write_text(json.dumps(refutation(**changes)))
    assert launchable(load_refutation(path)) == ("property" not in changes)
    (shown,) = replay_paths([path], kernel=None, device="cpu", isolation="none")
    assert shown.outcome == outcome
    assert said in shown.detail


def test_refutations_in_a_folder_are_no_cases_of_the_gate(tmp_path: Path) -> None:
    """They lie beside cases, and whoever checks problems does not read them."""
    (tmp_path / "one.refuted.json").write_text(json.dumps(refutation()))
    (tmp_path / "case.json").write_text("{}")
    assert [path.name for path in case_files([tmp_path])] == ["case.json"]


def test_proofs_are_on_the_page_of_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`prove --json` into a report's folder is a table: what of which kernel is refuted, and what is proved."""
    run("RIGHT", "WRONG")
    (tmp_path / "proofs.json").write_text(capsys.readouterr().out)
    (table,) = extra_tables(tmp_path)
    assert table.title.startswith("Proofs")
    cells = [dict(zip(table.head, row, strict=True)) for row in table.rows]
    assert [row["verdict"] for row in cells] == sorted((row["verdict"] for row in cells), key=_WORST_FIRST.index)
    (refuted,) = [row for row in cells if row["verdict"] == "refuted"]
    assert (refuted["kernel"], refuted["property"], refuted["sizes"]) == (WRONG.name, "coverage", "N=1, sc=2")
    assert "never written" in refuted["detail"]
    assert {row["property"] for row in cells if row["kernel"] == RIGHT.name and row["verdict"] == "proved"} == {
        "defined",
        "containment",
        "race",
        "coverage",
    }


def test_a_broken_memory_is_no_memory() -> None:
    """Verdicts come back as they were; what cannot be read is decided again."""
    verdicts = [Verdict("coverage", "refuted", "C", "C[0] is never stored", {"N": 1}, {"T": (0, 1)}, 0.5)]
    key = key_of("text", {"BLOCK": 16})
    assert recall(key) is None
    remember(key, verdicts)
    assert recall(key) == verdicts
    assert recall(key_of("text", {"BLOCK": 32})) is None


def test_a_declaration_that_is_not_what_is_launched_is_told() -> None:
    """Grid, sizes, strides and promises are compared with the launch."""
    import torch

    proof = Proof(
        name="p",
        kernel="m:f",
        pointers={"C": "fp32"},
        configurations=({"BLOCK": 4},),
        grid=("cdiv(N, BLOCK)",),
        layouts=(Layout("C", ("M", "N"), ("stride", "1"), output=True),),
        preconditions=("N <= 8",),
    )
    tensor = torch.zeros(3, 12)[:, :8]
    right = Seen("f", {"C": tensor, "M": 3, "N": 8, "stride": 12, "BLOCK": 4}, (2, 1, 1))
    assert complaints(proof, right) == []
    wrong = Seen("f", {"C": tensor, "M": 3, "N": 9, "stride": 8, "BLOCK": 4}, (2, 3, 1))
    said = " / ".join(complaints(proof, wrong))
    assert "axis x of the grid is declared as cdiv(N, BLOCK) = 3 and is 2" in said
    assert "more axes" in said
    assert "C is declared with (size, stride) [(3, 8), (9, 1)] and has [(3, 12), (8, 1)]" in said
    assert "breaks the promise N <= 8" in said
