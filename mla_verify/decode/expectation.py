"""The oracle's answer to one decode problem, ready to judge what a kernel wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from mla_verify.contract import Judgement
from mla_verify.decode.baseline import BASELINE_ARITHMETIC, EMPTY_LSE
from mla_verify.decode.bound import LowerLimits, Rounding, lower_limits, lse_bound, o_bound, rounding_of
from mla_verify.decode.geometry import geometry_of
from mla_verify.decode.oracle import Answer, Attention, Cache, answer
from mla_verify.decode.quantised import decoded, is_power_of_two, is_round
from mla_verify.decode.rules import undecided
from mla_verify.judging import Bound, Index, Reference, differ, judge, merged, round_once
from mla_verify.kernel import Arithmetic, Kernel
from mla_verify.placement import dtype_of
from strategies.layouts import INPUT_ONLY
from strategies.problems import DecodeProblem

__all__ = ["DecodeExpectation", "expect"]

_ROOM_FOR_ZERO: Final = 2.0**-1000  # lets 0 pass for 0 in a ratio of error and limit, and no other float32


@dataclass(frozen=True, slots=True, eq=False)
class DecodeExpectation:
    """References for `o` and `lse`: by the kernel's arithmetic, and by the baseline's. Implements `Expectation`."""

    references: Mapping[str, Reference]
    of_baseline: Mapping[str, Reference]
    undecided: Mapping[str, Tensor]  # bool masks of elements about which nothing is promised

    def reference(self, name: str) -> Reference:
        """What one output must be."""
        return self.references[name]

    def judge(self, outputs: Mapping[str, Tensor], *, skip: Mapping[str, Tensor]) -> Judgement:
        """Compare `o` and `lse` with the oracle."""
        return merged(
            judge(self.references[name], outputs[name], skip=self._left_out(name, skip))
            for name in self.references
            if name in outputs
        )

    def differential(
        self, outputs: Mapping[str, Tensor], baseline: Mapping[str, Tensor], *, skip: Mapping[str, Tensor]
    ) -> Judgement:
        """Compare `o` and `lse` with the baseline's."""
        return merged(
            differ(
                self.references[name],
                self.of_baseline[name],
                outputs[name],
                baseline[name],
                skip=self._left_out(name, skip),
            )
            for name in self.references
            if name in outputs
        )

    def _left_out(self, name: str, skip: Mapping[str, Tensor]) -> Tensor | None:
        undecided, blamed = self.undecided.get(name), skip.get(name)
        if undecided is None or blamed is None:
            return blamed if undecided is None else undecided
        return undecided | blamed


def expect(problem: DecodeProblem, kernel: Kernel, tensors: Mapping[str, Tensor]) -> DecodeExpectation:
    """Answer a problem from the q and kv_buffer that the kernel was given."""
    geometry = geometry_of(problem)
    q = tensors["q"] if problem.q_format == "plain" else decoded(tensors["q"], problem.q_format, problem.q_scale)
    cache = Cache(tensors["kv_buffer"], problem.kv_format, problem.kv_scale)
    found = answer(geometry, q, cache, kv_lora_rank=problem.kv_lora_rank, scale=2.0**problem.softmax_scale)
    seen = torch.zeros(problem.num_rows, 1, dtype=torch.float64)
    seen[: geometry.live_rows, 0] = torch.from_numpy(geometry.visible)
    seen = seen.to(q.device)
    limits = lower_limits(found, seen, q.shape[2], exact_dots=_exact_dots(problem))
    # Rows without keys, and padding rows that must be zero, have o = 0 and the lse that the kernel declares.
    found.lse.masked_fill_(seen == 0, EMPTY_LSE[kernel.empty_lse])
    return DecodeExpectation(
        _references(problem, found, limits, seen > 0, kernel.arithmetic),
        _references(problem, found, limits, seen > 0, BASELINE_ARITHMETIC),
        undecided(problem, kernel, geometry, q.device),
    )


