"""Decode on fp8 codes: what they hold, what the oracle and the baseline make of them, how wide the bound is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from mla_verify.decode import CONTRACT
from mla_verify.decode.geometry import geometry_of
from mla_verify.decode.oracle import Cache, answer
from mla_verify.decode.quantised import decoded, dtype_of_kv, is_power_of_two, is_round, single
from mla_verify.faults.quantised_decode import dequantised_in_16_bits, one_pass_on_codes
from mla_verify.formats import FORMATS
from mla_verify.kernel import Arithmetic, Kernel
from mla_verify.kernels.torch_decode import decode_split_kv_empty
from sanitizer.arena import Arena
from sanitizer.secrets import Secret
from strategies.decode import decode_problems, invalid_decode_problems
from strategies.invalid import DECODE_INVALID
from strategies.layouts import INPUT_ONLY
from strategies.limits import DecodeLimits
from strategies.paging import paging_of
from strategies.problems import DecodeProblem
from strategies.vocabulary import DECODE_SCALES, ROUND_SCALES
from tests.contracts.no_false_alarm_decode import RIGHT, fuzz, kernel_of, on_codes, run

CPU: Final = torch.device("cpu")
CODES: Final = ("e4m3fn", "e4m3fnuz", "e5m2")
LIMITS: Final = DecodeLimits(kv_formats=CODES, quantised_q="optional")
KERNEL: Final = Kernel(name="k", contract="decode", load=lambda: decode_split_kv_empty, limits=LIMITS)
PROBLEM: Final = DecodeProblem(
    kv_lens=(13, 7),
    q_lens=(3, 1),
    num_heads=2,
    kv_lora_rank=7,
    qk_rope_head_dim=3,
    page_size=4,
    softmax_scale=-2,
    page_order="shuffled",
    foreign_pages=2,
    q_format="e4m3fn",
    kv_format="e4m3fn",
    q_scale="0.75",
    kv_scale="1.375",
)
MODEL: Final = replace(
    PROBLEM, kv_lens=(300, 65), num_heads=16, kv_lora_rank=512, qk_rope_head_dim=64, page_size=64, softmax_scale=-3
)
SLOW: Final = (HealthCheck.too_slow, HealthCheck.data_too_large)


def in_format(problem: DecodeProblem, name: str) -> DecodeProblem:
    """The same problem on codes of another format."""
    return replace(problem, kv_format=name, q_format=name if problem.q_format != "plain" else "plain")


def inputs_of(problem: DecodeProblem) -> dict[str, Tensor]:
    """The values of every input of a problem, by name."""
    placement = CONTRACT.place(problem, KERNEL, CPU)
    return {plan.name: plan.values for plan in placement.tensors if plan.values is not None}


@pytest.fixture(scope="module")
def arena() -> Arena:
    """One arena for all of them, as the check has it."""
    torch.set_num_threads(1)
    return Arena("cpu")


def test_the_oracle_takes_a_code_times_its_scale() -> None:
    """Two keys of equal logits: the answer is their mean, in numbers that a reader can add up."""
    problem = DecodeProblem(kv_lens=(2,), kv_format="e4m3fn", kv_scale="0.75", page_size=2)
    cache = torch.tensor([2.0, 6.0]).view(1, 2, 1, 1).to(torch.float8_e4m3fn)
    found = answer(
        geometry_of(problem), torch.zeros(1, 1, 1), Cache(cache, "e4m3fn", "0.75"), kv_lora_rank=1, scale=1.0
    )
    assert float(found.o) == (2.0 + 6.0) / 2 * 0.75
    found = answer(geometry_of(problem), torch.ones(1, 1, 1), Cache(cache, "e4m3fn", "0.75"), kv_lora_rank=1, scale=1.0)
    assert float(found.peak) == 6.0 * 0.75


@pytest.mark.parametrize("scale", DECODE_SCALES)
def test_scales_are_what_their_decimals_say(scale: str) -> None:
    """A scale is a positive, normal float32; the round ones have at most four bits, so that codes stay exact."""
    assert single(scale) == float(torch.tensor(float(scale))) > 2.0**-126
    assert is_round(scale) == (scale in ROUND_SCALES)
    assert is_power_of_two(scale) == (scale in ("1", "0.5", "2"))
    if is_round(scale):
        codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn)
        exact = decoded(codes, "e4m3fn", scale)
        finite = exact.isfinite()
        for dtype in (torch.bfloat16, torch.float16):
            assert torch.equal(exact[finite].to(dtype).double(), exact[finite])


@pytest.mark.parametrize("name", CODES)
def test_the_regimes_reach_hostile_codes(name: str) -> None:
    """Saturated, subnormal, negative zero and all-zero rows occur, and a live code is never NaN or infinite."""
    extreme = inputs_of(in_format(replace(PROBLEM, kv_lens=(200,), q_lens=(3,), regime="extreme"), name))
    numbers = decoded(extreme["kv_buffer"], name, "1")
    assert bool(numbers.isfinite().all())
    rows = numbers.view(-1, numbers.shape[3])
    zero = (rows == 0).all(1)
    assert 0.1 < float(zero.double().mean()) < 0.4
    assert bool((extreme["q"].float() == 0).flatten(1).all(1).any())
    assert 0 < float(numbers.abs()[numbers != 0].min()) == FORMATS[name].smallest
    saturated = inputs_of(
        in_format(replace(PROBLEM, kv_lens=(200,), q_lens=(3,), regime="gaussian", kv_scale="0.007"), name)
    )
    if name != "e5m2":
        assert float(saturated["kv_buffer"].float().abs().max()) == FORMATS[name].largest
    underflown = inputs_of(
        in_format(replace(PROBLEM, kv_lens=(200,), q_lens=(3,), regime="gaussian", kv_scale="300"), name)
    )
    has_minus_zero = bool((underflown["kv_buffer"].view(torch.uint8) == 0x80).any())
    if name != "e5m2":  # which holds nearly all of these numbers
        assert has_minus_zero == (name == "e4m3fn")


@pytest.mark.parametrize("name", CODES)
def test_unused_slots_hold_the_nan_of_their_format(name: str) -> None:
    """Under secret A every slot that holds no key is NaN in the cache's own format, and live ones are as they were."""
    problem = in_format(PROBLEM, name)
    placement = CONTRACT.place(problem, KERNEL, CPU)
    arena = Arena("cpu")
    arena.load(placement.tensors)
    arena.poison(Secret.A)
    cache = arena.tensors()["kv_buffer"]
    assert cache.dtype == dtype_of_kv(problem)
    live = next(plan.live for plan in placement.tensors if plan.name == "kv_buffer")
    assert live is not None
    numbers, used = decoded(cache.contiguous(), name, "1"), live.expand(cache.shape)
    assert bool(numbers[~used].isnan().all())
    assert bool(numbers[used].isfinite().all())


