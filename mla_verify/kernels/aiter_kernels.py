"""AITER's MLA decodes as kernels under test: `mla_decode_fwd`, the Triton MLA decode and the rope decode."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.errors import Unavailable
from mla_verify.kernels.aiter_stage1 import model_stage1
from mla_verify.kernels.foreign import find_source, imported, load_source, member, stand_in, triton_here

__all__ = [
    "MODELLED",
    "handed_on_whole",
    "load_mla_decode",
    "load_mla_decode_zeros",
    "load_rope_decode",
    "load_rotating_rope_decode",
    "load_triton_mla_decode",
    "triton_part",
]

MODELLED: Final = torch.version.hip is None
"""Whether stage 1 of `mla_decode_fwd` is a model here: its assembly runs on ROCm only."""

_WHAT: Final = "AITER (ROCm/aiter, a checkout on PYTHONPATH)"
_TARGET: Final = "gfx950"  # what AITER is told it runs on where there is no ROCm


def load_mla_decode() -> Callable[..., Any]:
    """`aiter.mla.mla_decode_fwd`, not persistent. Raises Unavailable without AITER."""
    forward = _mla_decode_fwd()

    def aiter_mla_decode(
        *,
        q: Tensor,  # [num_rows, num_heads, kv_lora_rank + qk_rope_head_dim]
        kv_buffer: Tensor,  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
        o: Tensor,  # [num_rows, num_heads, kv_lora_rank]
        lse: Tensor | None,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        kv_last_page_lens: Tensor,
        page_size: int,
        max_seqlen_q: int,
        sm_scale: float,
        num_kv_splits: int,
        **_: object,
    ) -> tuple[Tensor, Tensor] | None:
        batch = kv_last_page_lens.shape[0]
        if batch == 0:
            return None
        # Both or neither: AITER replaces a number of splits that comes without its index.
        splits = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * num_kv_splits
        _, own_lse = forward(
            q,
            kv_buffer,
            o,
            qo_indptr,
            kv_indptr,
            kv_indices,
            kv_last_page_lens,
            max_seqlen_q,
            page_size=page_size,
            sm_scale=sm_scale,
            num_kv_splits=num_kv_splits,
            num_kv_splits_indptr=splits,
            return_lse=lse is not None,
        )
        return None if lse is None else (o, own_lse)

    return aiter_mla_decode


def load_mla_decode_zeros() -> Callable[..., None]:
    """The same into an output from `torch.zeros`, all of it handed on: vLLM's form before its change #37539."""
    return handed_on_whole(load_mla_decode())


def handed_on_whole(decode: Callable[..., Any]) -> Callable[..., None]:
    """A decode into an output from `torch.zeros`, all of it copied into `o`, rows of padding too; without lse."""

    def from_zeros(*, o: Tensor, lse: Tensor | None, **arguments: Any) -> None:
        zeros = torch.zeros(o.shape, dtype=o.dtype, device=o.device)
        decode(o=zeros, lse=None, **arguments)
        o.copy_(zeros)

    return from_zeros


def load_triton_mla_decode() -> Callable[..., None]:
    """`aiter.ops.triton.attention.mla.mla_decode_fwd`, which takes a table and lengths."""
    module = triton_part("attention.mla")
    if MODELLED:
        module.get_num_sms = lambda: 4  # few compute units, few programs: how many splits it makes depends on them
    forward = member(module, "mla_decode_fwd", what=_WHAT)

    def aiter_triton_mla_decode(
        *,
        q: Tensor,
        kv_buffer: Tensor,
        o: Tensor,
        qo_indptr: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        sm_scale: float,
        **_: object,
    ) -> None:
        rows, longest = int(qo_indptr[-1]), int(seq_lens.max()) if len(seq_lens) else 0
        if rows == 0:
            return
        latent = o.shape[2]
        forward(
            q[:rows],
            kv_buffer,
            o[:rows],
            qo_indptr,
            seq_lens,
            longest,
            block_table,
            sm_scale,
            latent,
            q.shape[2] - latent,
            causal=True,
            q_descale=None,
            kv_descale=None,
        )

    return aiter_triton_mla_decode


def load_rope_decode() -> Callable[..., None]:
    """`decode_attention_fwd_grouped_rope` with its rotation off: one row a request, one key a page, no lse."""
    return _rope_decode(rotating=False)


def load_rotating_rope_decode() -> Callable[..., None]:
    """The same with its rotation on, by an angle of 0: it loads and rotates the last key, too."""
    return _rope_decode(rotating=True)


