"""Kernels that are right when called and wrong when replayed from a graph, beside right ones that can be captured.

They are no part of the corpus that a check is held to: without a GPU nothing is captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.kernel import Kernel
from strategies.limits import DecodeLimits

__all__ = ["CAPTURED_RIGHT", "GRAPH_FAULTS", "UNCAPTURED"]

_HOME: Final = "mla_verify.faults.captured"
_scratch: dict[tuple[torch.Size, torch.device], Tensor] = {}
_accumulators: dict[tuple[bool, torch.Size, torch.device], Tensor] = {}
_last: dict[str, Any] = {}  # what the host has read in the last call that was no capture


def _attended(
    q: Tensor,
    kv_buffer: Tensor,
    o: Tensor,
    qo_indptr: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    page_size: int,
    sm_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Value and lse of every row, and which rows belong to a request; nothing is read by the host."""
    rows = torch.arange(q.shape[0], device=q.device)
    live = rows < qo_indptr[-1]
    if not block_table.shape[0]:
        return torch.zeros(o.shape, device=o.device), torch.full(o.shape[:2], -torch.inf, device=o.device), live
    ends = qo_indptr[1:].contiguous()
    request = torch.searchsorted(ends, rows, right=True).clamp(max=len(seq_lens) - 1)
    visible = torch.where(live, seq_lens[request] - (ends[request] - 1 - rows), 0).clamp(min=0)
    positions = torch.arange(block_table.shape[1] * page_size, device=q.device)
    seen = positions < visible.unsqueeze(1)  # [num_rows, keys]
    pages = torch.where(seen, block_table[request][:, positions // page_size], 0)
    keys = kv_buffer[pages, positions % page_size, 0].float()  # [num_rows, keys, width]
    keys = torch.where(seen.unsqueeze(-1), keys, 0.0)
    queries = torch.where(live.view(-1, 1, 1), q.float(), 0.0)
    scores = torch.einsum("thd,tkd->thk", queries, keys) * sm_scale
    scores = scores.masked_fill(~seen.unsqueeze(1), -torch.inf)
    lse = scores.logsumexp(-1) if len(positions) else torch.full(o.shape[:2], -torch.inf, device=o.device)
    weights = (scores - lse.masked_fill(lse == -torch.inf, 0.0).unsqueeze(-1)).exp()
    return torch.einsum("thk,tkd->thd", weights, keys[..., : o.shape[2]]), lse, live


def _stored(value: Tensor, lse_value: Tensor, live: Tensor, o: Tensor, lse: Tensor | None) -> None:
    """Write rows of requests, and leave padding as it is."""
    o.copy_(torch.where(live.view(-1, 1, 1), value.to(o.dtype), o))
    if lse is not None:
        lse.copy_(torch.where(live.view(-1, 1), lse_value, lse))


def _capturing() -> bool:
    try:
        return torch.cuda.is_current_stream_capturing()
    except RuntimeError:  # a torch without CUDA captures nothing
        return False


_INPUTS: Final = ("q", "kv_buffer", "o", "qo_indptr", "block_table", "seq_lens", "page_size", "sm_scale")


def _inputs(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in _INPUTS}


def gathered(o: Tensor, lse: Tensor | None, **rest: Any) -> None:
    """Gathers every request's keys by the table on the device; leaves padding as it is."""
    value, lse_value, live = _attended(**_inputs({"o": o, **rest}))
    _stored(value, lse_value, live, o, lse)


def gathered_zero_padding(o: Tensor, lse: Tensor | None, **rest: Any) -> None:
    """The same, with padding rows zeroed."""
    value, lse_value, _ = _attended(**_inputs({"o": o, **rest}))
    o.copy_(value)
    if lse is not None:
        lse.copy_(lse_value)


def gathered_through_kept_scratch(o: Tensor, lse: Tensor | None, **rest: Any) -> None:
    """The same through scratch that is kept from call to call, and rewritten before it is read."""
    value, lse_value, live = _attended(**_inputs({"o": o, **rest}))
    scratch = _scratch.setdefault((o.shape, o.device), torch.empty(o.shape, device=o.device))
    scratch.copy_(value)
    _stored(scratch, lse_value, live, o, lse)


def workspace_kept_from_a_capture(o: Tensor, lse: Tensor | None, **rest: Any) -> None:
    """Graphs share an accumulator that only the first of them has zeroed; every call leaves it zero behind."""
    value, lse_value, live = _attended(**_inputs({"o": o, **rest}))
    key = (_capturing(), o.shape, o.device)
    if key not in _accumulators:
        _accumulators[key] = torch.zeros(o.shape, device=o.device)
    accumulator = _accumulators[key]
    accumulator += value
    _stored(accumulator.clone(), lse_value, live, o, lse)
    accumulator.zero_()


def padding_counted_at_capture(o: Tensor, lse: Tensor | None, qo_indptr: Tensor, **rest: Any) -> None:
    """Zeroes padding from the row on that was the first one when the graph was captured."""
    value, lse_value, live = _attended(**_inputs({"o": o, "qo_indptr": qo_indptr, **rest}))
    if not _capturing():
        _last["rows"] = int(qo_indptr[-1])
    o.copy_(torch.where(live.view(-1, 1, 1), value.to(o.dtype), o))
    o[_last["rows"] :].zero_()
    if lse is not None:
        lse.copy_(lse_value)


def lengths_of_the_capture(o: Tensor, lse: Tensor | None, seq_lens: Tensor, **rest: Any) -> None:
    """Masks keys by lengths that the host has read, and in a graph by those that it had read before."""
    if not _capturing():
        _last["lens"] = seq_lens.clone()
    value, lse_value, live = _attended(**_inputs({"o": o, "seq_lens": _last["lens"], **rest}))
    _stored(value, lse_value, live, o, lse)


def lengths_read_by_the_host(o: Tensor, lse: Tensor | None, seq_lens: Tensor, **rest: Any) -> None:
    """Reads lengths on the host in every call: right, and nothing that can be captured."""
    longest = int(seq_lens.max()) if len(seq_lens) else 0
    rest["block_table"] = rest["block_table"][:, : -(-longest // rest["page_size"])]
    value, lse_value, live = _attended(**_inputs({"o": o, "seq_lens": seq_lens, **rest}))
    _stored(value, lse_value, live, o, lse)


def weight_of_the_capture(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Multiplies with a packed copy of the weight, and in a graph with the copy that was made before."""
    if not _capturing():
        _last["weight"] = w_uv.contiguous().clone()
    out.copy_(torch.einsum("tnl,nlv->tnv", x.float(), _last["weight"].float()))


def _kernel(function: Callable[..., Any], contract: str = "decode", **declarations: Any) -> Kernel:
    return Kernel(
        name=function.__name__,
        contract=contract,
        load=lambda: function,
        summary=(function.__doc__ or "").split("\n")[0],
        target=f"{_HOME}:{function.__name__.upper()}",
        limits=DecodeLimits(max_batch=6, max_kv_len=64, max_q_len=4) if contract == "decode" else None,
        **declarations,
    )


GATHERED: Final = _kernel(gathered)
GATHERED_ZERO_PADDING: Final = _kernel(gathered_zero_padding, padding_rows="zero")
GATHERED_THROUGH_KEPT_SCRATCH: Final = _kernel(gathered_through_kept_scratch)
WORKSPACE_KEPT_FROM_A_CAPTURE: Final = _kernel(workspace_kept_from_a_capture)
PADDING_COUNTED_AT_CAPTURE: Final = _kernel(padding_counted_at_capture, padding_rows="zero")
LENGTHS_OF_THE_CAPTURE: Final = _kernel(lengths_of_the_capture)
WEIGHT_OF_THE_CAPTURE: Final = _kernel(weight_of_the_capture, "up-projection")
LENGTHS_READ_BY_THE_HOST: Final = _kernel(lengths_read_by_the_host)

CAPTURED_RIGHT: Final = (GATHERED, GATHERED_ZERO_PADDING, GATHERED_THROUGH_KEPT_SCRATCH)
GRAPH_FAULTS: Final[tuple[tuple[Kernel, str], ...]] = (
    (WORKSPACE_KEPT_FROM_A_CAPTURE, "independence"),
    (PADDING_COUNTED_AT_CAPTURE, "coverage"),
    (LENGTHS_OF_THE_CAPTURE, "independence"),
    (WEIGHT_OF_THE_CAPTURE, "repeatability"),
)
"""Each with the clause under which replays show it."""

UNCAPTURED: Final = LENGTHS_READ_BY_THE_HOST
