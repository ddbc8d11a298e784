"""Where rounding to a format turns over: how near a number is to the midpoint between two codes."""

from __future__ import annotations

import torch
from torch import Tensor

from mla_verify.formats.codes import midpoints_of
from mla_verify.formats.definitions import FORMATS, table_of

__all__ = ["neighbours"]


def neighbours(values: Tensor, name: str, *, relative: float) -> tuple[Tensor, Tensor]:
    """The smallest and the largest number that any of [values·(1 − relative), values·(1 + relative)] rounds to.

    Saturating, ties either way, in float64. They are one number wherever no midpoint lies in reach: then whatever
    errs by no more than `relative` before it rounds gives the same code. NaN stays NaN. `relative` has to be small
    beside the distance of two midpoints: of those one at most is looked for.
    """
    form = FORMATS[name]
    midpoints = midpoints_of(name, values.device)
    magnitude = values.to(torch.float64).abs().contiguous()
    low = torch.bucketize(magnitude * (1.0 - relative), midpoints)
    high = low + (midpoints[low.clamp(max=midpoints.numel() - 1)] <= magnitude * (1.0 + relative))
    numbers = table_of(form, values.device)[: form.largest_code + 1]
    smaller = numbers[low.clamp(max=form.largest_code)]
    larger = numbers[high.clamp(max=form.largest_code)]
    nan = values.isnan()
    negative = values < 0
    first = torch.where(negative, -larger, smaller).masked_fill(nan, torch.nan)
    last = torch.where(negative, -smaller, larger).masked_fill(nan, torch.nan)
    return first, last