def _rope_decode(*, rotating: bool) -> Callable[..., None]:
    forward = member(triton_part("attention.mla_decode_rope"), "decode_attention_fwd_grouped_rope", what=_WHAT)

    def aiter_rope_decode(
        *,
        q: Tensor,
        kv_buffer: Tensor,
        o: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        sm_scale: float,
        num_kv_splits: int,
        **_: object,
    ) -> None:
        batch, heads, latent = kv_indptr.shape[0] - 1, o.shape[1], o.shape[2]
        if batch == 0:
            return
        keys = kv_buffer.squeeze(2)  # a page of one key is a row of [tokens, 1, width]
        # One slot more than values: the last one holds the split's log-sum-exp.
        partials = torch.empty((batch, heads, num_kv_splits, latent + 1), dtype=torch.float32, device=q.device)
        rotation = _rotation_by_zero(q, width=q.shape[2] - latent, batch=batch) if rotating else _NO_ROTATION
        forward(
            q[:batch],
            keys,
            keys[..., :latent],
            o[:batch],
            kv_indptr,
            kv_indices,
            rotation.rotated_keys,
            latent,
            rotation.width,
            rotation.cos_sin_cache,
            rotation.positions,
            partials,
            num_kv_splits,
            sm_scale,
            use_rope=rotating,
        )

    return aiter_rope_decode


@dataclass(frozen=True, slots=True, eq=False)
class _Rotation:
    """What the rope decode rotates by, and where it leaves each request's last key, rotated."""

    width: int = 0
    cos_sin_cache: Tensor | None = None  # [positions, width]: cosines, then sines
    positions: Tensor | None = None  # int64 [batch]
    rotated_keys: Tensor | None = None  # [batch, width]


_NO_ROTATION: Final = _Rotation()


def _rotation_by_zero(q: Tensor, *, width: int, batch: int) -> _Rotation:
    """Cosine 1 and sine 0 at position 0, for every request."""
    cosines, sines = q.new_ones(1, width // 2), q.new_zeros(1, width // 2)
    return _Rotation(
        width=width,
        cos_sin_cache=torch.cat((cosines, sines), dim=1),
        positions=torch.zeros(batch, dtype=torch.int64, device=q.device),
        rotated_keys=q.new_empty(batch, width),
    )


def _mla_decode_fwd() -> Callable[..., Any]:
    """AITER's own function on ROCm; elsewhere its file beside stand-ins, with a model for the assembly."""
    if not MODELLED:
        return member(imported("aiter.mla", what=_WHAT), "mla_decode_fwd", what=_WHAT)
    triton_here(_WHAT)
    if torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET", "0") != "1":
        raise Unavailable(f"{_WHAT} runs on ROCm, or interpreted on a CPU")
    path = find_source("aiter", "mla.py")
    dtypes = stand_in(
        "aiter.dtypes",
        fp32=torch.float32,
        fp16=torch.float16,
        bf16=torch.bfloat16,
        fp8=torch.float8_e4m3fn,
        i32=torch.int32,
    )
    chip = stand_in("aiter.jit.utils.chip_info", get_cu_num=lambda: 256, get_gfx=lambda: _TARGET)
    module = load_source(
        "aiter_mla_beside_stand_ins",
        path,
        {
            "aiter": stand_in("aiter", dtypes=dtypes, mla_decode_stage1_asm_fwd=model_stage1),
            "aiter.dtypes": dtypes,
            "aiter.jit": stand_in("aiter.jit"),
            "aiter.jit.core": stand_in("aiter.jit.core", is_experimental_enabled=lambda: False),
            "aiter.jit.utils": stand_in("aiter.jit.utils"),
            "aiter.jit.utils.chip_info": chip,
            "aiter.ops": stand_in("aiter.ops"),
            "aiter.ops.attention": stand_in("aiter.ops.attention", get_mla_decode_fwd_max_splits=_most_splits),
        },
    )
    return member(module, "mla_decode_fwd", what=_WHAT)


def _most_splits(*_: Any) -> int:
    """What the persistent path asks for, which only ROCm takes."""
    return 16


def triton_part(name: str) -> Any:
    """`aiter.ops.triton.` and this name. Without ROCm AITER is told that it may do without the rest, and on which chip.

    Raises Unavailable without AITER, or where Triton has neither a GPU of AMD's nor its interpreter to run on.
    """
    triton_here(_WHAT)
    find_source("aiter", "mla.py")
    module = f"aiter.ops.triton.{name}"
    if not MODELLED:
        return imported(module, what=_WHAT)
    if torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET", "0") != "1":
        raise Unavailable(f"{_WHAT} runs on ROCm, or interpreted on a CPU")
    os.environ["AITER_TRITON_ONLY"] = "1"
    os.environ.setdefault("AITER_LOG_LEVEL", "ERROR")
    triton = imported("triton", what=_WHAT)
    target = SimpleNamespace(backend="hip", arch=_TARGET, warp_size=64)
    triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: target))
    return imported(module, what=_WHAT)
