"""Number formats of 8 bits and less: what each code means, and which code a number becomes.

Here belong the six formats that quantised kernels store weights, activations and scales in, as tables and vector
operations that run on any device. How a contract quantises a tensor (groups, amax, scales) belongs to the contract.
"""

from __future__ import annotations

from mla_verify.formats.codes import decode, encode, exponent_codes, pack_pairs, unpack_pairs
from mla_verify.formats.definitions import E8M0, FLOATS_8, FORMATS, Format, dtype_of_format, format_of_dtype, table_of
from mla_verify.formats.rounding import neighbours

__all__ = [
    "E8M0",
    "FLOATS_8",
    "FORMATS",
    "Format",
    "decode",
    "dtype_of_format",
    "encode",
    "exponent_codes",
    "format_of_dtype",
    "neighbours",
    "pack_pairs",
    "table_of",
    "unpack_pairs",
]
