"""SGLang's Triton decode attention as a kernel under test, interpreted where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.kernel import Arithmetic, Kernel, KnownDeviation
from mla_verify.kernels.foreign import find_source, imported, load_source, member, stand_in, triton_here
from mla_verify.registry import add
from strategies.limits import DecodeLimits
from strategies.problems import DecodeProblem

__all__ = ["SGLANG_KERNELS", "load_sglang_decode", "load_sglang_decode_zeros"]

_WHAT: Final = "SGLang's Triton decode attention"
_MODULE: Final = "sglang.kernels.ops.attention.decode_attention"
# kv_lora_rank and qk_rope_head_dim for which the grouped kernel cuts a key in two and reuses the first part as value.
_SPLIT_KEYS: Final = ((256, 32), (512, 64))

_New = Callable[..., Tensor]


def load_sglang_decode() -> Callable[..., None]:
    """`decode_attention_fwd` with its scratch from `torch.empty`. Raises Unavailable without SGLang or Triton."""
    return _adapted(torch.empty)


def load_sglang_decode_zeros() -> Callable[..., None]:
    """The same with zero-filled scratch and result, copied into `o`."""
    decode = _adapted(torch.zeros)

    def sglang_decode_zeros(*, o: Tensor, seq_lens: Tensor, **arguments: Any) -> None:
        batch = seq_lens.shape[0]
        o_copy = torch.zeros(o.shape, dtype=o.dtype, device=o.device)
        decode(o=o_copy, seq_lens=seq_lens, **arguments)
        o[:batch].copy_(o_copy[:batch])

    return sglang_decode_zeros


def _adapted(new: _New) -> Callable[..., None]:
    """SGLang's function in decode's calling convention; `new` makes the scratch between its two stages."""
    forward = member(_module(), "decode_attention_fwd", what=_WHAT)

    def sglang_decode(
        *,
        q: Tensor,  # [num_rows, num_heads, kv_lora_rank + qk_rope_head_dim]
        kv_buffer: Tensor,  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
        o: Tensor,  # [num_rows, num_heads, kv_lora_rank]
        kv_indptr: Tensor,  # int32 [batch + 1], in pages
        kv_indices: Tensor,  # int32, page ids
        seq_lens: Tensor,  # int32 [batch]
        page_size: int,
        sm_scale: float,
        num_kv_splits: int,
        **_: object,
    ) -> None:
        batch, heads, latent = seq_lens.shape[0], o.shape[1], o.shape[2]
        if batch == 0:
            return
        width = kv_buffer.shape[-1]
        slots = kv_buffer.view(-1, 1, width)  # a view or an error: a copy would hide what the kernel does
        token_indptr, token_slots = _token_index(kv_indptr, kv_indices, seq_lens, page_size)
        forward(
            q[:batch],
            slots,
            slots[..., :latent],
            o[:batch],
            token_indptr,
            token_slots,
            new((batch, heads, num_kv_splits, latent), dtype=torch.float32, device=q.device),
            new((batch, heads, num_kv_splits), dtype=torch.float32, device=q.device),
            torch.full((batch,), num_kv_splits, dtype=torch.int32, device=q.device),
            num_kv_splits,
            sm_scale,
            1.0,  # scale of a quantised key
            1.0,  # scale of a quantised value
            has_mla=(latent, width - latent) in _SPLIT_KEYS,
            page_size=page_size,
        )

    return sglang_decode


def _token_index(
    kv_indptr: Tensor, kv_indices: Tensor, seq_lens: Tensor, page_size: int
) -> tuple[Tensor, Tensor]:  # int32 [batch + 1] and int64 [tokens], the slot of every key
    """SGLang's index of the cache, which counts tokens where the contract counts pages.

    It has no tail: of the page tables only what belongs to a request is read.
    """
    lengths = seq_lens.long()
    starts = lengths.cumsum(0) - lengths
    token_indptr = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=seq_lens.device)
    token_indptr[1:] = lengths.cumsum(0)
    request = torch.repeat_interleave(lengths)
    position = torch.arange(len(request), device=seq_lens.device) - starts[request]
    pages = kv_indices[kv_indptr[:-1].long()[request] + position // page_size].long()
    # Scratch like any other, so that a read behind its end is seen.
    slots = torch.empty(len(request), dtype=torch.int64, device=seq_lens.device)
    return token_indptr, slots.copy_(pages * page_size + position % page_size)


def _module() -> Any:
    """The real module on a GPU. SGLang asks for one when it is imported: on a CPU its file stands alone."""
    triton_here(_WHAT)
    path = find_source("sglang", "kernels/ops/attention/decode_attention.py")
    if torch.cuda.is_available():
        return imported(_MODULE, what=_WHAT)
    parents = ("sglang", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.attention", "sglang.srt")
    score_mod = stand_in("sglang.kernels.ops.attention.score_mod", unpack_aux_tensors=_no_score_mod)
    utils = stand_in(
        "sglang.srt.utils",
        get_device_core_count=_no_cores,
        is_gfx95_supported=_never,
        is_gfx1250_supported=_never,
        is_hip=_never,
    )
    return load_source(
        _MODULE,
        path,
        {
            **{name: stand_in(name) for name in parents},
            "sglang.kernels.ops.attention.score_mod": score_mod,
            "sglang.srt.environ": stand_in("sglang.srt.environ", envs=SimpleNamespace()),
            "sglang.srt.utils": utils,
        },
    )


def _no_score_mod(*_: Any) -> tuple[None, int, int, int]:
    """What SGLang unpacks where scores are not modified: no tensor, and zeros for its strides and length."""
    return None, 0, 0, 0


def _no_cores(*_: Any) -> int:
    return 0


def _never() -> bool:
    return False


def _sees_no_key(problem: DecodeProblem) -> bool:
    """Whether a request without keys has a row."""
    return any(q_len > 0 and kv_len == 0 for q_len, kv_len in zip(problem.q_lens, problem.kv_lens, strict=True))


def _rounds_products(problem: DecodeProblem) -> bool:
    """Whether one head multiplies in 16 bits numbers whose products these cannot hold."""
    return (
        problem.num_heads == 1
        and problem.dtype != "float32"
        and problem.regime in ("gaussian", "extreme", "special")  # the others have exact products
    )


_DECODE: Final[dict[str, Any]] = {
    "contract": "decode",
    "limits": DecodeLimits(
        # Both ways of cutting a key, and sizes that are cut by neither. Few programs and short caches, as the
        # interpreter needs milliseconds for each program.
        kv_lora_rank=(16, 64, 256, 512),
        qk_rope_head_dim=(16, 32, 64),
        num_heads=(1, 2, 8, 16, 17),
        max_q_len=1,
        max_batch=3,
        max_num_kv_splits=4,
        uniform_q=True,
        lse="never",
    ),
    # On CUDA tl.dot multiplies float32 as TF32 unless it is told otherwise, and it is not.
    "arithmetic": Arithmetic(multiply="tf32"),
    # Strides of rows and heads are taken, within a row 1 is assumed; the cache is three-dimensional, one row a slot.
    "preconditions": ("contiguous_q", "contiguous_o", "contiguous_cache"),
    "known_deviations": (
        KnownDeviation(
            clause="agreement",
            problems=_sees_no_key,
            reason="a request without keys gets NaN: stage 2 divides a sum over no splits by 0",
        ),
        KnownDeviation(
            clause="agreement",
            problems=_rounds_products,
            reason="one head takes the ungrouped kernel, which multiplies q by k in their own 16 bits before it adds",
        ),
    ),
    "triton": True,
}

SGLANG_KERNELS: Final = (
    Kernel(
        name="sglang_decode",
        load=load_sglang_decode,
        summary="SGLang decode_attention_fwd (Triton, split-KV), scratch from torch.empty",
        baseline="sglang_decode_zeros",
        **_DECODE,
    ),
    Kernel(
        name="sglang_decode_zeros",
        load=load_sglang_decode_zeros,
        summary="the same from torch.zeros, copied into o",
        **_DECODE,
    ),
)

for _kernel in SGLANG_KERNELS:
    add(_kernel)
