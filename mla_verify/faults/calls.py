"""Kernels that remember: right ones, and ones whose single calls are right while memory spoils the later ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.faults.attention import Request, attend, requests, split_bounds
from mla_verify.faults.fault import TARGETS, Fault
from mla_verify.kernel import Kernel

__all__ = ["FAULTS", "RIGHT"]

_CALLS: Final = 24  # after which one of the kernels changes its mind: six problems

_plans: dict[Any, Any] = {}
_workspaces: dict[Any, tuple[Tensor, Tensor]] = {}
_semaphores: dict[torch.device, Tensor] = {}
_results: dict[Any, Tensor] = {}
_count = [0]


def product(x: Tensor, w_uv: Tensor) -> Tensor:
    """[num_tokens, num_heads, v_head_dim] in float32."""
    return torch.einsum("tnl,nlv->tnv", x.float(), w_uv.float())


def attention(o: Tensor, lse: Tensor | None, sm_scale: float, asked: Iterator[Request]) -> None:
    """One request after the other."""
    for request in asked:
        value, logsum = attend(request.query, request.keys, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2])
        o[request.rows].copy_(value)
        if lse is not None:
            lse[request.rows].copy_(logsum)


def plan_by_shapes(
    o: Tensor, lse: Tensor | None, sm_scale: float, q: Tensor, kv_indices: Tensor, seq_lens: Tensor, **inputs: Any
) -> None:
    """Plans once for each shape of its tensors, and takes the plan's lengths from then on."""
    key = (q.shape, kv_indices.shape, seq_lens.shape, inputs["page_size"])
    lens, starts = _plans.setdefault(key, (seq_lens.clone(), inputs["kv_indptr"].clone()))
    inputs["kv_indptr"] = starts
    attention(o, lse, sm_scale, requests(q=q, kv_indices=kv_indices, seq_lens=lens, **inputs))


def plan_by_addresses(
    o: Tensor, lse: Tensor | None, sm_scale: float, q: Tensor, seq_lens: Tensor, **inputs: Any
) -> None:
    """Plans once for each address and shape of its query and its table."""
    key = (q.data_ptr(), q.shape, inputs["block_table"].data_ptr(), inputs["block_table"].shape)
    lens = _plans.setdefault(key, seq_lens.clone())
    attention(o, lse, sm_scale, requests(q=q, seq_lens=lens, **inputs))


def plan_by_shapes_and_lengths(
    o: Tensor, lse: Tensor | None, sm_scale: float, q: Tensor, seq_lens: Tensor, **inputs: Any
) -> None:
    """Plans once for each shape and all lengths: right."""
    key = ("right", q.shape, tuple(seq_lens.tolist()))
    lens = _plans.setdefault(key, seq_lens.clone())
    attention(o, lse, sm_scale, requests(q=q, seq_lens=lens, **inputs))


def _merged(o: Tensor, lse: Tensor | None, sm_scale: float, num_kv_splits: int, *, stale: bool, **inputs: Any) -> None:
    """Merges splits in a workspace that grows to the most splits that were ever asked for."""
    for request in requests(**inputs):
        key = (stale, request.query.shape, o.shape[2], o.device)
        kept = _workspaces.get(key)
        if kept is None or kept[0].shape[0] < num_kv_splits:
            shape = (num_kv_splits, *request.query.shape[:2])
            kept = (torch.empty(*shape, o.shape[2], device=o.device), torch.empty(shape, device=o.device))
            _workspaces[key] = kept
        partials, lses = kept
        for split, (first, end) in enumerate(split_bounds(request.keys.shape[0], num_kv_splits)):
            partials[split], lses[split] = attend(
                request.query,
                request.keys[first:end],
                request.visible - first,
                sm_scale=sm_scale,
                kv_lora_rank=o.shape[2],
            )
        if not stale:
            partials, lses = partials[:num_kv_splits], lses[:num_kv_splits]
        largest = lses.amax(0)
        largest = torch.where(largest == -torch.inf, 0.0, largest)
        weights = (lses - largest).exp()
        total = weights.sum(0)
        merged = (weights[..., None] * partials).sum(0) / total[..., None]
        o[request.rows].copy_(torch.where(total[..., None] > 0, merged, 0.0))
        if lse is not None:
            lse[request.rows].copy_(total.log() + largest)


def stale_splits_merged(**inputs: Any) -> None:
    """Merges all of its workspace, with the splits that an earlier call has left there."""
    _merged(**inputs, stale=True)


def grown_workspace(**inputs: Any) -> None:
    """Merges the splits of this call only: right."""
    _merged(**inputs, stale=False)


def ticket_not_reset(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """The row whose ticket is a multiple of the number of rows writes the last one; tickets are never taken back."""
    tickets = _semaphores.setdefault(out.device, torch.zeros(1, dtype=torch.int32, device=out.device))
    result = product(x, w_uv)
    rows = out.shape[0]
    out[: max(0, rows - 1)].copy_(result[: max(0, rows - 1)])
    tickets += rows
    if rows and int(tickets) % rows == 0:
        out[rows - 1].copy_(result[rows - 1])


def result_by_address(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Computes once for each pair of addresses and shapes."""
    key = (x.data_ptr(), w_uv.data_ptr(), x.shape, w_uv.shape, x.stride(), w_uv.stride(), x.dtype)
    if key not in _results:
        _results[key] = product(x, w_uv)
    out.copy_(_results[key])


def wrong_after_calls(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Right for some calls, and then for none."""
    _count[0] += 1
    out.copy_(product(x, w_uv) * (1.0 if _count[0] <= _CALLS else 3.0) + (_count[0] > _CALLS))


def _fault(contract: str, call: Callable[..., Any], what: str, reports: str) -> Fault:
    name = f"{contract.replace('-', '_')}_{call.__name__}"
    return Fault(name, contract, call, ("repeatability",), what, tuple(reports.split()))


def _right(contract: str, call: Callable[..., Any]) -> Kernel:
    name = f"{contract.replace('-', '_')}_{call.__name__}"
    return Kernel(name=name, contract=contract, load=lambda: call, target=f"{TARGETS}:{name}")


FAULTS: Final[tuple[Fault, ...]] = (
    _fault("decode", plan_by_shapes, "a plan is kept by shapes, whatever the lengths are", "B064 B086"),
    _fault("decode", plan_by_addresses, "a plan is kept by addresses, whatever they hold now", "B102 B130"),
    _fault("decode", stale_splits_merged, "splits of an earlier, larger call are merged", "B035 B073"),
    _fault("up-projection", ticket_not_reset, "a semaphore is not put back to zero", "B101"),
    _fault("up-projection", result_by_address, "a result is kept by address and shape", "B043 B064"),
    _fault("up-projection", wrong_after_calls, "after some calls it is another function", "B095"),
)
RIGHT: Final[tuple[Kernel, ...]] = (_right("decode", plan_by_shapes_and_lengths), _right("decode", grown_workspace))
