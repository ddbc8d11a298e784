"""The up-projection with a quantised weight: its oracle, its bound and what its problems hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from torch import Tensor

from mla_verify.errors import UsageError
from mla_verify.formats import E8M0, FORMATS, decode, table_of, unpack_pairs
from mla_verify.kernel import Arithmetic, Kernel
from mla_verify.kernels import torch_quantised
from mla_verify.registry import register
from mla_verify.up_projection import CONTRACT
from mla_verify.up_projection.expectation import expect
from mla_verify.up_projection.quantising import operands_of
from sanitizer.plan import TensorPlan
from strategies.layouts import Layout
from strategies.limits import UpProjectionLimits
from strategies.problems import UpProjectionProblem
from strategies.vocabulary import FP8_FORMATS
from tests.contracts.no_false_alarm_quantised import CPU, RIGHT, judged, laid_out, quantised_kernel

FORMS = [("fp8", name) for name in FP8_FORMATS] + [("mxfp4", "e4m3fn")]
SIZES = ((1, 1, 40, 17), (3, 2, 130, 33), (5, 4, 512, 64))  # tokens, heads, kv_lora_rank, v_head_dim
SPLIT = {
    "fp8": quantised_kernel("fp8", torch_quantised.up_projection_fp8_split, "fp8"),
    "mxfp4": quantised_kernel("mxfp4", torch_quantised.up_projection_mxfp4_split, "mxfp4"),
}


def _problem(form: tuple[str, str], size: tuple[int, int, int, int] = SIZES[1], **changed: Any) -> UpProjectionProblem:
    tokens, heads, latent, width = size
    plain = UpProjectionProblem(
        num_tokens=tokens,
        num_heads=heads,
        kv_lora_rank=latent,
        v_head_dim=width,
        weight_format=form[0],
        fp8_format=form[1],
        seed=9,
    )
    return replace(plain, **changed)


@pytest.mark.parametrize("kernel", RIGHT, ids=lambda kernel: kernel.name)
def test_right_kernels_of_every_make_agree(kernel: Kernel) -> None:
    """No kernel that quantises as prescribed is ever accused, by the oracle or beside the baseline."""
    torch.set_num_threads(1)

    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(CONTRACT.problems(kernel))
    def run(problem: UpProjectionProblem) -> None:
        for judgement in judged(problem, kernel):
            assert not judgement.disagreements
            assert judgement.worst <= 1.0

    run()


def _nearest(value: Fraction, name: str) -> Fraction:
    """The finite number of a format that is nearest, the even code in a tie, by looking at all of them."""
    form = FORMATS[name]
    numbers = [Fraction(float(number)) for number in table_of(name)[: form.largest_code + 1]]
    code = min(range(len(numbers)), key=lambda code: (abs(abs(value) - numbers[code]), code % 2))
    return numbers[code] if value >= 0 else -numbers[code]


def _as_prescribed(row: list[float], form: tuple[str, str]) -> list[Fraction]:
    """What a row of x stands for, in exact rational numbers."""
    found: list[Fraction] = []
    size = 128 if form[0] == "fp8" else 32
    for first in range(0, len(row), size):
        group = [Fraction(value) for value in row[first : first + size]]
        amax = max(abs(value) for value in group)
        if form[0] == "fp8":
            scale = max(amax, Fraction(1, 10**10)) / Fraction(FORMATS[form[1]].largest)
            found += [_nearest(value / scale, form[1]) * scale for value in group]
            continue
        exponent = -127
        if amax:
            while Fraction(2) ** exponent <= amax / Fraction(7, 4) * 2 / 4:  # as soon as amax is below 1.75·4·2**e
                exponent += 1
            exponent -= 1
        scale = Fraction(2) ** exponent
        found += [_nearest(value / scale, "e2m1") * scale for value in group]
    return found


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_the_oracle_quantises_as_the_contract_prescribes(form: tuple[str, str]) -> None:
    """Every element is Σ x̂·ŵ, x̂ being the nearest codes times their group's scale, in exact rational numbers."""
    problem = _problem(form, regime="gaussian", dtype="bfloat16", seed=11)
    kernel = SPLIT[form[0]]
    tensors = laid_out(problem, kernel)
    value = expect(problem, kernel, tensors).kernel.value
    if form[0] == "fp8":
        weight = decode(tensors["w_q"], form[1]) * float(tensors["w_scale"])
    else:
        weight = decode(unpack_pairs(tensors["w_q"]), "e2m1")
        weight *= decode(tensors["w_scale"], E8M0).repeat_interleave(32, -1)[..., : problem.kv_lora_rank]
    for token, head, column in ((0, 0, 0), (2, 1, 32), (1, 0, 7)):
        x = _as_prescribed(tensors["x"][token, head].tolist(), form)
        exact = sum((one * Fraction(float(w)) for one, w in zip(x, weight[head, column], strict=True)), Fraction(0))
        assert float(value[token, head, column]) == pytest.approx(float(exact), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("partials", ["fp32", "output dtype"])
@pytest.mark.parametrize("latent", [2, 34, 300, 512, 2048])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_on_the_grid_quantising_changes_nothing(form: tuple[str, str], dtype: str, latent: int, partials: str) -> None:
    """x is its own codes, no other code is near, and the sums fit what they are added in."""
    arithmetic = Arithmetic(partials="output dtype" if partials == "output dtype" else "fp32")
    kernel = replace(SPLIT[form[0]], arithmetic=arithmetic)
    for seed in range(3):
        problem = _problem(form, (2, 2, latent, 3), dtype=dtype, seed=seed)
        tensors = laid_out(problem, kernel)
        operands = operands_of(problem, tensors)
        assert torch.equal(operands.x, tensors["x"].double())
        assert operands.slack is None or not operands.slack.any()
        factors = operands.x.abs(), operands.w_uv.abs()
        sums = torch.einsum("thk,hkv->thv", *factors)
        units = [values[values > 0].min() for values in factors]
        # The smallest numbers are the units, or an odd multiple below 16 of one.
        limits = {"float32": 2**24, "float16": 2**11, "bfloat16": 2**8}
        assert float(sums.max() / (units[0] * units[1])) <= limits[dtype if partials == "output dtype" else "float32"]


def narrow_accumulator(x: Tensor, w: Tensor) -> Tensor:
    """Adds in float16."""
    total = torch.zeros(x.shape[0], x.shape[1], w.shape[2], dtype=torch.float16)
    for column in range(x.shape[2]):
        total += (x[..., column, None] * w[None, :, column]).to(torch.float16)
    return total.float()


def last_tile_dropped(x: Tensor, w: Tensor) -> Tensor:
    """Forgets the latent columns behind the last whole tile of 16."""
    whole = (x.shape[2] - 1) // 16 * 16
    return torch.einsum("thk,hkv->thv", x[..., :whole], w[:, :whole])


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("fault", [narrow_accumulator, last_tile_dropped], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("form", [FORMS[0], FORMS[2], FORMS[4]], ids="-".join)
def test_wrong_sums_are_caught_at_every_size(
    form: tuple[str, str],
    fault: Callable[[Tensor, Tensor], Tensor],
    dtype: str,
    size: tuple[int, int, int, int],
) -> None:
    """A dropped tile of the rank leaves elements outside the bound in every regime, a float16 accumulator in one.

    A few codes of two bits add up exactly in float16 too, and an output in bfloat16 keeps less than that.
    """
    caught: list[bool] = []
    for regime in ("exact", "gaussian", "extreme"):
        problem = _problem(form, size, dtype=dtype, regime=regime, seed=11)
        kernel = quantised_kernel("wrong", partial(_wrongly_summed, problem, fault), form[0])
        caught.append(bool(judged(problem, kernel)[0].disagreements))
    assert all(caught) if fault is last_tile_dropped else any(caught)


def _wrongly_summed(
    problem: UpProjectionProblem, fault: Callable[[Tensor, Tensor], Tensor], *, out: Tensor, **tensors: Any
) -> None:
    operands = operands_of(problem, tensors)
    x, w = operands.x.float(), operands.w_uv.float()
    x_unit, w_unit = x.abs().max() / 8, w.abs().max()  # float16 then neither overflows nor underflows
    out.copy_(fault(x / x_unit, w / w_unit) * (x_unit * w_unit))


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_16_bit_bounds_are_at_most_eight_times_the_worst_error(
    form: tuple[str, str], dtype: str, size: tuple[int, int, int, int]
) -> None:
    """Somewhere in each of a few problems a right kernel errs by an eighth of its bound or more."""
    kernel = SPLIT[form[0]]
    worst = 0.0
    for seed in (9, 12, 15):
        problem = _problem(form, size, dtype=dtype, regime="gaussian", seed=seed)
        tensors = laid_out(problem, kernel)
        kernel.load()(**tensors)
        reference = expect(problem, kernel, tensors).kernel
        everything = tuple(torch.nonzero(torch.ones(reference.value.shape), as_tuple=True))
        bound, means_something = reference.bound(everything)
        assert bool(means_something.all())
        error = (tensors["out"].double() - reference.value).abs().flatten()
        worst = max(worst, float((error / bound).max()))
    assert 1 / 8 <= worst <= 1


def _row_of(values: list[float], form: tuple[str, str]) -> tuple[UpProjectionProblem, dict[str, Tensor]]:
    """A problem of one row x, and a weight that picks the last column out."""
    problem = _problem(form, (1, 1, len(values), 1), regime="gaussian")
    tensors = laid_out(problem, SPLIT[form[0]])
    tensors["x"] = torch.tensor([[values]])
    codes = torch.zeros(1, 1, len(values), dtype=torch.uint8)
    codes[..., -1] = 0x38  # 1 in e4m3fn
    tensors["w_q"] = codes.view(torch.float8_e4m3fn)
    tensors["w_scale"] = torch.ones(1)
    return problem, tensors


@pytest.mark.parametrize(
    ("value", "right", "wrong"),
    [
        (17.0, (16.0, 18.0), (13.0, 22.0)),  # a tie: two steps of 2 are as near
        (17.0 * (1 + 2.0**-22), (16.0, 18.0), (15.0, 22.0)),
        (17.0 * (1 - 2.0**-22), (16.0, 18.0), (13.0, 20.0)),
        (17.001, (18.0,), (16.0, 17.001)),
        (16.999, (16.0,), (18.0, 17.0)),
    ],
)
def test_beside_a_midpoint_either_code_is_right(
    value: float, right: tuple[float, ...], wrong: tuple[float, ...]
) -> None:
    """As far as float32 scales can err, and no further: one step beside is as right, two are not."""
    problem, tensors = _row_of([448.0, value], ("fp8", "e4m3fn"))
    expectation = expect(problem, SPLIT["fp8"], tensors)
    for answers, agrees in ((right, True), (wrong, False)):
        for answer in answers:
            found = expectation.judge({"out": torch.full((1, 1, 1), answer)}, skip={}).disagreements
            assert (not found) == agrees, f"{answer} for {value}"


def test_a_group_of_zeros_is_zero_and_a_tiny_one_may_have_another_floor() -> None:
    """0/0 is no answer; what a code of 1e-12 stands for depends on the floor, within half a step of it."""
    kernel = SPLIT["fp8"]
    problem, tensors = _row_of([0.0, 0.0], ("fp8", "e4m3fn"))
    expectation = expect(problem, kernel, tensors)
    assert not expectation.judge({"out": torch.zeros(1, 1, 1)}, skip={}).disagreements
    for wrong in (torch.nan, 1e-15):
        assert expectation.judge({"out": torch.full((1, 1, 1), wrong)}, skip={}).disagreements
    problem, tensors = _row_of([1e-12, 3.3e-13], ("fp8", "e4m3fn"))
    expectation = expect(problem, kernel, tensors)
    for right in (3.3e-13, 1e-12 / 448 * 144, 1e-12 / 448 * 152):
        assert not expectation.judge({"out": torch.full((1, 1, 1), right)}, skip={}).disagreements
    for wrong in (0.0, 6.6e-13, torch.nan):
        assert expectation.judge({"out": torch.full((1, 1, 1), wrong)}, skip={}).disagreements


def test_a_weight_scale_of_zero_gives_zeros() -> None:
    """Not NaN, as a division by it somewhere would."""
    problem = _problem(FORMS[0], regime="special", seed=2)
    tensors = laid_out(problem, SPLIT["fp8"])
    assert float(tensors["w_scale"]) == 0.0
    for judgement in judged(problem, SPLIT["fp8"]):
        assert not judgement.disagreements


def _plans(problem: UpProjectionProblem, kernel: Kernel) -> dict[str, TensorPlan]:
    return {plan.name: plan for plan in CONTRACT.place(problem, kernel, CPU).tensors}


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("regime", ["exact", "gaussian", "extreme", "special"])
def test_codes_and_scales_are_what_the_dequantised_weight_says(form: tuple[str, str], regime: str) -> None:
    """w_uv is w_q times w_scale, rounded to float32, in the layout and dtypes that the contract names."""
    problem = _problem(form, regime=regime, w_layout=Layout("padded_heads", 3, 1), seed=7)
    plans = _plans(problem, SPLIT[form[0]])
    assert list(plans) == ["x", "w_uv", "w_q", "w_scale", "out"]
    tensors = laid_out(problem, SPLIT[form[0]])
    if form[0] == "fp8":
        assert plans["w_q"].shape == (2, 33, 130)
        weight = decode(tensors["w_q"], form[1]) * tensors["w_scale"].double()
    else:
        assert (plans["w_q"].shape, plans["w_scale"].shape) == ((2, 33, 65), (2, 33, 5))
        assert plans["w_q"].dtype == plans["w_scale"].dtype == torch.uint8
        scales = decode(tensors["w_scale"], E8M0).repeat_interleave(32, -1)[..., :130]
        weight = decode(unpack_pairs(tensors["w_q"]), "e2m1") * scales
    assert plans["w_q"].strides[1] == plans["w_q"].shape[2] + 3
    torch.testing.assert_close(tensors["w_uv"].double(), weight.transpose(1, 2), rtol=2**-24, atol=0, equal_nan=True)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_hostile_values_happen(form: tuple[str, str]) -> None:
    """Zero groups among others, every finite code, −0, NaN and infinite codes, and scales at their ends."""
    kernel, size = SPLIT[form[0]], (4, 3, 260, 20)
    seen: set[str] = set()
    codes = torch.zeros(256, dtype=torch.bool)
    for regime in ("gaussian", "extreme", "special"):
        for seed in range(8):
            tensors = laid_out(_problem(form, size, regime=regime, seed=seed), kernel)
            assert tensors["x"].isfinite().all()
            groups = torch.stack([group.abs().amax(-1) for group in tensors["x"].split(32, -1)], -1)
            seen |= {"zero group"} if bool((groups == 0).any() and (groups > 0).any()) else set()
            stored = tensors["w_q"] if form[0] == "fp8" else unpack_pairs(tensors["w_q"])
            codes[stored.view(torch.uint8).long().unique()] = True
            scale = tensors["w_scale"]
            seen |= {"scale 0"} if bool((scale == 0).any()) else set()
            seen |= {"scale NaN"} if form[0] == "mxfp4" and bool((scale == 255).any()) else set()
    name = form[1] if form[0] == "fp8" else "e2m1"
    table = table_of(name)
    wanted = {"zero group", "scale 0"} | ({"scale NaN"} if form[0] == "mxfp4" else set[str]())
    assert seen == wanted
    assert bool(codes[: len(table)][table.isfinite()].all())
    if form[0] == "fp8":
        assert bool((codes & table.isnan()).any())
        assert bool((codes & table.isinf()).any()) == (name == "e5m2")


@pytest.mark.parametrize("fault", ["inner_sizes_differ", "w_dtype_differs"])
@pytest.mark.parametrize("form", [FORMS[0], FORMS[4]], ids="-".join)
def test_invalid_weights_are_those_of_the_codes(form: tuple[str, str], fault: str) -> None:
    """What is wrong about the weight is wrong about w_q, and our own kernels refuse it."""
    problem = _problem(form, invalid=fault)
    plans, valid = _plans(problem, SPLIT[form[0]]), _plans(replace(problem, invalid=None), SPLIT[form[0]])
    assert (plans["w_q"].dtype != valid["w_q"].dtype) == (fault == "w_dtype_differs")
    assert (plans["w_q"].shape != valid["w_q"].shape) == (fault == "inner_sizes_differ")
    tensors = laid_out(problem, SPLIT[form[0]])
    with pytest.raises(ValueError, match="w_q"):
        SPLIT[form[0]].load()(**tensors)


def test_what_a_kernel_is_passed_follows_its_formats() -> None:
    """A kernel of plain weights is told of no other; one of both gets None where there are no codes."""
    plain = UpProjectionProblem()
    only = Kernel(name="plain", contract="up-projection", load=lambda: print)
    both = replace(only, limits=UpProjectionLimits(weight_formats=("plain", "fp8")))
    assert dict(CONTRACT.place(plain, only, CPU).arguments) == {}
    assert dict(CONTRACT.place(plain, both, CPU).arguments) == {
        "weight_format": "plain",
        "w_q": None,
        "w_scale": None,
    }
    assert dict(CONTRACT.place(_problem(FORMS[0]), both, CPU).arguments) == {"weight_format": "fp8"}

    def takes_a_plain_weight(x: Tensor, w_uv: Tensor, out: Tensor) -> None:
        """Takes the three arguments of a plain problem and no others."""

    register(contract="up-projection", registry=False)(takes_a_plain_weight)
    with pytest.raises(UsageError, match="does not take weight_format, w_q, w_scale"):
        register(contract="up-projection", registry=False, weight_formats=("fp8",))(takes_a_plain_weight)
