"""Which rows of q and which slots of the cache belong to which request, as the oracle and the baseline see it.

It follows from the problem alone: the index tables that kernels read are laid out from it, never read back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from strategies.paging import Paging, paging_of
from strategies.problems import DecodeProblem

__all__ = ["Geometry", "Request", "cache_rows", "geometry_of"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request. Its first `blind_rows` query rows see no key; each row after them sees one key more."""

    row: int  # of q, where it begins
    q_len: int
    kv_len: int
    pages: Ints  # page ids, in the order of its keys

    @property
    def blind_rows(self) -> int:
        """How many of its first rows see no key."""
        return min(self.q_len, max(0, self.q_len - self.kv_len))

    @property
    def seeing(self) -> slice:
        """Its rows of q that see at least one key."""
        return slice(self.row + self.blind_rows, self.row + self.q_len)

    @property
    def visible(self) -> range:
        """How many keys each of its seeing rows sees; the last sees them all."""
        seeing = self.q_len - self.blind_rows
        return range(self.kv_len - seeing + 1, self.kv_len + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """A problem's requests, the pool they share, and how many keys every row sees."""

    paging: Paging
    requests: tuple[Request, ...]
    live_rows: int  # rows of requests; padding rows lie behind them
    visible: Ints  # [live_rows], 0 for a row that sees no key


@lru_cache(maxsize=8)  # placing, the oracle and the baseline ask for the same problem in turn
def geometry_of(problem: DecodeProblem) -> Geometry:
    """Lay out a problem's rows and pages."""
    paging = paging_of(problem)
    requests: list[Request] = []
    row = 0
    for q_len, kv_len, pages in zip(problem.q_lens, problem.kv_lens, paging.pages, strict=True):
        requests.append(Request(row, q_len, kv_len, np.array(pages, np.int64)))
        row += q_len
    visible = np.zeros(row, np.int64)
    for request in requests:
        visible[request.seeing] = request.visible
    return Geometry(paging, tuple(requests), row, visible)


def cache_rows(kv_buffer: Tensor, request: Request, start: int, stop: int) -> Tensor:
    """Keys number `start` to `stop` of a request, [stop − start, width], in the cache's dtype.

    `start` is a multiple of the page size.
    """
    page_size, width = kv_buffer.shape[1], kv_buffer.shape[3]
    ids = request.pages[start // page_size : -(-stop // page_size)]
    # Codes are picked as bytes: not every device knows how to pick fp8 numbers.
    stored = kv_buffer.view(torch.uint8) if kv_buffer.itemsize == 1 else kv_buffer
    pages = stored.index_select(0, torch.from_numpy(ids).to(kv_buffer.device)).view(kv_buffer.dtype)
    return pages.view(len(ids) * page_size, width)[: stop - start]
