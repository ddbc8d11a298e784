"""Says why a problem is none that a kernel takes: a saved case may be tried on another kernel than its own."""

from __future__ import annotations

from collections.abc import Iterator

from mla_verify.kernel import Kernel, limits_of
from strategies.invalid import DECODE_INVALID, UP_PROJECTION_INVALID
from strategies.layouts import Layout, layout_is_packed
from strategies.limits import DecodeLimits, UpProjectionLimits
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem
from strategies.weight_formats import weight_shape

__all__ = ["why_outside"]


def why_outside(problem: Problem, kernel: Kernel) -> str:
    """The first reason why `kernel` declares no promise about `problem`; empty where it does."""
    limits = limits_of(kernel)
    if isinstance(problem, UpProjectionProblem) and isinstance(limits, UpProjectionLimits):
        return next(_outside_up_projection(problem, limits, kernel), "")
    if isinstance(problem, DecodeProblem) and isinstance(limits, DecodeLimits):
        return next(_outside_decode(problem, limits, kernel), "")
    return f"{kernel.name} is for the contract {kernel.contract!r}"


def _outside_up_projection(problem: UpProjectionProblem, limits: UpProjectionLimits, kernel: Kernel) -> Iterator[str]:
    yield from _unvalidated(problem.invalid, UP_PROJECTION_INVALID, kernel)
    for name, allowed in (
        ("dtype", limits.dtypes),
        ("num_heads", limits.num_heads),
        ("kv_lora_rank", limits.kv_lora_rank),
        ("v_head_dim", limits.v_head_dim),
        ("weight_format", limits.weight_formats),
        ("fp8_format", limits.fp8_formats if problem.weight_format == "fp8" else None),
    ):
        yield from _not_among(name, getattr(problem, name), allowed, kernel)
    yield from _above("num_tokens", problem.num_tokens, limits.max_num_tokens, kernel)
    tokens, heads, latent, value = problem.num_tokens, problem.num_heads, problem.kv_lora_rank, problem.v_head_dim
    yield from _strided("x", (tokens, heads, latent), problem.x_layout, limits.packed, kernel)
    weight = "w_uv" if problem.weight_format == "plain" else "w_q"
    shape = weight_shape(problem.weight_format, (heads, latent, value))
    yield from _strided(weight, shape, problem.w_layout, limits.packed, kernel)
    yield from _strided("out", (tokens, heads, value), problem.out_layout, limits.packed, kernel)


def _outside_decode(problem: DecodeProblem, limits: DecodeLimits, kernel: Kernel) -> Iterator[str]:
    yield from _unvalidated(problem.invalid, DECODE_INVALID, kernel)
    for name, allowed in (
        ("dtype", limits.dtypes),
        ("num_heads", limits.num_heads),
        ("kv_lora_rank", limits.kv_lora_rank),
        ("qk_rope_head_dim", limits.qk_rope_head_dim),
        ("page_size", limits.page_sizes),
        ("kv_format", limits.kv_formats),
    ):
        yield from _not_among(name, getattr(problem, name), allowed, kernel)
    yield from _above("batch", len(problem.kv_lens), limits.max_batch, kernel)
    yield from _above("q_len", max(problem.q_lens, default=0), limits.max_q_len, kernel)
    yield from _above("kv_len", max(problem.kv_lens, default=0), limits.max_kv_len, kernel)
    yield from _above("num_kv_splits", problem.num_kv_splits, limits.max_num_kv_splits, kernel)
    if problem.q_format != "plain" and limits.quantised_q == "never":
        yield f"{kernel.name} takes no quantised q"
    if problem.kv_format != "plain" and problem.q_format == "plain" and limits.quantised_q == "always":
        yield f"{kernel.name} takes a quantised cache with a quantised q only"
    if limits.uniform_q and len(set(problem.q_lens)) > 1:
        yield f"{kernel.name} takes equally many query rows from every request"
    if problem.with_lse and limits.lse == "never":
        yield f"{kernel.name} has no lse"
    if not problem.with_lse and limits.lse == "always":
        yield f"{kernel.name} always writes an lse"
    if problem.padding_rows and not limits.padding_rows:
        yield f"{kernel.name} takes no padding rows"
    if not limits.empty_requests and any(
        kv_len < q_len or not kv_len for q_len, kv_len in zip(problem.q_lens, problem.kv_lens, strict=True)
    ):
        yield f"{kernel.name} takes no query rows that see no key"
    rows, heads, latent = problem.num_rows, problem.num_heads, problem.kv_lora_rank
    width = max(problem.pages_per_request, default=0) + problem.table_slack
    yield from _strided("q", (rows, heads, latent + problem.qk_rope_head_dim), problem.q_layout, limits.packed, kernel)
    yield from _strided("o", (rows, heads, latent), problem.o_layout, limits.packed, kernel)
    yield from _strided("lse", (rows, heads), problem.lse_layout, limits.packed, kernel)
    yield from _strided("tables", (len(problem.kv_lens), width), problem.table_layout, limits.packed, kernel)
    if problem.page_pad and "cache" in limits.packed:
        yield f"{kernel.name} takes a contiguous cache only"


def _strided(
    name: str, shape: tuple[int, ...], layout: Layout, packed: frozenset[str], kernel: Kernel
) -> Iterator[str]:
    if name in packed and not layout_is_packed(shape, layout):
        yield f"{kernel.name} takes {name} contiguous only"


def _not_among(name: str, value: object, allowed: tuple[object, ...] | None, kernel: Kernel) -> Iterator[str]:
    if allowed is not None and value not in allowed:
        yield f"{kernel.name} takes {name} {', '.join(map(str, allowed))}, not {value}"


def _above(name: str, value: int, most: int | None, kernel: Kernel) -> Iterator[str]:
    if most is not None and value > most:
        yield f"{kernel.name} takes {name} up to {most}, not {value}"


def _unvalidated(invalid: str | None, kinds: dict[str, str], kernel: Kernel) -> Iterator[str]:
    if invalid is not None and kinds[invalid] not in kernel.validates:
        yield f"{kernel.name} does not declare that it validates {kinds[invalid]}"
