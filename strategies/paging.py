"""Which page of the pool holds which part of which request: derived from a problem, never drawn."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.problems import DecodeProblem

__all__ = ["Paging", "paging_of"]


@dataclass(frozen=True, slots=True)
class Paging:
    """Page ids of every request, and the pages that nobody owns (among them always the pool's last)."""

    num_pages: int
    pages: tuple[tuple[int, ...], ...]  # per request, in the order of its keys
    foreign: tuple[int, ...]


def _scattered(count: int, seed: int) -> list[int]:
    """A fixed permutation of range(count) that depends on its arguments alone (splitmix64 as sort key)."""
    mask = (1 << 64) - 1

    def key(index: int) -> int:
        word = (index + 1) * 0x9E3779B97F4A7C15 + seed * 0xD1B54A32D192ED03 & mask
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ word >> 27) * 0x94D049BB133111EB & mask
        return word ^ word >> 31

    return sorted(range(count), key=key)


def paging_of(problem: DecodeProblem) -> Paging:
    """Lay the requests' pages into a pool with `problem.foreign_pages` foreign ones, the last among them."""
    owned = sum(problem.pages_per_request)
    num_pages = owned + problem.foreign_pages
    # All foreign pages but the last lie at scattered places among the owned ones.
    scattered = _scattered(num_pages - 1, problem.seed)
    foreign = frozenset(scattered[: problem.foreign_pages - 1]) | {num_pages - 1}
    free = [page for page in range(num_pages) if page not in foreign]
    if problem.page_order == "descending":
        free.reverse()
    elif problem.page_order == "shuffled":
        free = [free[index] for index in _scattered(owned, problem.seed + 1)]
    pages: list[tuple[int, ...]] = []
    start = 0
    for count in problem.pages_per_request:
        pages.append(tuple(free[start : start + count]))
        start += count
    return Paging(num_pages, tuple(pages), tuple(sorted(foreign)))
