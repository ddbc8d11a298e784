"""Triton kernels with one fault each: small, in both contracts, each with a problem that shows the fault.

Triton itself is imported at a kernel's first launch: TRITON_INTERPRET=1 has to be set by then on a CPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from mla_verify.faults.fault import TARGETS, Fault
from mla_verify.kernel import Kernel
from strategies.layouts import Layout
from strategies.limits import DecodeLimits, UpProjectionLimits
from strategies.problems import DecodeProblem, UpProjectionProblem

__all__ = ["FAULTS", "RIGHT", "RIGHT_SEEDED", "SEEDED", "Seeded"]

_TILE: Final = 16


class Seeded(NamedTuple):
    """A fault, and a problem at which it shows.

    hidden: only a recorder sees its clause, or its program. unnamed: values alone tell it, so no program is named.
    """

    fault: Fault
    problem: UpProjectionProblem | DecodeProblem
    hidden: bool = False
    unnamed: bool = False


def _jitted() -> Any:
    return importlib.import_module("mla_verify.faults.jitted.kernels")


def _power_of_two(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


def _multiply(
    x: Tensor,
    w_uv: Tensor,
    out: Tensor,
    *,
    last: int = 0,
    splits: int = 1,
    accumulate: bool = False,
    value_tiles: int | None = None,
    out_strides: tuple[int, ...] | None = None,
) -> None:
    num_tokens, num_heads, rank = x.shape
    width = w_uv.shape[2]
    tiles = -(-num_tokens // _TILE) * (-(-width // _TILE) if value_tiles is None else value_tiles)
    if tiles * num_heads:
        _jitted().product_kernel[(tiles, num_heads, splits)](
            x,
            w_uv,
            out,
            num_tokens,
            rank,
            width,
            *x.stride(),
            *w_uv.stride(),
            *(out_strides or out.stride()),
            ACCUMULATE=accumulate,
            LAST=last,
            SPLITS=splits,
            TILE=_TILE,
        )


def right_product(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """No fault."""
    _multiply(x, w_uv, out)


def mask_short_by_one(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """The last tile's mask ends one column early."""
    _multiply(x, w_uv, out, last=-1)