@settings(max_examples=80, deadline=None, database=None, derandomize=True, suppress_health_check=SLOW)
@given(decode_problems(LIMITS, regimes=("retrieval",)))
def test_retrieval_lets_one_key_win_by_far_whatever_the_scales(problem: DecodeProblem) -> None:
    """The best dequantised logit leads the second by at least 150, enough for every other weight to underflow."""
    if problem.q_layout.kind in INPUT_ONLY or problem.kv_lora_rank + problem.qk_rope_head_dim == 0:
        return
    inputs = inputs_of(problem)
    q = decoded(inputs["q"], problem.q_format, problem.q_scale)
    cache = decoded(inputs["kv_buffer"], problem.kv_format, problem.kv_scale).view(-1, problem.page_size, q.shape[2])
    row = 0
    for pages, kv_len, q_len in zip(paging_of(problem).pages, problem.kv_lens, problem.q_lens, strict=True):
        keys = cache[list(pages)].view(len(pages) * problem.page_size, q.shape[2])
        for seen in range(kv_len - q_len + 1, kv_len + 1):
            logits = q[row] @ keys[: max(0, seen)].T * 2.0**problem.softmax_scale
            row += 1
            if seen > 1 and problem.num_heads:
                best = logits.topk(2, dim=1).values
                assert float((best[:, 0] - best[:, 1]).min()) >= 150


