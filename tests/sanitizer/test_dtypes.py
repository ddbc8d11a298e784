"""Secrets work in every dtype that torch has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sanitizer.plan import Fills, TensorPlan
from sanitizer.secrets import PERIOD, Secret, carrier_view, fill_with_secret, rows_of, secret_pattern
from tests.sanitizer.problems import COLUMNS, ROWS, clauses, output, run_audit

CPU = torch.device("cpu")
NAMES = [
    "bfloat16",
    "bool",
    "complex128",
    "complex64",
    "float16",
    "float32",
    "float4_e2m1fn_x2",
    "float64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "int16",
    "int32",
    "int64",
    "int8",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
]
DTYPES = {name: getattr(torch, name) for name in NAMES if hasattr(torch, name)}
FLOATS = sorted(name for name, dtype in DTYPES.items() if dtype.is_floating_point and "float4" not in name)


def input_of(dtype: torch.dtype) -> TensorPlan:
    """Zero bits in every dtype."""
    values = torch.zeros(ROWS, COLUMNS * dtype.itemsize, dtype=torch.uint8).view(dtype)
    return TensorPlan(name="x", shape=(ROWS, COLUMNS), strides=(COLUMNS, 1), dtype=dtype, role="input", values=values)


def write_ones(tensor: Tensor) -> None:
    """Write the bit pattern 1 into every element."""
    carrier_view(tensor).fill_(1)


@pytest.mark.parametrize("name", sorted(DTYPES))
@pytest.mark.parametrize("form", ["view", "owner"])
def test_an_output_left_unwritten_is_found_in_every_dtype(name: str, form: str) -> None:
    """Coverage needs no threshold and no NaN."""

    def kernel(t: dict[str, Tensor]) -> None:
        write_ones(t["out"][:-1])

    (finding,) = run_audit(kernel, input_of(DTYPES[name]), output(DTYPES[name], form=form)).findings
    assert (finding.clause, finding.elements) == ("coverage", COLUMNS)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_a_written_output_passes_in_every_dtype(name: str) -> None:
    """The right kernel of the test above."""
    result = run_audit(lambda t: write_ones(t["out"]), input_of(DTYPES[name]), output(DTYPES[name]))
    assert result.findings == ()
    assert result.outputs["out"].dtype == DTYPES[name]
    assert result.outputs["out"].shape == (ROWS, COLUMNS)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_scratch_of_every_dtype_holds_secrets(name: str) -> None:
    """An output copied from uninitialised scratch depends on it."""

    def kernel(t: dict[str, Tensor]) -> None:
        carrier_view(t["out"]).copy_(carrier_view(torch.empty(ROWS, COLUMNS, dtype=DTYPES[name])))

    found = clauses(run_audit(kernel, input_of(DTYPES[name]), output(DTYPES[name])))
    assert found
    assert found <= {"independence", "coverage"}  # copied secrets may look like the output's own


@pytest.mark.parametrize("name", FLOATS)
def test_secret_a_is_nan_and_secret_b_is_finite(name: str) -> None:
    """In the fnuz formats NaN is 0x80."""
    dtype = DTYPES[name]
    nan = secret_pattern(dtype, "nan", 100, CPU)
    assert nan.float().isnan().all()
    if name.endswith("fnuz"):
        assert (nan.view(torch.uint8) == 0x80).all()
    for fill in ("ordinary", "ordinary2"):
        values = secret_pattern(dtype, fill, 1000, CPU).double()
        assert values.isfinite().all()
        assert values.unique().numel() >= 4


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_secrets_differ_at_every_place(name: str) -> None:
    """No element can look unwritten by accident, whatever preconditions make of secret A."""
    for fills in (Fills(), Fills(a="ordinary2")):
        a, b, z = rows_of(DTYPES[name], fills, 2000, CPU)
        every = (a != b) | (a != z) if name == "bool" else (a != b) & (a != z) & (b != z)
        assert every.all()


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_patterns_grow_without_changing(name: str) -> None:
    """A longer pattern begins like a shorter one, and repeats after a period."""
    short = carrier_view(secret_pattern(DTYPES[name], "ordinary", 10, CPU)).clone()
    long = carrier_view(secret_pattern(DTYPES[name], "ordinary", PERIOD + 10, CPU))
    size = short.shape[0]
    assert torch.equal(long[:size], short)
    assert torch.equal(long[-size:], short)


@pytest.mark.parametrize(
    ("dtype", "fill", "value"),
    [(torch.int32, 7, 7), (torch.int64, -1, -1), (torch.bfloat16, 0.5, 0.5), (torch.int32, "nan", -1)],
    ids=["page", "minus-one", "number", "minus-one-for-nan"],
)
def test_a_number_fills_with_itself(dtype: torch.dtype, fill: float, value: float) -> None:
    """Index tables are filled with a valid page, or with −1."""
    assert (secret_pattern(dtype, fill, 5, CPU) == value).all()


def test_filling_leaves_what_lies_between_elements() -> None:
    """A strided workspace is filled element by element."""
    whole = torch.zeros(4, 6, dtype=torch.float16)
    fill_with_secret(whole[:, ::2], "nan")
    assert whole[:, ::2].isnan().all()
    assert (whole[:, 1::2] == 0).all()


def test_secrets_have_three_rows_in_their_order() -> None:
    """The order that images and patterns share."""
    assert [secret.row for secret in Secret] == [0, 1, 2]