def two_programs_on_a_tile(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Split over the rank, and every split stores its own sum."""
    _multiply(x, w_uv, out, splits=2)


def store_past_the_end(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """The last tile's mask ends one column late."""
    _multiply(x, w_uv, out, last=1)


def wrong_stride(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Takes the output for packed."""
    _multiply(x, w_uv, out, out_strides=(out.shape[1] * out.shape[2], out.shape[2], 1))


def missing_tile(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """A grid rounded down."""
    _multiply(x, w_uv, out, value_tiles=out.shape[2] // _TILE)


def adds_to_the_output(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
    """Relies on an output that was zero."""
    _multiply(x, w_uv, out, accumulate=True)


def _attend(
    q: Tensor,
    kv_buffer: Tensor,
    o: Tensor,
    lse: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    seq_lens: Tensor,
    page_size: int,
    sm_scale: float,
    num_kv_splits: int,
    *,
    beyond: int = 0,
    guarded: bool = True,
    merged: int = 0,
    narrow: bool = False,
    base_two: bool = False,
    **_: Any,
) -> None:
    """Decode with one query row per request. merged: heads left out of the merge."""
    batch, heads, latent = seq_lens.shape[0], o.shape[1], o.shape[2]
    splits, lanes = _power_of_two(num_kv_splits), max(2, _power_of_two(q.shape[2]))
    parts = torch.empty(batch, heads, splits, latent, dtype=torch.float32, device=o.device)
    part_lse = torch.empty(batch, heads, splits, dtype=torch.float32, device=o.device)
    if batch * heads == 0:
        return
    _jitted().attend_kernel[(batch, heads, splits)](
        q,
        kv_buffer,
        parts,
        part_lse,
        kv_indptr,
        kv_indices,
        seq_lens,
        sm_scale,
        latent,
        q.shape[2],
        page_size,
        *q.stride(),
        kv_buffer.stride(0),
        kv_buffer.stride(1),
        kv_buffer.stride(3),
        BEYOND=beyond,
        GUARDED=guarded,
        LANES=lanes,
        NARROW=narrow,
        SPLITS=splits,
    )
    if heads == merged:
        return
    _jitted().merge_kernel[(batch, heads - merged)](
        parts,
        part_lse,
        o,
        lse,
        heads,
        latent,
        *o.stride(),
        *lse.stride(),
        BASE_TWO=base_two,
        LANES=lanes,
        SPLITS=splits,
    )


def right_attention(**arguments: Any) -> None:
    """No fault."""
    _attend(**arguments)


def neighbour_page(**arguments: Any) -> None:
    """Reads one key too many: the next page, or what stands behind the last key in its own."""
    _attend(**arguments, beyond=1)


def unguarded_empty_split(**arguments: Any) -> None:
    """A split without keys stores nothing, and is merged all the same."""
    _attend(**arguments, guarded=False)


def missing_head(**arguments: Any) -> None:
    """The merge's grid is one head short."""
    _attend(**arguments, merged=1)


def page_offset_in_16_bits(**arguments: Any) -> None:
    """Multiplies page ids by the page's stride in 16 bits."""
    _attend(**arguments, narrow=True)


def lse_to_base_two(**arguments: Any) -> None:
    """Stores lse in base 2, as its exponentials are."""
    _attend(**arguments, base_two=True)


_PRODUCT: Final = UpProjectionProblem(num_tokens=3, num_heads=2, kv_lora_rank=20, v_head_dim=20, seed=3)
_STRIDED: Final = UpProjectionProblem(
    num_tokens=3, num_heads=2, kv_lora_rank=4, v_head_dim=5, out_layout=Layout("padded_rows", 8), seed=3
)
_DECODE: Final = DecodeProblem(
    kv_lens=(8, 3),
    q_lens=(1, 1),
    num_heads=2,
    kv_lora_rank=4,
    qk_rope_head_dim=2,
    page_size=4,
    num_kv_splits=4,
    regime="gaussian",
    index_tail=2,
)
_FAR_PAGE: Final = DecodeProblem(kv_lens=(65,), kv_lora_rank=512, page_size=64, regime="gaussian", seed=3)
# An interpreted program costs milliseconds, and a key of this kernel a tenth of one.
_SMALL: Final = DecodeLimits(
    num_heads=(1, 2, 3),
    kv_lora_rank=(1, 2, 4, 16, 17, 512),
    qk_rope_head_dim=(0, 2, 16),
    max_batch=3,
    max_q_len=1,
    uniform_q=True,
    max_kv_len=66,
    max_num_kv_splits=4,
    lse="always",
)
_SMALL_PRODUCT: Final = UpProjectionLimits(
    num_heads=(1, 2, 3), kv_lora_rank=(1, 2, 3, 16, 17, 33, 0), v_head_dim=(1, 2, 3, 16, 17), max_num_tokens=17
)


def _product_fault(
    call: Callable[..., None],
    clauses: tuple[str, ...],
    reports: tuple[str, ...],
    problem: UpProjectionProblem = _PRODUCT,
    *,
    hidden: bool = False,
) -> Seeded:
    return Seeded(_fault(call, "up-projection", clauses, reports), problem, hidden)


def _decode_fault(
    call: Callable[..., None],
    clauses: tuple[str, ...],
    reports: tuple[str, ...],
    problem: DecodeProblem = _DECODE,
    *,
    unnamed: bool = False,
) -> Seeded:
    return Seeded(_fault(call, "decode", clauses, reports), problem, unnamed=unnamed)


def _fault(call: Callable[..., None], contract: str, clauses: tuple[str, ...], reports: tuple[str, ...]) -> Fault:
    what = (call.__doc__ or "").rstrip(".")
    limits = _SMALL if contract == "decode" else _SMALL_PRODUCT
    declares = {"triton": True, "limits": limits}
    return Fault(f"triton_{call.__name__}", contract, call, clauses, what[:1].lower() + what[1:], reports, declares)


SEEDED: Final = (
    _product_fault(mask_short_by_one, ("coverage",), ("B009",)),
    _product_fault(two_programs_on_a_tile, ("repeatability", "agreement"), ("B014", "B015"), hidden=True),
    _product_fault(store_past_the_end, ("containment", "repeatability"), ("B083",)),
    _product_fault(wrong_stride, ("containment", "coverage"), ("B042",), _STRIDED),
    _product_fault(missing_tile, ("coverage",), ("B009", "B080")),
    _product_fault(adds_to_the_output, ("independence",), ("B014", "B015")),
    _decode_fault(neighbour_page, ("independence",), ("B020", "B021")),
    _decode_fault(unguarded_empty_split, ("independence",), ("B016", "B017")),
    _decode_fault(missing_head, ("coverage",), ("B003",)),
    _decode_fault(
        page_offset_in_16_bits, ("independence", "agreement", "survival"), ("B067", "B068"), _FAR_PAGE, unnamed=True
    ),
    _decode_fault(lse_to_base_two, ("agreement",), ("B118",), unnamed=True),
)
FAULTS: Final = tuple(seeded.fault for seeded in SEEDED)
RIGHT_SEEDED: Final = (
    _product_fault(right_product, (), ()),
    _product_fault(right_product, (), (), _STRIDED),
    _decode_fault(right_attention, (), ()),
)


def _right(call: Callable[..., None], contract: str) -> Kernel:
    name = f"triton_{call.__name__}"
    limits = _SMALL if contract == "decode" else _SMALL_PRODUCT
    return Kernel(
        name=name, contract=contract, load=lambda: call, target=f"{TARGETS}:{name}", limits=limits, triton=True
    )


RIGHT: Final = (_right(right_product, "up-projection"), _right(right_attention, "decode"))
