"""Comparing outputs with an oracle: bit for bit where the answer is exact, within a derived bound elsewhere.

Note [Lazy bound]
    A full bound costs as much as the oracle, and nearly every element of a right kernel lies far inside it.
    So a reference also carries a lower limit of its bound that costs nothing: relative·|value| + absolute.
    An element within that limit is within the bound; only for the others is the bound worked out. No verdict
    rests on an estimate. `worst` is the largest error over bound among those others; if there are none, it is
    the largest error over the lower limit, which is never less.

Note [What is not finite]
    Where the oracle says NaN the kernel must, and an infinity must be that infinity: nothing is scrubbed.
    A kernel may say ±inf for a finite value only with the right sign, and if the value with its bound reaches
    the largest number of the dtype. An element whose sums may leave the accumulator's range has an infinite
    bound: anything is possible there, NaN included, so it is not judged. Where a bound is merely too wide to
    mean something (finite, but not judged), NaN and infinities stay wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from mla_verify.contract import Disagreement, Judgement
from sanitizer.indices import describe_mask

__all__ = ["Bound", "Comparison", "Reference", "compared", "differ", "judge", "merged", "round_once"]

Index = tuple[Tensor, ...]
Bound = Callable[[Index], tuple[Tensor, Tensor]]
"""Index tensors [n], one per dimension → the bound, float64 [n], and whether it means something, bool [n]."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reference:
    """The oracle's answer for one output, and how far from it a kernel may be.

    exact: the only right answer, if there is one; ±0 are alike, and so are all NaN. None: the bound decides.
    relative, absolute: the bound is nowhere below relative·|value| + absolute (Note [Lazy bound]).
    """

    name: str
    value: Tensor  # [shape] float64
    dtype: torch.dtype  # the output's
    exact: Tensor | None  # [shape] of dtype
    relative: float | Tensor  # a tensor broadcasts to the shape
    absolute: float | Tensor
    bound: Bound


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Some elements [n] beside what they ought to be, float64. unjudged: no usable bound, and not certainly wrong."""

    expected: Tensor
    error: Tensor  # NaN where either side is NaN
    bound: Tensor  # 0 where the answer is exact
    unjudged: Tensor  # bool


@dataclass(frozen=True, slots=True, eq=False)
class _Standing:
    """How some elements [n] stand to the oracle."""

    bound: Tensor  # float64
    error: Tensor  # float64, NaN where either side is NaN
    agrees: Tensor  # bool
    excused: Tensor  # bool: not judged, and nothing about it is wrong for certain


_NOTHING_WRONG = Judgement((), 0, 0.0)


def judge(reference: Reference, actual: Tensor, *, skip: Tensor | None = None) -> Judgement:
    """Compare one output with the oracle; elements in the bool mask `skip` are left out."""
    if reference.exact is not None:
        return _judge_exact(reference, reference.exact, actual, skip)
    error = (actual.to(torch.float64) - reference.value).abs_()
    limit = reference.value.abs().mul_(reference.relative).add_(reference.absolute)
    # A ratio, not a comparison: inf/inf is NaN, so a finite answer to an infinite value does not pass.
    strain = error.div_(limit)
    if skip is not None:
        strain.masked_fill_(skip, 0.0)
    passed = strain <= 1.0
    if bool(passed.all()):
        return Judgement((), 0, float(strain.max()) if strain.numel() else 0.0)
    index = torch.nonzero(~passed, as_tuple=True)
    standing = _stand(reference, index, actual)
    wrong = ~(standing.agrees | standing.excused)
    judged = standing.agrees & ~standing.excused
    return Judgement(
        _disagreement(reference, index, wrong, actual, standing),
        int(standing.excused.sum()),
        _worst(standing, judged | wrong),
    )


def compared(reference: Reference, actual: Tensor, index: Index) -> Comparison:
    """The elements at `index` (one tensor per dimension) beside the oracle's answer, for a person to look at."""
    standing = _stand(reference, index, actual)
    expected = reference.value if reference.exact is None else reference.exact.to(torch.float64)
    return Comparison(expected[index], standing.error, standing.bound, standing.excused)


