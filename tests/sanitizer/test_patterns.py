"""What secrets look like, bit by bit: ordinary numbers, marks that name their place, and nothing in between."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from sanitizer.secrets import PERIOD, carrier_view, secret_pattern

CPU = torch.device("cpu")
COUNT = 4_000
# Per format: exponent bits, mantissa bits, bias, and the bits of its quiet NaN.
FORMATS = {
    "float64": (11, 52, 1023, 0x7FF8000000000000),
    "float32": (8, 23, 127, 0x7FC00000),
    "float16": (5, 10, 15, 0x7E00),
    "bfloat16": (8, 7, 127, 0x7FC0),
    "float8_e4m3fn": (4, 3, 7, 0x7F),
    "float8_e5m2": (5, 2, 15, 0x7F),
    "float8_e4m3fnuz": (4, 3, 8, 0x80),
    "float8_e5m2fnuz": (5, 2, 16, 0x80),
    "float8_e8m0fnu": (8, 0, 127, 0xFF),
}
KNOWN = sorted(name for name in FORMATS if hasattr(torch, name))


def _bits(dtype: torch.dtype, fill: float | str, count: int = COUNT) -> list[int]:
    """The patterns as unsigned numbers."""
    words = carrier_view(secret_pattern(dtype, fill, count, CPU)).tolist()  # type: ignore[arg-type]
    return [word % (1 << 8 * dtype.itemsize) for word in words]


def _numbers(dtype: torch.dtype, fill: str) -> Tensor:
    return secret_pattern(dtype, fill, COUNT, CPU).double()  # type: ignore[arg-type]


@pytest.mark.parametrize(("fill", "exponents"), [("ordinary", {-2, -1, 0, 5}), ("ordinary2", {1, 2, 3, 6})])
@pytest.mark.parametrize("name", KNOWN)
def test_ordinary_numbers_have_the_same_few_exponents_in_every_format(
    name: str, fill: str, exponents: set[int]
) -> None:
    """Between a quarter and 128, and never shared between the two patterns, so that those differ everywhere."""
    numbers = _numbers(getattr(torch, name), fill)
    found = {math.frexp(number)[1] - 1 for number in numbers.tolist()}
    assert found == exponents


@pytest.mark.parametrize("name", KNOWN)
def test_ordinary_numbers_use_every_bit_of_the_mantissa_and_both_signs(name: str) -> None:
    """A kernel that drops bits, or takes absolute values, changes what it copies."""
    exponent_bits, mantissa_bits, _, _ = FORMATS[name]
    patterns = _bits(getattr(torch, name), "ordinary")
    # float64's numbers come from 30 random bits, and its last bits stay zero.
    random_bits = range(max(mantissa_bits - 30, 0), mantissa_bits)
    for bit in (*random_bits, *([exponent_bits + mantissa_bits] if name != "float8_e8m0fnu" else [])):
        ones = sum(pattern >> bit & 1 for pattern in patterns)
        assert COUNT // 3 < ones < 2 * COUNT // 3, bit


@pytest.mark.parametrize("name", KNOWN)
def test_nan_is_the_quiet_nan_of_the_format(name: str) -> None:
    """At every place the same bits."""
    assert set(_bits(getattr(torch, name), "nan")) == {FORMATS[name][3]}


@pytest.mark.parametrize("name", KNOWN)
def test_a_mark_is_a_nan_that_names_its_place_where_the_format_has_room(name: str) -> None:
    """A NaN that a kernel wrote is told from one that lay there; eight-bit formats have but one mark."""
    dtype = getattr(torch, name)
    marks = _bits(dtype, "marked")
    assert _numbers(dtype, "marked").isnan().all()
    payload = FORMATS[name][1] - 1
    if payload < 4:
        assert set(marks) == {FORMATS[name][3]}
        return
    quiet = FORMATS[name][3]
    assert all(mark & quiet == quiet for mark in marks)
    assert all(mark >> payload == quiet >> payload for mark in marks)
    assert len(set(marks)) > min(COUNT, 1 << payload) * 0.6
    assert sum(one == other for one, other in pairwise(marks)) <= COUNT / (1 << payload) * 2


INTEGERS = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("name", sorted(INTEGERS))
def test_ordinary_integers_are_small_positive_and_different_in_both_patterns(name: str) -> None:
    """Every width holds them, and no page table would be surprised by one."""
    dtype = getattr(torch, name)
    assert set(_bits(dtype, "ordinary")) == set(range(3, 63))
    assert set(_bits(dtype, "ordinary2")) == set(range(64, 124))
    assert set(_bits(dtype, "nan")) == {(1 << 8 * dtype.itemsize) - 1}


@pytest.mark.parametrize("name", ["int16", "int32", "int64"])
def test_marked_integers_are_negative_and_far_from_minus_one(name: str) -> None:
    """No table holds one at exactly its place; −1 is what tables are padded with."""
    dtype = getattr(torch, name)
    marks = secret_pattern(dtype, "marked", COUNT, CPU)
    largest = torch.iinfo(dtype).max
    assert (marks < -(largest // 5)).all()
    assert (marks > torch.iinfo(dtype).min).all()
    assert marks.unique().numel() > COUNT * 0.6
    assert int(marks.max()) - int(marks.min()) > min(largest // 9, 1 << 29)


def test_a_mark_in_one_byte_is_an_ordinary_number() -> None:
    """A byte has no value to spare."""
    assert _bits(torch.uint8, "marked") == _bits(torch.uint8, "ordinary2")


def test_bools_alternate_and_the_two_patterns_are_opposites() -> None:
    """True stands for NaN."""
    one, other = _bits(torch.bool, "ordinary"), _bits(torch.bool, "ordinary2")
    assert set(_bits(torch.bool, "nan")) == {1}
    assert set(one) == {0, 1}
    assert [1 - bit for bit in one] == other


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
@pytest.mark.parametrize(("fill", "magnitudes"), [("ordinary", {1, 2, 3, 6}), ("ordinary2", {4, 5, 7})])
def test_pairs_of_fp4_hold_ordinary_magnitudes_of_either_sign_in_both_halves(fill: str, magnitudes: set[int]) -> None:
    """0.5, 1, 1.5 and 4 in one pattern, 2, 3 and 6 in the other; the halves are independent."""
    pairs = _bits(torch.float4_e2m1fn_x2, fill)
    nibbles = {magnitude | sign << 3 for magnitude in magnitudes for sign in (0, 1)}
    assert {pair & 15 for pair in pairs} == nibbles
    assert {pair >> 4 for pair in pairs} == nibbles
    assert {(pair & 15, pair >> 4) for pair in pairs} == {(low, high) for low in nibbles for high in nibbles}
    assert set(_bits(torch.float4_e2m1fn_x2, "nan")) == {0xFF}


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
def test_fp4_takes_no_constant_but_zero() -> None:
    """There is no conversion to a pair; the error says what to use instead."""
    assert set(_bits(torch.float4_e2m1fn_x2, 0)) == {0}
    with pytest.raises(ValueError, match=r"a constant other than 0 .* float4_e2m1fn_x2: use 'ordinary'"):
        secret_pattern(torch.float4_e2m1fn_x2, 1.0, 4, CPU)


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_complex_numbers_hold_the_pattern_of_their_parts(dtype: torch.dtype) -> None:
    """Real and imaginary parts one after the other, as memory has them."""
    part = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}[dtype]
    numbers = secret_pattern(dtype, "ordinary", 100, CPU)
    assert numbers.shape == (100,)
    parts = secret_pattern(part, "ordinary", 200, CPU)
    assert torch.equal(torch.view_as_real(numbers).flatten(), parts)


def test_neighbouring_places_look_unrelated() -> None:
    """A value copied from the next place, or from the same place of another row, is hardly ever the same."""
    numbers = _numbers(torch.float32, "ordinary")
    for step in (1, 2, 3, 4, 16, 64, 576, 1024):
        assert (numbers[step:] == numbers[:-step]).double().mean() < 0.01


@pytest.mark.parametrize("count", [0, 1, 2, 1023, 1024, 1025, 3000, PERIOD - 1, PERIOD, PERIOD + 1, 2 * PERIOD + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_a_pattern_is_exactly_as_long_as_asked_and_repeats_after_a_period(dtype: torch.dtype, count: int) -> None:
    """And no pattern of one length differs from that of another."""
    pattern = secret_pattern(dtype, "ordinary", count, CPU)
    assert pattern.shape == (count,)
    whole = secret_pattern(dtype, "ordinary", PERIOD, CPU)
    assert torch.equal(pattern, whole.repeat(3)[:count])
