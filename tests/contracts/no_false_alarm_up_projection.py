"""Right up-projections of different make, and a long run that none of them may end with an alarm.

Not part of the suite: `python -m tests.contracts.no_false_alarm_up_projection [EXAMPLES] [SEED]` draws so many
problems (20,000 unless told otherwise), runs every kernel on each, and prints what was judged and how near to
the bound it came.
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
from mla_verify.kernel import Arithmetic, Kernel, KnownDeviation
from mla_verify.up_projection import CONTRACT
from mla_verify.up_projection.tensors import infinities
from sanitizer.plan import TensorPlan
from strategies.problems import UpProjectionProblem

__all__ = ["RIGHT", "judged", "laid_out", "registered", "up_projection_kernel"]

CPU: Final = torch.device("cpu")


PLAIN: Final = Arithmetic()


def _spreads_infinities(problem: UpProjectionProblem) -> bool:
    if problem.dtype != "bfloat16" or problem.num_tokens <= 16:
        return False
    tile = 32 if problem.kv_lora_rank > 32 else 2
    reach = -problem.kv_lora_rank % tile
    return any(token > 0 and column < reach for token, _, column in infinities(problem))


SPREADS_INFINITIES: Final = KnownDeviation(
    clause="agreement",
    problems=_spreads_infinities,
    reason="the CPU's AMX product fills a row of x up to its tile with the beginning of the next, times zero: "
    "NaN where that is an infinity",
)


def up_projection_kernel(
    name: str,
    function: Callable[..., Any],
    arithmetic: Arithmetic = PLAIN,
    known: tuple[KnownDeviation, ...] = (),
) -> Kernel:
    """Register a function by hand."""
    return Kernel(
        name=name,
        contract="up-projection",
        load=lambda: function,
        arithmetic=arithmetic,
        known_deviations=known,
    )


def laid_out(problem: UpProjectionProblem, kernel: Kernel) -> dict[str, Tensor]:
    """A problem's tensors with their strides in memory of their own; outputs hold NaN."""
    placement = CONTRACT.place(problem, kernel, CPU)
    return {plan.name: _placed(plan) for plan in placement.tensors}


def _placed(plan: TensorPlan) -> Tensor:
    reach = sum((size - 1) * stride for size, stride in zip(plan.shape, plan.strides, strict=True))
    memory = torch.full((plan.offset + (0 if 0 in plan.shape else reach + 1),), torch.nan, dtype=plan.dtype)
    tensor = memory.as_strided(plan.shape, plan.strides, plan.offset)
    if plan.values is not None:
        for row, values in zip(tensor, plan.values, strict=True):  # row by row: rows may share memory
            row.copy_(values)
    return tensor


def judged(
    problem: UpProjectionProblem, kernel: Kernel, *, tensors: dict[str, Tensor] | None = None
) -> tuple[Judgement, Judgement]:
    """Run a kernel on a problem: how it stands to the oracle, and to the baseline."""
    tensors = laid_out(problem, kernel) if tensors is None else tensors
    kernel.load()(**tensors)
    outputs = {"out": tensors["out"]}
    expectation = CONTRACT.expect(problem, kernel, tensors)
    baseline = CONTRACT.baseline(problem, kernel, tensors)
    return expectation.judge(outputs, skip={}), expectation.differential(outputs, baseline, skip={})


def direct(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """One batched product, written straight into the transposed output."""
    torch.bmm(x.transpose(0, 1), w_uv, out=out.transpose(0, 1))


def einsum(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """An einsum into a temporary that is then copied."""
    out.copy_(torch.einsum("thk,hkv->thv", x, w_uv))


def widened(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Everything in float32, rounded once on the way out."""
    out.copy_(torch.bmm(x.transpose(0, 1).float(), w_uv.float()).transpose(0, 1))


def tiled(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Tiles of 16 latent columns, last one first, added in float32."""
    total = torch.zeros(out.shape, dtype=torch.float32)
    for first in reversed(range(0, x.shape[2], 16)):
        some = slice(first, first + 16)
        total += torch.einsum("thk,hkv->thv", x[..., some].float(), w_uv[:, some].float())
    out.copy_(total)


def split(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Four splits of the latent columns, each rounded to the output's dtype, then added in float32."""
    total = torch.zeros(out.shape, dtype=torch.float32)
    for x_part, w_part in zip(x.tensor_split(4, 2), w_uv.tensor_split(4, 1), strict=True):
        total += torch.einsum("thk,hkv->thv", x_part.float(), w_part.float()).to(out.dtype)
    out.copy_(total)


def tf32(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """The factors of float32 products lose their last 13 bits, as on a tensor core that truncates."""

    def truncated(values: Tensor) -> Tensor:
        return (values.float().contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)

    out.copy_(torch.einsum("thk,hkv->thv", truncated(x), truncated(w_uv)))


def flushing(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Subnormals count as zero on the way in, and become zero on the way out."""

    def flushed(values: Tensor) -> Tensor:
        return torch.where(values.abs() < torch.finfo(values.dtype).smallest_normal, 0, values)

    product = torch.einsum("thk,hkv->thv", flushed(x).float(), flushed(w_uv).float())
    out.copy_(flushed(flushed(product).to(out.dtype)))


RIGHT: Final = (
    up_projection_kernel("direct", direct, known=(SPREADS_INFINITIES,)),
    up_projection_kernel("einsum", einsum, known=(SPREADS_INFINITIES,)),
    up_projection_kernel("widened", widened),
    up_projection_kernel("tiled", tiled),
    up_projection_kernel("split", split, Arithmetic(partials="output dtype")),
    up_projection_kernel("tf32", tf32, Arithmetic(multiply="tf32")),
    up_projection_kernel("flushing", flushing, Arithmetic(subnormals="flushed")),
)


def registered(name: str) -> Kernel:
    """The right kernel of this name."""
    return next(kernel for kernel in RIGHT if kernel.name == name)


def main(examples: int, seed: int) -> int:
    """Draw problems and run every right kernel on each; print alarms as they come; 1 if there were any."""
    torch.set_num_threads(1)
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
    @given(CONTRACT.problems(RIGHT[0]))
    def run(problem: UpProjectionProblem) -> None:
        counts["problems"] += 1
        for kernel in RIGHT:
            tensors = laid_out(problem, kernel)
            parts = judged(problem, kernel, tensors=tensors)
            counts["elements"] += tensors["out"].numel()
            counts[f"not judged: {problem.regime}, {problem.dtype}"] += parts[0].not_judged
            key = (kernel.name, problem.regime, problem.dtype)
            worst[key] = max(worst.get(key, 0.0), parts[0].worst)
            for part in parts:
                for wrong in part.disagreements:
                    if any(known.problems(problem) for known in kernel.known_deviations):
                        counts["known deviations"] += 1
                        continue
                    counts["alarms"] += 1
                    print(f"{kernel.name}: {wrong.detail}\n    {problem}")

    started = time.perf_counter()
    run()
    for name, count in sorted(counts.items()):
        print(f"{count:12d}  {name}")
    for (kernel, regime, dtype), ratio in sorted(worst.items()):
        print(f"{ratio:12.4f}  largest error / bound: {kernel}, {regime}, {dtype}")
    print(f"{time.perf_counter() - started:12.1f}  seconds")
    return 1 if counts["alarms"] else 0


if __name__ == "__main__":
    given_arguments = [int(argument) for argument in sys.argv[1:]] + [20_000, 0][len(sys.argv) - 1 :]
    sys.exit(main(*given_arguments))