def differ(
    reference: Reference,
    of_baseline: Reference,
    actual: Tensor,
    baseline: Tensor,
    *,
    skip: Tensor | None = None,
) -> Judgement:
    """Compare one output with the baseline's, within the sum of both bounds (bit for bit where exact).

    `of_baseline` is the same reference with the bound of the baseline's arithmetic.
    """
    if torch.equal(actual, baseline):
        return _NOTHING_WRONG
    apart = ~((actual == baseline) | (actual.isnan() & baseline.isnan()))
    if skip is not None:
        apart &= ~skip
    if reference.exact is None:
        gap = (actual.to(torch.float64) - baseline.to(torch.float64)).abs_()
        limit = reference.value.abs().mul_(reference.relative + of_baseline.relative)
        limit.add_(reference.absolute + of_baseline.absolute)
        apart &= ~(gap.div_(limit) <= 1.0)
    if not bool(apart.any()):
        return _NOTHING_WRONG
    index = torch.nonzero(apart, as_tuple=True)
    ours, theirs = _stand(reference, index, actual), _stand(of_baseline, index, baseline)
    excused = torch.zeros_like(ours.excused)
    wrong = torch.ones_like(excused)
    if reference.exact is None:
        gap = (actual[index].to(torch.float64) - baseline[index].to(torch.float64)).abs_()
        excused = ours.excused | theirs.excused
        # Two infinities, or one beside a large number, have no gap to measure: each stands to the oracle.
        wrong = ~(gap <= ours.bound + theirs.bound) & ~(ours.agrees & theirs.agrees) & ~excused
    found = _difference(reference, index, wrong, (actual, baseline), (ours, theirs))
    return Judgement(found, int(excused.sum()), 0.0)


def merged(judgements: Iterable[Judgement]) -> Judgement:
    """The judgements of several outputs as one."""
    parts = tuple(judgements)
    return Judgement(
        tuple(found for part in parts for found in part.disagreements),
        sum(part.not_judged for part in parts),
        max((part.worst for part in parts), default=0.0),
    )


