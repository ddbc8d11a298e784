"""How Hypothesis is asked for problems: no deadline, no health check, a database only where one is named.

Note [The seed decides]: Hypothesis takes one draw in twenty from the constants in whatever modules of the user are
loaded. A problem would then follow from the seed and from the text of the kernel under test, from where mla-verify is
installed and from what else this process has imported: the same seed would draw other problems once the kernel has
been mended. Our menus say what is worth drawing, so that nothing is lost without those constants.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis.database import ExampleDatabase
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.stateful import RuleBasedStateMachine, get_state_machine_test
from hypothesis.strategies import SearchStrategy

__all__ = ["SEARCH", "TimeUp", "drawn_into", "sequences_of"]

SEARCH: Final = (Phase.generate, Phase.shrink)
# A model-sized example is slow and large by nature, and strategies here do not filter.
_NO_OBJECTION: Final = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
    HealthCheck.filter_too_much,
)

_CONSTANT: Final = "_maybe_draw_constant"  # the method by which Hypothesis takes a constant, or none


class TimeUp(KeyboardInterrupt):
    """Ends a Hypothesis run at once: it passes every other exception on to its shrinker."""


def drawn_into(
    function: Callable[[Any], None],
    problems: SearchStrategy[Any],
    *,
    examples: int,
    seed: int,
    phases: tuple[Phase, ...] = SEARCH,
    database: ExampleDatabase | None = None,
    key: str = "",
) -> Callable[[], None]:
    """A Hypothesis run that calls `function` with each of `examples` problems; the same seed draws the same ones.

    database: what failed before is tried first, and what fails is saved, under `key`.
    """
    # The seed comes first: asking for one takes the database away again.
    run: Callable[[], None] = _settings(examples, phases, database)(with_seed(seed)(given(problems)(function)))
    return _saved_under(key, run)


def sequences_of(
    machine: type[RuleBasedStateMachine],
    *,
    sequences: int,
    steps: int,
    seed: int,
    phases: tuple[Phase, ...] = SEARCH,
    database: ExampleDatabase | None = None,
    key: str = "",
) -> Callable[[], None]:
    """A Hypothesis run of so many sequences of so many rules of `machine`; otherwise like `drawn_into`."""
    chosen = settings(_settings(sequences, phases, database), stateful_step_count=steps)
    run = get_state_machine_test(with_seed(seed)(machine), settings=chosen)
    # As above; here the seed is taken over without the database being taken away.
    return _saved_under(key, run)


def _settings(examples: int, phases: tuple[Phase, ...], database: ExampleDatabase | None) -> settings:
    return settings(
        max_examples=examples,
        database=database,
        deadline=None,
        phases=phases if database is None else (Phase.reuse, *phases),
        report_multiple_bugs=False,
        suppress_health_check=_NO_OBJECTION,
        print_blob=False,
        derandomize=False,
    )


def _saved_under(key: str, run: Callable[[], None]) -> Callable[[], None]:
    # Hypothesis would take a digest of the function's source, which is one and the same for every kernel.
    vars(run)["_hypothesis_internal_database_key"] = key.encode()

    def by_the_seed() -> None:
        with _without_constants():
            run()

    return by_the_seed


@contextmanager
def _without_constants() -> Generator[None, None, None]:
    """See Note [The seed decides]. Older versions of Hypothesis know no constants."""
    drawing: Any = getattr(HypothesisProvider, _CONSTANT, None)
    if drawing is None:
        yield
        return
    setattr(HypothesisProvider, _CONSTANT, _none)
    try:
        yield
    finally:
        setattr(HypothesisProvider, _CONSTANT, drawing)


def _none(*_: object, **__: object) -> None:
    """No constant at all."""
