"""Turns a valid decode problem into one that a kernel must refuse, with the least that the fault needs."""

from __future__ import annotations

from dataclasses import replace

from strategies.choosing import Choice
from strategies.invalid import DECODE_INVALID
from strategies.layout_menus import without_idle_numbers
from strategies.layouts import CONTIGUOUS
from strategies.limits import DecodeLimits
from strategies.problems import DecodeProblem

__all__ = ["can_be_wrong", "made_wrong"]


def can_be_wrong(kind: str, limits: DecodeLimits) -> bool:
    """Whether a problem within the limits can have this fault."""
    for sizes in (limits.num_heads, limits.kv_lora_rank):
        if sizes is not None and max(sizes) == 0:
            return False  # every output is empty: there is nothing to get wrong
    return not (kind == "kv_indptr_falls" and limits.max_batch == 1)


def made_wrong(limits: DecodeLimits, drawn: tuple[Choice, DecodeProblem]) -> DecodeProblem:
    """Give a valid problem its fault: every request has a key and a query row, and no tensor is empty."""
    (_, kind), problem = drawn
    kv_lens = tuple(max(1, kv_len) for kv_len in problem.kv_lens) or (1,)
    q_lens = tuple(max(1, q_len) for q_len in problem.q_lens) or (1,)
    if kind == "kv_indptr_falls" and len(kv_lens) == 1:
        kv_lens, q_lens = kv_lens * 2, q_lens * 2  # pointers can fall only between two requests
    heads = problem.num_heads or _smallest(limits.num_heads)
    latent = problem.kv_lora_rank or _smallest(limits.kv_lora_rank)
    num_rows = sum(q_lens) + problem.padding_rows
    overlap = DECODE_INVALID[kind] == "overlap"
    width = latent + problem.qk_rope_head_dim
    columns = max(-(-kv_len // problem.page_size) for kv_len in kv_lens) + problem.table_slack
    return replace(
        problem,
        kv_lens=kv_lens,
        q_lens=q_lens,
        num_heads=heads,
        kv_lora_rank=latent,
        q_layout=CONTIGUOUS if overlap else without_idle_numbers(problem.q_layout, (num_rows, heads, width)),
        o_layout=CONTIGUOUS if overlap else without_idle_numbers(problem.o_layout, (num_rows, heads, latent)),
        lse_layout=without_idle_numbers(problem.lse_layout, (num_rows, heads)),
        table_layout=without_idle_numbers(problem.table_layout, (len(kv_lens), columns)),
        # Codes are narrower than o, which could not begin at every one of them.
        cache_offset=0 if overlap and problem.kv_format != "plain" else problem.cache_offset,
        out_form="view" if overlap else problem.out_form,
        invalid=kind,
    )


def _smallest(allowed: tuple[int, ...] | None) -> int:
    """The smallest permitted size that is not 0."""
    return min(size for size in allowed or (1,) if size > 0)