@pytest.mark.parametrize("kernel", RIGHT, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("name", CODES)
def test_a_right_kernel_is_never_blamed_on_codes(kernel: Kernel, name: str, arena: Arena) -> None:
    """Whatever the problem, neither the oracle nor the baseline objects to a kernel that declares its arithmetic."""
    seen = fuzz(on_codes(kernel, name), arena, examples=25, seed=5)
    assert len(seen) >= 20


@pytest.mark.parametrize("regime", ["retrieval", "uniform", "gaussian", "extreme", "special"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_right_kernel_is_judged_in_full_at_model_size(dtype: str, regime: str, arena: Arena) -> None:
    """Sixteen heads of 512 + 64 columns of codes are judged without an alarm, every element of them."""
    for name in CODES:
        for kernel in RIGHT[:2]:
            judgement = run(in_format(replace(MODEL, dtype=dtype, regime=regime), name), kernel, arena)
            assert not judgement.disagreements
            assert judgement.not_judged == 0


def _wrong_scale(factor: float) -> Callable[..., None]:
    def call(kv_scale: Tensor, **rest: Any) -> None:
        one_pass_on_codes(kv_scale=kv_scale * factor, **rest)

    call.__name__ = f"scale_times_{factor}"
    return call


@pytest.mark.parametrize("size", [PROBLEM, MODEL], ids=["small", "model"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_scale_off_by_a_hundredth_is_caught(dtype: str, size: DecodeProblem, arena: Arena) -> None:
    """At both sizes and in every dtype, with each of five seeds, in the regimes that bear the bound."""
    kernel = kernel_of(_wrong_scale(1.01), arithmetic=Arithmetic(probabilities="fp32"))
    for regime in ("retrieval", "uniform", "gaussian"):
        problem = replace(size, dtype=dtype, regime=regime)
        caught = [bool(run(replace(problem, seed=seed), kernel, arena).disagreements) for seed in range(5)]
        assert all(caught), regime


def test_numbers_kept_in_16_bits_have_to_be_declared(arena: Arena) -> None:
    """Codes times their scale in the dtype of o are within the bound that says so, and outside the one without."""
    problem = replace(PROBLEM, dtype="bfloat16", regime="gaussian", kv_scale="0.0123", q_scale="0.0123")
    declared, undeclared = Arithmetic(dequantise="input dtype"), Arithmetic()

    def caught(arithmetic: Arithmetic) -> int:
        kernel = kernel_of(dequantised_in_16_bits, arithmetic=arithmetic)
        return sum(bool(run(replace(problem, seed=seed), kernel, arena).disagreements) for seed in range(20))

    assert caught(declared) == 0
    assert caught(undeclared) >= 10


@pytest.mark.parametrize("kind", sorted(DECODE_INVALID))
def test_every_invalid_kind_is_refused_on_codes(kind: str) -> None:
    """Each fault of a plain problem is one of a quantised problem, and a kernel that validates refuses it."""
    arena = Arena("cpu")

    @settings(max_examples=15, deadline=None, database=None, derandomize=True, suppress_health_check=SLOW)
    @given(invalid_decode_problems(LIMITS, kinds=(kind,)))
    def one(problem: DecodeProblem) -> None:
        placement = CONTRACT.place(problem, KERNEL, CPU)
        arena.load(placement.tensors)
        arena.poison(Secret.A)
        with pytest.raises(ValueError, match=r"wanted|fit|overlaps|falls|outside|ends"):
            decode_split_kv_empty(**arena.tensors(), **placement.arguments)
        assert arena.stray() == []

    one()
