"""Valid placements with one thing wrong: the invalid problems of the decode contract, made for real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from sanitizer.plan import TensorPlan
from strategies.problems import DecodeProblem

__all__ = ["make_invalid"]

Plans = dict[str, TensorPlan]


def make_invalid(problem: DecodeProblem, plans: tuple[TensorPlan, ...]) -> tuple[TensorPlan, ...]:
    """Break what `problem.invalid` names (a key of `strategies.invalid.DECODE_INVALID`)."""
    by_name = {plan.name: plan for plan in plans}
    if problem.invalid not in _FAULTS:
        raise ValueError(f"{problem.invalid!r} is no fault of a decode problem; there are {', '.join(_FAULTS)}")
    _FAULTS[problem.invalid](problem, by_name)
    return tuple(by_name.values())


def _kv_width_differs(problem: DecodeProblem, plans: Plans) -> None:
    """The cache's last dimension is one larger than q's."""
    cache = plans["kv_buffer"]
    pages, page_size, _, width = cache.shape
    values = torch.ones((pages, page_size, 1, width + 1), device=_values(cache).device).to(cache.dtype)
    values[..., :width] = _values(cache)
    strides = (page_size * (width + 1) + problem.page_pad, width + 1, width + 1, 1)
    plans["kv_buffer"] = replace(cache, shape=tuple(values.shape), strides=strides, values=values)


def _o_has_fewer_rows(problem: DecodeProblem, plans: Plans) -> None:
    rows, heads, rank = plans["o"].shape
    rules = plans["o"].rules
    plans["o"] = replace(
        plans["o"], shape=(max(0, rows - 1), heads, rank), rules=None if rules is None else rules[: rows - 1]
    )


def _o_heads_differ(problem: DecodeProblem, plans: Plans) -> None:
    """o has one head more, and lies contiguously for it."""
    rows, heads, rank = plans["o"].shape
    strides = ((heads + 1) * rank, rank, 1)
    plans["o"] = replace(plans["o"], shape=(rows, heads + 1, rank), strides=strides)


def _kv_dtype_differs(problem: DecodeProblem, plans: Plans) -> None:
    """The cache's numbers in another dtype than q's; those of codes in a dtype that no cache has."""
    cache = plans["kv_buffer"]
    dtype = _other(cache.dtype) if problem.kv_format == "plain" else torch.float64
    plans["kv_buffer"] = replace(cache, dtype=dtype, values=_values(cache).to(dtype))


def _o_dtype_differs(problem: DecodeProblem, plans: Plans) -> None:
    """o in another dtype than q; where q is codes any 16 or 32 bits would do, so o has 64."""
    dtype = _other(plans["o"].dtype) if problem.q_format == "plain" else torch.float64
    plans["o"] = replace(plans["o"], dtype=dtype)


def _o_over_q(problem: DecodeProblem, plans: Plans) -> None:
    """Row by row, o is the latent part of q; wider than q's codes, it only begins there."""
    plans["o"] = replace(plans["o"], over="q", offset=0, strides=plans["q"].strides, form="view")


def _o_over_cache(problem: DecodeProblem, plans: Plans) -> None:
    """o begins where the cache does, contiguously; a cache smaller than o has a guard as large."""
    rows, heads, rank = plans["o"].shape
    cache = plans["kv_buffer"]
    extent = rows * heads * rank * plans["o"].dtype.itemsize
    plans["kv_buffer"] = replace(cache, guard=max(cache.guard, extent))
    plans["o"] = replace(plans["o"], over="kv_buffer", offset=0, strides=(heads * rank, rank, 1), form="view")


def _kv_indptr_falls(problem: DecodeProblem, plans: Plans) -> None:
    """The second request begins behind its end."""
    values = _values(plans["kv_indptr"]).clone()
    values[1] = values[2] + 1
    plans["kv_indptr"] = replace(plans["kv_indptr"], values=values)


def _page_id_outside_pool(problem: DecodeProblem, plans: Plans) -> None:
    """The first page id, in both forms of the index, is the number of pages."""
    num_pages = plans["kv_buffer"].shape[0]
    indices, table = _values(plans["kv_indices"]).clone(), _values(plans["block_table"]).clone()
    indices[0] = num_pages
    owner = next(row for row, count in enumerate(problem.pages_per_request) if count)
    table[owner, 0] = num_pages
    plans["kv_indices"] = replace(plans["kv_indices"], values=indices)
    plans["block_table"] = replace(plans["block_table"], values=table)


def _length_beyond_table(problem: DecodeProblem, plans: Plans) -> None:
    """The last request claims a page more than either form of the index holds."""
    lens, indptr = _values(plans["seq_lens"]).clone(), _values(plans["kv_indptr"]).clone()
    lens[-1] = plans["block_table"].shape[1] * problem.page_size + 1
    indptr[-1] = plans["kv_indices"].shape[0] + 1
    plans["seq_lens"] = replace(plans["seq_lens"], values=lens)
    plans["kv_indptr"] = replace(plans["kv_indptr"], values=indptr)


_FAULTS: Final[dict[str, Callable[[DecodeProblem, Plans], None]]] = {
    "kv_width_differs": _kv_width_differs,
    "o_has_fewer_rows": _o_has_fewer_rows,
    "o_heads_differ": _o_heads_differ,
    "kv_dtype_differs": _kv_dtype_differs,
    "o_dtype_differs": _o_dtype_differs,
    "o_over_q": _o_over_q,
    "o_over_cache": _o_over_cache,
    "kv_indptr_falls": _kv_indptr_falls,
    "page_id_outside_pool": _page_id_outside_pool,
    "length_beyond_table": _length_beyond_table,
}


def _other(dtype: torch.dtype) -> torch.dtype:
    return torch.float16 if dtype == torch.float32 else torch.float32


def _values(plan: TensorPlan) -> Tensor:
    if plan.values is None:
        raise ValueError(f"{plan.name} has no values to break: it is no input")
    return plan.values
