"""The interpreter's arithmetic is mended where it is wrong, only there, and only for as long as it is asked for."""

from __future__ import annotations

import importlib
from typing import Any, Final

import numpy as np
import pytest
import torch

from sanitizer.triton import conversions, mends
from sanitizer.triton.floats import FP8, converted, narrowed, widened
from sanitizer.triton.mends import MENDS, Mend, mended, needed
from sanitizer.triton.patching import Patches

interpreter: Any = importlib.import_module("triton.runtime.interpreter")
kernels: Any = importlib.import_module("tests.triton.kernels")

NEEDED: Final = needed(interpreter)


@pytest.mark.parametrize("mend", MENDS, ids=[mend.name for mend in MENDS])
def test_a_mend_makes_its_operation_right(mend: Mend) -> None:
    """Under `mended` every operation is right; without it those that the self-check names are wrong."""
    assert (mend in needed(interpreter)) == (mend in NEEDED)
    with mended():
        assert mend not in needed(interpreter)
    assert (mend in needed(interpreter)) == (mend in NEEDED)


@pytest.mark.parametrize("mend", NEEDED, ids=[mend.name for mend in NEEDED])
def test_without_its_mend_an_operation_stays_wrong(mend: Mend) -> None:
    """With all mends but one, the operation of that one is still wrong: none is there for nothing."""
    with Patches() as patches:
        for other in NEEDED:
            if other is not mend:
                other.apply(interpreter, patches)
        assert mend in needed(interpreter)


@pytest.mark.parametrize("mend", NEEDED, ids=[mend.name for mend in NEEDED])
def test_an_operation_that_is_right_is_left_alone(mend: Mend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Triton that computes rightly by itself gets no mend of that operation."""
    with Patches() as repaired:
        for each in NEEDED:
            each.apply(interpreter, repaired)
        assert needed(interpreter) == ()
        stock = dict(vars(interpreter.InterpreterBuilder))
        monkeypatch.setattr(mends, "_found", None)
        with mended() as active:
            assert mend.name not in active
            assert dict(vars(interpreter.InterpreterBuilder)) == stock


def test_everything_is_put_back() -> None:
    """After `mended`, nested or ended by an exception, the interpreter is what it was."""
    owners = (
        interpreter,
        interpreter.InterpreterBuilder,
        interpreter.ReduceOps,
        interpreter.ScanOps,
        interpreter.ASTTransformer,
        interpreter.InterpretedFunction,
    )
    before = [dict(vars(owner)) for owner in owners]
    with pytest.raises(KeyError), mended(), mended():
        raise KeyError
    assert [dict(vars(owner)) for owner in owners] == before


def test_float32_rounds_to_the_nearest_bfloat16() -> None:
    """A million bit patterns, every exponent and both signs: the same bits as torch, NaN for NaN."""
    bits = np.random.default_rng(0).integers(0, 2**32, 1_000_000, dtype=np.uint64).astype(np.uint32)
    numbers = bits.view(np.float32)
    wanted = torch.from_numpy(numbers).to(torch.bfloat16)
    got = torch.from_numpy(narrowed(numbers).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got[~got.isnan()], wanted[~wanted.isnan()])


@pytest.mark.parametrize("name", sorted(FP8))
def test_fp8_rounds_to_the_nearest_and_saturates(name: str) -> None:
    """In range as torch rounds; beyond it the largest finite number; NaN stays NaN."""
    dtype: torch.dtype = getattr(torch, FP8[name])
    largest = torch.finfo(dtype).max
    numbers = torch.linspace(-largest, largest, 100_001)
    got = converted(numbers.numpy(), "fp32", name)
    assert got is not None
    assert np.array_equal(got, numbers.to(dtype).view(torch.uint8).numpy())
    special = converted(np.array([np.inf, -3e38, np.nan], dtype=np.float32), "fp32", name)
    assert special is not None
    values = torch.from_numpy(special).view(dtype).float()
    assert values[0] == largest
    assert values[1] == -largest
    assert values[2].isnan()


@pytest.mark.parametrize(("name", "dtype"), [("fp16", np.float16), ("fp64", np.float64), ("fp32", np.float32)])
def test_wide_formats_round_as_numpy_does(name: str, dtype: type[np.floating[Any]]) -> None:
    """Bits in, bits out: as unsigned numbers of the format's width."""
    numbers = np.array([1.0, -0.1, 65504.0, 2.0**-24, 1e30], dtype=np.float32)
    got = converted(numbers, "fp32", name)
    assert got is not None
    assert got.dtype == np.dtype(f"uint{8 * np.dtype(dtype).itemsize}")
    with np.errstate(over="ignore"):
        assert np.array_equal(got.view(dtype), numbers.astype(dtype))


def test_a_probe_that_raises_counts_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that the interpreter lacks is mended like one that it gets wrong."""
    monkeypatch.delattr(interpreter.InterpreterBuilder, "get_bf16", raising=False)
    assert "bfloat16 constants" in [mend.name for mend in needed(interpreter)]
    with Patches() as patches:
        conversions.mend_constants(interpreter, patches)
        assert conversions.makes_bfloat16(interpreter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_kernel_computes_as_torch_does(dtype: torch.dtype) -> None:
    """Products, sums, maxima, constants, exponentials and selections in one kernel, in every dtype."""
    a, b = (torch.randn(16, 16, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in (0, 1))
    product, row = torch.empty(16, 16), torch.empty(16)
    with mended():
        kernels.arithmetic_kernel[(1,)](a, b, product, row, SIZE=16)
    assert torch.allclose(product, a.float() @ b.float(), atol=1e-4)
    wanted = (a * 2).amax(1).float() + torch.where(a.float() > 0, a.float().exp(), -1).sum(1)
    assert torch.allclose(row, wanted, rtol=2e-2)


def test_blocks_are_negated_and_joined_element_by_element() -> None:
    """`not`, `and`, `or` and chains over blocks in a kernel of the user's, rewritten only while mended."""
    out = torch.empty(8, dtype=torch.int32)
    with mended():
        kernels.logic_kernel[(1,)](torch.arange(8), out)
    assert out.tolist() == [1 if (not i > 5) and (2 < i < 5 or i == 0) else 0 for i in range(8)]


def test_bfloat16_survives_the_way_there_and_back() -> None:
    """Every bfloat16 widens to the number that it stands for and narrows to itself; NaN stays NaN."""
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    numbers = widened(every)
    finite = ~np.isnan(numbers)
    assert np.array_equal(narrowed(numbers)[finite], every[finite])
    assert np.isnan(widened(narrowed(numbers)[~finite])).all()
