"""FlashInfer's paged MLA attention as a kernel under test, on NVIDIA GPUs; written to its public interface."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Generator
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.errors import Unavailable
from mla_verify.kernel import Arithmetic, Kernel
from mla_verify.kernels.foreign import cuda_here, find_source, imported, member
from mla_verify.registry import add
from strategies.limits import DecodeLimits

__all__ = ["FLASHINFER_KERNELS", "load_flashinfer_decode", "load_flashinfer_decode_zeros", "plan_flashinfer_decode"]

_WHAT: Final = "FlashInfer's paged MLA attention"
_WORKSPACE_BYTES: Final = 128 << 20  # what FlashInfer's documentation asks for


def load_flashinfer_decode() -> Callable[..., None]:
    """`BatchMLAPagedAttentionWrapper.run`, into the caller's `o` and `lse`. Raises Unavailable without FlashInfer."""
    run = getattr(_wrapper(), "run", None)
    parameters = inspect.signature(run).parameters if callable(run) else {}
    if "return_lse_base_on_e" not in parameters:
        raise Unavailable(f"{_WHAT}: the installed flashinfer is too old, its run takes no return_lse_base_on_e")

    def flashinfer_mla_decode(
        *,
        q: Tensor,  # [num_rows, num_heads, kv_lora_rank + qk_rope_head_dim]
        kv_buffer: Tensor,  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
        o: Tensor,  # [num_rows, num_heads, kv_lora_rank]
        lse: Tensor | None,  # float32 [num_rows, num_heads]
        state: dict[str, Any],
        **_: object,
    ) -> None:
        rows, latent = state["rows"], o.shape[2]
        if rows == 0:
            return
        cache = kv_buffer.squeeze(2)
        with _old_interface():
            state["wrapper"].run(
                q_nope=q[:rows, :, :latent],
                q_pe=q[:rows, :, latent:],
                ckv_cache=cache[..., :latent],
                kpe_cache=cache[..., latent:],
                out=o[:rows],
                lse=None if lse is None else lse[:rows],
                return_lse=lse is not None,
                return_lse_base_on_e=True,  # its default is base 2
            )

    return flashinfer_mla_decode


def load_flashinfer_decode_zeros() -> Callable[..., None]:
    """The same into zero-filled results, copied into `o` and `lse`; its workspace is the caller's in both forms."""
    decode = load_flashinfer_decode()

    def flashinfer_mla_decode_zeros(*, o: Tensor, lse: Tensor | None, state: dict[str, Any], **arguments: Any) -> None:
        rows = state["rows"]
        o_copy = torch.zeros(o.shape, dtype=o.dtype, device=o.device)
        lse_copy = None if lse is None else torch.zeros(lse.shape, dtype=lse.dtype, device=lse.device)
        decode(o=o_copy, lse=lse_copy, state=state, **arguments)
        o[:rows].copy_(o_copy[:rows])
        if lse is not None and lse_copy is not None:
            lse[:rows].copy_(lse_copy[:rows])

    return flashinfer_mla_decode_zeros


def plan_flashinfer_decode(
    *,
    q: Tensor,
    kv_buffer: Tensor,
    o: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,  # in pages, as FlashInfer counts
    kv_indices: Tensor,
    seq_lens: Tensor,  # it takes lengths, not the fill of the last page
    page_size: int,
    sm_scale: float,
    **_: object,
) -> dict[str, Any]:
    """Plan once for a problem: the wrapper, its workspace (poisoned before every run) and the rows that are live."""
    rows, latent = int(qo_indptr[-1]), o.shape[2]
    if rows == 0:
        return {"rows": 0}
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    wrapper = _wrapper()(workspace)
    with _old_interface():
        wrapper.plan(
            qo_indptr=qo_indptr,
            kv_indptr=kv_indptr,
            kv_indices=kv_indices,
            kv_len_arr=seq_lens,
            num_heads=q.shape[1],
            head_dim_ckv=latent,
            head_dim_kpe=q.shape[2] - latent,
            page_size=page_size,
            causal=True,
            sm_scale=sm_scale,
            q_data_type=q.dtype,
            kv_data_type=kv_buffer.dtype,
        )
    return {"rows": rows, "wrapper": wrapper, "workspace": workspace}


def _wrapper() -> Callable[..., Any]:
    find_source("flashinfer", "__init__.py")
    cuda_here(_WHAT)
    return member(imported("flashinfer.mla", what=_WHAT), "BatchMLAPagedAttentionWrapper", what=_WHAT)


@contextlib.contextmanager
def _old_interface() -> Generator[None, None, None]:
    """Newer releases call the separate tensors, which all releases take, deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


_DECODE: Final[dict[str, Any]] = {
    "contract": "decode",
    "prepare": plan_flashinfer_decode,
    "devices": ("cuda",),
    "limits": DecodeLimits(
        dtypes=("float16", "bfloat16"),
        kv_lora_rank=(512,),
        qk_rope_head_dim=(64,),
        num_heads=(16, 32, 64, 128),
        page_sizes=(1, 16, 64),
        max_q_len=4,
    ),
    # Split results are kept in the output's dtype; exponentials are approximate and flush.
    "arithmetic": Arithmetic(partials="output dtype", subnormals="flushed"),
    # Strides of rows, heads and pages are taken, but 16 bytes are moved at a time; lse is taken as packed.
    "preconditions": (
        "contiguous_q",
        "contiguous_o",
        "contiguous_lse",
        "contiguous_tables",
        "contiguous_cache",
        "aligned_16",
    ),
    # A finite number stands for minus infinity in its kernels.
    "empty_lse": "unspecified",
    "notes": ("never run on a GPU: the declarations are read from FlashInfer's source, not measured",),
}

FLASHINFER_KERNELS: Final = (
    Kernel(
        name="flashinfer_mla_decode",
        load=load_flashinfer_decode,
        summary="FlashInfer BatchMLAPagedAttentionWrapper, planned (adapter not yet run on a GPU)",
        baseline="flashinfer_mla_decode_zeros",
        **_DECODE,
    ),
    Kernel(
        name="flashinfer_mla_decode_zeros",
        load=load_flashinfer_decode_zeros,
        summary="the same into torch.zeros, copied into o and lse (adapter not yet run on a GPU)",
        **_DECODE,
    ),
)

for _kernel in FLASHINFER_KERNELS:
    add(_kernel)