def _references(
    problem: DecodeProblem, found: Answer, limits: LowerLimits, sees: Tensor, arithmetic: Arithmetic
) -> dict[str, Reference]:
    """References by one arithmetic; sees: bool [num_rows, 1]."""
    dtype = dtype_of(problem.dtype)
    rounding = rounding_of(
        arithmetic,
        dtype,
        exact_dots=_exact_dots(problem),
        quantised=(problem.q_format != "plain") + (problem.kv_format != "plain"),
    )
    # A row without keys is exact: nothing but its own value lies within a limit of 0.
    floor = (sees * rounding.eta).clamp_(min=_ROOM_FOR_ZERO).unsqueeze(2)
    references = {
        "o": Reference(
            name="o",
            value=found.o,
            dtype=dtype,
            exact=_exact_o(problem, found.o, arithmetic),
            relative=rounding.u_out,
            absolute=torch.add(limits.o, limits.spread, alpha=rounding.product).add_(floor),
            bound=_bound_of(found, found.o, rounding, _o_elements),
        )
    }
    if problem.with_lse:
        references["lse"] = Reference(
            name="lse",
            value=found.lse,
            dtype=torch.float32,
            exact=None,
            relative=0.0,
            absolute=limits.lse.where(sees, 0.0).clamp_(min=_ROOM_FOR_ZERO),
            bound=_bound_of(found, found.lse, rounding, _lse_elements),
        )
    return references


def _exact_dots(problem: DecodeProblem) -> bool:
    """Whether q·k adds up a few equal powers of two (retrieval), which float32 does exactly, or zeros.

    Scales of four bits each leave those sums exact, before or after they are multiplied in.
    """
    if problem.q_layout.kind in INPUT_ONLY:
        return False
    round_scales = is_round(problem.q_scale) and is_round(problem.kv_scale)
    return problem.regime == "uniform" or (problem.regime == "retrieval" and round_scales)


def _exact_o(problem: DecodeProblem, o: Tensor, arithmetic: Arithmetic) -> Tensor | None:
    """The one right `o`, where the regime and the arithmetic leave no choice.

    retrieval: the weights of all keys but one underflow, so `o` is a cached row times p/p; float32's error of that
    quotient disappears in a 16-bit output. uniform: every weight is 1 and the sums are whole numbers below 2²⁴, so one
    split with one final division rounds in float32 and again in the output's dtype. Rows of q that share
    memory are not what the regime drew, and flushing loses values that are subnormal in float16.

    Codes: a round scale leaves a cached row exact in every dtype of o. A mean is exact under a power of two alone,
    since a kernel may multiply before it divides or afterwards.
    """
    dtype = dtype_of(problem.dtype)
    if problem.q_layout.kind in INPUT_ONLY:
        return None
    if arithmetic.subnormals == "flushed" and dtype == torch.float16:
        return None
    if problem.regime == "retrieval" and dtype != torch.float32 and _exact_dots(problem):
        return round_once(o, dtype)
    one_division = arithmetic.normalise == "division" and arithmetic.partials == "fp32" and problem.num_kv_splits == 1
    if problem.regime == "uniform" and one_division and is_power_of_two(problem.kv_scale):
        return o.float().to(dtype)
    return None


_Elements = Callable[[Attention, Rounding, Index], tuple[Tensor, Tensor]]


def _o_elements(attention: Attention, rounding: Rounding, index: Index) -> tuple[Tensor, Tensor]:
    return o_bound(attention, rounding, index[0], index[1])


def _lse_elements(attention: Attention, rounding: Rounding, index: Index) -> tuple[Tensor, Tensor]:
    return lse_bound(attention, rounding, index[0])


def _bound_of(found: Answer, value: Tensor, rounding: Rounding, elements: _Elements) -> Bound:
    """The bound at some elements of `value`, an output: request by request, 0 in rows without keys."""
    num_heads = found.lse.shape[1]

    def bound(index: Index) -> tuple[Tensor, Tensor]:
        rows, heads, *rest = index
        limits = torch.zeros(rows.shape, dtype=torch.float64, device=rows.device)
        judged = torch.ones(rows.shape, dtype=torch.bool, device=rows.device)
        for attention in found.attentions:
            seeing = attention.request.seeing
            mine = ((rows >= seeing.start) & (rows < seeing.stop)).nonzero().squeeze(1)
            if mine.shape[0] == 0:
                continue
            lanes = (rows[mine] - seeing.start) * num_heads + heads[mine]
            limits[mine], judged[mine] = elements(attention, rounding, (lanes, *(part[mine] for part in rest)))
        nan = value[index].isnan()  # its inputs held one: nothing but NaN is right
        return limits.masked_fill_(nan, 0.0), judged | nan

    return bound
