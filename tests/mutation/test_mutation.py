"""The mutation driver: keys that last, draws that can be repeated, and no survivor without an explanation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tests.mutation.explaining import Fate, explained, fate_of, verdict
from tests.mutation.mutants import Mutant, drawn, row, written

SOURCE: Final = """
def x_area__mutmut_orig(a, b):
    c = a * b
    return c
def x_area__mutmut_1(a, b):
    c = None
    return c
def x_area__mutmut_2(a, b):
    c = a / b
    return c
class Box:
    def xǁBoxǁfull__mutmut_orig(self):
        return self.held >= self.size
    def xǁBoxǁfull__mutmut_1(self):
        return self.held > self.size
"""
NAMES: Final = ("rooms.box.x_area__mutmut_1", "rooms.box.x_area__mutmut_2", "rooms.box.xǁBoxǁfull__mutmut_1")


def _written(folder: Path, source: str = SOURCE) -> list[Mutant]:
    (folder / "box.py").write_text(source)
    (folder / "box.py.meta").write_text(json.dumps({"exit_code_by_key": dict.fromkeys(NAMES)}))
    return written(folder)


def test_a_mutant_is_named_by_its_function_and_shown_by_the_lines_that_change(tmp_path: Path) -> None:
    """A person recognises the change without running anything."""
    first, second, third = _written(tmp_path)
    assert (first.function, first.removed, first.added) == ("rooms.box.area", ("c = a * b",), ("c = None",))
    assert (second.added, second.tested_as) == (("c = a / b",), "rooms.box.x_area")
    assert third.function == "rooms.box.Box.full"
    assert third.removed == ("return self.held >= self.size",)


def test_a_key_outlives_changes_elsewhere_in_the_function(tmp_path: Path) -> None:
    """An explanation stays attached to the line that it explains, and to no other one."""
    before = _written(tmp_path)
    after = _written(tmp_path, SOURCE.replace("return c", "return abs(c)"))
    assert [mutant.key for mutant in after] == [mutant.key for mutant in before]
    changed = _written(tmp_path, SOURCE.replace("a / b", "a // b"))
    assert [old.key == new.key for old, new in zip(before, changed, strict=True)] == [True, False, True]
    assert len({mutant.key for mutant in before}) == 3


def _mutant(number: int) -> Mutant:
    return Mutant(f"{number:010x}", f"m.x_f__mutmut_{number}", "m", "m.f", (f"line {number}",), ("None",))


def test_a_draw_can_be_repeated_and_a_new_mutant_exchanges_at_most_one() -> None:
    """The record of a run stays meaningful while the code goes on."""
    mutants = [_mutant(number) for number in range(100)]
    chosen = drawn(mutants, count=30, seed=7)
    assert chosen == drawn(reversed(mutants), count=30, seed=7)
    assert chosen != drawn(mutants, count=30, seed=8)
    assert len(set(chosen) - set(drawn([*mutants, _mutant(100)], count=30, seed=7))) <= 1


def test_a_death_is_a_kill_and_only_silence_is_survival() -> None:
    """Tests that fail, crash or hang have noticed; tests that pass, or that there are none of, have not."""
    assert [fate_of(code) for code in (1, -11, 70)] == ["killed"] * 3
    assert [fate_of(code) for code in (-24, -9)] == ["timeout"] * 2
    assert (fate_of(0), fate_of(5), fate_of(33)) == ("survived", "no tests", "no tests")


def test_what_survives_without_an_explanation_is_no_success() -> None:
    """Whether its tests passed or it had none."""
    survivor, untested, killed = (_mutant(number) for number in range(3))
    fates: dict[Mutant, Fate] = {survivor: fate_of(0), untested: fate_of(33), killed: fate_of(1)}
    everything = {mutant.key for mutant in fates}
    found = verdict(fates, [], existing=everything)
    assert found.unexplained == (survivor, untested)
    assert not found.good
    assert verdict(fates, [survivor.key, untested.key], existing=everything).good


def test_an_explanation_that_no_longer_holds_is_no_success() -> None:
    """An explained mutant that a test kills, or that is gone, is named; one that was not drawn is left alone."""
    killed, idle = _mutant(0), _mutant(1)
    found = verdict({killed: fate_of(1)}, [killed.key, idle.key, "feedfacade"], existing={killed.key, idle.key})
    assert (found.killed_after_all, found.gone, found.unexplained) == ((killed.key,), ("feedfacade",), ())
    assert not found.good


def test_the_document_is_read_in_the_form_in_which_survivors_are_printed() -> None:
    """A printed row can be pasted."""
    mutants = [_mutant(number) for number in range(3)]
    document = "# Survivors\n\n| key |\n|---|\n" + "\n".join(row(mutant) for mutant in mutants) + "\n"
    assert explained(document) == [mutant.key for mutant in mutants]
