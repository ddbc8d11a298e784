"""How far a right kernel's `o` and `lse` may lie from the oracle's, element by element.

Note [Decode bound]
    One lane (query row and head) sees n keys of width D. u = 2⁻²⁴ is float32's rounding, γ_m = m·u/(1 − m·u) that
    of m of them in a row; s_k is a logit, p_k its probability, ŝ the largest logit, A_k = scale · Σ|q_d||k_d|.

    1. Logits. A float32 dot product of D terms, the scale, and the log₂e of kernels that use exp2 round D + 2 times:
       the error of s_k is at most γ_{D+2}·A_k, in any order of summation; γ_2·A_k where products and sums are exact.
    2. Weights. The argument of exp is s_k − m, where m is a largest logit of some tile or split, or the lse; what is
       subtracted and added again on the way (rescaling, merging splits) is at most ŝ − s_k + |lse| large and rounds
       twice. exp and the merge add four ulps. So each weight carries the relative error
           e_k = expm1(γ_{D+2}·A_k + 2u·(ŝ − s_k + |lse|)) + 4u.
    3. Their sum. den = Σp·e + γ_{n+8} (summing n weights, dividing, merging) + n·2⁻¹²⁶ (weights that underflow).
    4. The product. Each p_k·v_k carries e_k, den, γ_{n+8} for its own sum, and ρ if the kernel rounds
       probabilities to a narrower dtype (the unit roundoff of that dtype; half a subnormal, `tiny`, where that
       underflows). Products of these errors are far below the factor 1 + 10⁻³:
           b = (1 + 10⁻³) · Σ[p·(e + ρ + den + γ_{n+8}) + tiny]·|v|.
    5. One rounding to the output's dtype: bound(o) = b + u_out·(|o| + b) + η, η its smallest subnormal, and
       (n + 2)·2⁻¹⁴⁹ for products and sums that are subnormal in float32.
    6. bound(lse) = (1 + 10⁻³)·den + 4u·(|lse| + ln(n + 1) + 1): the logarithm of the sum, and m added to it.

    Declared arithmetic adds to this. tf32: float32 factors may lose 2⁻¹⁰ of themselves each (hardware truncates
    or rounds), in the logits and in the product. Partials in the output's dtype: u_out·Σp|v| and another η, since the
    weights of the splits sum to one. Subnormals flushed: factors below the smallest normal number of their dtype
    count as lost, and every product and partial sum may lose 2⁻¹²⁶.

    Quantised tensors come with one scale each, and the oracle takes codes times scale. A kernel multiplies each scale
    in once, into every number or into what becomes of them, which rounds once more: γ_{D+2+t} for t quantised
    tensors in point 1, and one u more per p·v in points 3 and 4 (as one more key in γ_{n+8}, for both). Codes are
    exact in every dtype of o, so converting them costs nothing. A kernel that keeps numbers times scale in the dtype
    of o ("dequantise") rounds each of them to that: (1 + u_out)^t − 1 of A_k, none in the retrieval regime, whose
    scales have few bits; u_out of |v|; and half a subnormal, h = 2⁻²⁵ in float16, where the number underflows:
    scale · h · Σ(|q_d| + |k_d| + h) in a logit, h in a value.

    Where it means nothing. A lane with γ·A_k > 1 for some key, or with logits or Σ exp(s − ŝ)·|v| near float32's
    limit, has an infinite bound. One above max|v| is reported as not judged: any mixture of the values would pass.

Note [Decode bound, lower limit]
    The likeliest key t is known without another pass over the keys: its logit ŝ, its probability p_t and what it
    gives to the output, p_t·v_t. Since A_k ≥ |s_k| and ŝ ≥ s_k, every e_k is at least e₀ = 2u·|lse| + 4u, e_t is at
    least e₀ + γ_{D+2}·|ŝ|, and den at least e₀ + p_t·γ_{D+2}·|ŝ| + γ_{n+8}. Since |o − p_t·v_t| cannot exceed what the
    other keys give, Σp|v| is at least the spread |p_t·v_t| + |o − p_t·v_t|. So
        bound(o) ≥ (e₀ + ρ + den + γ_{n+8})·spread + γ_{D+2}·|ŝ|·|p_t·v_t| + u_out·|o| + η.
    Nearly every element of a right kernel lies within that (Note [Lazy bound]). Lanes where it is no small part of
    max|v| go without, so that what the full bound cannot judge is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from mla_verify.decode.oracle import Answer, Attention, logits_of, tiles_of
from mla_verify.kernel import Arithmetic

__all__ = ["LowerLimits", "Rounding", "lower_limits", "lse_bound", "o_bound", "rounding_of"]

_U: Final = 2.0**-24
_SMALLEST_NORMAL: Final = 2.0**-126  # of float32
_SMALLEST_SUBNORMAL: Final = 2.0**-149
_LARGEST: Final = torch.finfo(torch.float32).max * (1 - 1e-3)
_TF32: Final = 2.0**-10
_PRODUCTS: Final = 1 + 1e-3  # products of two errors, over their sum
_NARROW: Final = 2.0**-4
_BLOCK: Final = 1 << 21  # float64 elements of one array, several of which are alive


@dataclass(frozen=True, slots=True)
class Rounding:
    """What one kernel's arithmetic may lose, in the symbols of Note [Decode bound]."""

    u_out: float
    eta: float
    exact_dots: bool  # dot products of q and k round nowhere
    logit: float  # relative to A_k, beside γ_{D+2}
    product: float  # ρ and everything else that is relative to p·|v|
    tiny: float
    flushed_below: float  # 0.0 where subnormals are kept
    floors: int  # how many η beside the final one
    lost: float  # of a value, whatever its size
    quantised: int = 0  # t: how many of q and the cache are codes
    underflow: float = 0.0  # h: what a number may lose as it is dequantised, beside what is relative to it


