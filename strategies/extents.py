"""How much memory a problem spans, counted without making any of it."""

from __future__ import annotations

from strategies.layouts import Layout, strides_of
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem

__all__ = ["elements_of", "extent_of"]


def extent_of(shape: tuple[int, ...], layout: Layout) -> int:
    """Elements from the aligned address in front of a tensor to its last element, gaps included."""
    if 0 in shape:
        return 0
    strides, lead = strides_of(shape, layout)
    return lead + 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def elements_of(problem: Problem) -> int:
    """Elements that all tensors of a problem span together, a split-KV kernel's usual scratch among them."""
    if isinstance(problem, UpProjectionProblem):
        tokens, heads = problem.num_tokens, problem.num_heads
        latent, value = problem.kv_lora_rank, problem.v_head_dim
        return (
            extent_of((tokens, heads, latent), problem.x_layout)
            + _weight_elements(problem)
            + extent_of((tokens, heads, value), problem.out_layout)
        )
    return _decode_elements(problem)


def _weight_elements(problem: UpProjectionProblem) -> int:
    """Of the weight; quantised, its codes (scales among them, which are never more) and itself dequantised."""
    heads, latent, value = problem.num_heads, problem.kv_lora_rank, problem.v_head_dim
    if problem.weight_format == "plain":
        return extent_of((heads, latent, value), problem.w_layout)
    codes = extent_of((heads, value, latent), problem.w_layout)
    return 2 * codes + heads * latent * value


def _decode_elements(problem: DecodeProblem) -> int:
    rows, heads, latent = problem.num_rows, problem.num_heads, problem.kv_lora_rank
    width = latent + problem.qk_rope_head_dim
    pages = problem.pages_per_request
    num_pages = sum(pages) + problem.foreign_pages
    table = (len(pages), max(pages, default=0) + problem.table_slack)
    return (
        extent_of((rows, heads, width), problem.q_layout)
        + extent_of((rows, heads, latent), problem.o_layout)
        + extent_of((rows, heads), problem.lse_layout)
        + extent_of(table, problem.table_layout)
        + problem.cache_offset
        + num_pages * (problem.page_size * width + problem.page_pad + 1)  # and its entry in the index
        + problem.index_tail
        + rows * heads * problem.num_kv_splits * (latent + 1)
    )
