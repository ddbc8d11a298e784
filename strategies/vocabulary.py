"""The words a problem may use for its dtype and its regime of values, the simplest of each first."""

from __future__ import annotations

from typing import Final

__all__ = ["DECODE_REGIMES", "DTYPES", "ITEM_BYTES", "UP_PROJECTION_REGIMES"]

ITEM_BYTES: Final[dict[str, int]] = {"float32": 4, "float16": 2, "bfloat16": 2}
DTYPES: Final = tuple(ITEM_BYTES)

UP_PROJECTION_REGIMES: Final = (
    "exact",  # small integers: every right kernel gives the same bits
    "gaussian",
    "extreme",  # mixed magnitudes, capped so that few elements go unjudged
    "special",  # signed zeros, subnormals, infinities
)
DECODE_REGIMES: Final = (
    "retrieval",  # one key dominates: the answer is one cached row
    "uniform",  # a zero query: the answer is a mean
    "gaussian",
    "extreme",
    "special",  # signed zeros and subnormals
)