@dataclass(frozen=True, slots=True, eq=False)
class LowerLimits:
    """What the bounds are nowhere below, whatever the arithmetic; rows that see no key have a meaningless lse."""

    o: Tensor  # float64 [num_rows, num_heads, kv_lora_rank]; to this come ρ·spread, u_out·|o| and η
    spread: Tensor  # float64 [num_rows, num_heads, kv_lora_rank]: at most Σp|v|
    lse: Tensor  # float64 [num_rows, num_heads]


@lru_cache(maxsize=64)
def rounding_of(arithmetic: Arithmetic, dtype: torch.dtype, *, exact_dots: bool, quantised: int = 0) -> Rounding:
    """Translate a kernel's declarations, for outputs, and inputs that are not quantised, of `dtype`.

    exact_dots: every q_d·k_d and every sum of them is exact in float32, as in the retrieval regime.
    quantised: how many of q and the cache are codes; where it is any, the cache is.
    """
    limits = torch.finfo(dtype)
    u_out = limits.eps / 2
    eta = limits.smallest_normal * limits.eps
    product, tiny = 0.0, 4 * _SMALLEST_NORMAL
    if arithmetic.probabilities == "input dtype" and dtype != torch.float32:
        product = u_out
        if dtype == torch.float16:
            tiny = 2.0**-25
    logit, floors, lost = 0.0, 0, 0.0
    if arithmetic.multiply == "tf32":
        # 16-bit inputs fit into tf32, codes times a scale do not.
        fits = dtype != torch.float32 and (not quantised or arithmetic.dequantise == "input dtype")
        factors = 0 if fits else 2
        logit = 0.0 if exact_dots else (1 + _TF32) ** factors - 1
        product += (factors // 2 + 1) * _TF32  # the value, and the probability, which is float32 until then
        lost = _TF32 * _SMALLEST_NORMAL  # subnormals have fewer bits to lose
    if arithmetic.partials == "output dtype":
        product += u_out
        floors = 1
    flushed_below = limits.smallest_normal if arithmetic.subnormals == "flushed" else 0.0
    underflow = 0.0
    if quantised and arithmetic.dequantise == "input dtype" and dtype != torch.float32:
        logit = (1 + logit) * (1 if exact_dots else (1 + u_out) ** quantised) - 1
        product += u_out
        underflow = eta / 2
        lost += underflow
    return Rounding(u_out, eta, exact_dots, logit, product, tiny, flushed_below, floors, lost, quantised, underflow)


def lower_limits(answer: Answer, seen: Tensor, width: int, *, exact_dots: bool) -> LowerLimits:
    """Note [Decode bound, lower limit]; seen: float64 [num_rows, 1], how many keys a row sees; width: D."""
    lse = answer.lse.masked_fill(seen == 0, 0.0)
    weight = (2 * lse.abs_() + 4).mul_(_U)
    gamma_n = _gamma_of(seen + 8)
    top_slip = answer.peak.abs() * _dot_gamma(width, exact_dots=exact_dots)
    den = weight + gamma_n + top_slip / answer.total
    narrow = weight + den + gamma_n + top_slip < _NARROW
    top = answer.top.abs()
    spread = (answer.o - answer.top).abs_().add_(top)
    o = top.mul_(top_slip.unsqueeze(2)).addcmul_((weight + den + gamma_n).unsqueeze(2), spread)
    return LowerLimits(
        o.mul_(narrow.unsqueeze(2)), spread.mul_(narrow.unsqueeze(2)), (den + 4 * _U * (lse + 1)) * narrow
    )


def o_bound(attention: Attention, rounding: Rounding, lanes: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """The bound at some elements of a request's `o`, and whether it means something: float64 [n], bool [n].

    lanes, columns: int64 [n], the elements' places in `attention.o`. Only the lanes and columns that occur are
    worked out, for a few wrong elements cost little.
    """
    these_lanes, at_lane = lanes.unique(return_inverse=True)
    these_columns, at_column = columns.unique(return_inverse=True)
    bound = attention.o.new_empty(these_lanes.shape[0], these_columns.shape[0])
    judged = torch.empty_like(bound, dtype=torch.bool)
    step = max(1, _BLOCK // attention.request.kv_len)
    for start in range(0, these_lanes.shape[0], step):
        part = slice(start, start + step)
        bound[part], judged[part] = _o_block(attention, rounding, these_lanes[part], these_columns)
    return bound[at_lane, at_column], judged[at_lane, at_column]


def lse_bound(attention: Attention, rounding: Rounding, lanes: Tensor) -> tuple[Tensor, Tensor]:
    """The bound at some elements of a request's lse, and whether it means something: float64 [n], bool [n]."""
    bound = attention.lse.new_empty(lanes.shape[0])
    step = max(1, _BLOCK // attention.request.kv_len)
    for start in range(0, lanes.shape[0], step):
        part = slice(start, start + step)
        weights = _weights(attention, rounding, lanes[part])
        lse = attention.lse[lanes[part]].abs()
        log_sum = 4 * _U * (lse + (weights.seen + 1).log() + 1)
        bound[part] = torch.where(weights.usable, _PRODUCTS * weights.den + log_sum, torch.inf)
    return bound, bound.isfinite()


@dataclass(frozen=True, slots=True, eq=False)
class _Weights:
    """Probabilities of some lanes and what may be wrong with them; both are 0 where a key is not seen."""

    p: Tensor  # float64 [lanes, kv_len]
    error: Tensor  # e_k, float64 [lanes, kv_len]
    hidden: Tensor  # bool [lanes, kv_len]: keys that the lane does not see
    den: Tensor  # float64 [lanes]
    seen: Tensor  # float64 [lanes]: n
    usable: Tensor  # bool [lanes]: the formulas hold


def _weights(attention: Attention, rounding: Rounding, lanes: Tensor) -> _Weights:
    """Points 1 to 3 of Note [Decode bound], for some lanes (int64 [lanes])."""
    queries, visible = attention.queries[lanes], attention.visible[lanes]
    held = attention.logits
    logits = logits_of(attention.keys, queries, visible) if held is None else held[lanes]
    hidden = logits == -torch.inf
    magnitude, lost = _magnitudes(attention, rounding, queries)
    magnitude.masked_fill_(hidden, 0.0)
    gamma = _dot_gamma(queries.shape[1], exact_dots=rounding.exact_dots, quantised=rounding.quantised)
    slip = magnitude * (gamma + rounding.logit) + lost
    peak, lse = logits.amax(1, keepdim=True), attention.lse[lanes].unsqueeze(1)
    below = (peak - logits).masked_fill_(hidden, 0.0)
    # Beyond 1 the lane is not usable, and expm1 could only overflow.
    error = torch.expm1(slip.clamp(max=1.0) + 2 * _U * (below + lse.abs())).add_(4 * _U).masked_fill_(hidden, 0.0)
    p = (logits - peak).exp_().div_(attention.total[lanes].unsqueeze(1))
    seen = visible.to(torch.float64)
    den = (p * error).sum(1) + seen * _SMALLEST_NORMAL + _gamma_of(seen + 8 + min(1, rounding.quantised))
    usable = (slip.amax(1) <= 1.0) & (magnitude.amax(1) < _LARGEST * min(1.0, attention.scale))
    return _Weights(p, error, hidden, den, seen, usable)


def _magnitudes(attention: Attention, rounding: Rounding, queries: Tensor) -> tuple[Tensor, Tensor | float]:
    """A_k of some lanes, float64 [lanes, kv_len], and how much of a logit flushing and underflow may take."""
    absolute = queries.abs()
    magnitude = queries.new_empty(queries.shape[0], attention.request.kv_len)
    if not rounding.flushed_below and not rounding.underflow:
        for at, rows in tiles_of(attention.keys):
            magnitude[:, at] = absolute @ rows.T.abs()
        return magnitude, 0.0
    # What the keys lose is multiplied by q, which already carries the scale, and the other way about.
    of_queries = rounding.underflow * (absolute + attention.scale * rounding.underflow).sum(1, keepdim=True)
    normal = torch.empty_like(magnitude)  # the part of A_k that no flushing touches
    normal_queries = _flush(absolute, rounding.flushed_below * attention.scale)
    of_keys = queries.new_zeros(attention.request.kv_len)
    for at, rows in tiles_of(attention.keys):
        keys = rows.T.abs()
        of_keys[at] = attention.scale * rounding.underflow * keys.sum(0)
        magnitude[:, at] = absolute @ keys
        normal[:, at] = normal_queries @ _flush(keys, rounding.flushed_below)
    floor = (queries.shape[1] + 3) * _SMALLEST_NORMAL * max(1.0, attention.scale)
    return magnitude, (magnitude - normal).clamp_(min=0.0).add_(floor).add_(of_queries).add_(of_keys)


def _o_block(attention: Attention, rounding: Rounding, lanes: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Bound and judged of all these lanes × all these columns: float64 and bool [lanes, columns]."""
    weights = _weights(attention, rounding, lanes)
    p, seen = weights.p, weights.seen.unsqueeze(1)
    gamma_n = _gamma_of(seen + 8 + min(1, rounding.quantised))
    factor = weights.error + (weights.den.unsqueeze(1) + gamma_n + rounding.product)
    factor.mul_(p).add_(rounding.tiny).masked_fill_(weights.hidden, 0.0)
    b = factor.new_zeros(lanes.shape[0], columns.shape[0])
    flushed, largest = torch.zeros_like(b), b.new_zeros(columns.shape[0])
    for at, rows in tiles_of(attention.keys):
        values = rows.index_select(1, columns).abs_()
        b.addmm_(factor[:, at], values)
        largest = torch.maximum(largest, values.amax(0))
        if rounding.flushed_below:
            flushed.addmm_(p[:, at], values - _flush(values, rounding.flushed_below))
    b.mul_(_PRODUCTS)
    o = attention.o[lanes][:, columns].abs()
    bound = b + rounding.u_out * (o + b)
    vacuous = bound > largest  # before the floors, which alone may exceed subnormal values
    bound += rounding.eta * (1 + rounding.floors) + (seen + 2) * _SMALLEST_SUBNORMAL + rounding.lost
    if rounding.flushed_below:
        bound += flushed + (seen + 2) * _SMALLEST_NORMAL
    within = attention.total[lanes].unsqueeze(1) * largest < _LARGEST
    bound.masked_fill_(~(within & weights.usable.unsqueeze(1)), torch.inf)
    return bound, bound.isfinite() & ~vacuous


def _flush(magnitudes: Tensor, below: float) -> Tensor:
    """Magnitudes with the subnormal ones replaced by zero."""
    return magnitudes.masked_fill(magnitudes < below, 0.0)


def _dot_gamma(width: int, *, exact_dots: bool, quantised: int = 0) -> float:
    """γ of a logit: the products and sums of its dot product, the scales and log₂e."""
    count = (2 if exact_dots else width + 2) + quantised
    return count * _U / (1 - count * _U)


def _gamma_of(count: Tensor) -> Tensor:
    return count * _U / (1 - count * _U)
