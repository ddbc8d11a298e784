"""A two-stage split-KV decode in Triton, with scratch and results from `torch.empty` and again from `torch.zeros`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.errors import Unavailable
from mla_verify.kernels.decode_arguments import refuse_contradictions
from mla_verify.kernels.triton_launch import PROGRAMS, block, interpreted, jitted, programs

__all__ = ["load_triton_decode", "load_triton_decode_zeros"]

_TILE_BYTES: Final = 32 * 1024  # of keys or queries held in shared memory at a time
_MOST_ELEMENTS: Final = 1 << 20  # of a block, in Triton


def load_triton_decode(formats: tuple[str, ...] = ()) -> Callable[..., None]:
    """The decode that takes its scratch from `torch.empty` and writes `o` and `lse` where the caller keeps them.

    A row that sees no key gets `o` = 0 and `lse` = −inf; padding rows stay as they are. formats: of the codes that it
    is to read. Raises Unavailable where there is no Triton, or none that knows these formats on this device.
    """
    kernels = _kernels(formats)

    def triton_decode(
        q: Tensor,  # [num_rows, num_heads, kv_lora_rank + qk_rope_head_dim]
        kv_buffer: Tensor,  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
        o: Tensor,  # [num_rows, num_heads, kv_lora_rank]
        lse: Tensor | None,  # float32 [num_rows, num_heads], natural logarithm
        qo_indptr: Tensor,  # int32 [batch + 1]
        kv_indptr: Tensor,  # int32 [batch + 1], counted in pages
        kv_indices: Tensor,  # int32 [pages in use, and a tail that is never read]
        kv_last_page_lens: Tensor,  # int32 [batch]
        page_size: int,
        max_seqlen_q: int,
        sm_scale: float,
        num_kv_splits: int,
        q_scale: Tensor | None = None,  # float32 [1]: what q's codes are multiplied by, None where q holds numbers
        kv_scale: Tensor | None = None,  # float32 [1], the same for the cache
        **_: Any,
    ) -> None:
        tables = (qo_indptr, kv_indptr, kv_indices, kv_last_page_lens)
        refuse_contradictions(
            q=q, kv_buffer=kv_buffer, o=o, lse=lse, page_size=page_size, q_scale=q_scale, kv_scale=kv_scale
        )
        _refuse_tables(tables)
        shape = (q.shape[0], num_kv_splits, q.shape[1])
        parts = torch.empty((*shape, o.shape[2]), dtype=torch.float32, device=q.device)
        part_lse = torch.empty(shape, dtype=torch.float32, device=q.device)
        scales = (q_scale, kv_scale)
        _launch(kernels, q, kv_buffer, o, lse, tables, parts, part_lse, scales, page_size, max_seqlen_q, sm_scale)

    return triton_decode


def load_triton_decode_zeros(formats: tuple[str, ...] = ()) -> Callable[..., None]:
    """The same from `torch.zeros`, copied into `o` and `lse` at the end: what it forgets to write is zero."""
    kernels = _kernels(formats)

    def triton_decode_zeros(
        q: Tensor,  # [num_rows, num_heads, kv_lora_rank + qk_rope_head_dim]
        kv_buffer: Tensor,  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
        o: Tensor,  # [num_rows, num_heads, kv_lora_rank]
        lse: Tensor | None,  # float32 [num_rows, num_heads], natural logarithm
        qo_indptr: Tensor,  # int32 [batch + 1]
        kv_indptr: Tensor,  # int32 [batch + 1], counted in pages
        kv_indices: Tensor,  # int32 [pages in use, and a tail that is never read]
        kv_last_page_lens: Tensor,  # int32 [batch]
        page_size: int,
        max_seqlen_q: int,
        sm_scale: float,
        num_kv_splits: int,
        q_scale: Tensor | None = None,  # float32 [1]: what q's codes are multiplied by, None where q holds numbers
        kv_scale: Tensor | None = None,  # float32 [1], the same for the cache
        **_: Any,
    ) -> None:
        tables = (qo_indptr, kv_indptr, kv_indices, kv_last_page_lens)
        refuse_contradictions(
            q=q, kv_buffer=kv_buffer, o=o, lse=lse, page_size=page_size, q_scale=q_scale, kv_scale=kv_scale
        )
        _refuse_tables(tables)
        shape = (q.shape[0], num_kv_splits, q.shape[1])
        parts = torch.zeros((*shape, o.shape[2]), dtype=torch.float32, device=q.device)
        part_lse = torch.zeros(shape, dtype=torch.float32, device=q.device)
        o_copy = torch.zeros(o.shape, dtype=o.dtype, device=o.device)
        lse_copy = None if lse is None else torch.zeros(lse.shape, dtype=lse.dtype, device=lse.device)
        scales, written = (q_scale, kv_scale), (o_copy, lse_copy)
        _launch(kernels, q, kv_buffer, *written, tables, parts, part_lse, scales, page_size, max_seqlen_q, sm_scale)
        live = int(qo_indptr[-1])  # rows behind it are the caller's
        o[:live].copy_(o_copy[:live])
        if lse is not None and lse_copy is not None:
            lse[:live].copy_(lse_copy[:live])

    return triton_decode_zeros


def _kernels(formats: tuple[str, ...]) -> Any:
    """The jitted functions. Raises Unavailable where they could not run on these formats."""
    kernels = jitted("decode")
    if interpreted() or not formats:
        return kernels
    known = _known_formats()
    if missing := [name for name in formats if name not in known]:
        raise Unavailable(f"Triton has no {', '.join(missing)} on this device, only {', '.join(known) or 'no fp8'}")
    return kernels


def _known_formats() -> tuple[str, ...]:
    """The fp8 formats that Triton converts on the device there is."""
    if torch.version.hip is None:
        return ("e4m3fn", "e5m2") if torch.cuda.get_device_capability() >= (8, 9) else ("e5m2",)
    arch = torch.cuda.get_device_properties(0).gcnArchName
    return ("e4m3fnuz",) if arch.startswith("gfx942") else ("e4m3fn", "e5m2")


def _launch(
    kernels: Any,
    q: Tensor,
    kv_buffer: Tensor,
    o: Tensor,
    lse: Tensor | None,
    tables: tuple[Tensor, Tensor, Tensor, Tensor],
    parts: Tensor,
    part_lse: Tensor,
    scales: tuple[Tensor | None, Tensor | None],
    page_size: int,
    max_seqlen_q: int,
    sm_scale: float,
) -> None:
    """Run both stages. Every program finds its request, its rows and its keys in the tables by itself."""
    qo_indptr, kv_indptr, kv_indices, kv_last_page_lens = tables
    num_heads, kv_lora_rank = o.shape[1:]
    rope = q.shape[2] - kv_lora_rank
    batch, num_kv_splits = kv_last_page_lens.shape[0], part_lse.shape[1]
    latent_block = block(kv_lora_rank)
    lanes = _lane_block(max_seqlen_q * num_heads, latent_block, work=batch * num_kv_splits)
    q_scale, kv_scale = scales
    keys = _key_block(kv_buffer, num_kv_splits, latent_block, element_size=o.element_size())
    tiles = -(-max_seqlen_q * num_heads // lanes)
    if batch * tiles == 0:
        return  # no row belongs to anybody, and a grid may not be empty
    kernels.attend_kernel[programs(batch * num_kv_splits * tiles)](
        q,
        kv_buffer,
        parts,
        part_lse,
        qo_indptr,
        kv_indptr,
        kv_indices,
        kv_last_page_lens,
        batch,
        num_heads,
        kv_lora_rank,
        rope,
        page_size,
        num_kv_splits,
        tiles,
        sm_scale,
        *q.stride(),
        kv_buffer.stride(0),
        kv_buffer.stride(1),
        kv_buffer.stride(3),
        part_lse if q_scale is None else q_scale,
        part_lse if kv_scale is None else kv_scale,
        Q_SCALED=q_scale is not None,
        KV_SCALED=kv_scale is not None,
        COMPUTE=getattr(kernels.tl, str(o.dtype).removeprefix("torch.")),
        BLOCK_LANES=lanes,
        BLOCK_KEYS=keys,
        BLOCK_LATENT=latent_block,
        BLOCK_ROPE=block(rope) if rope else 0,
    )
    kernels.merge_kernel[programs(batch * tiles)](
        parts,
        part_lse,
        o,
        o if lse is None else lse,
        qo_indptr,
        kv_indptr,
        kv_last_page_lens,
        batch,
        num_heads,
        kv_lora_rank,
        page_size,
        num_kv_splits,
        tiles,
        *o.stride(),
        *((0, 0) if lse is None else lse.stride()),
        HAS_LSE=lse is not None,
        BLOCK_LANES=lanes,
        BLOCK_LATENT=latent_block,
    )


def _lane_block(lanes: int, latent_block: int, *, work: int) -> int:
    """How many lanes a program takes: what registers hold on a GPU, in the interpreter so many that few programs run.

    work: the pieces that there are for each tile of lanes.
    """
    if interpreted():
        return block(-(-lanes // max(1, PROGRAMS // max(1, work))), most=_MOST_ELEMENTS // latent_block)
    return block(lanes, most=max(16, min(64, _TILE_BYTES // (4 * latent_block))))


def _key_block(kv_buffer: Tensor, num_kv_splits: int, latent_block: int, *, element_size: int) -> int:
    """How many keys a program takes at a time: what shared memory holds, in the interpreter no more than can be there.

    A long split takes several turns in both. element_size: bytes of a number that is multiplied, codes widened.
    """
    if interpreted():
        return block(-(-kv_buffer.shape[0] * kv_buffer.shape[1] // num_kv_splits), most=64)
    return max(16, min(64, _TILE_BYTES // (latent_block * element_size)))


def _refuse_tables(tables: tuple[Tensor, ...]) -> None:
    """Raise ValueError for index lists that a program could not walk. What they say is taken on trust."""
    for table in tables:
        if table.dtype != torch.int32 or not table.is_contiguous():
            raise ValueError(f"an index list is {table.dtype} with stride {table.stride()}, wanted packed torch.int32")
