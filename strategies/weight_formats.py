"""What a quantised weight changes about an up-projection problem: its sizes, and how its codes may lie.

Codes are stored [num_heads, v_head_dim, kv_lora_rank], two to a byte in mxfp4, where kv_lora_rank is even therefore.
"""

from __future__ import annotations

from typing import Final

from hypothesis.errors import InvalidArgument
from hypothesis.strategies import SearchStrategy

from strategies.choosing import Choice, choice
from strategies.layout_menus import CUBE_KINDS, WEIGHT_KINDS, kinds_for
from strategies.layouts import LayoutKind
from strategies.limits import UpProjectionLimits
from strategies.problems import UpProjectionProblem
from strategies.sizes import check_names
from strategies.vocabulary import FP8_FORMATS, QUANTISED_GROUPS, WEIGHT_FORMATS

__all__ = [
    "check_formats",
    "even",
    "format_choices",
    "kind_of_codes",
    "positive_rank",
    "rank_in_format",
    "shape_of_codes",
    "weight_kinds",
    "weight_shape",
]

_MORE_GROUPS: Final = (0, 0, 1, 1, 2, 3)  # of a scale each, beside what the drawn kv_lora_rank fills


def check_formats(limits: UpProjectionLimits) -> None:
    """Formats must be known ones, and leave a kv_lora_rank that each of them can have."""
    check_names("weight_formats", limits.weight_formats, WEIGHT_FORMATS)
    check_names("fp8_formats", limits.fp8_formats, FP8_FORMATS)
    ranks = limits.kv_lora_rank
    if "mxfp4" in limits.weight_formats and ranks is not None and not even(ranks):
        raise InvalidArgument(
            f"kv_lora_rank={ranks!r}: mxfp4 packs two codes to a byte, wanted an even size among them"
        )


def format_choices(limits: UpProjectionLimits) -> list[SearchStrategy[Choice]]:
    """Choices about a quantised weight; none for a kernel that takes a plain one alone."""
    if limits.weight_formats == ("plain",):
        return []
    return [
        choice("weight_format", (name for name in WEIGHT_FORMATS if name in limits.weight_formats)),
        choice("fp8_format", (name for name in FP8_FORMATS if name in limits.fp8_formats)),
        choice("more_groups", _MORE_GROUPS),
    ]


def weight_kinds(limits: UpProjectionLimits) -> tuple[LayoutKind, ...]:
    """How the weight may lie: the plain one where there is one, else its codes."""
    if "plain" in limits.weight_formats:
        return kinds_for(WEIGHT_KINDS, packed="w_uv" in limits.packed)
    return kinds_for(CUBE_KINDS, packed="w_q" in limits.packed)


def kind_of_codes(kind: LayoutKind, limits: UpProjectionLimits) -> LayoutKind:
    """The drawn kind, or one that codes may have: no two of them share memory, and vLLM's two are a plain weight's."""
    if kind in kinds_for(CUBE_KINDS, packed="w_q" in limits.packed):
        return kind
    return "contiguous" if "w_q" in limits.packed else "padded_heads"


def rank_in_format(weight_format: str, rank: int, allowed: tuple[int, ...] | None, *, more_groups: int) -> int:
    """kv_lora_rank with further groups, where it is free, and even where codes come in pairs."""
    if weight_format == "plain":
        return rank
    if allowed is None:
        rank += more_groups * QUANTISED_GROUPS[weight_format]
    if weight_format == "mxfp4" and rank % 2:
        return rank + 1 if allowed is None else min(even(allowed) or (rank + 1,))
    return rank


def positive_rank(problem: UpProjectionProblem, allowed: tuple[int, ...] | None) -> int:
    """kv_lora_rank, or the smallest permitted one that is not 0: a pair of codes at least where they come in pairs."""
    step = 2 if problem.weight_format == "mxfp4" else 1
    permitted = (size for size in allowed or (step,) if size > 0 and size % step == 0)
    return problem.kv_lora_rank or min(permitted, default=step)


def even(sizes: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The even ones; None, which leaves every size free, as it is."""
    return None if sizes is None else tuple(size for size in sizes if size % 2 == 0)


def weight_shape(weight_format: str, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """The shape that `w_layout` is about, w_uv's being `shape`."""
    return shape if weight_format == "plain" else shape_of_codes(weight_format, shape)


def shape_of_codes(weight_format: str, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """How w_q is stored where w_uv has this shape [num_heads, kv_lora_rank, v_head_dim]."""
    heads, latent, value = shape
    return (heads, value, latent // 2 if weight_format == "mxfp4" else latent)
