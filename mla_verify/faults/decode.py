"""Paged decode with one fault at a time, each as somebody has written or could write it."""

from __future__ import annotations

from itertools import count
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.faults.attention import Request, attend, requests, split_bounds
from mla_verify.faults.fault import Fault
from mla_verify.faults.stray import store_behind, store_in_row_gaps

__all__ = ["FAULTS"]

_TILE: Final = 16
_workspaces: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}
_calls = count()


def _answer(request: Request, o: Tensor, sm_scale: float) -> tuple[Tensor, Tensor]:
    """Right: o and lse of one request."""
    return attend(request.query, request.keys, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2])


def _store_lse(lse: Tensor | None, request: Request, value: Tensor) -> None:
    if lse is not None:
        lse[request.rows].copy_(value)


def last_row_unwritten(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """An off-by-one in the number of query rows."""
    last = int(inputs["qo_indptr"][-1]) - 1
    for request in requests(**inputs):
        value, logsum = _answer(request, o, sm_scale)
        kept = slice(request.rows.start, min(request.rows.stop, last))
        o[kept].copy_(value[: kept.stop - kept.start])
        _store_lse(lse, request, logsum)


def tail_tile_unwritten(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """A grid of whole tiles, rounded down."""
    whole = o.shape[2] // _TILE * _TILE
    for request in requests(**inputs):
        value, logsum = _answer(request, o, sm_scale)
        o[request.rows, :, :whole].copy_(value[..., :whole])
        _store_lse(lse, request, logsum)


def empty_requests_skipped(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Leaves a request without keys before its rows are written."""
    for request in requests(**inputs):
        if request.keys.shape[0] == 0:
            continue
        value, logsum = _answer(request, o, sm_scale)
        o[request.rows].copy_(value)
        _store_lse(lse, request, logsum)


def nothing_to_sum(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Takes a result without columns for no work at all; lse has to be written all the same."""
    if o.shape[2] > 0:
        _decode(o, lse, sm_scale, **inputs)


def zero_results_skipped(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Relies on an output that was zero-filled, and stores only what differs from it."""
    for request in requests(**inputs):
        value, logsum = _answer(request, o, sm_scale)
        rows = o[request.rows]
        rows.copy_(torch.where(value == 0, rows, value.to(o.dtype)))
        _store_lse(lse, request, logsum)


def lse_of_one_split_unwritten(
    o: Tensor, lse: Tensor | None, sm_scale: float, num_kv_splits: int, **inputs: Any
) -> None:
    """Writes lse where splits are merged, and there is nothing to merge with one."""
    for request in requests(**inputs):
        value, logsum = _answer(request, o, sm_scale)
        o[request.rows].copy_(value)
        if num_kv_splits > 1:
            _store_lse(lse, request, logsum)


def old_value_times_zero(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """beta = 0 multiplied out instead of skipped."""
    for request in requests(**inputs):
        value, logsum = _answer(request, o, sm_scale)
        o[request.rows].mul_(0).add_(value)
        _store_lse(lse, request, logsum)


def accumulates(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """beta = 1 where it should be 0."""
    for request in requests(**inputs):
        value, logsum = _answer(request, o, sm_scale)
        o[request.rows].add_(value)
        _store_lse(lse, request, logsum)


def larger_of_old_and_new(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """An atomic maximum into memory that nobody set to minus infinity; NaN loses every comparison."""
    for request in requests(**inputs):
        value, logsum = _answer(request, o, sm_scale)
        rows = o[request.rows]
        rows.copy_(torch.fmax(rows, value.to(o.dtype)))
        _store_lse(lse, request, logsum)


def zero_outputs_skipped(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Takes a zero in the output for a row that is masked out."""
    for request in requests(**inputs):
        value, logsum = _answer(request, o, sm_scale)
        rows = o[request.rows]
        rows.copy_(torch.where(rows == 0, rows, value.to(o.dtype)))
        _store_lse(lse, request, logsum)


def scratch_read_first(o: Tensor, lse: Tensor | None, sm_scale: float, num_kv_splits: int, **inputs: Any) -> None:
    """Merges the partial results of all splits; those behind the last key were never written."""
    for request in requests(**inputs):
        scratch = _scratch(request, o, num_kv_splits)
        _merge(request, o, lse, sm_scale=sm_scale, scratch=scratch)


def cached_workspace_read_first(
    o: Tensor, lse: Tensor | None, sm_scale: float, num_kv_splits: int, **inputs: Any
) -> None:
    """The same, with partial results in memory that is kept from call to call, until the sizes change."""
    for request in requests(**inputs):
        key = (tuple(request.query.shape), o.shape[2], num_kv_splits, request.keys.shape[0], o.device)
        if key not in _workspaces:
            _workspaces.clear()
            _workspaces[key] = _scratch(request, o, num_kv_splits)
        _merge(request, o, lse, sm_scale=sm_scale, scratch=_workspaces[key])


def nan_scrubbed(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Reads scratch that was never written, and turns the NaN it may find into 0."""
    for request in requests(**inputs):
        value, logsum = _answer(request, o, sm_scale)
        leftover = torch.empty(value.shape, dtype=torch.float32, device=o.device)
        o[request.rows].copy_(value + torch.nan_to_num(leftover, nan=0.0))
        _store_lse(lse, request, logsum)


def unused_slots_times_zero(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Multiplies whole pages of values: weight 0 behind the last key, but 0 times NaN is NaN."""
    for request in requests(**inputs):
        value, logsum = attend(
            request.query, request.pages, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2]
        )
        o[request.rows].copy_(value)
        _store_lse(lse, request, logsum)


def padding_rows_cleared(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Zeroes the whole output first, rows that belong to no request included."""
    o.zero_()
    _decode(o, lse, sm_scale, **inputs)


def one_element_past(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Stores one element behind the last. An output that ends with its storage is left alone."""
    _decode(o, lse, sm_scale, **inputs)
    store_behind(o)


def stride_gap_written(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Stores one element too many in each row but the last: into the gap, where there is one."""
    _decode(o, lse, sm_scale, **inputs)
    store_in_row_gaps(o)


def query_cleared(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Leaves the query zeroed behind itself."""
    _decode(o, lse, sm_scale, **inputs)
    inputs["q"].zero_()


def page_list_clamped(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Makes page ids behind the last one valid, in the caller's own list."""
    inputs["kv_indices"].clamp_(min=0)
    _decode(o, lse, sm_scale, **inputs)


def output_repointed(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Gives the caller's tensor other memory, instead of writing into its own."""
    fresh = torch.empty(o.shape, dtype=o.dtype, device=o.device)
    _decode(fresh, lse, sm_scale, **inputs)
    o.set_(fresh.untyped_storage(), 0, fresh.shape, fresh.stride())


def empty_requests_refused(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Demands a key for every request, which the contract does not."""
    if bool((inputs["seq_lens"] == 0).any()):
        raise ValueError("seq_lens must be positive")
    _decode(o, lse, sm_scale, **inputs)


def every_other_call_differs(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Gives another answer at every second call."""
    more = next(_calls) % 2
    for request in requests(**inputs):
        value, logsum = _answer(request, o, sm_scale)
        o[request.rows].copy_(value + more)
        _store_lse(lse, request, logsum)


def last_key_dropped(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Leaves the last key of every request out."""
    for request in requests(**inputs):
        seen = request.visible - 1
        value, logsum = attend(request.query, request.keys, seen, sm_scale=sm_scale, kv_lora_rank=o.shape[2])
        o[request.rows].copy_(value)
        _store_lse(lse, request, logsum)


def _decode(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Right, from beginning to end."""
    for request in requests(**inputs):
        value, logsum = _answer(request, o, sm_scale)
        o[request.rows].copy_(value)
        _store_lse(lse, request, logsum)


def _scratch(request: Request, o: Tensor, num_kv_splits: int) -> tuple[Tensor, Tensor]:
    """Unwritten memory for the partial results of one request: [splits, q_len, num_heads, …]."""
    shape = (num_kv_splits, *request.query.shape[:2])
    return torch.empty(*shape, o.shape[2], device=o.device), torch.empty(shape, device=o.device)


def _merge(
    request: Request,
    o: Tensor,
    lse: Tensor | None,
    *,
    sm_scale: float,
    scratch: tuple[Tensor, Tensor],
) -> None:
    """Write the partials of splits that have keys; merge those of every split."""
    partials, lses = scratch
    for split, (first, end) in enumerate(split_bounds(request.keys.shape[0], partials.shape[0])):
        if end > first:
            keys, visible = request.keys[first:end], request.visible - first
            value, logsum = attend(request.query, keys, visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2])
            partials[split].copy_(value)
            lses[split].copy_(logsum)
    largest = lses.amax(0)
    weights = (lses - torch.where(largest == -torch.inf, 0.0, largest)).exp()
    total = weights.sum(0)
    merged = (weights[..., None] * partials).sum(0) / total[..., None]
    o[request.rows].copy_(torch.where(total[..., None] == 0, 0.0, merged))
    _store_lse(lse, request, total.log() + torch.where(largest == -torch.inf, 0.0, largest))


def _fault(call: Any, clause: str, what: str) -> Fault:
    return Fault(f"decode_{call.__name__}", "decode", call, (clause,), what)


FAULTS: Final[tuple[Fault, ...]] = (
    _fault(last_row_unwritten, "coverage", "the last query row is never written"),
    _fault(tail_tile_unwritten, "coverage", "nothing is written behind the last whole tile of 16"),
    _fault(empty_requests_skipped, "coverage", "rows are written only when their request has keys"),
    _fault(zero_results_skipped, "coverage", "results that are zero are not stored"),
    _fault(nothing_to_sum, "coverage", "with kv_lora_rank = 0 it returns without writing lse"),
    _fault(lse_of_one_split_unwritten, "coverage", "lse is not written with a single split"),
    _fault(old_value_times_zero, "independence", "the old output is multiplied by 0 and added"),
    _fault(accumulates, "independence", "the result is added to the old output"),
    _fault(larger_of_old_and_new, "independence", "the larger of old output and result is kept"),
    _fault(zero_outputs_skipped, "independence", "elements whose output was zero are skipped"),
    _fault(scratch_read_first, "independence", "partial results of empty splits are read unwritten"),
    _fault(cached_workspace_read_first, "independence", "the same from a workspace that is kept"),
    _fault(nan_scrubbed, "independence", "unwritten scratch is read and its NaN turned into 0"),
    _fault(unused_slots_times_zero, "independence", "unused cache slots are multiplied by 0 and added"),
    _fault(padding_rows_cleared, "containment", "rows that belong to no request are zeroed"),
    _fault(one_element_past, "containment", "one element behind the output is written"),
    _fault(stride_gap_written, "containment", "the gap behind each row is written"),
    _fault(query_cleared, "containment", "q is zeroed"),
    _fault(page_list_clamped, "containment", "the tail of the page list is overwritten"),
    _fault(output_repointed, "layout", "o is pointed at other memory"),
    _fault(empty_requests_refused, "refusal", "a request without keys raises an exception"),
    _fault(every_other_call_differs, "repeatability", "every second call gives another answer"),
    _fault(last_key_dropped, "agreement", "the last key of every request is missing"),
)
