"""Right kernels of unusual make, each with a habit that a careless check would take for a fault."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.faults.attention import attend, requests, split_bounds
from mla_verify.faults.fault import TARGETS
from mla_verify.kernel import Arithmetic, Kernel
from mla_verify.kernels.onednn import AMX_SPREADS_INFINITY

__all__ = ["RIGHT"]

_scratch: dict[tuple[str, torch.device], Tensor] = {}
_semaphores: dict[torch.device, Tensor] = {}


def multiplied_in_place(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Multiplies straight into the transposed view of the output."""
    torch.bmm(x.transpose(0, 1), w_uv, out=out.transpose(0, 1))


def summed_then_copied(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Sums in float32 and rounds once, while copying."""
    out.copy_(torch.einsum("tnl,nlv->tnv", x.float(), w_uv.float()))


def summed_in_kept_scratch(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Keeps its scratch from call to call, and rewrites all of it before it reads."""
    heads_first = (out.shape[1], out.shape[0], out.shape[2])
    scratch = _kept("product", heads_first, out.device)
    torch.bmm(x.transpose(0, 1).float(), w_uv.float(), out=scratch)
    out.copy_(scratch.transpose(0, 1))


def counted_by_semaphore(x: Tensor, w_uv: Tensor, out: Tensor, **_: object) -> None:
    """Counts finished rows in a semaphore that was zeroed once and is put back to zero by every call."""
    semaphore = _semaphores.setdefault(out.device, torch.zeros(1, dtype=torch.int32, device=out.device))
    for row in range(out.shape[0]):
        out[row].copy_(torch.einsum("nl,nlv->nv", x[row].float(), w_uv.float()))
        semaphore += 1
    if int(semaphore) != out.shape[0]:
        raise RuntimeError(f"the semaphore counts {int(semaphore)} rows of {out.shape[0]}")
    semaphore.zero_()


def product_returned(x: Tensor, w_uv: Tensor, **_: object) -> Tensor:
    """Allocates its output, and writes every element of it."""
    own = torch.empty(x.shape[0], x.shape[1], w_uv.shape[2], dtype=x.dtype, device=x.device)
    return own.copy_(torch.einsum("tnl,nlv->tnv", x.float(), w_uv.float()))


def prepare_accumulator(out: Tensor, **_: object) -> dict[str, Tensor]:
    """The workspace of `summed_in_workspace`."""
    return {"workspace": torch.empty(out.shape, dtype=torch.float32, device=out.device)}


def summed_in_workspace(x: Tensor, w_uv: Tensor, out: Tensor, state: dict[str, Tensor], **_: object) -> None:
    """Clears its declared workspace, accumulates into it in two halves, then rounds."""
    accumulator, half = state["workspace"], x.shape[2] // 2
    accumulator.zero_()
    for part in (slice(None, half), slice(half, None)):
        accumulator += torch.einsum("tnl,nlv->tnv", x[..., part].float(), w_uv[:, part].float())
    out.copy_(accumulator)


def one_pass(o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> None:
    """One request after the other, from the page lists."""
    for request in requests(**inputs):
        value, logsum = attend(request.query, request.keys, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2])
        o[request.rows].copy_(value)
        if lse is not None:
            lse[request.rows].copy_(logsum)


def one_pass_by_table(o: Tensor, block_table: Tensor, seq_lens: Tensor, page_size: int, **inputs: Any) -> None:
    """The same from the block table: builds page lists of its own, and never looks at the given ones."""
    pages = [-(-length // page_size) for length in seq_lens.tolist()]
    inputs["kv_indices"] = torch.cat([block_table[r, :many] for r, many in enumerate(pages)] or [seq_lens])
    inputs["kv_indptr"] = torch.tensor([0, *pages]).cumsum(0)
    one_pass(o, seq_lens=seq_lens, **inputs)


def merged_from_kept_scratch(o: Tensor, lse: Tensor | None, sm_scale: float, num_kv_splits: int, **inputs: Any) -> None:
    """Merges splits in scratch that it keeps, after filling every split: empty ones with minus infinity."""
    for request in requests(**inputs):
        shape = (num_kv_splits, *request.query.shape[:2])
        partials, lses = _kept("o", (*shape, o.shape[2]), o.device), _kept("lse", shape, o.device)
        for split, (first, end) in enumerate(split_bounds(request.keys.shape[0], num_kv_splits)):
            value, logsum = attend(
                request.query,
                request.keys[first:end],
                request.visible - first,
                sm_scale=sm_scale,
                kv_lora_rank=o.shape[2],
            )
            partials[split].copy_(value)
            lses[split].copy_(logsum)
        largest = lses.amax(0)
        largest = torch.where(largest == -torch.inf, 0.0, largest)
        weights = (lses - largest).exp()
        total = weights.sum(0)
        merged = (weights[..., None] * partials).sum(0) / total[..., None]
        o[request.rows].copy_(torch.where(total[..., None] > 0, merged, 0.0))
        if lse is not None:
            lse[request.rows].copy_(total.log() + largest)


def attention_returned(q: Tensor, o: Tensor, lse: Tensor | None, sm_scale: float, **inputs: Any) -> Any:
    """Allocates o and lse and returns them; rows of padding are left as the allocator gave them."""
    own = torch.empty(o.shape, dtype=o.dtype, device=o.device)
    own_lse = torch.empty(o.shape[:2], dtype=torch.float32, device=o.device)
    one_pass(own, own_lse, sm_scale, q=q, **inputs)
    return own if lse is None else (own, own_lse)


def prepare_plan(seq_lens: Tensor, o: Tensor, **_: object) -> dict[str, Any]:
    """The plan of `attention_by_plan`: which requests have keys, and room for the result in float32."""
    room = torch.empty(o.shape, dtype=torch.float32, device=o.device)
    return {"busy": (seq_lens > 0).tolist(), "workspace": [room]}


def attention_by_plan(o: Tensor, lse: Tensor | None, sm_scale: float, state: dict[str, Any], **inputs: Any) -> None:
    """Computes the planned requests in its workspace, fills in the others, copies rows of requests only."""
    (room,) = state["workspace"]
    for busy, request in zip(state["busy"], requests(**inputs), strict=True):
        logsum = torch.tensor(-torch.inf)
        if busy:
            room[request.rows], logsum = attend(
                request.query, request.keys, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2]
            )
        else:
            room[request.rows] = 0
        o[request.rows].copy_(room[request.rows])
        if lse is not None:
            lse[request.rows] = logsum


def _kept(name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """The front of a float32 buffer that stays alive under its name, and only grows."""
    size = math.prod(shape)
    buffer = _scratch.get((name, device))
    if buffer is None or buffer.numel() < size:
        buffer = _scratch[name, device] = torch.empty(size, dtype=torch.float32, device=device)
    return buffer[:size].view(shape)


def _right(contract: str, call: Callable[..., Any], **declarations: Any) -> Kernel:
    name = f"{contract.replace('-', '_')}_{call.__name__}"
    return Kernel(name=name, contract=contract, load=lambda: call, target=f"{TARGETS}:{name}", **declarations)


RIGHT: Final[tuple[Kernel, ...]] = (
    # A 16-bit product on the CPU may drop subnormals.
    _right(
        "up-projection",
        multiplied_in_place,
        arithmetic=Arithmetic(subnormals="flushed"),
        known_deviations=(AMX_SPREADS_INFINITY,),
    ),
    _right("up-projection", summed_then_copied),
    _right("up-projection", summed_in_kept_scratch),
    _right("up-projection", counted_by_semaphore),
    _right("up-projection", product_returned),
    _right("up-projection", summed_in_workspace, prepare=prepare_accumulator),
    _right("decode", one_pass),
    _right("decode", one_pass_by_table),
    _right("decode", merged_from_kept_scratch),
    _right("decode", attention_returned, padding_rows="unspecified"),
    _right("decode", attention_by_plan, prepare=prepare_plan),
)
