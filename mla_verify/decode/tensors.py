"""The tensors of a decode problem: queries, the cache with its unused slots, its index in two forms, the outputs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mla_verify.contract import Placement
from mla_verify.decode.geometry import Geometry, geometry_of
from mla_verify.decode.invalid import make_invalid
from mla_verify.decode.quantised import dtype_of_kv, dtype_of_q, single
from mla_verify.decode.regimes import values_of
from mla_verify.decode.rules import row_rules
from mla_verify.kernel import Kernel
from mla_verify.placement import cache_fills, dtype_of, plan, table_fills
from sanitizer.plan import Fills, TensorPlan
from strategies.layouts import CONTIGUOUS, Layout
from strategies.problems import DecodeProblem

__all__ = ["OUTPUTS", "place"]

OUTPUTS: Final = ("o", "lse")
_PLAIN: Final = Fills()

Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


def place(problem: DecodeProblem, kernel: Kernel, device: torch.device) -> Placement:
    """Plan every tensor of a problem, valid or not, for one kernel."""
    geometry = geometry_of(problem)
    plans = (
        *_attention_plans(problem, kernel, geometry, device),
        *_index_plans(problem, kernel, geometry, device),
        *_scale_plans(problem, kernel, device),
    )
    if problem.invalid is not None:
        plans = make_invalid(problem, plans)
    arguments: dict[str, Any] = {
        "page_size": problem.page_size,
        "max_seqlen_q": max(problem.q_lens, default=0),
        "sm_scale": 2.0**problem.softmax_scale,
        "num_kv_splits": problem.num_kv_splits,
    }
    if not problem.with_lse:
        arguments["lse"] = None
    for name, fmt in (("q_scale", problem.q_format), ("kv_scale", problem.kv_format)):
        if fmt == "plain":
            arguments[name] = None
    return Placement(plans, arguments)


def _attention_plans(
    problem: DecodeProblem, kernel: Kernel, geometry: Geometry, device: torch.device
) -> tuple[TensorPlan, ...]:
    """q, the cache, o and (where the problem has one) lse."""
    dtype, of_kv = dtype_of(problem.dtype), dtype_of_kv(problem)
    q, kv = values_of(problem, geometry, device)
    rules = {name: rows.to(device) for name, rows in row_rules(problem, kernel, geometry).items()}
    outer = (problem.num_rows, problem.num_heads)
    live_rows = None
    if problem.padding_rows:
        live_rows = (torch.arange(problem.num_rows, device=device) < geometry.live_rows).view(-1, 1, 1)
    page = (problem.page_size * kv.shape[3] + problem.page_pad) * of_kv.itemsize
    cache = plan(
        "kv_buffer",
        tuple(kv.shape),
        Layout("padded_rows", problem.page_pad, problem.cache_offset),
        of_kv,
        "input",
        kernel=kernel,
        group="cache",
        values=kv,
        live=torch.from_numpy(_used_slots(problem, geometry)).to(device).view(*kv.shape[:2], 1, 1),
        fills=cache_fills(kernel),
        guard=max(64, page),  # page −1 of a kernel that forgets to mask lies within the guard
    )
    o = plan(
        "o",
        (*outer, problem.kv_lora_rank),
        problem.o_layout,
        dtype,
        "output",
        kernel=kernel,
        rules=rules["o"].view(-1, 1, 1) if "o" in rules else None,
        form=problem.out_form,
    )
    query = plan(
        "q", tuple(q.shape), problem.q_layout, dtype_of_q(problem), "input", kernel=kernel, values=q, live=live_rows
    )
    if not problem.with_lse:
        return query, cache, o
    lse = plan(
        "lse",
        outer,
        problem.lse_layout,
        torch.float32,
        "output",
        kernel=kernel,
        rules=rules["lse"].view(-1, 1) if "lse" in rules else None,
        form=problem.out_form,
    )
    return query, cache, o, lse


def _scale_plans(problem: DecodeProblem, kernel: Kernel, device: torch.device) -> tuple[TensorPlan, ...]:
    """A float32 scale for each of q and the cache that is quantised; behind it lie secrets, as behind any tensor."""
    return tuple(
        plan(
            name,
            (1,),
            CONTIGUOUS,
            torch.float32,
            "input",
            kernel=kernel,
            values=torch.tensor([single(scale)], dtype=torch.float32, device=device),
        )
        for name, fmt, scale in (
            ("q_scale", problem.q_format, problem.q_scale),
            ("kv_scale", problem.kv_format, problem.kv_scale),
        )
        if fmt != "plain"
    )


def _index_plans(
    problem: DecodeProblem, kernel: Kernel, geometry: Geometry, device: torch.device
) -> tuple[TensorPlan, ...]:
    """The query index, and the cache's index as lists and as a table."""
    pages = np.array(problem.pages_per_request, np.int32)
    kv_lens = np.array(problem.kv_lens, np.int32)
    foreign = geometry.paging.foreign
    tails = table_fills(kernel, foreign=foreign[0], other=foreign[-1])
    used = int(pages.sum())
    indices = np.zeros(used + problem.index_tail, np.int32)
    table = np.zeros((len(pages), int(pages.max(initial=0)) + problem.table_slack), np.int32)
    in_table = np.arange(table.shape[1]) < pages[:, None]
    if used:
        indices[:used] = table[in_table] = np.concatenate([request.pages for request in geometry.requests])

    def index(
        name: str,
        values: Int32s,
        live: Bools | None = None,
        layout: Layout = CONTIGUOUS,
        fills: Fills = _PLAIN,
    ) -> TensorPlan:
        mask: Tensor | None = None if live is None or live.all() else torch.from_numpy(live).to(device)
        return plan(
            name,
            values.shape,
            layout,
            torch.int32,
            "input",
            kernel=kernel,
            group="tables",
            values=torch.from_numpy(values).to(device),
            live=mask,
            fills=fills,
        )

    last_lens = np.where(pages > 0, kv_lens - (pages - 1) * problem.page_size, 0).astype(np.int32)
    # Whatever stands beside a request without pages must not matter, a plausible length least of all.
    stray_len = Fills(b=problem.page_size + 1)
    return (
        index("qo_indptr", _running(problem.q_lens)),
        index("kv_indptr", _running(problem.pages_per_request)),
        index("kv_indices", indices, np.arange(len(indices)) < used, fills=tails),
        index("kv_last_page_lens", last_lens, pages > 0, fills=stray_len),
        index("block_table", table, in_table, problem.table_layout, tails),
        index("seq_lens", kv_lens),
    )


def _running(counts: tuple[int, ...]) -> Int32s:
    """0, and the sums of the first 1, 2, … counts."""
    return np.cumsum((0, *counts), dtype=np.int32)


def _used_slots(problem: DecodeProblem, geometry: Geometry) -> Bools:
    """Which slots of the pool hold a key of a request: [num_pages, page_size]."""
    used = np.zeros((geometry.paging.num_pages, problem.page_size), np.bool_)
    for request in geometry.requests:
        used[request.pages] = True
        if len(request.pages):
            used[request.pages[-1], request.kv_len - (len(request.pages) - 1) * problem.page_size :] = False
    return used
