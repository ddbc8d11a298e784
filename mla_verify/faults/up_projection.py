"""The up-projection with one fault at a time, each as somebody has written or could write it."""

from __future__ import annotations

from itertools import count
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.faults.fault import Fault
from mla_verify.faults.stray import store_behind, store_in_row_gaps

__all__ = ["FAULTS"]

_TILE: Final = 16
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


def _fault(call: Any, clause: str, what: str) -> Fault:
    return Fault(f"up_projection_{call.__name__}", "up-projection", call, (clause,), what)


FAULTS: Final[tuple[Fault, ...]] = (
    _fault(last_row_unwritten, "coverage", "the last row is never written"),
    _fault(tail_tile_unwritten, "coverage", "nothing is written behind the last whole tile of 16"),
    _fault(zero_results_skipped, "coverage", "results that are zero are not stored"),
    _fault(nothing_to_sum, "coverage", "with kv_lora_rank = 0 it returns without writing the zeros"),
    _fault(old_value_times_zero, "independence", "the old output is multiplied by 0 and added"),
    _fault(accumulates, "independence", "the result is added to the old output"),
    _fault(larger_of_old_and_new, "independence", "the larger of old output and result is kept"),
    _fault(zero_outputs_skipped, "independence", "elements whose output was zero are skipped"),
    _fault(scratch_read_first, "independence", "scratch is read before it is written"),
    _fault(cached_workspace_read_first, "independence", "a cached workspace is read before it is written"),
    _fault(nan_scrubbed, "independence", "unwritten scratch is read and its NaN turned into 0"),
    _fault(one_element_past, "containment", "one element behind the output is written"),
    _fault(stride_gap_written, "containment", "the gap behind each row is written"),
    _fault(input_cleared, "containment", "x is zeroed"),
    _fault(output_repointed, "layout", "out is pointed at other memory"),
    _fault(strided_output_refused, "refusal", "an output with gaps raises an exception"),
    _fault(every_other_call_differs, "repeatability", "every second call gives another answer"),
    _fault(last_term_dropped, "agreement", "the last term of every sum is missing"),
)
