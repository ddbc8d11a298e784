"""Paged decode with one fault at a time, each as somebody has written or could write it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.faults.attention import Request, attend, requests, split_bounds
from mla_verify.faults.fault import Fault
from mla_verify.faults.stray import as_packed, read_beside, store_behind, store_in_row_gaps

__all__ = ["FAULTS"]

_TILE: Final = 16
_SIGNED_16: Final = 1 << 15
_MOST_KEYS: Final = 512
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
    _combine(request, o, lse, partials, lses)


def _combine(request: Request, o: Tensor, lse: Tensor | None, partials: Tensor, lses: Tensor) -> None:
    """Right: o and lse from the partial results of every split."""
    largest = lses.amax(0)
    weights = (lses - torch.where(largest == -torch.inf, 0.0, largest)).exp()
    total = weights.sum(0)
    merged = (weights[..., None] * partials).sum(0) / total[..., None]
    o[request.rows].copy_(torch.where(total[..., None] == 0, 0.0, merged))
    _store_lse(lse, request, total.log() + torch.where(largest == -torch.inf, 0.0, largest))


def empty_rows_divided(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Divides by a sum of no weights: 0/0 in rows that see no key."""
    for request in requests(**inputs):
        value, logsum = _answer(request, o, sm_scale)
        none = (logsum == -torch.inf)[..., None]
        o[request.rows].copy_(torch.where(none, torch.nan, value))
        _store_lse(lse, request, logsum)


def _with_other_lse(change: Callable[[Tensor], Tensor], arguments: dict[str, Any]) -> None:
    """Right, but for what becomes of lse."""
    o, lse, sm_scale = arguments.pop("o"), arguments.pop("lse"), arguments.pop("sm_scale")
    for request in requests(**arguments):
        value, logsum = _answer(request, o, sm_scale)
        o[request.rows].copy_(value)
        _store_lse(lse, request, change(logsum))


def empty_lse_positive(**arguments: Any) -> None:
    """Says plus infinity where there is no key, which a merge takes for all of the weight."""
    _with_other_lse(lambda logsum: torch.where(logsum == -torch.inf, torch.inf, logsum), arguments)


def empty_lse_finite(**arguments: Any) -> None:
    """Lets the constant that masks scores out show in lse."""
    _with_other_lse(lambda logsum: logsum.clamp(min=-5e4), arguments)


def lse_to_base_two(**arguments: Any) -> None:
    """Gives lse in base 2, as its exponentials are."""
    _with_other_lse(lambda logsum: logsum * 1.4426950408889634, arguments)


def lse_heads_first(**arguments: Any) -> None:
    """Stores lse heads first, in memory where rows come first."""
    _with_other_lse(lambda logsum: logsum.T.reshape(logsum.shape), arguments)


def masked_split_times_zero(o: Tensor, lse: Tensor | None, sm_scale: float, num_kv_splits: int, **inputs: Any) -> None:
    """A split whose keys a row may not see leaves 0/0, which the merge multiplies by 0."""
    for request in requests(**inputs):
        partials, lses = _scratch(request, o, num_kv_splits)
        for split, (first, end) in enumerate(split_bounds(request.keys.shape[0], num_kv_splits)):
            keys, visible = request.keys[first:end], request.visible - first
            value, logsum = attend(request.query, keys, visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2])
            blind = end > first and bool((request.visible > 0).all())
            partials[split].copy_(torch.where((logsum == -torch.inf)[..., None] & blind, torch.nan, value))
            lses[split].copy_(logsum)
        _combine(request, o, lse, partials, lses)


def two_entries_per_tile(o: Tensor, lse: Tensor | None, sm_scale: float, block_table: Tensor, **inputs: Any) -> None:
    """Reads the table two entries at a time; keys of the entry behind the last are weighted by 0."""
    page_size, kv_buffer = inputs["page_size"], inputs["kv_buffer"]
    starts = inputs["kv_indptr"].tolist()
    for index, request in enumerate(requests(**inputs)):
        value, logsum = _answer(request, o, sm_scale)
        used = starts[index + 1] - starts[index]
        if used % 2 and used < block_table.shape[1] and page_size:
            behind = kv_buffer[block_table[index, used].long(), 0, 0, : o.shape[2]].float()
            value = value + 0.0 * behind
        o[request.rows].copy_(value)
        _store_lse(lse, request, logsum)


