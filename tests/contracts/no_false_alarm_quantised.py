"""Right up-projections with a quantised weight, and a long run that none of them may end with an alarm.

Not part of the suite: `python -m tests.contracts.no_false_alarm_quantised [EXAMPLES] [SEED] [NAME …]` draws so many
problems of each format (5,000 unless told otherwise), runs every right kernel on each whose name has one of the given
parts, and prints what was judged and how near to the bound it came.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given, settings
from torch import Tensor

from mla_verify.contract import Judgement
from mla_verify.faults.quantised import RIGHT as OF_THE_CORPUS
from mla_verify.kernel import Arithmetic, Kernel
from mla_verify.kernels import torch_quantised
from mla_verify.up_projection import CONTRACT
from sanitizer.plan import TensorPlan
from sanitizer.secrets import fill_with_secret
from strategies.limits import UpProjectionLimits
from strategies.problems import UpProjectionProblem

__all__ = ["RIGHT", "judged", "laid_out", "quantised_kernel"]

CPU: Final = torch.device("cpu")
_FP8: Final = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")
_U: Final = 2.0**-24
_PLAIN: Final = Arithmetic()


def quantised_kernel(
    name: str, function: Callable[..., Any], weight_format: str, arithmetic: Arithmetic = _PLAIN
) -> Kernel:
    """Register a function by hand."""
    encodings = _FP8 if weight_format == "fp8" else ("e4m3fn",)
    limits = UpProjectionLimits(weight_formats=(weight_format,), fp8_formats=encodings)
    return Kernel(name=name, contract="up-projection", load=lambda: function, limits=limits, arithmetic=arithmetic)


def laid_out(problem: UpProjectionProblem, kernel: Kernel) -> dict[str, Tensor]:
    """A problem's tensors with their strides in memory of their own, which held NaN."""
    return {plan.name: _placed(plan) for plan in CONTRACT.place(problem, kernel, CPU).tensors}


def _placed(plan: TensorPlan) -> Tensor:
    reach = sum((size - 1) * stride for size, stride in zip(plan.shape, plan.strides, strict=True))
    memory = torch.empty((plan.offset + (0 if 0 in plan.shape else reach + 1),), dtype=plan.dtype)
    fill_with_secret(memory, "nan")
    tensor = memory.as_strided(plan.shape, plan.strides, plan.offset)
    if plan.values is not None:
        for row, values in zip(tensor, plan.values, strict=True):  # row by row: rows may share memory
            row.copy_(values)
    return tensor


def judged(problem: UpProjectionProblem, kernel: Kernel) -> tuple[Judgement, Judgement]:
    """Run a kernel on a problem: how it stands to the oracle, and to the baseline."""
    tensors = laid_out(problem, kernel)
    kernel.load()(**tensors, weight_format=problem.weight_format)
    outputs = {"out": tensors["out"]}
    expectation = CONTRACT.expect(problem, kernel, tensors)
    baseline = CONTRACT.baseline(problem, kernel, tensors)
    return expectation.judge(outputs, skip={}), expectation.differential(outputs, baseline, skip={})


