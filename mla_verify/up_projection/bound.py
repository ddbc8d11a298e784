"""How far a right up-projection may be from the oracle, per element, and why.

Note [Up-projection bound]
    Write S = Σ|x||w| over the K products of one element, y for the exact sum, u for half a unit in the last
    place of 1, η for the smallest subnormal.

    1. K products and K − 1 additions in float32, in any order and grouping, with or without FMA, each with a
       relative error of at most 2⁻²⁴: γ·S, γ = K·2⁻²⁴ / (1 − K·2⁻²⁴). A product below the normal range has
       an absolute error instead, at most 2⁻¹⁴⁹. The float64 oracle errs likewise, with 2⁻⁵³ for 2⁻²⁴.
    2. multiply="tf32": both factors of a float32 product lose 13 bits, by truncation at worst, which changes
       the product by at most τ = 2⁻⁹ + 2⁻²⁰ of itself. Subnormal factors may vanish, as in 3.
    3. subnormals="flushed": a product with a subnormal factor may vanish, |x||w| each; a product or sum below
       2⁻¹²⁶ may, and so may a result below the output's normal range.
    4. partials="output dtype": partial sums are rounded to the output's dtype once each and then added in
       float32. However they are cut, their magnitudes sum to at most S: u_out·S, and η_out for each of the
       K there may be.
    5. One rounding to the output: u_out of what is rounded, which is at most |y| and all of the above; η_out
       if it is subnormal.

    bound = acc + u_out·(|y| + acc) + η_out, acc being the sum of 1 to 4.

    Partial sums are at most S·(1 + γ)·(1 + τ) in magnitude. Where that reaches float32's largest number
    (the output's, for partials in it) the accumulator may overflow before it returns, so the element is
    not judged. Inputs that are infinite decide the answer by themselves (±inf or NaN), and S is taken over
    the finite products. Under 2 or 3 an infinity times a subnormal may become NaN: not judged either.

    Whatever a kernel declares, 3 holds for bfloat16 on a CPU: the processors' own bfloat16 products flush,
    and libraries use them for some shapes.

Note [Bound of a quantised product]
    x and w are then what their codes stand for, and the bound above holds for their product, but for this:

    6. Where another code of x is as right (quantising.py, Note [What rounding may differ by]), by Σ slack·|w|.
    7. Scales: fp8's s is a float32 with an error of 4·2⁻²⁴, and multiplying by it and by the weight's scale rounds;
       a kernel may do so once per sum, or to both factors of each product. Eight more roundings in γ cover either.
    8. mxfp4's scales are powers of two, and multiplying by them is exact until it underflows: codes are up to 6,
       so a product of two that lost its scale to underflow is 36 times the smallest number. Where subnormals
       are flushed, a scale of 2**−127 and whatever hangs on it may vanish: such factors count as subnormal in 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.judging import Reference
from mla_verify.kernel import Arithmetic
from mla_verify.up_projection.oracle import head_blocks, up_project

__all__ = ["QUANTISED_ROUNDINGS", "Sums", "reference"]

QUANTISED_ROUNDINGS: Final = 8  # Note [Bound of a quantised product], 7

_U32: Final = 2.0**-24
_U64: Final = 2.0**-53
_TINY32: Final = 2.0**-126  # the smallest normal float32
_ETA32: Final = 2.0**-149  # the smallest subnormal float32
_TAU: Final = 2.0**-9 + 2.0**-20
_CODES: Final = 36.0  # the product of two e2m1 numbers, at most
_RANGE_MARGIN: Final = 1.0 + 1e-4  # far above the error of the float64 sums themselves

_DENSE_SHARE: Final = 64  # gathering rows for one element in so many costs as much as one product of everything
_DENSE_WORK: Final = 1 << 18  # products below which everything at once is the fewest operations
_GATHER_ELEMENTS: Final = 1 << 16  # elements of one operand gathered at a time: half a MiB of float64


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Σ|x||w| of an up-projection, worked out where it is asked for; all of it once much of it was.

    It reads the inputs when asked, not before: they must still hold what the oracle saw.
    """

    x: Tensor  # [num_tokens, num_heads, kv_lora_rank]
    w_uv: Tensor  # [num_heads, kv_lora_rank, v_head_dim]
    slack: Tensor | None = None  # as x: by how much it may be another, in a quantised product
    small_x: Tensor | None = None  # bool, as x: which elements flushing takes away; None: the subnormal ones
    small_w: Tensor | None = None  # bool, as w_uv
    _dense: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def total(self, index: tuple[Tensor, ...]) -> Tensor:
        """Σ|x||w| over the finite products of the elements at `index`: float64 [n]."""
        return self._at("total", index)

    def flushable(self, index: tuple[Tensor, ...]) -> Tensor:
        """The part of `total` whose x or w is subnormal, infinite where such a factor meets an infinity."""
        return self._at("flushable", index)

    def slackness(self, index: tuple[Tensor, ...]) -> Tensor:
        """Σ slack·|w|, infinite where an x that may be another meets an infinity."""
        return self._at("slackness", index)

    def _at(self, what: str, index: tuple[Tensor, ...]) -> Tensor:
        tokens, heads, latent = self.x.shape
        count, everything = index[0].numel(), tokens * heads * self.w_uv.shape[2]
        if what not in self._dense:
            if everything * latent > _DENSE_WORK and count * _DENSE_SHARE < everything:
                return self._gathered(what, index)
            self._dense[what] = self._everywhere(_DENSE[what])
        return self._dense[what][index]

    def _everywhere(self, summed: Callable[[Sums], Tensor]) -> Tensor:
        tokens, heads, _ = self.x.shape
        width = self.w_uv.shape[2]
        sums = torch.empty(tokens, heads, width, dtype=torch.float64, device=self.x.device)
        for block in head_blocks(self.x, self.w_uv):
            sums[:, block] = summed(self._picked((slice(None), block), (block,)))
        return sums

    def _gathered(self, what: str, index: tuple[Tensor, ...]) -> Tensor:
        # Column after column of one head: neighbours share cache lines, four times as fast as token by token.
        order = torch.argsort(index[1] * self.w_uv.shape[2] + index[2])
        step = max(1, _GATHER_ELEMENTS // max(self.x.shape[2], 1))
        parts: list[Tensor] = []
        for token, head, column in zip(*(part[order].split(step) for part in index), strict=True):
            # Both factors are [step, kv_lora_rank] from here on.
            some = self._picked((token, head), (head, slice(None), column))
            parts.append(_ROWS[what](some).sum(1))
        gathered = torch.cat(parts)
        return torch.empty_like(gathered).index_copy_(0, order, gathered)

    def _picked(self, of_x: Any, of_w: Any) -> Sums:
        """The same for a part of either factor."""
        pick_x = (None if part is None else part[of_x] for part in (self.slack, self.small_x))
        slack, small_x = pick_x
        small_w = None if self.small_w is None else self.small_w[of_w]
        return Sums(self.x[of_x], self.w_uv[of_w], slack, small_x, small_w)


def reference(
    value: Tensor,  # [num_tokens, num_heads, v_head_dim] float64, the oracle's
    sums: Sums,
    arithmetic: Arithmetic,
    dtype: torch.dtype,
    *,
    exact: bool,
    weight_format: str = "plain",
) -> Reference:
    """The oracle's answer with the bound of Note [Up-projection bound]; without one where `exact`."""
    latent = sums.x.shape[2]
    roundings = latent if weight_format == "plain" else latent + QUANTISED_ROUNDINGS
    # What a product may lose to underflow, in units of the smallest number.
    lost = latent * (_CODES if weight_format == "mxfp4" else 1.0)
    out = torch.finfo(dtype)
    u_out, eta_out = out.eps / 2, out.smallest_normal * out.eps
    gamma = roundings * _U32 / (1.0 - min(roundings * _U32, 0.5)) + latent * _U64
    tau = _TAU if arithmetic.multiply == "tf32" and dtype == torch.float32 else 0.0
    on_cpu = value.device.type == "cpu"
    flushes = arithmetic.subnormals == "flushed" or (on_cpu and dtype == torch.bfloat16)
    in_output = arithmetic.partials == "output dtype"
    largest = min(torch.finfo(torch.float32).max, out.max if in_output else torch.inf)

    def bound(index: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        total = sums.total(index)
        acc = total * (gamma * (1.0 + tau) + tau) + lost * _ETA32
        if flushes or tau:
            acc += sums.flushable(index) + (lost + 1) * _TINY32
        if sums.slack is not None:
            acc += sums.slackness(index) * (1.0 + gamma + tau)
        if in_output:
            acc += u_out * (total + acc) + latent * (out.smallest_normal if flushes else eta_out)
        last = out.smallest_normal if flushes else eta_out
        limit = acc * (1.0 + u_out) + value[index].abs().nan_to_num(posinf=0.0) * u_out + last
        limit.masked_fill_(total * ((1.0 + gamma) * (1.0 + tau) * _RANGE_MARGIN) >= largest, torch.inf)
        return limit, limit.isfinite()

    return Reference(
        name="out",
        value=value,
        dtype=dtype,
        # At most 2**24, and so exact in float32: the rounding to 16 bits is the only one.
        exact=value.to(torch.float32).to(dtype) if exact else None,
        relative=gamma + u_out,
        absolute=latent * _ETA32 + eta_out,
        bound=bound,
    )


def _total(sums: Sums) -> Tensor:
    return up_project(_finite_abs(sums.x), _finite_abs(sums.w_uv))


def _flushable(sums: Sums) -> Tensor:
    small_x, small_w = _small(sums)
    # Of the products with a small factor: those with a small x, and those with a small w_uv alone.
    finite_x, finite_w = _finite_abs(sums.x), _finite_abs(sums.w_uv)
    summed = up_project(torch.where(small_x, finite_x, 0.0), finite_w)
    summed += up_project(torch.where(small_x, 0.0, finite_x), torch.where(small_w, finite_w, 0.0))
    return _where_infinite_meets(summed, sums, (small_x, small_w))


def _slackness(sums: Sums) -> Tensor:
    slack = sums.x.new_zeros(sums.x.shape) if sums.slack is None else sums.slack
    summed = up_project(slack, _finite_abs(sums.w_uv))
    return _where_infinite_meets(summed, sums, (slack > 0, None))


def _where_infinite_meets(summed: Tensor, sums: Sums, small: tuple[Tensor, Tensor | None]) -> Tensor:
    """Infinite where a factor that may be zero, or another, meets an infinity: what comes of that is open."""
    infinite_x, infinite_w = sums.x.isinf(), sums.w_uv.isinf()
    if bool(infinite_x.any() | infinite_w.any()):
        small_x, small_w = small
        meets = up_project(small_x, infinite_w)
        if small_w is not None:
            meets += up_project(infinite_x, small_w)
        summed.masked_fill_(meets > 0, torch.inf)
    return summed


def _total_row(sums: Sums) -> Tensor:
    # No product of finite factors leaves float64's range, so finite is the product when both are.
    return _finite_abs(sums.x.to(torch.float64) * sums.w_uv.to(torch.float64))


def _flushable_row(sums: Sums) -> Tensor:
    small_x, small_w = _small(sums)
    product = torch.where(small_x | small_w, _total_row(sums), 0.0)
    product[(small_x & sums.w_uv.isinf()) | (small_w & sums.x.isinf())] = torch.inf
    return product


def _slackness_row(sums: Sums) -> Tensor:
    slack = sums.x.new_zeros(sums.x.shape) if sums.slack is None else sums.slack
    product = slack * _finite_abs(sums.w_uv)
    product[(slack > 0) & sums.w_uv.isinf()] = torch.inf
    return product


# Of whole heads [num_tokens, heads, v_head_dim], and product by product for some elements [n, kv_lora_rank].
_DENSE: Final = {"total": _total, "flushable": _flushable, "slackness": _slackness}
_ROWS: Final = {"total": _total_row, "flushable": _flushable_row, "slackness": _slackness_row}


def _small(sums: Sums) -> tuple[Tensor, Tensor]:
    """What flushing takes away of either factor."""
    small_x = _subnormal(sums.x) if sums.small_x is None else sums.small_x
    return small_x, _subnormal(sums.w_uv) if sums.small_w is None else sums.small_w


def _finite_abs(values: Tensor) -> Tensor:
    """Magnitudes in float64, 0 for what is not finite."""
    return values.to(torch.float64).abs().nan_to_num_(nan=0.0, posinf=0.0)


def _subnormal(values: Tensor) -> Tensor:
    return (values != 0) & (values.abs() < torch.finfo(values.dtype).smallest_normal)
