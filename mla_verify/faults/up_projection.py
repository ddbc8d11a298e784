"""The up-projection with one fault at a time, each as somebody has written or could write it."""

from __future__ import annotations

from itertools import count
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.faults.fault import Fault
from mla_verify.faults.stray import as_packed, read_beside, store_behind, store_in_row_gaps

__all__ = ["FAULTS"]

_TILE: Final = 16
_GRID: Final = 32
_SIGNED_16: Final = 1 << 15
_workspaces: dict[tuple[Any, ...], Tensor] = {}
_calls = count()


def _product(x: Tensor, w_uv: Tensor) -> Tensor:
    """Right: [num_tokens, num_heads, v_head_dim], computed in float32 and rounded once."""
    return torch.einsum("tnl,nlv->tnv", x.float(), w_uv.float()).to(x.dtype)


def last_row_unwritten(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """An off-by-one in the number of rows."""
    out[:-1].copy_(_product(x, w_uv)[:-1])


def tail_tile_unwritten(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """A grid of whole tiles, rounded down."""
    whole = out.shape[2] // _TILE * _TILE
    out[..., :whole].copy_(_product(x, w_uv)[..., :whole])


def zero_results_skipped(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Relies on an output that was zero-filled, and stores only what differs from it."""
    result = _product(x, w_uv)
    out.copy_(torch.where(result == 0, out, result))


def nothing_to_sum(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Takes an empty sum for an empty result."""
    if x.shape[2] == 0:
        return
    out.copy_(_product(x, w_uv))


def old_value_times_zero(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """beta = 0 multiplied out instead of skipped."""
    out.mul_(0).add_(_product(x, w_uv))


def accumulates(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """beta = 1 where it should be 0."""
    out.add_(_product(x, w_uv))


def larger_of_old_and_new(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """An atomic maximum into memory that nobody set to minus infinity; NaN loses every comparison."""
    out.copy_(torch.fmax(out, _product(x, w_uv)))


def zero_outputs_skipped(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Takes a zero in the output for a row that is masked out."""
    out.copy_(torch.where(out == 0, out, _product(x, w_uv)))


def scratch_read_first(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Accumulates into fresh memory without clearing it."""
    accumulator = torch.empty(out.shape, dtype=torch.float32, device=out.device)
    accumulator.add_(_product(x, w_uv))
    out.copy_(accumulator)


def cached_workspace_read_first(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Accumulates into a workspace kept until the shape changes, clearing it by a multiplication with 0."""
    key = (tuple(out.shape), out.device)
    if key not in _workspaces:
        _workspaces.clear()
        _workspaces[key] = torch.empty(out.shape, dtype=torch.float32, device=out.device)
    workspace = _workspaces[key]
    workspace.mul_(0).add_(_product(x, w_uv))
    out.copy_(workspace)


def nan_scrubbed(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Reads scratch that was never written, and turns the NaN it may find into 0."""
    leftover = torch.empty(out.shape, dtype=torch.float32, device=out.device)
    out.copy_(_product(x, w_uv) + torch.nan_to_num(leftover, nan=0.0))


def one_element_past(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Stores one element behind the last. An output that ends with its storage is left alone."""
    out.copy_(_product(x, w_uv))
    store_behind(out)


def stride_gap_written(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Stores one element too many in each row but the last: into the gap, where there is one."""
    out.copy_(_product(x, w_uv))
    store_in_row_gaps(out)


def input_cleared(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Leaves the activations zeroed behind itself."""
    out.copy_(_product(x, w_uv))
    x.zero_()


def output_repointed(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Gives the caller's tensor other memory, instead of writing into its own."""
    out.data = _product(x, w_uv)


def strided_output_refused(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Demands an output without gaps, which the contract does not."""
    if not out.is_contiguous():
        raise RuntimeError("out must be contiguous")
    out.copy_(_product(x, w_uv))


def every_other_call_differs(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Gives another answer at every second call."""
    out.copy_(_product(x, w_uv) + (next(_calls) % 2))


def last_term_dropped(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Leaves the last term out of every sum."""
    out.copy_(_product(x[..., :-1], w_uv[:, :-1]))


def output_taken_for_packed(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Computes the output's strides from its shape."""
    as_packed(out).copy_(_product(x, w_uv))


def weight_taken_for_packed(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Computes the weight's strides from its shape."""
    out.copy_(_product(x, as_packed(w_uv)))


def flattened_copy_written(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Flattens heads and columns, which copies where rows are not flat: the result goes into the copy."""
    out.reshape(out.shape[0], out.shape[1] * out.shape[2]).copy_(_product(x, w_uv).flatten(1))


def equal_address_refused_only(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Looks for overlap by comparing first addresses: an output shifted over x passes."""
    if out.numel() and out.data_ptr() == x.data_ptr():
        raise ValueError("out overlaps x")
    out.copy_(_product(x, w_uv))


def rows_unchecked(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Checks the inner sizes, and takes however many rows both x and out have."""
    if x.shape[2] != w_uv.shape[1]:
        raise ValueError(f"x has {x.shape[2]} columns, w_uv {w_uv.shape[1]} rows")
    rows = min(x.shape[0], out.shape[0])
    out[:rows].copy_(_product(x[:rows], w_uv))


def accumulated_in_16_bits(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Rounds the running sum to the output's dtype after every tile of the rank."""
    total = torch.zeros(out.shape, dtype=out.dtype, device=out.device)
    for first in range(0, x.shape[2], _TILE):
        some = slice(first, first + _TILE)
        total = (total.float() + torch.einsum("tnl,nlv->tnv", x[..., some].float(), w_uv[:, some].float())).to(
            out.dtype
        )
    out.copy_(total)


def saturates_at_240(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Saturates results at the largest number of a narrower format."""
    out.copy_(_product(x, w_uv).clamp(-240.0, 240.0))


def rounded_half_away(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Converts to bfloat16 by adding half a unit and cutting off: ties go away from zero instead of to even."""
    total = torch.einsum("tnl,nlv->tnv", x.float(), w_uv.float())
    if out.dtype == torch.bfloat16:
        bits = total.contiguous().view(torch.int32)
        total = torch.where(total.isfinite(), ((bits + 0x8000) & ~0xFFFF).view(torch.float32), total)
    out.copy_(total)


def infinities_cut_off(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Replaces infinite results by the largest number."""
    largest = torch.finfo(out.dtype).max
    out.copy_(_product(x, w_uv).clamp(-largest, largest))


def rank_masked_by_packed_length(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Masks the rank in units of packed pairs where it is no multiple of the tile: half of it is left out."""
    rank = x.shape[2] if x.shape[2] % _TILE == 0 else x.shape[2] // 2
    out.copy_(_product(x[..., :rank], w_uv[:, :rank]))


def heads_behind_the_grid(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Launches a grid whose last dimension ends at 32: heads behind it are not written."""
    out[:, :_GRID].copy_(_product(x[:, :_GRID], w_uv[:_GRID]))


def weight_offset_in_16_bits(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Multiplies head and stride in 16 bits: a weight of more than 32,767 elements is read from its beginning again."""
    wrapped = torch.arange(w_uv.shape[0], device=w_uv.device) * w_uv.stride(0) % _SIGNED_16
    heads = (wrapped // max(1, w_uv.stride(0))).clamp(max=max(0, w_uv.shape[0] - 1))
    out.copy_(_product(x, w_uv[heads]))


def no_rows_divided(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Divides by the number of rows when it chooses its grid."""
    programs = max(1, 1024 // x.shape[0])
    if programs:
        out.copy_(_product(x, w_uv))


def tail_loaded_unmasked(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Loads x in pairs: the last pair of an odd number reaches one element behind it, and is masked afterwards."""
    out.copy_(_product(x, w_uv))
    if x.numel() % 2:
        read_beside(x, behind=True)


def single_token_path(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Takes another path for a single token, which sums whole groups of four only."""
    rank = x.shape[2] // 4 * 4 if x.shape[0] == 1 else x.shape[2]
    out.copy_(_product(x[..., :rank], w_uv[:, :rank]))


def allocates_per_call(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Declares a single temporary and takes one for every step."""
    out.copy_(_product(x, w_uv))


def _fault(call: Any, clauses: str | tuple[str, ...], what: str, reports: str, **declares: Any) -> Fault:
    named = (clauses,) if isinstance(clauses, str) else clauses
    name = f"up_projection_{call.__name__}"
    return Fault(name, "up-projection", call, named, what, tuple(reports.split()), declares)


FAULTS: Final[tuple[Fault, ...]] = (
    _fault(last_row_unwritten, "coverage", "the last row is never written", "B003 B012"),
    _fault(tail_tile_unwritten, "coverage", "nothing is written behind the last whole tile of 16", "B009"),
    _fault(zero_results_skipped, "coverage", "results that are zero are not stored", "B010"),
    _fault(nothing_to_sum, "coverage", "with kv_lora_rank = 0 it returns without writing the zeros", "B119 B120"),
    _fault(flattened_copy_written, "coverage", "the result goes into a flattened copy of a strided out", "B045"),
    _fault(heads_behind_the_grid, "coverage", "heads from the 33rd on are not written", "B080"),
    _fault(old_value_times_zero, "independence", "the old output is multiplied by 0 and added", "B015"),
    _fault(accumulates, "independence", "the result is added to the old output", "B014 B015"),
    _fault(larger_of_old_and_new, "independence", "the larger of old output and result is kept", "B014"),
    _fault(zero_outputs_skipped, "independence", "elements whose output was zero are skipped", "B010"),
    _fault(scratch_read_first, "independence", "scratch is read before it is written", "B036"),
    _fault(cached_workspace_read_first, "independence", "a cached workspace is read before it is written", "B100"),
    _fault(nan_scrubbed, "independence", "unwritten scratch is read and its NaN turned into 0", "B019"),
    _fault(one_element_past, ("containment", "survival"), "one element behind the output is written", "B083"),
    _fault(stride_gap_written, "containment", "the gap behind each row is written", "B044"),
    _fault(input_cleared, "containment", "x is zeroed", "B089 B090"),
    _fault(output_taken_for_packed, ("containment", "coverage"), "a strided out is written as if packed", "B042"),
    _fault(output_repointed, "layout", "out is pointed at other memory", "B046"),
    _fault(strided_output_refused, "refusal", "an output with gaps raises an exception", "B043 B054"),
    _fault(no_rows_divided, "refusal", "a batch without rows raises ZeroDivisionError", "B116"),
    _fault(
        equal_address_refused_only,
        "refusal",
        "an out that is shifted over x is accepted",
        "B089 B091 B092",
        validates=("overlap",),
    ),
    _fault(rows_unchecked, "refusal", "an out with other rows than x is accepted", "B044 B083", validates=("shapes",)),
    _fault(every_other_call_differs, "repeatability", "every second call gives another answer", "B095"),
    _fault(last_term_dropped, "agreement", "the last term of every sum is missing", "B082"),
    _fault(
        weight_taken_for_packed, ("agreement", "independence"), "a strided weight is read as if packed", "B043 B046"
    ),
    _fault(accumulated_in_16_bits, "agreement", "sums are rounded to 16 bits after every tile", "B114"),
    _fault(saturates_at_240, "agreement", "results saturate at 240", "B107"),
    _fault(rounded_half_away, "agreement", "ties of a bfloat16 rounding go away from zero", "B107 B105"),
    _fault(infinities_cut_off, "agreement", "infinite results become the largest number", "B112"),
    _fault(rank_masked_by_packed_length, "agreement", "half of a rank that is no multiple of 16 is left out", "B081"),
    _fault(weight_offset_in_16_bits, "agreement", "offsets of heads in the weight wrap at 16 bits", "B087 B070"),
    _fault(single_token_path, "agreement", "a single token's path leaves a rest of the rank out", "B128"),
    _fault(tail_loaded_unmasked, "survival", "one element behind x is read, and masked afterwards", "B040 B065"),
    _fault(allocates_per_call, "economy", "it declares one allocation and makes more", "B102", allocations=1),
)
