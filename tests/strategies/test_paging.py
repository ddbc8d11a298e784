"""Which pages of the pool belong to which request."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import get_args

import pytest

from strategies.decode import decode_problems
from strategies.paging import paging_of
from strategies.problems import DecodeProblem, PageOrder


def test_every_page_has_one_owner_or_none(drawn: Callable[..., list[DecodeProblem]]) -> None:
    """Owned and foreign pages are the pool, each page once; each request owns what its keys need."""
    for problem in drawn(decode_problems()):
        paging = paging_of(problem)
        owned = list(chain.from_iterable(paging.pages))
        assert sorted([*owned, *paging.foreign]) == list(range(paging.num_pages))
        assert tuple(len(pages) for pages in paging.pages) == problem.pages_per_request
        assert len(paging.foreign) == problem.foreign_pages


def test_the_last_page_belongs_to_nobody(drawn: Callable[..., list[DecodeProblem]]) -> None:
    """An index of −1 wraps to the pool's last page, which must never hold a request's keys."""
    for problem in drawn(decode_problems()):
        paging = paging_of(problem)
        assert paging.foreign[-1] == paging.num_pages - 1


@pytest.mark.parametrize("order", get_args(PageOrder))
def test_page_orders_are_what_they_say(order: PageOrder) -> None:
    """Ascending and descending ids are sorted over all requests; shuffled ones are neither."""
    problem = DecodeProblem(kv_lens=(9, 7), q_lens=(1, 1), page_size=2, page_order=order, foreign_pages=3, seed=7)
    ids = list(chain.from_iterable(paging_of(problem).pages))
    assert (ids == sorted(ids)) == (order == "ascending")
    assert (ids == sorted(ids, reverse=True)) == (order == "descending")
    assert paging_of(problem) == paging_of(problem)
