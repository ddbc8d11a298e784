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
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mla_verify.decode.geometry import Geometry, Request
from mla_verify.placement import dtype_of
from mla_verify.values import cut, integers
from strategies.problems import DecodeProblem

__all__ = ["values_of"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_GAP_EXPONENT: Final = 7  # c·scale = 2**7; twice that between two codes
_LARGEST_QUERY_EXPONENT: Final = 12  # of c; the rest goes into the cache, so that float16 holds both
_UNIFORM_MAGNITUDE: Final = 15  # 15 times a million keys still add up exactly in float32


def values_of(problem: DecodeProblem, geometry: Geometry, device: torch.device) -> tuple[Tensor, Tensor]:
    """Values of q and of the cache: [num_rows, num_heads, width] and [num_pages, page_size, 1, width].

    Never write to them: they may be views of a pool.
    """
    width = problem.kv_lora_rank + problem.qk_rope_head_dim
    dtype = dtype_of(problem.dtype)
    q_shape = (problem.num_rows, problem.num_heads, width)
    kv_shape = (geometry.paging.num_pages, problem.page_size, 1, width)

    def pooled(pool: str, shape: tuple[int, ...], tensor: str) -> Tensor:
        return cut(pool, shape, dtype, device, seed=problem.seed, tensor=tensor)

    if problem.regime == "uniform":
        return torch.zeros(q_shape, dtype=dtype, device=device), pooled(integers(_UNIFORM_MAGNITUDE), kv_shape, "kv")
    if problem.regime == "special":
        return pooled("special", q_shape, "q"), pooled("special", kv_shape, "kv")
    q, kv = pooled("gaussian", q_shape, "q"), pooled("gaussian", kv_shape, "kv")
    if problem.regime == "extreme":
        return _extreme(problem, q, kv, pooled("extreme", kv_shape, "kv extreme"))
    if problem.regime == "retrieval":
        return _retrieval(problem, geometry, q, kv)
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


def _retrieval(problem: DecodeProblem, geometry: Geometry, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
    """Codes in a few columns of both tensors (Note [Retrieval])."""
    width = q.shape[2]
    longest = max(problem.kv_lens, default=0)
    bits = min(width, max(1, (longest - 1).bit_length()))
    if bits == 0:  # tensors without columns
        return q, kv
    columns = torch.from_numpy(_order(width, problem.seed, "code")[:bits])
    exponent = _GAP_EXPONENT - problem.softmax_scale + (bits == 1)
    of_q = min(exponent, _LARGEST_QUERY_EXPONENT)
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
    of_keys = torch.from_numpy(np.concatenate(keys) * np.float32(2.0 ** (exponent - of_q))).to(kv)
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
