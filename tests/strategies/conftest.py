"""Draws many problems at once, the same ones in every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

Drawn = Callable[..., "list[Any]"]


@pytest.fixture(scope="session")
def drawn() -> Drawn:
    """A function that draws `count` problems from a strategy, derandomised, and keeps them."""
    kept: dict[tuple[int, int], tuple[SearchStrategy[Any], list[Any]]] = {}

    def draw(strategy: SearchStrategy[Any], *, count: int = 2000) -> list[Any]:
        key = (id(strategy), count)
        if key in kept:
            return kept[key][1]
        problems: list[Any] = []

        @settings(
            max_examples=count,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow],
        )
        @given(strategy)
        def collect(problem: object) -> None:
            problems.append(problem)

        collect()
        kept[key] = (strategy, problems)  # the strategy too, so that its id stays its own
        return problems

    return draw
