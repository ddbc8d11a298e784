"""Every code of every format, both ways, against torch's own conversions and the OCP definitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mla_verify.formats import (
    E8M0,
    FLOATS_8,
    FORMATS,
    decode,
    dtype_of_format,
    encode,
    exponent_codes,
    format_of_dtype,
    neighbours,
    pack_pairs,
    table_of,
    unpack_pairs,
)
from mla_verify.formats.codes import midpoints_of

CPU = torch.device("cpu")
ALL_CODES = torch.arange(256, dtype=torch.uint8)
# What is too large for e4m3fn becomes its largest number in some versions of torch and NaN in others; the other
# formats have always overflowed to an infinity or NaN.
TORCH_SATURATES = {"e4m3fn"} if torch.tensor(1e4).to(torch.float8_e4m3fn).float() == 448.0 else set[str]()


def _same(one: Tensor, other: Tensor) -> bool:
    """Alike bit for bit in float64, any NaN being like any NaN."""
    bits = one.contiguous().view(torch.int64) == other.contiguous().view(torch.int64)
    return bool((bits | (one.isnan() & other.isnan())).all())


@pytest.mark.parametrize("name", FLOATS_8)
def test_every_code_means_what_torch_says(name: str) -> None:
    """All 256 codes decode to torch's number, −0 to −0 and NaN to NaN."""
    assert _same(decode(ALL_CODES, name), ALL_CODES.view(dtype_of_format(name)).to(torch.float64))


def test_every_scale_means_what_torch_says() -> None:
    """All 256 codes of e8m0, the subnormal float32 of code 0 and the NaN of code 255 among them."""
    assert _same(decode(ALL_CODES, E8M0), ALL_CODES.view(dtype_of_format(E8M0)).to(torch.float64))


def test_e2m1_is_what_the_mx_specification_lists() -> None:
    """OCP Microscaling Formats 1.0, section 5.3.3: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives."""
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    wanted = torch.tensor(positive + [-value for value in positive], dtype=torch.float64)
    assert _same(table_of("e2m1"), wanted)


def test_e8m0_is_what_the_mx_specification_lists() -> None:
    """OCP Microscaling Formats 1.0, section 5.4.1: 2**−127 to 2**127, no zero, no infinity, one NaN."""
    table = table_of(E8M0)
    assert [float(value) for value in table[:255]] == [math.ldexp(1.0, code - 127) for code in range(255)]
    assert table[255].isnan()


@pytest.mark.parametrize(
    ("name", "largest", "smallest"),
    [
        ("e4m3fn", 448.0, 2.0**-9),
        ("e4m3fnuz", 240.0, 2.0**-10),
        ("e5m2", 57344.0, 2.0**-16),
        ("e5m2fnuz", 57344.0, 2.0**-17),
        ("e2m1", 6.0, 0.5),
    ],
)
def test_the_ends_of_each_range(name: str, largest: float, smallest: float) -> None:
    """Largest number and smallest subnormal, as torch and the specifications give them."""
    assert (FORMATS[name].largest, FORMATS[name].smallest) == (largest, smallest)
    if name in FLOATS_8:
        assert torch.finfo(dtype_of_format(name)).max == largest


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_number_is_encoded_as_itself(name: str, saturate: bool) -> None:
    """Encoding what a code means gives the code back; NaN gives the format's NaN."""
    form = FORMATS[name]
    codes = ALL_CODES[: 1 << form.bits]
    back = encode(decode(codes, name), name, saturate=saturate)
    values = decode(codes, name)
    finite = values.isfinite()
    assert torch.equal(back[finite], codes[finite])
    nan = values.isnan()
    assert bool((back[nan] == (form.nan_code or 0)).all())
    infinite = values.isinf()
    wanted = codes[infinite] - 1 if saturate else codes[infinite]
    assert torch.equal(back[infinite], wanted)


def _around_midpoints(name: str) -> Tensor:
    """Each midpoint, its neighbours in float32, and the same below zero; overflow's beginning among them."""
    middle = midpoints_of(name, CPU).to(torch.float32)
    assert torch.equal(middle.to(torch.float64), midpoints_of(name, CPU))
    beside = (torch.nextafter(middle, torch.tensor(-torch.inf)), torch.nextafter(middle, torch.tensor(torch.inf)))
    positive = torch.cat((torch.zeros(1), middle, *beside, torch.tensor([1e30, torch.inf])))
    return torch.cat((positive, -positive))


@pytest.mark.parametrize("name", FLOATS_8)
def test_numbers_become_the_codes_that_torch_gives(name: str) -> None:
    """At every midpoint and right beside it, beyond the range and at both zeros, bit for bit."""
    values = _around_midpoints(name)
    ours = encode(values, name, saturate=name in TORCH_SATURATES)
    theirs = values.to(dtype_of_format(name)).view(torch.uint8)
    nan = decode(theirs, name).isnan()
    assert torch.equal(decode(ours, name).isnan(), nan)
    assert torch.equal(ours[~nan], theirs[~nan])