def _groups(x: Tensor, size: int) -> Tensor:
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[-1] % size))
    return padded.unflatten(-1, (padded.shape[-1] // size, size))


def _erring(like: Tensor, ulps: float) -> Tensor:
    """Factors 1 ± ulps·2**−24, of either sign in turn: as far off as Note [What rounding may differ by] allows."""
    sign = 1.0 - 2.0 * (torch.arange(like.numel()) % 2)
    return 1.0 + ulps * _U * sign.to(torch.float64).reshape(like.shape)


def coarse_scales(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: Any) -> None:
    """Scales and quotients off by four and five units of float32, except where dividing is exact."""
    groups, largest = _groups(x, 128).double(), torch.finfo(w_q.dtype).max
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / largest
    round_scale = torch.frexp(scale).mantissa == 0.5
    scale = torch.where(round_scale, scale, scale * _erring(scale, 3.9))
    quotient = groups / scale
    quotient = torch.where(round_scale, quotient, quotient * _erring(quotient, 4.9))
    rounded = quotient.float().clamp(-largest, largest).to(w_q.dtype).float() * scale.float()
    weight = w_q.float() * w_scale
    out.copy_(torch.einsum("thk,hvk->thv", rounded.flatten(-2)[..., : x.shape[-1]], weight))


def other_floor(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: Any) -> None:
    """A group's amax is floored at the smallest normal number, not at 1e-10."""
    groups, largest = _groups(x, 128), torch.finfo(w_q.dtype).max
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=largest * 2.0**-126) / largest
    rounded = (groups / scale).clamp(-largest, largest).to(w_q.dtype).float() * scale
    weight = w_q.float() * w_scale
    out.copy_(torch.einsum("thk,hvk->thv", rounded.flatten(-2)[..., : x.shape[-1]], weight))


def _in_16_bits(whole: Callable[..., Any], size: int) -> Callable[..., Any]:
    """The kernel `whole` called for each part of the rank, its results kept in the output's dtype and then added."""

    def summed(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: Any) -> None:
        total = torch.zeros(out.shape)
        pairs = w_q.dtype == torch.uint8
        for first in range(0, x.shape[-1], size):
            part, some = torch.empty(out.shape, dtype=out.dtype), slice(first, first + size)
            of_w = slice(first // 2, (first + size) // 2) if pairs else some
            scale = w_scale[..., first // 32 : (first + size) // 32] if pairs else w_scale
            whole(x=x[..., some], out=part, w_q=w_q[..., of_w], w_scale=scale)
            total += part.float()
        out.copy_(total)

    return summed


def flushing(x: Tensor, out: Tensor, w_q: Tensor, w_scale: Tensor, **_: Any) -> None:
    """Subnormals of float32 and of x's dtype count as zero, scales among them, and so do such results."""

    def flushed(values: Tensor) -> Tensor:
        return torch.where(values.abs() < torch.finfo(values.dtype).smallest_normal, 0, values)

    blocks = _groups(flushed(x), 32)
    exponent = torch.frexp(blocks.abs().amax(-1, keepdim=True) * (8 / 7)).exponent  # 1.75 becomes 2
    scale = torch.exp2((exponent - 3).clamp(-127, 127).float())
    magnitude = (blocks / scale).abs()
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    codes = (torch.round(magnitude / step) * step).clamp(max=6).copysign(blocks) * flushed(scale)
    weight = torch_quantised._mxfp4_weight(w_q, torch.full_like(w_scale, 127))  # pyright: ignore[reportPrivateUsage]  codes alone
    scales = torch_quantised._mxfp4_weight(torch.full_like(w_q, 0x22), w_scale)  # pyright: ignore[reportPrivateUsage]  scales alone
    product = torch.einsum("thk,hvk->thv", flushed(codes.flatten(-2)[..., : x.shape[-1]]), weight * flushed(scales))
    out.copy_(flushed(flushed(product).to(out.dtype)))


_SPLIT: Final = Arithmetic(partials="output dtype")

RIGHT: Final = (
    *OF_THE_CORPUS,
    quantised_kernel("fp8_split", torch_quantised.up_projection_fp8_split, "fp8"),
    quantised_kernel("fp8_coarse_scales", coarse_scales, "fp8"),
    quantised_kernel("fp8_other_floor", other_floor, "fp8"),
    quantised_kernel("fp8_16_bits", _in_16_bits(torch_quantised.up_projection_fp8_copy, 128), "fp8", _SPLIT),
    quantised_kernel("mxfp4_split", torch_quantised.up_projection_mxfp4_split, "mxfp4"),
    quantised_kernel("mxfp4_16_bits", _in_16_bits(torch_quantised.up_projection_mxfp4_copy, 32), "mxfp4", _SPLIT),
    quantised_kernel("mxfp4_flushing", flushing, "mxfp4", Arithmetic(subnormals="flushed")),
)


def _formats_of(kernel: Kernel) -> tuple[str, ...]:
    assert isinstance(kernel.limits, UpProjectionLimits)
    return kernel.limits.weight_formats


def _among(kernel: Kernel, names: tuple[str, ...]) -> bool:
    return not names or any(name in kernel.name for name in names)


def main(examples: int, seed: int, weight_format: str, names: tuple[str, ...] = ()) -> int:
    """Draw problems and run every right kernel on each; print alarms as they come; 1 if there were any."""
    torch.set_num_threads(1)
    kernels = [kernel for kernel in RIGHT if weight_format in _formats_of(kernel) and _among(kernel, names)]
    if not kernels:
        return 0
    counts: Counter[str] = Counter()
    worst: dict[tuple[str, str, str], float] = {}

    @hypothesis.seed(seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    )
    @given(CONTRACT.problems(kernels[0]))
    def run(problem: UpProjectionProblem) -> None:
        counts["problems"] += 1
        for kernel in kernels:
            parts = judged(problem, kernel)
            counts["elements"] += problem.num_tokens * problem.num_heads * problem.v_head_dim
            counts[f"not judged: {problem.regime}, {problem.dtype}"] += parts[0].not_judged
            key = (kernel.name, problem.regime, problem.dtype)
            worst[key] = max(worst.get(key, 0.0), parts[0].worst)
            for wrong in (wrong for part in parts for wrong in part.disagreements):
                counts["alarms"] += 1
                print(f"{kernel.name}: {wrong.detail}\n    {problem}", flush=True)

    started = time.perf_counter()
    run()
    print(f"{weight_format}: {', '.join(kernel.name for kernel in kernels)}")
    for name, count in sorted(counts.items()):
        print(f"{count:12d}  {name}")
    for (kernel, regime, dtype), ratio in sorted(worst.items()):
        print(f"{ratio:12.4f}  largest error / bound: {kernel}, {regime}, {dtype}")
    print(f"{time.perf_counter() - started:12.1f}  seconds", flush=True)
    return 1 if counts["alarms"] else 0


if __name__ == "__main__":
    counted = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    how_many, first_seed = (*counted, *(5_000, 0)[len(counted) :])
    parts_of_names = tuple(argument for argument in sys.argv[1:] if not argument.isdigit())
    sys.exit(max(main(how_many, first_seed, each, parts_of_names) for each in ("fp8", "mxfp4")))
