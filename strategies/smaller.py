"""Problems with one size at its smallest, or at half: what is left to try once Hypothesis has shrunk a problem.

Hypothesis walks down a menu as if what fails at an entry failed at the next one too, and stops where the entries just
below pass: a length of 16 that fails where 15 and 8 do not may hide that 2 fails. And where it takes a rare value to
fail, a large problem holds one and a small one only under another seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, TypeVar

from strategies.problems import DecodeProblem, UpProjectionProblem
from strategies.siblings import fitted

__all__ = ["smaller"]

P = TypeVar("P", bound=DecodeProblem | UpProjectionProblem)
_SIZES: Final = (1, 2, 3)
_SEEDS: Final = range(6)
_UP_PROJECTION: Final = ("num_tokens", "num_heads", "kv_lora_rank", "v_head_dim")
_DECODE: Final = ("num_heads", "kv_lora_rank", "page_size", "num_kv_splits")


def smaller(problem: P) -> Iterator[P]:
    """Valid problems like a valid one, each with one size smaller, with its own values and those of the first seeds.

    Whether a kernel takes them has to be asked of its limits.
    """
    every: Iterator[Any]
    if isinstance(problem, DecodeProblem):
        every = _smaller_decodes(problem)
    elif problem.out_layout.kind == "odd_singletons":
        return  # strides that were drawn for dimensions of size 1: other sizes give them to other dimensions
    else:
        every = _smaller_up_projections(problem)
    for other in every:
        for seed in dict.fromkeys((problem.seed, *_SEEDS)):
            yield fitted(replace(other, seed=seed))


def _smaller_up_projections(problem: UpProjectionProblem) -> Iterator[UpProjectionProblem]:
    for name in _UP_PROJECTION:
        for size in _below(getattr(problem, name)):
            if not (name == "kv_lora_rank" and problem.weight_format == "mxfp4" and size % 2):  # two codes to a byte
                yield _with(problem, name, size)


def _smaller_decodes(problem: DecodeProblem) -> Iterator[DecodeProblem]:
    requests = len(problem.kv_lens)
    for count in (*_below(requests), *([requests - 1] if requests > 1 else [])):
        yield replace(problem, kv_lens=problem.kv_lens[:count], q_lens=problem.q_lens[:count])
    for name in ("kv_lens", "q_lens"):
        lengths: tuple[int, ...] = getattr(problem, name)
        for place, length in enumerate(lengths):
            for size in _below(length):
                yield _with(problem, name, (*lengths[:place], size, *lengths[place + 1 :]))
    for name in _DECODE:
        for size in _below(getattr(problem, name)):
            yield _with(problem, name, size)
    for size in _below(problem.page_size):
        yield replace(problem, page_size=size, kv_lens=tuple(_in_pages_of(size, n, problem) for n in problem.kv_lens))
    # The rope half has no elements at its plainest.
    if problem.qk_rope_head_dim and problem.kv_lora_rank:
        yield replace(problem, qk_rope_head_dim=0)
    for size in _below(problem.qk_rope_head_dim):
        yield replace(problem, qk_rope_head_dim=size)


def _in_pages_of(size: int, kv_len: int, problem: DecodeProblem) -> int:
    """A length of as many pages of another size; the last one is full where it was."""
    pages, rest = divmod(kv_len, problem.page_size)
    return pages * size + min(rest, max(1, size - 1))


def _with(problem: Any, name: str, value: object) -> Any:
    return replace(problem, **{name: value})


def _below(size: int) -> list[int]:
    """The smallest sizes, and half of this one: a rare value takes a certain number of elements to come up."""
    return sorted({*(other for other in _SIZES if other < size), size // 2} - {0})
