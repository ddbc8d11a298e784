"""FlashMLA's dense decode as a kernel under test, on Hopper GPUs; written to its public interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from mla_verify.errors import Unavailable
from mla_verify.kernel import Arithmetic, Kernel
from mla_verify.kernels.foreign import cuda_here, find_source, imported, member
from mla_verify.registry import add
from strategies.limits import DecodeLimits

__all__ = ["FLASHMLA_KERNELS", "load_flashmla_decode"]

_WHAT: Final = "FlashMLA's dense decode"
_HOPPER: Final = (9, 0)


def load_flashmla_decode() -> Callable[..., None]:
    """`flash_mla_with_kvcache`, dense and causal. Raises Unavailable without FlashMLA or a Hopper GPU.

    It allocates its results and returns them: the rows of requests are copied into `o` and `lse`, and padding stays
    the caller's.
    """
    find_source("flash_mla", "__init__.py")
    cuda_here(_WHAT)
    capability = torch.cuda.get_device_capability()
    if capability != _HOPPER:
        raise Unavailable(f"{_WHAT} needs CUDA compute capability 9.0, not {capability[0]}.{capability[1]}")
    module = imported("flash_mla", what=_WHAT)
    forward = member(module, "flash_mla_with_kvcache", what=_WHAT)
    schedule = member(module, "get_mla_metadata", what=_WHAT)

    def flashmla_decode(
        *,
        q: Tensor,  # [num_rows, num_heads, kv_lora_rank + qk_rope_head_dim]
        kv_buffer: Tensor,  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
        o: Tensor,  # [num_rows, num_heads, kv_lora_rank]
        lse: Tensor | None,  # float32 [num_rows, num_heads]
        block_table: Tensor,  # int32 [batch, width]
        seq_lens: Tensor,  # int32 [batch]
        max_seqlen_q: int,
        sm_scale: float,
        **_: object,
    ) -> None:
        batch, heads, latent = seq_lens.shape[0], o.shape[1], o.shape[2]
        rows = batch * max_seqlen_q  # every request has as many
        if rows == 0:
            return
        # Releases before its lazy scheduling need the lengths here; later ones take and ignore them.
        metadata, num_splits = schedule(seq_lens, max_seqlen_q * heads, 1)
        out, own_lse = forward(
            q[:rows].view(batch, max_seqlen_q, heads, -1),
            kv_buffer,
            block_table,
            seq_lens,
            latent,
            metadata,
            num_splits,
            softmax_scale=sm_scale,
            causal=True,  # its default is False
        )
        o[:rows].copy_(out.reshape(rows, heads, latent))
        if lse is not None:
            lse[:rows].copy_(own_lse.transpose(1, 2).reshape(rows, heads))  # it comes as [batch, heads, q_len]

    return flashmla_decode


FLASHMLA_KERNELS: Final = (
    Kernel(
        name="flashmla_decode",
        contract="decode",
        load=load_flashmla_decode,
        summary="FlashMLA flash_mla_with_kvcache, dense, causal (adapter not yet run on a GPU)",
        devices=("cuda",),
        limits=DecodeLimits(
            dtypes=("float16", "bfloat16"),
            kv_lora_rank=(512,),
            qk_rope_head_dim=(64,),
            num_heads=(16, 32, 64, 128),
            page_sizes=(64,),
            max_q_len=4,
            uniform_q=True,
        ),
        # Exponentials are approximate and flush.
        arithmetic=Arithmetic(subnormals="flushed"),
        preconditions=("contiguous_q", "contiguous_tables", "contiguous_cache", "aligned_16"),
        empty_lse="+inf",
        notes=(
            "never run on a GPU: the declarations are read from FlashMLA's source, not measured",
            "results are allocated inside: there is no zero-filled form of its own",
        ),
    ),
)

for _kernel in FLASHMLA_KERNELS:
    add(_kernel)