@pytest.mark.parametrize("name", FLOATS_8)
def test_every_bfloat16_becomes_the_code_that_torch_gives(name: str) -> None:
    """All 65,536 of them: an early saturation or a wrong rounding anywhere in the range would show."""
    values = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16).to(torch.float32)
    ours = decode(encode(values, name, saturate=name in TORCH_SATURATES), name)
    assert _same(ours, values.to(dtype_of_format(name)).to(torch.float64))


@pytest.mark.parametrize(
    ("name", "overflow"),
    [("e4m3fn", math.nan), ("e4m3fnuz", math.nan), ("e5m2", math.inf), ("e5m2fnuz", math.nan)],
)
def test_overflow_by_format(name: str, overflow: float) -> None:
    """OCP 8-bit Floating Point 1.0, section 5.2.1: without saturation e5m2 overflows to infinity, e4m3 to NaN."""
    form = FORMATS[name]
    beyond = torch.tensor([form.largest * 1.5, torch.inf], dtype=torch.float64)
    assert decode(encode(beyond, name, saturate=True), name).tolist() == [form.largest] * 2
    got = decode(encode(-beyond, name, saturate=False), name)
    assert bool((got.isnan() if math.isnan(overflow) else got == -overflow).all())


@pytest.mark.parametrize("name", FLOATS_8)
def test_a_negative_number_that_underflows(name: str) -> None:
    """It becomes −0 (0x80), but 0 where 0x80 is NaN: a kernel that sets the sign bit regardless makes NaN."""
    code = encode(torch.tensor([-1e-30]), name, saturate=True)
    assert int(code) == (0x00 if name.endswith("uz") else 0x80)
    assert float(decode(code, name)) == 0.0


def test_e2m1_rounds_to_nearest_even_and_saturates() -> None:
    """The eight midpoints by hand: 0.25 → 0, 0.75 → 1, 1.25 → 1, 1.75 → 2, 2.5 → 2, 3.5 → 4, 5 → 4, 7 → 6."""
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, 1e9, torch.inf, torch.nan])
    wanted = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0, 6.0, 6.0]
    for saturate in (False, True):
        assert decode(encode(ties, "e2m1", saturate=saturate), "e2m1").tolist() == wanted
    # An independent rule: the nearest number by brute force, where there is one.
    values = _around_midpoints("e2m1")[:-1]
    values = values[values.abs() <= 6].to(torch.float64)
    table = table_of("e2m1")
    distance = (values[:, None] - table).abs()
    chosen = (values - decode(encode(values, "e2m1", saturate=True), "e2m1")).abs()
    assert torch.equal(chosen, distance.amin(1))


def test_scales_of_exponents_agree_with_torch() -> None:
    """Every power of two gets torch's code; what is out of range is clamped to the ends."""
    exponents = torch.arange(-127, 128)
    powers = torch.ldexp(torch.ones(255, dtype=torch.float64), exponents).to(torch.float32)
    assert torch.equal(exponent_codes(exponents), powers.to(dtype_of_format(E8M0)).view(torch.uint8))
    assert exponent_codes(torch.tensor([-1000, 1000])).tolist() == [0, 254]


def test_pairs_hold_the_earlier_code_in_the_low_half() -> None:
    """All 256 bytes, and the order that AITER and torch.float4_e2m1fn_x2 share."""
    assert unpack_pairs(torch.tensor([0x21], dtype=torch.uint8)).tolist() == [1, 2]
    assert torch.equal(pack_pairs(unpack_pairs(ALL_CODES)), ALL_CODES)
    with pytest.raises(ValueError, match="even last dimension"):
        pack_pairs(ALL_CODES[:3])


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_an_error_before_rounding_reaches_both_neighbours_of_a_midpoint(name: str) -> None:
    """Beside a midpoint there are two answers; anywhere else the one that encoding gives."""
    form = FORMATS[name]
    middle = midpoints_of(name, CPU)[:-1]  # the last one saturates either way
    numbers = table_of(form)[: form.largest_code + 1]
    for sign in (1, -1):
        first, last = neighbours(sign * middle * (1 + 2.0**-22), name, relative=2.0**-20)
        low, high = (first, last) if sign > 0 else (-last, -first)
        assert torch.equal(low, numbers[:-1])
        assert torch.equal(high, numbers[1:])
    random = torch.randn(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * form.largest / 3
    first, last = neighbours(random, name, relative=2.0**-20)
    rounded = decode(encode(random, name, saturate=True), name)
    assert bool(((first <= rounded) & (rounded <= last)).all())
    assert float((first != last).double().mean()) < 0.01
    for nudged in (random * (1 - 2.0**-21), random * (1 + 2.0**-21)):
        rounded = decode(encode(nudged, name, saturate=True), name)
        assert bool(((first <= rounded) & (rounded <= last)).all())


def test_a_format_and_its_dtype_name_each_other() -> None:
    """And what is no format is refused in words."""
    for name in (*FLOATS_8, "e2m1", E8M0):
        assert format_of_dtype(dtype_of_format(name)) == name
    with pytest.raises(ValueError, match="no dtype for 'e3m4'"):
        dtype_of_format("e3m4")
    with pytest.raises(ValueError, match=r"torch\.float32 holds none"):
        format_of_dtype(torch.float32)
