"""The seed decides which problems are drawn, and nothing else that this process holds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis.internal.conjecture.providers import HypothesisProvider

from mla_verify.drawing import drawn_into
from strategies.decode import decode_problems

EXAMPLES = 150


def drawn(seed: int) -> list[Any]:
    """The problems of one run."""
    problems: list[Any] = []

    def look(problem: Any) -> None:
        problems.append(problem)

    drawn_into(look, decode_problems(), examples=EXAMPLES, seed=seed, phases=(Phase.generate,))()
    return problems


def drawn_by_hypothesis_alone(seed: int) -> list[Any]:
    """The same without our precautions."""
    problems: list[Any] = []

    @settings(max_examples=EXAMPLES, database=None, deadline=None, phases=(Phase.generate,))
    @with_seed(seed)
    @given(decode_problems())
    def look(problem: Any) -> None:
        problems.append(problem)

    look()
    return problems


@pytest.fixture
def module_of_numbers(tmp_path: Path) -> Any:
    """Imports a module of the user's, full of numbers; a worker's other tests must not meet it."""
    path = tmp_path / "kernels_with_numbers.py"
    path.write_text(f"SIZES = {tuple(range(1024))}\n")

    def imported() -> None:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)

    yield imported
    sys.modules.pop(path.stem, None)


def test_what_else_is_imported_changes_no_problem(module_of_numbers: Any) -> None:
    """Hypothesis takes numbers from the user's modules: a kernel that was mended would be given other problems."""
    before, others_before = drawn(3), drawn_by_hypothesis_alone(3)
    module_of_numbers()
    assert drawn(3) == before
    if hasattr(HypothesisProvider, "_maybe_draw_constant"):  # younger than the oldest Hypothesis that we support
        assert drawn_by_hypothesis_alone(3) != others_before


def test_seeds_draw_different_problems_and_hypothesis_is_left_as_it_was() -> None:
    """Another seed is another run; other users of Hypothesis in this process get its constants as ever."""
    before = vars(HypothesisProvider).get("_maybe_draw_constant")
    assert drawn(3) != drawn(4)
    assert vars(HypothesisProvider).get("_maybe_draw_constant") is before
