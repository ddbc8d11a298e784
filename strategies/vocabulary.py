"""The words a problem may use for its dtype and its regime of values, the simplest of each first."""

from __future__ import annotations

from typing import Final

__all__ = [
    "DECODE_FORMATS",
    "DECODE_REGIMES",
    "DECODE_SCALES",
    "DTYPES",
    "FP8_FORMATS",
    "ITEM_BYTES",
    "QUANTISED_GROUPS",
    "ROUND_SCALES",
    "UP_PROJECTION_REGIMES",
    "WEIGHT_FORMATS",
]

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

DECODE_FORMATS: Final = ("plain", "e4m3fn", "e4m3fnuz", "e5m2")  # of q and of the cache: in the problem's dtype, or fp8

# What a code is multiplied by, as the shortest decimal of a float32. At most four significant bits: times the four of
# an fp8 number this fits into bfloat16, so that a cached row dequantised is exact in every dtype.
ROUND_SCALES: Final = ("1", "0.5", "0.75", "1.375", "2")
DECODE_SCALES: Final = (
    *ROUND_SCALES,
    "0.0123",  # values up to 4 fill e4m3fn, and saturate the smaller e4m3fnuz
    "0.007",  # both saturate
    "37",  # values become subnormal codes
    "300",  # most underflow, to 0x80 if negative
)

WEIGHT_FORMATS: Final = (  # of the up-projection's weight
    "plain",  # in the problem's dtype
    "fp8",  # codes of one of FP8_FORMATS, and one scale for all of them
    "mxfp4",  # packed pairs of e2m1 codes, and an e8m0 scale for every block
)
FP8_FORMATS: Final = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")
QUANTISED_GROUPS: Final[dict[str, int]] = {"fp8": 128, "mxfp4": 32}  # latent columns that share a scale of x