def round_once(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Round float64 to a narrower dtype once, to nearest even.

    torch goes through float32 on the way to 16 bits and so rounds twice. Rounding to odd in float32 first
    (towards zero, then setting the last bit where something was lost) leaves the second rounding the only one
    that counts: the odd bit keeps what lies beside a tie off the tie.
    """
    single = value.to(torch.float32)
    if dtype in (torch.float32, torch.float64):
        return single if dtype == torch.float32 else value
    back = single.to(torch.float64)
    inexact = (back != value) & value.isfinite()
    away = inexact & (back.abs() > value.abs())
    bits = single.view(torch.int32) - away.to(torch.int32)
    bits |= inexact.to(torch.int32)
    return bits.view(torch.float32).to(dtype)


def _judge_exact(reference: Reference, exact: Tensor, actual: Tensor, skip: Tensor | None) -> Judgement:
    if torch.equal(actual, exact):
        return _NOTHING_WRONG
    apart = ~((actual == exact) | (actual.isnan() & exact.isnan()))
    if skip is not None:
        apart &= ~skip
    if not bool(apart.any()):
        return _NOTHING_WRONG
    index = torch.nonzero(apart, as_tuple=True)
    standing = _stand(reference, index, actual)
    wrong = torch.ones_like(standing.agrees)
    return Judgement(_disagreement(reference, index, wrong, actual, standing), 0, float("inf"))


def _stand(reference: Reference, index: Index, actual: Tensor) -> _Standing:
    """How the elements at `index` stand to the oracle (Note [What is not finite])."""
    value = reference.value[index]
    got = actual[index].to(torch.float64)
    error = (got - value).abs()
    if reference.exact is not None:
        want = reference.exact[index].to(torch.float64)
        agrees = (got == want) | (got.isnan() & want.isnan())
        return _Standing(torch.zeros_like(error), (got - want).abs(), agrees, torch.zeros_like(agrees))
    bound, judged = reference.bound(index)
    alike = (got == value) | (got.isnan() & value.isnan())
    largest = torch.finfo(reference.dtype).max
    overflowed = got.isinf() & (got.sign() == value.sign()) & (value.abs() + bound >= largest)
    # The oracle's own infinity is no overflow, and a finite answer to it is no small error.
    within = ((error <= bound) | overflowed) & value.isfinite()
    excused = ~judged & (bound.isinf() | got.isfinite()) & ~alike
    return _Standing(bound, error, alike | within, excused)


def _worst(standing: _Standing, judged: Tensor) -> float:
    """The largest error over bound among some elements."""
    ratio = torch.where(standing.error == 0.0, 0.0, standing.error / standing.bound)
    ratio = ratio.nan_to_num(nan=float("inf"), posinf=float("inf"))
    # Elements that agree without being finite (NaN for NaN, an infinity for an overflow) have no ratio.
    ratio = torch.where(standing.agrees & ~standing.error.isfinite(), 0.0, ratio)
    ratio = ratio[judged]
    return float(ratio.max()) if ratio.numel() else 0.0


def _disagreement(
    reference: Reference, index: Index, wrong: Tensor, actual: Tensor, standing: _Standing
) -> tuple[Disagreement, ...]:
    if not bool(wrong.any()):
        return ()
    index, standing = _only(wrong, index, standing)
    at = _largest(standing.error / standing.bound)
    mask, where, among = _marked(reference, index, at)
    got = _number(actual[index][at])
    text = f"{where}: got {got}, expected {_expected(reference, index, standing, at)}{among}"
    return (Disagreement(reference.name, mask, text),)


def _difference(
    reference: Reference,
    index: Index,
    wrong: Tensor,
    outputs: tuple[Tensor, Tensor],  # the kernel's and its baseline's
    standings: tuple[_Standing, _Standing],
) -> tuple[Disagreement, ...]:
    if not bool(wrong.any()):
        return ()
    _, theirs = _only(wrong, index, standings[1])
    index, ours = _only(wrong, index, standings[0])
    got, base = outputs[0][index], outputs[1][index]
    at = _largest((got.to(torch.float64) - base.to(torch.float64)).abs())
    mask, where, among = _marked(reference, index, at)
    text = (
        f"{where}: got {_number(got[at])}, the baseline {_number(base[at])}, expected "
        f"{_expected(reference, index, ours, at)}{among}; {_who_is_right(ours.agrees, theirs.agrees)}"
    )
    return (Disagreement(reference.name, mask, text),)


def _only(wrong: Tensor, index: Index, standing: _Standing) -> tuple[Index, _Standing]:
    """Leave out the elements that are not wrong."""
    return tuple(part[wrong] for part in index), _Standing(
        standing.bound[wrong], standing.error[wrong], standing.agrees[wrong], standing.excused[wrong]
    )


def _largest(badness: Tensor) -> int:
    """Which of the wrong elements is the worst; one that is no number is worse than any number."""
    return int(badness.nan_to_num(nan=float("inf"), posinf=float("inf")).argmax())


def _marked(reference: Reference, index: Index, at: int) -> tuple[Tensor, str, str]:
    """Mask of the wrong elements, the same in words, and where among them the worst is."""
    mask = torch.zeros(reference.value.shape, dtype=torch.bool, device=reference.value.device)
    mask[index] = True
    count = index[0].numel()
    among = f" (worst of {count}, at {[int(part[at]) for part in index]})" if count > 1 else ""
    return mask, describe_mask(reference.name, mask), among


def _expected(reference: Reference, index: Index, standing: _Standing, at: int) -> str:
    if reference.exact is not None:
        return f"{_number(reference.exact[index][at])} exactly"
    value = reference.value[index][at]
    if not bool(value.isfinite()):
        return _number(value)
    return f"{_number(value)} ± {float(standing.bound[at]):.2g}"


def _who_is_right(kernel: Tensor, baseline: Tensor) -> str:
    count, right, base_right = kernel.numel(), int(kernel.sum()), int(baseline.sum())
    if (right, base_right) == (0, count):
        return "the baseline agrees with the oracle, the kernel does not"
    if (right, base_right) == (count, 0):
        return "the kernel agrees with the oracle, the baseline does not"
    if (right, base_right) == (0, 0):
        return "neither agrees with the oracle"
    return f"the kernel agrees with the oracle at {right} of {count}, the baseline at {base_right}"


def _number(value: Tensor) -> str:
    return f"{float(value):.7g}"
