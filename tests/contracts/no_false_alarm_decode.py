"""Right decode kernels of different makes, and a run of many problems in which none of them may be blamed.

`python -m tests.contracts.no_false_alarm_decode 2000` draws 2,000 problems for each kernel and prints what the judge
said; `… 2000 0 e4m3fn` draws them with seed 0, the cache and half of the queries in that format. The tests beside it
run a few.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from torch import Tensor

from mla_verify.contract import Judgement
from mla_verify.decode import CONTRACT
from mla_verify.judging import merged
from mla_verify.kernel import Arithmetic, Kernel
from mla_verify.kernels.torch_decode import decode_split_kv_empty, decode_split_kv_zeros
from sanitizer.arena import Arena
from sanitizer.secrets import Secret
from strategies.limits import DecodeLimits
from strategies.problems import DecodeProblem

__all__ = ["RIGHT", "Call", "fuzz", "kernel_of", "on_codes", "run"]

Call = Callable[..., Any]

_CPU: Final = torch.device("cpu")
_TILE: Final = 5  # keys that the running kernels take at a time: few, so that small problems have several tiles
_DEFAULT: Final = Arithmetic()
_LOG2E: Final = math.log2(math.e)


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """One request as the kernels below see it, everything in float32."""

    rows: slice
    q: Tensor  # [q_len, num_heads, width]
    keys: Tensor  # [kv_len, width]
    hidden: Tensor  # bool [q_len, 1, kv_len]


def requests(
    q: Tensor,
    kv_buffer: Tensor,
    qo_indptr: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    q_scale: Tensor | None = None,
    kv_scale: Tensor | None = None,
    **_: Any,
) -> Iterator[Lanes]:
    """Read each request's keys through the block table, and dequantise what is quantised."""
    page_size, width = kv_buffer.shape[1], kv_buffer.shape[3]
    starts = qo_indptr.tolist()
    for request, kv_len in enumerate(seq_lens.tolist()):
        rows = slice(starts[request], starts[request + 1])
        pages = block_table[request, : -(-kv_len // page_size)].long()
        keys = kv_buffer[pages].reshape(len(pages) * page_size, width)[:kv_len].float()
        q_len = rows.stop - rows.start
        last_seen = kv_len - q_len + torch.arange(q_len).view(-1, 1, 1)
        hidden = torch.arange(kv_len) > last_seen
        yield Lanes(
            rows,
            q[rows].float() if q_scale is None else q[rows].float() * q_scale,
            keys if kv_scale is None else keys * kv_scale,
            hidden,
        )


def softmax_sum(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unnormalised weights, their sum and the largest score; a lane that sees nothing has weights and sum 0."""
    if scores.shape[-1] == 0:
        zero = scores.new_zeros(*scores.shape[:-1], 1)
        return scores, zero, zero - torch.inf
    peak = scores.amax(-1, keepdim=True)
    weights = (scores - peak.clamp(min=-3e38)).exp()
    return weights, weights.sum(-1, keepdim=True), peak


def store(lanes: Lanes, o: Tensor, lse: Tensor | None, result: Tensor, total: Tensor, peak: Tensor) -> None:
    """Write a request's rows: 0 and −inf where no key is seen."""
    o[lanes.rows] = result.to(o.dtype)
    if lse is not None:
        lse[lanes.rows] = (peak + total.log()).squeeze(-1)


def one_pass(
    o: Tensor,
    lse: Tensor | None,
    sm_scale: float,
    **inputs: Any,
) -> None:
    """Everything in float32, one softmax, one final division."""
    for lanes in requests(**inputs):
        scores = (lanes.q @ lanes.keys.T * sm_scale).masked_fill(lanes.hidden, -torch.inf)
        weights, total, peak = softmax_sum(scores)
        result = weights @ lanes.keys[:, : o.shape[2]] / total.clamp(min=1e-30)
        store(lanes, o, lse, result, total, peak)


def rounded_probabilities(
    o: Tensor,
    lse: Tensor | None,
    sm_scale: float,
    **inputs: Any,
) -> None:
    """Normalised probabilities, rounded to the dtype of o before the second product."""
    for lanes in requests(**inputs):
        scores = torch.einsum("rhd,kd->rhk", lanes.q, lanes.keys).mul(sm_scale)
        weights, total, peak = softmax_sum(scores.masked_fill(lanes.hidden, -torch.inf))
        probabilities = (weights / total.clamp(min=1e-30)).to(o.dtype).float()
        result = torch.einsum("rhk,kl->rhl", probabilities, lanes.keys[:, : o.shape[2]])
        store(lanes, o, lse, result, total, peak)


def running(
    o: Tensor,
    lse: Tensor | None,
    sm_scale: float,
    **inputs: Any,
) -> None:
    """A running maximum and sum over tiles of keys, in powers of two, with weights rounded to the dtype of o."""
    for lanes in requests(**inputs):
        shape = (*lanes.q.shape[:2], 1)
        peak, total = torch.full(shape, -torch.inf), torch.zeros(shape)
        result = torch.zeros(*shape[:2], o.shape[2])
        for start in range(0, lanes.keys.shape[0], _TILE):
            part = slice(start, start + _TILE)
            scores = lanes.q @ lanes.keys[part].T * (sm_scale * _LOG2E)
            scores = scores.masked_fill(lanes.hidden[..., part], -torch.inf)
            higher = torch.maximum(peak, scores.amax(-1, keepdim=True))
            base = higher.clamp(min=-3e38)
            weights, rescale = torch.exp2(scores - base), torch.exp2(peak - base)
            total = total * rescale + weights.sum(-1, keepdim=True)
            values = lanes.keys[part, : o.shape[2]]
            result = result * rescale + weights.to(o.dtype).float() @ values
            peak = higher
        store(lanes, o, lse, result / total.clamp(min=1e-30), total, peak / _LOG2E)


def by_lse(
    o: Tensor,
    lse: Tensor | None,
    sm_scale: float,
    **inputs: Any,
) -> None:
    """Two passes: the lse first, then exp(score − lse) as finished probabilities, without a division."""
    for lanes in requests(**inputs):
        scores = (lanes.q * sm_scale) @ lanes.keys.T
        scores = scores.masked_fill(lanes.hidden, -torch.inf)
        of_lanes = torch.logsumexp(scores, -1, keepdim=True)
        result = (scores - of_lanes.clamp(min=-3e38)).exp() @ lanes.keys[:, : o.shape[2]]
        store(lanes, o, lse, result, torch.ones_like(of_lanes), of_lanes)


def rounded_partials(
    o: Tensor,
    lse: Tensor | None,
    sm_scale: float,
    num_kv_splits: int,
    **inputs: Any,
) -> None:
    """Split-KV whose partial results are kept in the output's dtype."""
    for lanes in requests(**inputs):
        kv_len, step = lanes.keys.shape[0], max(1, -(-lanes.keys.shape[0] // num_kv_splits))
        parts: list[Tensor] = []
        shares: list[Tensor] = []
        for start in range(0, max(1, kv_len), step):
            part = slice(start, start + step)
            scores = lanes.q @ lanes.keys[part].T * sm_scale
            weights, total, peak = softmax_sum(scores.masked_fill(lanes.hidden[..., part], -torch.inf))
            partial = weights @ lanes.keys[part, : o.shape[2]] / total.clamp(min=1e-30)
            parts.append(partial.to(o.dtype).float())
            shares.append(peak + total.log())
        weights, total, peak = softmax_sum(torch.cat(shares, -1))
        result = (torch.stack(parts, -1) * (weights / total.clamp(min=1e-30)).unsqueeze(-2)).sum(-1)
        store(lanes, o, lse, result, total, peak)


def tf32(
    o: Tensor,
    lse: Tensor | None,
    sm_scale: float,
    **inputs: Any,
) -> None:
    """Factors of both products cut to tf32's ten bits."""
    for lanes in requests(**inputs):
        scores = _cut(lanes.q) @ _cut(lanes.keys).T * sm_scale
        weights, total, peak = softmax_sum(scores.masked_fill(lanes.hidden, -torch.inf))
        result = _cut(weights) @ _cut(lanes.keys[:, : o.shape[2]]) / total.clamp(min=1e-30)
        store(lanes, o, lse, result, total, peak)


def flash(
    o: Tensor,
    sm_scale: float,
    **inputs: Any,
) -> None:
    """torch's scaled_dot_product_attention, which has an lse of its own but does not return it."""
    for lanes in requests(**inputs):
        o[lanes.rows] = 0
        seeing = slice(max(0, lanes.q.shape[0] - lanes.keys.shape[0]), None)
        if lanes.keys.shape[0] == 0 or lanes.q[seeing].numel() == 0:
            continue
        keys = lanes.keys.to(o.dtype)[None, None]
        # Contiguous, for torch gives the result the strides of the queries, overlapping ones included.
        queries = lanes.q[seeing].to(o.dtype).transpose(0, 1)[:, None].contiguous()  # [heads, 1, rows, width]
        mask = torch.zeros(lanes.hidden[seeing].shape).masked_fill(lanes.hidden[seeing], -torch.inf)
        keys = keys.expand(queries.shape[0], 1, -1, -1)
        result = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, keys, attn_mask=mask.squeeze(1)[None, None].to(o.dtype), scale=sm_scale
        )
        o[lanes.rows][seeing] = result[:, 0, :, : o.shape[2]].transpose(0, 1)


def _cut(values: Tensor) -> Tensor:
    return (values.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def kernel_of(call: Call, *, arithmetic: Arithmetic = _DEFAULT, limits: DecodeLimits | None = None) -> Kernel:
    """Register nothing, but declare a kernel around `call`."""
    return Kernel(name=call.__name__, contract="decode", load=lambda: call, arithmetic=arithmetic, limits=limits)


_DIVIDES: Final = Arithmetic(probabilities="fp32", normalise="division")

RIGHT: Final[tuple[Kernel, ...]] = (
    kernel_of(one_pass, arithmetic=_DIVIDES),
    kernel_of(rounded_probabilities),
    kernel_of(running, arithmetic=Arithmetic(normalise="division")),
    kernel_of(by_lse, arithmetic=Arithmetic(probabilities="fp32")),
    kernel_of(rounded_partials, arithmetic=Arithmetic(probabilities="fp32", partials="output dtype")),
    kernel_of(tf32, arithmetic=replace(_DIVIDES, multiply="tf32")),
    kernel_of(
        flash, arithmetic=Arithmetic(subnormals="flushed", dequantise="input dtype"), limits=DecodeLimits(lse="never")
    ),
    kernel_of(decode_split_kv_empty, arithmetic=_DIVIDES),
    kernel_of(decode_split_kv_zeros, arithmetic=_DIVIDES),
)
"""Every kernel with an arithmetic of its own, declared as it is."""


def on_codes(kernel: Kernel, fmt: str) -> Kernel:
    """The same kernel on caches, and half of the time on queries, in an fp8 format."""
    limits = kernel.limits if isinstance(kernel.limits, DecodeLimits) else DecodeLimits()
    return replace(kernel, limits=replace(limits, kv_formats=(fmt,), quantised_q="optional"))


def run(problem: DecodeProblem, kernel: Kernel, arena: Arena, *, secret: Secret = Secret.A) -> Judgement:
    """Lay a problem out, call the kernel once, and judge it by the oracle and by the baseline."""
    placement = CONTRACT.place(problem, kernel, _CPU)
    arena.load(placement.tensors)
    arena.poison(secret)
    tensors = arena.tensors()
    kernel.load()(**tensors, **placement.arguments)
    outputs = {name: tensors[name] for name in CONTRACT.outputs if name in tensors}
    expectation = CONTRACT.expect(problem, kernel, tensors)
    by_oracle = expectation.judge(outputs, skip={})
    baseline = CONTRACT.baseline(problem, kernel, tensors)
    return merged((by_oracle, expectation.differential(outputs, baseline, skip={})))


def fuzz(kernel: Kernel, arena: Arena, *, examples: int, seed: int) -> list[Judgement]:
    """Judge a kernel on drawn problems. Raises AssertionError, with the smallest problem, where it is blamed."""
    seen: list[Judgement] = []

    @with_seed(seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    )
    @given(CONTRACT.problems(kernel))
    def one(problem: DecodeProblem) -> None:
        judgement = run(problem, kernel, arena, secret=Secret.A if problem.seed % 2 else Secret.B)
        seen.append(judgement)
        if judgement.disagreements:
            raise AssertionError(f"{kernel.name}: {judgement.disagreements[0].detail}\n{problem}")

    one()
    return seen


def main(examples: int, seed: int, fmt: str) -> int:
    """Fuzz every right kernel; how many of them were blamed."""
    torch.set_num_threads(1)
    arena = Arena("cpu")
    blamed = 0
    for kernel in RIGHT:
        try:
            seen = fuzz(on_codes(kernel, fmt), arena, examples=examples, seed=seed)
        except AssertionError as alarm:
            blamed += 1
            print(f"FALSE ALARM {alarm}", flush=True)
            continue
        worst = max(judgement.worst for judgement in seen)
        excused = sum(judgement.not_judged for judgement in seen)
        print(
            f"{kernel.name:24} {len(seen):6} problems, worst error/bound {worst:.3f}, not judged {excused}",
            flush=True,
        )
    return blamed


if __name__ == "__main__":
    words = [*sys.argv[1:4], *("500", "0", "plain")[len(sys.argv[1:4]) :]]
    sys.exit(main(int(words[0]), int(words[1]), words[2]) != 0)
