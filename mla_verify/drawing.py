"""How Hypothesis is asked for problems: no database, no deadline, no health check, the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis.strategies import SearchStrategy

__all__ = ["SEARCH", "drawn_into"]

SEARCH: Final = (Phase.generate, Phase.shrink)
# A model-sized example is slow and large by nature, and strategies here do not filter.
_NO_OBJECTION: Final = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
    HealthCheck.filter_too_much,
)


def drawn_into(
    function: Callable[[Any], None],
    problems: SearchStrategy[Any],
    *,
    examples: int,
    seed: int,
    phases: tuple[Phase, ...] = SEARCH,
) -> Callable[[], None]:
    """A Hypothesis run that calls `function` with each of `examples` problems; the same seed draws the same ones."""
    run: Callable[[], None] = with_seed(seed)(
        settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=_NO_OBJECTION,
            print_blob=False,
            derandomize=False,
        )(given(problems)(function))
    )
    return run
