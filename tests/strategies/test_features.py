"""How often drawn problems show each hostile feature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis.strategies import SearchStrategy

from strategies.decode import decode_problems
from strategies.features import FEATURES, PAIRS
from strategies.limits import DecodeLimits, UpProjectionLimits
from strategies.up_projection import up_projection_problems
from strategies.vocabulary import DECODE_FORMATS, FP8_FORMATS, WEIGHT_FORMATS

Drawn = Callable[..., "list[Any]"]
STRATEGIES: Final[dict[str, SearchStrategy[Any]]] = {
    "up-projection": up_projection_problems(),
    "quantised up-projection": up_projection_problems(
        UpProjectionLimits(weight_formats=WEIGHT_FORMATS[1:], fp8_formats=FP8_FORMATS)
    ),
    "decode": decode_problems(),
    "quantised decode": decode_problems(DecodeLimits(kv_formats=DECODE_FORMATS, quantised_q="optional")),
}


@pytest.mark.parametrize(
    ("contract", "name"), [(contract, name) for contract in FEATURES for name in FEATURES[contract]]
)
def test_each_feature_is_common_where_it_is_possible(drawn: Drawn, contract: str, name: str) -> None:
    """At least 8 % of the problems that could have a feature have it."""
    feature = FEATURES[contract][name]
    possible = [problem for problem in drawn(STRATEGIES[contract]) if feature.could_have(problem)]
    assert len(possible) >= 200
    assert sum(map(feature.has, possible)) >= 0.08 * len(possible)


@pytest.mark.parametrize(("contract", "name"), [(contract, name) for contract in PAIRS for name in PAIRS[contract]])
def test_pairs_of_features_happen(drawn: Drawn, contract: str, name: str) -> None:
    """At least 1 % of all problems have both features of a named pair."""
    problems = drawn(STRATEGIES[contract])
    assert sum(map(PAIRS[contract][name], problems)) >= 0.01 * len(problems)