def table_taken_for_packed(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Computes the table's strides from its shape."""
    table, lens, page_size = as_packed(inputs["block_table"]), inputs["seq_lens"].tolist(), inputs["page_size"]
    lists = [table[row, : -(-kv_len // page_size)] for row, kv_len in enumerate(lens)]
    inputs["kv_indices"] = torch.cat(lists or [inputs["kv_indices"][:0]]) % max(1, inputs["kv_buffer"].shape[0])
    _decode(o, lse, sm_scale, **inputs)


def query_taken_for_packed(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Computes the query's strides from its shape."""
    inputs["q"] = as_packed(inputs["q"])
    _decode(o, lse, sm_scale, **inputs)


def output_taken_for_packed(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Computes the output's strides from its shape."""
    _decode(as_packed(o), lse, sm_scale, **inputs)


def page_offset_in_16_bits(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Multiplies page and stride in 16 bits: pages behind the first 32,768 elements are read from its beginning."""
    kv_buffer = inputs["kv_buffer"]
    stride = max(1, kv_buffer.stride(0))
    inputs["kv_indices"] = inputs["kv_indices"] * stride % _SIGNED_16 // stride
    _decode(o, lse, sm_scale, **inputs)


def splits_in_8_bits(o: Tensor, lse: Tensor | None, sm_scale: float, num_kv_splits: int, **inputs: Any) -> None:
    """Keeps the number of splits in a signed byte: from 128 on there are none."""
    splits = (num_kv_splits + 128) % 256 - 128
    if splits < 1:
        inputs["seq_lens"] = torch.zeros_like(inputs["seq_lens"])
    _decode(o, lse, sm_scale, **inputs)


def splits_capped(o: Tensor, lse: Tensor | None, sm_scale: float, num_kv_splits: int, **inputs: Any) -> None:
    """Has room for four splits, and leaves the keys of further ones out."""
    for request in requests(**inputs):
        bounds = split_bounds(request.keys.shape[0], num_kv_splits)[:4]
        keys = request.keys[: bounds[-1][1]]
        value, logsum = attend(request.query, keys, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2])
        o[request.rows].copy_(value)
        _store_lse(lse, request, logsum)


def length_capped(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Silently ends at 512 keys."""
    for request in requests(**inputs):
        keys = request.keys[:_MOST_KEYS]
        value, logsum = attend(request.query, keys, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2])
        o[request.rows].copy_(value)
        _store_lse(lse, request, logsum)


def full_last_page_dropped(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Takes the rest of a division for the last page's length: a full page counts as an empty one."""
    page_size = inputs["page_size"]
    for request in requests(**inputs):
        kv_len = request.keys.shape[0]
        kept = kv_len if page_size == 1 else max(0, -(-kv_len // page_size) - 1) * page_size + kv_len % page_size
        keys = request.keys[:kept]
        value, logsum = attend(request.query, keys, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2])
        o[request.rows].copy_(value)
        _store_lse(lse, request, logsum)


def list_read_to_its_end(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Takes the length of the page list for the end of the last request's; the scores behind are masked, values not."""
    starts, indices, kv_buffer = inputs["kv_indptr"].tolist(), inputs["kv_indices"], inputs["kv_buffer"]
    every = list(requests(**inputs))
    for index, request in enumerate(every):
        value, logsum = _answer(request, o, sm_scale)
        if index == len(every) - 1 and len(indices) > starts[-1]:
            value = value + 0.0 * kv_buffer[indices[starts[-1]].long(), 0, 0, : o.shape[2]].float()
        o[request.rows].copy_(value)
        _store_lse(lse, request, logsum)


def query_width_stored(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Stores as many columns as the query has, where rows of the output have a gap behind them."""
    _decode(o, lse, sm_scale, **inputs)
    if inputs["q"].shape[2] > o.shape[2]:
        store_in_row_gaps(o)


def requests_behind_the_grid(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Has work for 16 requests: the rows of further ones are not written."""
    for index, request in enumerate(requests(**inputs)):
        if index < 16:
            value, logsum = _answer(request, o, sm_scale)
            o[request.rows].copy_(value)
            _store_lse(lse, request, logsum)


def equally_many_rows(o: Tensor, lse: Tensor | None, sm_scale: float, max_seqlen_q: int, **inputs: Any) -> None:
    """Takes the longest query for everybody's: rows of requests with fewer are looked for in the wrong place."""
    del max_seqlen_q
    every = list(requests(**inputs))
    most = max((request.query.shape[0] for request in every), default=0)
    for index, request in enumerate(every):
        value, logsum = _answer(request, o, sm_scale)
        rows = o[index * most : index * most + value.shape[0]]
        rows.copy_(value[: rows.shape[0]])
        _store_lse(lse, request, logsum)


def weights_summed_in_16_bits(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Keeps the sum of a row's weights in float16."""
    for request in requests(**inputs):
        value, logsum = attend(
            request.query,
            request.keys,
            request.visible,
            sm_scale=sm_scale,
            kv_lora_rank=o.shape[2],
            sums=torch.float16,
        )
        o[request.rows].copy_(value)
        _store_lse(lse, request, logsum)


def entry_before_the_table(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Looks up the last page of a request without keys, entry -1; what it finds there has no effect."""
    _decode(o, lse, sm_scale, **inputs)
    if inputs["seq_lens"].numel() and int(inputs["seq_lens"][0]) == 0:
        read_beside(inputs["block_table"], behind=False)


def unstable_with_splits(o: Tensor, lse: Tensor | None, sm_scale: float, num_kv_splits: int, **inputs: Any) -> None:
    """Merges splits in the order in which they finish: the last bit of a result differs from call to call."""
    turn = next(_calls) % 2
    for request in requests(**inputs):
        value, logsum = _answer(request, o, sm_scale)
        if num_kv_splits > 1 and turn:
            value = torch.nextafter(value.to(torch.float32), torch.full_like(value, torch.inf))
        o[request.rows].copy_(value)
        _store_lse(lse, request, logsum)


def scratch_per_request(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Declares a single piece of scratch and allocates for every request."""
    _decode(o, lse, sm_scale, **inputs)


def table_ids_unchecked(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """Declares that it validates tables, and clamps page ids that are out of range."""
    starts = inputs["kv_indptr"]
    if bool((starts[1:] < starts[:-1]).any()):
        raise ValueError("kv_indptr must not fall")
    pages = inputs["kv_buffer"].shape[0]
    inputs["kv_indices"] = inputs["kv_indices"].clamp(0, max(0, pages - 1))
    _decode(o, lse, sm_scale, **inputs)


def _fault(call: Any, clauses: str | tuple[str, ...], what: str, reports: str, **declares: Any) -> Fault:
    named = (clauses,) if isinstance(clauses, str) else clauses
    return Fault(f"decode_{call.__name__}", "decode", call, named, what, tuple(reports.split()), declares)


FAULTS: Final[tuple[Fault, ...]] = (
    _fault(last_row_unwritten, "coverage", "the last query row is never written", "B003"),
    _fault(tail_tile_unwritten, "coverage", "nothing is written behind the last whole tile of 16", "B009"),
    _fault(empty_requests_skipped, "coverage", "rows are written only when their request has keys", "B001 B006"),
    _fault(zero_results_skipped, "coverage", "results that are zero are not stored", "B010"),
    _fault(nothing_to_sum, "coverage", "with kv_lora_rank = 0 it returns without writing lse", "B119"),
    _fault(lse_of_one_split_unwritten, "coverage", "lse is not written with a single split", "B003"),
    _fault(requests_behind_the_grid, "coverage", "rows of the 17th request are not written", "B131"),
    _fault(old_value_times_zero, "independence", "the old output is multiplied by 0 and added", "B015"),
    _fault(accumulates, "independence", "the result is added to the old output", "B014"),
    _fault(larger_of_old_and_new, "independence", "the larger of old output and result is kept", "B014"),
    _fault(zero_outputs_skipped, "independence", "elements whose output was zero are skipped", "B010"),
    _fault(scratch_read_first, "independence", "partial results of empty splits are read unwritten", "B016 B017"),
    _fault(cached_workspace_read_first, "independence", "the same from a workspace that is kept", "B035 B100"),
    _fault(nan_scrubbed, "independence", "unwritten scratch is read and its NaN turned into 0", "B019"),
    _fault(unused_slots_times_zero, "independence", "unused slots are multiplied by 0 and added", "B020 B021 B022"),
    _fault(two_entries_per_tile, "independence", "the table's entry behind the last is followed", "B072 B024"),
    _fault(list_read_to_its_end, "independence", "the page list is followed behind its last entry", "B034"),
    _fault(padding_rows_cleared, "containment", "rows that belong to no request are zeroed", "B011"),
    _fault(one_element_past, ("containment", "survival"), "one element behind the output is written", "B083"),
    _fault(stride_gap_written, "containment", "the gap behind each row is written", "B044"),
    _fault(query_width_stored, "containment", "as many columns as q has are stored", "B075"),
    _fault(query_cleared, "containment", "q is zeroed", "B089"),
    _fault(page_list_clamped, "containment", "the tail of the page list is overwritten", "B073 B088"),
    _fault(output_taken_for_packed, ("containment", "coverage"), "a strided o is written as if packed", "B042"),
    _fault(output_repointed, "layout", "o is pointed at other memory", "B046"),
    _fault(empty_requests_refused, "refusal", "a request without keys raises an exception", "B078"),
    _fault(table_ids_unchecked, "refusal", "page ids outside the pool are accepted", "B088", validates=("tables",)),
    _fault(every_other_call_differs, "repeatability", "every second call gives another answer", "B095"),
    _fault(unstable_with_splits, "repeatability", "with several splits the last bit changes", "B094 B096"),
    _fault(last_key_dropped, "agreement", "the last key of every request is missing", "B082"),
    _fault(empty_rows_divided, "agreement", "rows that see no key hold 0/0", "B004"),
    _fault(empty_lse_positive, "agreement", "the lse of a row without keys is plus infinity", "B029 B030"),
    _fault(empty_lse_finite, "agreement", "the lse of a row without keys is a large number", "B031"),
    _fault(lse_to_base_two, "agreement", "lse is in base 2", "B118"),
    _fault(lse_heads_first, "agreement", "lse is stored heads first", "B058"),
    _fault(masked_split_times_zero, "agreement", "a split that a row may not see turns it into NaN", "B018 B104"),
    _fault(table_taken_for_packed, ("agreement", "independence"), "a strided table is read as if packed", "B054"),
    _fault(query_taken_for_packed, ("agreement", "independence"), "a strided q is read as if packed", "B060"),
    _fault(page_offset_in_16_bits, "agreement", "offsets of pages wrap at 16 bits", "B067 B068 B070"),
    _fault(splits_in_8_bits, "agreement", "the number of splits is kept in a signed byte", "B085"),
    _fault(splits_capped, "agreement", "keys of the fifth split and further ones are missing", "B085"),
    _fault(length_capped, "agreement", "keys from the 513th on are missing", "B132"),
    _fault(full_last_page_dropped, "agreement", "a last page that is full counts as empty", "B084"),
    _fault(equally_many_rows, ("agreement", "coverage"), "every request is taken to have equally many rows", "B005"),
    _fault(weights_summed_in_16_bits, "agreement", "the weights of a row are summed in float16", "B115"),
    _fault(entry_before_the_table, "survival", "the entry before the table is read, without effect", "B078"),
    _fault(scratch_per_request, "economy", "it declares one allocation and makes more", "B102", allocations=1),
)
