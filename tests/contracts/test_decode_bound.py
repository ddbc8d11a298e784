"""The bound of decode is what its note says it is, worked out here one number at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import pytest
import torch

from mla_verify.decode.bound import Rounding, lse_bound, o_bound, rounding_of
from mla_verify.decode.geometry import geometry_of
from mla_verify.decode.oracle import Attention, Cache, answer
from mla_verify.kernel import Arithmetic
from strategies.problems import DecodeProblem
from tests.contracts.test_decode_oracle import KERNEL, expected, laid_out

U: Final = 2.0**-24
TINY: Final = 2.0**-126  # float32's smallest normal number
LARGEST: Final = torch.finfo(torch.float32).max * (1 - 1e-3)
LATENT: Final = 3
PROBLEM: Final = DecodeProblem(kv_lens=(5,), q_lens=(2,), num_heads=2, kv_lora_rank=LATENT, qk_rope_head_dim=2)
PLAIN: Final = rounding_of(Arithmetic(), torch.float32, exact_dots=False)


def _attention(*, scale: float = 0.5, size: float = 1.0, subnormals: bool = False) -> Attention:
    """Two rows and two heads over five keys; subnormals: some factors are, in float16."""
    geometry = geometry_of(PROBLEM)
    generator = torch.Generator().manual_seed(3)
    pages = int(geometry.requests[0].pages.max()) + 1
    cache = torch.randn(pages, PROBLEM.page_size, 1, 5, generator=generator, dtype=torch.float64) * size
    q = torch.randn(2, 2, 5, generator=generator, dtype=torch.float64) * size
    if subnormals:
        cache[..., ::2] *= 2.0**-16
        q[..., 1] *= 2.0**-16
    found = answer(geometry, q, Cache(cache), kv_lora_rank=LATENT, scale=scale)
    return found.attentions[0]


def _gamma(count: float) -> float:
    return count * U / (1 - count * U)


def _kept(number: float, below: float) -> float:
    return 0.0 if abs(number) < below else abs(number)


def _by_the_note(attention: Attention, rounding: Rounding, lane: int) -> tuple[list[float], float, list[bool]]:
    """Per column of `o` the bound, the bound of lse, and per column whether it means something."""
    width, n, t, h = 5, int(attention.visible[lane]), rounding.quantised, rounding.underflow
    scale, below = attention.scale, rounding.flushed_below
    every = _keys(attention)
    keys = every[:n]
    query = attention.queries[lane].tolist()  # times scale
    logits = [math.fsum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
    peak = max(logits)
    total = math.fsum(math.exp(logit - peak) for logit in logits)
    lse = abs(peak + math.log(total))
    errors: list[float] = []
    usable = True
    for key, logit in zip(keys, logits, strict=True):
        size = math.fsum(abs(a * b) for a, b in zip(query, key, strict=True))
        slip = size * (_gamma((2 if rounding.exact_dots else width + 2) + t) + rounding.logit)
        if below or h:
            normal = math.fsum(_kept(a, below * scale) * _kept(b, below) for a, b in zip(query, key, strict=True))
            slip += max(0.0, size - normal) + (width + 3) * TINY * max(1.0, scale)
            slip += h * math.fsum(abs(a) + scale * abs(b) + scale * h for a, b in zip(query, key, strict=True))
        usable &= slip <= 1 and size < LARGEST * min(1.0, scale)
        errors.append(math.expm1(min(slip, 1.0) + 2 * U * (peak - logit + lse)) + 4 * U)
    p = [math.exp(logit - peak) / total for logit in logits]
    gamma_n = _gamma(n + 8 + min(1, t))
    den = math.fsum(a * b for a, b in zip(p, errors, strict=True)) + n * TINY + gamma_n
    bounds: list[float] = []
    judged: list[bool] = []
    for column in range(LATENT):
        values = [abs(key[column]) for key in keys]
        b = 1.001 * math.fsum(
            (w * (e + rounding.product + den + gamma_n) + rounding.tiny) * v
            for w, e, v in zip(p, errors, values, strict=True)
        )
        o = abs(math.fsum(w * key[column] for w, key in zip(p, keys, strict=True)))
        bound = b + rounding.u_out * (o + b)
        largest = max(abs(key[column]) for key in every)
        meaningful = bound <= largest
        bound += rounding.eta * (1 + rounding.floors) + (n + 2) * 2.0**-149 + rounding.lost
        if below:
            bound += math.fsum(w * (v - _kept(v, below)) for w, v in zip(p, values, strict=True)) + (n + 2) * TINY
        usable_here = usable and total * largest < LARGEST
        bounds.append(bound if usable_here else math.inf)
        judged.append(usable_here and meaningful)
    of_lse = 1.001 * den + 4 * U * (lse + math.log(n + 1) + 1)
    return bounds, of_lse if usable else math.inf, judged


def _keys(attention: Attention) -> list[list[float]]:
    assert attention.keys.held is not None
    return attention.keys.held.tolist()


def _agrees_with_the_note(attention: Attention, rounding: Rounding) -> bool:
    """Whether some element was judged; all of them are compared."""
    lanes = torch.arange(4).repeat_interleave(LATENT)
    columns = torch.arange(LATENT).repeat(4)
    bound, judged = o_bound(attention, rounding, lanes, columns)
    of_lse, _ = lse_bound(attention, rounding, torch.arange(4))
    wanted = [_by_the_note(attention, rounding, lane) for lane in range(4)]
    expected = torch.tensor([wide for wide, _, _ in wanted], dtype=torch.float64).flatten()
    torch.testing.assert_close(bound, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        of_lse, torch.tensor([one for _, one, _ in wanted], dtype=torch.float64), rtol=1e-9, atol=0
    )
    assert judged.tolist() == [one for _, _, every in wanted for one in every]
    return bool(judged.any())


ARITHMETIC: Final = {
    "default": Arithmetic(),
    "tf32": Arithmetic(multiply="tf32"),
    "partials": Arithmetic(partials="output dtype", probabilities="fp32"),
    "flushed": Arithmetic(subnormals="flushed"),
    "dequantised": Arithmetic(dequantise="input dtype"),
    "everything": Arithmetic(multiply="tf32", partials="output dtype", subnormals="flushed", dequantise="input dtype"),
}


@pytest.mark.parametrize("quantised", [0, 1, 2])
@pytest.mark.parametrize("exact_dots", [False, True], ids=["any", "exact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(ARITHMETIC))
def test_the_bound_is_the_one_in_the_note(name: str, dtype: torch.dtype, exact_dots: bool, quantised: int) -> None:
    """Whatever a kernel declares, for `o` and for `lse`, with ordinary numbers and with subnormal ones."""
    rounding = rounding_of(ARITHMETIC[name], dtype, exact_dots=exact_dots, quantised=quantised)
    assert _agrees_with_the_note(_attention(), rounding)
    _agrees_with_the_note(_attention(scale=2.0, subnormals=True), rounding)


@pytest.mark.parametrize(
    ("attention", "what"),
    [
        (_attention(size=2.0**13), "the error of a logit exceeds 1"),
        (_attention(size=2.0**64, scale=2.0**-110), "a dot product leaves float32's range"),
    ],
    ids=["vague", "large"],
)
def test_a_lane_in_which_the_formulas_do_not_hold_has_no_bound(attention: Attention, what: str) -> None:
    """Infinite, and so not judged."""
    assert not _agrees_with_the_note(attention, PLAIN), what
    assert o_bound(attention, PLAIN, torch.tensor([0]), torch.tensor([0]))[0].item() == math.inf


def test_a_bound_above_every_value_is_not_judged() -> None:
    """Any mixture of the values would pass: the bound stays finite, and says nothing."""
    bound, judged = o_bound(_attention(), replace(PLAIN, product=100.0), torch.tensor([0]), torch.tensor([0]))
    assert bound.isfinite().all()
    assert not judged.any()


def test_whether_a_bound_means_something_is_asked_of_each_column() -> None:
    """Large values in one column do not make a vague bound in another one tell anything."""
    attention = _attention()
    assert attention.keys.held is not None
    attention.keys.held[:, 0] *= 2.0**20
    _, judged = o_bound(attention, replace(PLAIN, product=100.0), torch.tensor([0]), torch.tensor([1]))
    _, beside = o_bound(attention, replace(PLAIN, product=100.0), torch.tensor([0, 0]), torch.tensor([0, 1]))
    assert not judged.any()
    assert not beside[1]


def test_declarations_add_what_the_note_says() -> None:
    """Each declaration by itself, in the symbols of the note."""
    half, single = torch.float16, torch.float32
    default = rounding_of(Arithmetic(), half, exact_dots=False)
    assert default == Rounding(2.0**-11, 2.0**-24, False, 0.0, 2.0**-11, 2.0**-25, 0.0, 0, 0.0)
    assert Rounding(2.0**-24, 2.0**-149, False, 0.0, 0.0, 2.0**-124, 0.0, 0, 0.0) == PLAIN
    tf32 = rounding_of(Arithmetic(multiply="tf32"), single, exact_dots=False)
    assert tf32 == replace(PLAIN, logit=(1 + 2.0**-10) ** 2 - 1, product=2.0**-9, lost=2.0**-136)
    # Two 16-bit inputs fit into tf32; the probability does not.
    assert rounding_of(Arithmetic(multiply="tf32"), half, exact_dots=False) == replace(
        default, product=2.0**-11 + 2.0**-10, lost=2.0**-136
    )
    in_parts = rounding_of(Arithmetic(partials="output dtype"), half, exact_dots=False)
    assert in_parts == replace(default, product=2.0**-10, floors=1)
    flushed = rounding_of(Arithmetic(subnormals="flushed"), half, exact_dots=False)
    assert flushed == replace(default, flushed_below=2.0**-14)
    codes = rounding_of(Arithmetic(dequantise="input dtype"), half, exact_dots=False, quantised=2)
    assert codes == replace(
        default, logit=(1 + 2.0**-11) ** 2 - 1, product=2.0**-10, lost=2.0**-25, quantised=2, underflow=2.0**-25
    )
    exact = rounding_of(Arithmetic(dequantise="input dtype"), half, exact_dots=True, quantised=2)
    assert exact == replace(codes, exact_dots=True, logit=0.0)


@pytest.mark.parametrize(
    ("changes", "exact"),
    [
        ({"regime": "retrieval", "dtype": "float16"}, True),
        ({"regime": "retrieval", "dtype": "bfloat16"}, True),
        ({"regime": "retrieval", "dtype": "float32"}, False),
        ({"regime": "uniform", "dtype": "float32"}, True),
        ({"regime": "uniform", "dtype": "float32", "num_kv_splits": 2}, False),
        ({"regime": "gaussian", "dtype": "float16"}, False),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else str(value),
)
def test_exact_regimes_have_one_right_answer(changes: dict[str, Any], exact: bool) -> None:
    """Bit for bit where the mathematics allows, for a kernel with one final division."""
    problem = replace(PROBLEM, **changes)
    kernel = replace(KERNEL, arithmetic=Arithmetic(normalise="division"))
    _arena, tensors = laid_out(problem, kernel)
    assert (expected(problem, tensors, kernel).references["o"].exact is not None) == exact
