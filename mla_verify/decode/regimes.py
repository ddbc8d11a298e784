"""What q and the cache hold in each regime of the decode contract.

Note [Retrieval]
    Every query row and head picks one key by a code. A few columns, drawn anywhere among latent and rope columns,
    hold the bits of a key's number as ±1; q holds ±c times the code of its target there and 0 elsewhere. The
    target's logit leads by at least 2c·scale ≥ 256 (c·scale with a single column): every other weight underflows in
    float32. The other columns stay ordinary numbers, so the answer, a cached row, is not made of codes alone.

    Masks that end a key early or late: a row's first head targets the last key that the row sees. Among the rows of a
    request, pairs of neighbours (beginning at the first or the second row, by the seed) share a code: the key that
    the second one sees last, and the first one must not see, is a copy of what the first one targets. A mask that
    ends one key late mixes the two. From then on both are seen, so the second row, like every other target that is
    drawn at random, chooses among the keys that all rows see.

    Too few columns for so many keys: then only 2^columns keys have a code, the first key and as many last ones as
    fit among them, and the code of all others is 0, which scores less than any match.

Note [Quantised values]
    A quantised tensor holds the codes nearest to the same numbers divided by its scale: a small scale saturates the
    largest of them, a large one makes subnormals and zeros of either sign. In the uniform regime the codes are the
    integers themselves, as many as the format holds exactly. In the extreme regime the wild columns hold every
    finite code alike, one key in five is zero throughout, and so is one query row in three. In the retrieval regime
    both powers of two fit the formats and make up for the scales, which are round there (strategies/vocabulary.py).
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mla_verify.decode.geometry import Geometry, Request
from mla_verify.decode.quantised import dtype_of_kv, dtype_of_q, encoded, largest_exponent, single
from mla_verify.values import cut, integers
from strategies.problems import DecodeProblem

__all__ = ["values_of"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_GAP_EXPONENT: Final = 7  # c·scale = 2**7; twice that between two codes
_LARGEST_QUERY_EXPONENT: Final = 12  # of c; the rest goes into the cache, so that float16 holds both
_UNIFORM_MAGNITUDE: Final = 15  # 15 times a million keys still add up exactly in float32
_UNIFORM_MAGNITUDE_E5M2: Final = 7  # e5m2 holds no odd number above it
_ZERO_KEYS: Final = 5  # one key in so many
_ZERO_QUERIES: Final = 3


def values_of(problem: DecodeProblem, geometry: Geometry, device: torch.device) -> tuple[Tensor, Tensor]:
    """Values of q and of the cache: [num_rows, num_heads, width] and [num_pages, page_size, 1, width].

    Never write to them: they may be views of a pool.
    """
    width = problem.kv_lora_rank + problem.qk_rope_head_dim
    q_shape = (problem.num_rows, problem.num_heads, width)
    kv_shape = (geometry.paging.num_pages, problem.page_size, 1, width)
    pools = _Pools(problem, device)
    q, kv = _unrounded(problem, geometry, pools, q_shape, kv_shape)
    # What becomes codes is worked out in float32, and rounded once.
    return (
        q if problem.q_format == "plain" else encoded(q, problem.q_format),
        kv if problem.kv_format == "plain" else encoded(kv, problem.kv_format),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Pools:
    """Cuts numbers for one problem: in the dtype of a plain tensor, float32 and divided by the scale for codes."""

    problem: DecodeProblem
    device: torch.device

    def q(self, pool: str, shape: tuple[int, ...]) -> Tensor:
        """Numbers, or what their codes have to be."""
        return self._scaled(self.raw(pool, shape, "q"), self.problem.q_scale)

    def kv(self, pool: str, shape: tuple[int, ...]) -> Tensor:
        """Numbers, or what their codes have to be."""
        return self._scaled(self.raw(pool, shape, "kv"), self.problem.kv_scale)

    def raw(self, pool: str, shape: tuple[int, ...], tensor: str) -> Tensor:
        """What a pool holds, scale or none."""
        stored = dtype_of_q(self.problem) if tensor == "q" else dtype_of_kv(self.problem)
        dtype = torch.float32 if stored.itemsize == 1 else stored
        return cut(pool, shape, dtype, self.device, seed=self.problem.seed, tensor=tensor)

    def _scaled(self, numbers: Tensor, scale: str) -> Tensor:
        return numbers if scale == "1" else numbers / single(scale)


def _unrounded(
    problem: DecodeProblem, geometry: Geometry, pools: _Pools, q_shape: tuple[int, ...], kv_shape: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """q and the cache, each in the dtype of its pool."""
    if problem.regime == "uniform":
        magnitude = _UNIFORM_MAGNITUDE if problem.kv_format != "e5m2" else _UNIFORM_MAGNITUDE_E5M2
        kv = pools.raw(integers(magnitude), kv_shape, "kv")
        zero = pools.raw("gaussian", (0,), "q")
        return zero.new_zeros(q_shape), kv
    if problem.regime == "special":
        return pools.q("special", q_shape), pools.kv("special", kv_shape)
    q, kv = pools.q("gaussian", q_shape), pools.kv("gaussian", kv_shape)
    if problem.regime == "extreme":
        wild = "extreme" if problem.kv_format == "plain" else f"codes_{problem.kv_format}"
        q, kv = _extreme(problem, q, kv, pools.raw(wild, kv_shape, "kv extreme"))
        return (q, kv) if problem.kv_format == "plain" else _with_zero_rows(problem, q, kv)
    if problem.regime == "retrieval":
        return _retrieval(problem, geometry, q, kv)
    return q, kv


def _with_zero_rows(problem: DecodeProblem, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
    """Some keys and, unless rows of q share memory, some query rows that are zero throughout, among normal ones."""
    kv.view(-1, kv.shape[3])[problem.seed % _ZERO_KEYS :: _ZERO_KEYS] = 0
    if problem.q_layout.kind == "overlapping":
        return q, kv
    q = q.clone()
    q[problem.seed % _ZERO_QUERIES :: _ZERO_QUERIES] = 0
    return q, kv


def _extreme(problem: DecodeProblem, q: Tensor, kv: Tensor, wild: Tensor) -> tuple[Tensor, Tensor]:
    """Magnitudes far apart in half of the latent columns, where q is 0: free exponents in logits test no bound."""
    latent = problem.kv_lora_rank
    columns = torch.from_numpy(_order(latent, problem.seed, "wild")[: -(-latent // 2)]).to(q.device)
    kv = kv.clone()
    kv[..., columns] = wild[..., columns]
    if problem.q_layout.kind == "overlapping":  # zeros of one row would lie under other columns of the next
        return torch.zeros_like(q), kv
    q = q.clone()
    q[..., columns] = 0
    return q, kv


def _code_exponents(problem: DecodeProblem, bits: int) -> tuple[int, int]:
    """The powers of two that codes hold in q and in the cache (Note [Retrieval]), within their formats."""
    of_both = _GAP_EXPONENT - problem.softmax_scale + (bits == 1)
    if problem.kv_format != "plain":
        of_both += max(0, math.ceil(-math.log2(single(problem.q_scale) * single(problem.kv_scale))))
    of_q = min(of_both, _LARGEST_QUERY_EXPONENT)
    if problem.q_format != "plain":
        of_q = min(of_q, largest_exponent(problem.q_format))
    of_kv = of_both - of_q
    if problem.kv_format != "plain":
        of_kv = min(of_kv, largest_exponent(problem.kv_format))
    return of_q, of_kv


def _retrieval(problem: DecodeProblem, geometry: Geometry, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
    """Codes in a few columns of both tensors (Note [Retrieval])."""
    width = q.shape[2]
    longest = max(problem.kv_lens, default=0)
    bits = min(width, max(1, (longest - 1).bit_length()))
    if bits == 0:  # tensors without columns
        return q, kv
    columns = torch.from_numpy(_order(width, problem.seed, "code")[:bits])
    of_q, of_kv = _code_exponents(problem, bits)
    queries = np.zeros((problem.num_rows, problem.num_heads, bits), np.float32)
    keys: list[Floats] = []
    slots: list[Ints] = []
    for number, request in enumerate(geometry.requests):
        if request.kv_len == 0:
            continue
        words = _hashed(2 + len(request.visible) * problem.num_heads, problem.seed, f"code {number}")
        codes = _codes_of(request, bits, problem.num_heads, words)
        keys.append(codes.of_keys)
        slots.append(_slots_of(request, problem.page_size))
        if request.visible:
            queries[request.seeing] = codes.of_queries
    q = torch.zeros_like(q)
    if not keys:
        return q, kv
    q[..., columns.to(q.device)] = torch.from_numpy(queries * np.float32(2.0**of_q)).to(q)
    kv = kv.clone()
    of_keys = torch.from_numpy(np.concatenate(keys) * np.float32(2.0**of_kv)).to(kv)
    rows = torch.from_numpy(np.concatenate(slots)).to(kv.device)
    kv.view(-1, width)[rows.unsqueeze(1), columns.to(kv.device)] = of_keys
    return q, kv


@dataclass(frozen=True, slots=True, eq=False)
class _Codes:
    """±1, or 0 where a key has no code."""

    of_keys: Floats  # [kv_len, bits]
    of_queries: Floats  # [seeing rows, num_heads, bits]


def _codes_of(request: Request, bits: int, num_heads: int, words: Words) -> _Codes:
    """Codes of one request's keys and of its seeing rows' targets (Note [Retrieval]); words: 2 and one per lane."""
    kv_len, seeing = request.kv_len, len(request.visible)
    common = kv_len - seeing + 1 if seeing else kv_len  # keys that every seeing row sees
    lasts = np.arange(kv_len - seeing, kv_len)  # the last key that each row sees
    # A first row that sees one key needs it for itself: so do the rows behind, which choose among what all see.
    shift = 1 if common == 1 else int(words[0] & np.uint64(1))
    rows = np.arange(seeing)
    copies = (rows > shift) & ((rows - shift) % 2 == 1)
    coded = np.arange(kv_len)
    own = ~copies  # rows whose last key has a code of its own
    if kv_len > 1 << bits:
        coded = _coded_keys(1 << bits, np.roll(lasts[own], int(words[0] % np.uint64(max(1, seeing)))), common)
        own &= np.isin(lasts, coded)
    numbers = np.arange(len(coded)) ^ int(words[1] % np.uint64(1 << bits))
    of_keys = np.zeros((kv_len, bits), np.float32)
    of_keys[coded] = ((numbers[:, None] >> np.arange(bits)) & 1).astype(np.float32) * 2 - 1
    of_keys[lasts[copies]] = of_keys[lasts[copies] - 1]
    lanes = words[2:].reshape(seeing, num_heads)
    unshared = np.searchsorted(coded, max(1, common - 1))  # how many coded keys no pair shares
    target = coded[(lanes >> np.uint64(1)) % np.uint64(unshared)]  # [seeing, num_heads]
    to_last = (lanes & np.uint64(1)).astype(np.bool_)
    to_last[:, :1] = True
    to_last &= own[:, None]
    return _Codes(of_keys, of_keys[np.where(to_last, lasts[:, None], target)])


def _coded_keys(capacity: int, wanted: Ints, common: int) -> Ints:
    """Which keys have a code, ascending, where there are more keys: 0, as many `wanted` as fit, and some before."""
    chosen = np.unique(np.append(0, wanted)[:capacity])
    spread = np.linspace(0, max(0, common - 2), capacity - len(chosen)).astype(np.int64)
    return np.union1d(chosen, spread)


def _slots_of(request: Request, page_size: int) -> Ints:
    """Where each key of a request lies in the pool, counted in slots: int64 [kv_len]."""
    slots = request.pages[:, None] * page_size + np.arange(page_size)
    return slots.reshape(-1)[: request.kv_len]


def _order(count: int, seed: int, purpose: str) -> Ints:
    """A permutation of range(count) that follows from the seed and the purpose."""
    return np.argsort(_hashed(count, seed, purpose), kind="stable")


def _hashed(count: int, seed: int, purpose: str) -> Words:
    """Words that follow from the seed and the purpose alone, on every platform (splitmix64)."""
    start = np.uint64(zlib.crc32(f"{seed}:{purpose}".encode()))
    with np.errstate(over="ignore"):
        words = (np.arange(1, count + 1, dtype=np.uint64) + (start << np.uint64(20))) * np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
