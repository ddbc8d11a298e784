"""What a kernel leaves to draw: sets and ceilings that the strategies obey by construction."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["DecodeLimits", "Limits", "UpProjectionLimits"]

_FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpProjectionLimits:
    """Limits of an up-projection kernel. A tuple lists the values that may be drawn; None leaves them free.

    `flat_rows`: heads of `out` must be adjacent (only its row stride may vary). `packed`: names of tensors
    that must be contiguous (of x, w_uv, w_q, out). `aligned`: the first element of every tensor lies at a 16-byte
    boundary (strides stay free). `weight_formats`: some of plain, fp8, mxfp4. `fp8_formats`: which codes fp8 may be.
    """

    dtypes: tuple[str, ...] = _FLOATS
    num_heads: tuple[int, ...] | None = None
    kv_lora_rank: tuple[int, ...] | None = None
    v_head_dim: tuple[int, ...] | None = None
    max_num_tokens: int | None = None
    flat_rows: bool = False
    packed: frozenset[str] = field(default_factory=frozenset[str])
    aligned: bool = False
    weight_formats: tuple[str, ...] = ("plain",)
    fp8_formats: tuple[str, ...] = ("e4m3fn",)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """Limits of a decode kernel. A tuple lists the values that may be drawn; None leaves them free.

    `uniform_q`: all requests have equally many query rows, at least one. `lse`: "optional", "never" (the
    kernel has none) or "always". `packed`: names of tensors that must be contiguous (of q, o, lse, tables,
    cache). `aligned`: the first element of every tensor lies at a 16-byte boundary (strides stay free).
    `empty_requests`: whether requests without keys, and query rows that see none, may be drawn.
    `kv_formats`: what the cache may hold, "plain" for the problem's dtype. `quantised_q`: whether q, where the
    cache is quantised, has the cache's format too: "never", "optional" or "always".
    """

    dtypes: tuple[str, ...] = _FLOATS
    num_heads: tuple[int, ...] | None = None
    kv_lora_rank: tuple[int, ...] | None = None
    qk_rope_head_dim: tuple[int, ...] | None = None
    page_sizes: tuple[int, ...] | None = None
    max_batch: int | None = None
    max_q_len: int | None = None
    uniform_q: bool = False
    max_kv_len: int | None = None
    max_num_kv_splits: int | None = None
    empty_requests: bool = True
    padding_rows: bool = True
    lse: str = "optional"
    packed: frozenset[str] = field(default_factory=frozenset[str])
    aligned: bool = False
    kv_formats: tuple[str, ...] = ("plain",)
    quantised_q: str = "never"


Limits = UpProjectionLimits | DecodeLimits
