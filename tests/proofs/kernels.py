"""Kernels that proofs are tried on: right ones, and the same with one seeded fault each (FAULT above 0)."""

# No `from __future__ import annotations`: the interpreter compares the annotation `tl.constexpr` with the type itself.
# pyright: basic
# ruff: noqa: N803, D103, E741, SIM108
import triton
import triton.language as tl


@triton.jit
def bmm(
    A, Bp, C, M, N, K, sab, sam, sak, sbb, sbk, sbn, scb, scm, scn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    b = tl.program_id(1)
    tiles = tl.cdiv(N, BN)
    rm = (pid // tiles) * BM + tl.arange(0, BM)
    rn = (pid % tiles) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    ap = A + b * sab + rm[:, None] * sam + rk[None, :] * sak
    bp = Bp + b * sbb + rk[:, None] * sbk + rn[None, :] * sbn
    for k in range(0, K, BK):
        live = rk + k < K
        if FAULT == 3:  # the last part of K is read without a mask
            live = rk + k >= 0
        a = tl.load(ap, mask=(rm[:, None] < M) & live[None, :], other=0.0)
        w = tl.load(bp, mask=(rn[None, :] < N) & live[:, None], other=0.0)
        acc = tl.dot(a, w, acc)
        ap += BK * sak
        bp += BK * sbk
    last = N
    if FAULT == 1:
        last = N - 1
    if FAULT == 2:
        last = N + 1
    tl.store(C + b * scb + rm[:, None] * scm + rn[None, :] * scn, acc, mask=(rm[:, None] < M) & (rn[None, :] < last))


@triton.jit
def grouped(C, M, N, scb, scm, scn, BM: tl.constexpr, BN: tl.constexpr, G: tl.constexpr, FAULT: tl.constexpr):
    pid = tl.program_id(0)
    width = G * tl.cdiv(N, BN)
    first = (pid // width) * G
    rows = min(tl.cdiv(M, BM) - first, G)
    if FAULT == 1:  # the last group may be smaller
        rows = G
    rm = (first + (pid % width) % rows) * BM + tl.arange(0, BM)
    rn = ((pid % width) // rows) * BN + tl.arange(0, BN)
    at = C + tl.program_id(1) * scb + rm[:, None] * scm + rn[None, :] * scn
    tl.store(at, tl.zeros((BM, BN), tl.float32), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def overlap(C, M, N, scb, scm, scn, BM: tl.constexpr, BN: tl.constexpr):
    pid = tl.program_id(0)
    tiles = tl.cdiv(N, BN)
    rm = (pid // tiles) * BM + tl.arange(0, BM)
    rn = (pid % tiles) * (BN // 2) + tl.arange(0, BN)
    at = C + tl.program_id(1) * scb + rm[:, None] * scm + rn[None, :] * scn
    tl.store(at, tl.zeros((BM, BN), tl.float32), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def flat(C, M, N, BM: tl.constexpr, BN: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    mask = (rm[:, None] < M) & (rn[None, :] < N)
    tl.store(C + rm[:, None] * N + rn[None, :], tl.zeros((BM, BN), tl.float32), mask=mask)


@triton.jit
def in_a_loop(C, N, scm, scn, BN: tl.constexpr, FAULT: tl.constexpr):
    step = BN
    if FAULT == 1:  # every second tile
        step = 2 * BN
    for n in range(0, N, step):
        rn = n + tl.arange(0, BN)
        tl.store(C + tl.program_id(0) * scm + rn * scn, tl.zeros((BN,), tl.float32), mask=rn < N)


@triton.jit
def persistent(C, N, sc, BN: tl.constexpr, FAULT: tl.constexpr):
    first = tl.program_id(0)
    last = tl.cdiv(N, BN)
    step = tl.num_programs(0)
    if FAULT == 1:  # the tail is no whole tile
        last = N // BN
    if FAULT == 2:  # one more than there are
        step = tl.num_programs(0) + 1
    if FAULT == 3:
        first = tl.program_id(0) + 1
    for tile in range(first, last, step):
        rn = tile * BN + tl.arange(0, BN)
        tl.store(C + rn * sc, tl.zeros((BN,), tl.float32), mask=rn < N)


@triton.jit
def paged(C, Tab, M, N, scm, scn, BN: tl.constexpr):
    rn = tl.arange(0, BN)
    tl.store(C + tl.load(Tab + tl.program_id(0)) * scm + rn * scn, tl.zeros((BN,), tl.float32), mask=rn < N)


@triton.jit
def atomic(C, N, BN: tl.constexpr):
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    tl.atomic_add(C + rn, tl.zeros((BN,), tl.float32), mask=rn < N)


@triton.jit
def data_mask(X, C, N, BN: tl.constexpr):
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    x = tl.load(X + rn, mask=rn < N, other=0.0)
    tl.store(C + rn, x, mask=(rn < N) & (x > 0))


@triton.jit
def split(
    KV, SeqLen, Part, S, D, spb, sps, spd, skn, skd, BLOCK_D: tl.constexpr, BN: tl.constexpr, GUARD: tl.constexpr
):
    b = tl.program_id(0)
    s = tl.program_id(1)
    length = tl.load(SeqLen + b)
    per = tl.cdiv(length, S)
    lo = per * s
    hi = tl.minimum(lo + per, length)
    d = tl.arange(0, BLOCK_D)
    if (hi > lo) | (GUARD == 0):
        acc = tl.zeros((BLOCK_D,), dtype=tl.float32)
        for n in range(lo, hi, BN):
            r = n + tl.arange(0, BN)
            live = (r[:, None] < hi) & (d[None, :] < D)
            acc += tl.sum(tl.load(KV + r[:, None] * skn + d[None, :] * skd, mask=live, other=0.0), 0)
        tl.store(Part + b * spb + s * sps + d * spd, acc, mask=d < D)


@triton.jit
def merge(Part, SeqLen, Out, S, D, spb, sps, spd, sob, sod, BLOCK_D: tl.constexpr, GUARD: tl.constexpr):
    b = tl.program_id(0)
    length = tl.load(SeqLen + b)
    per = tl.cdiv(length, S)
    d = tl.arange(0, BLOCK_D)
    acc = tl.zeros((BLOCK_D,), dtype=tl.float32)
    splits = S
    if GUARD == 2:  # one split too many
        splits = S + 1
    for s in range(0, splits):
        if (tl.minimum(per * s + per, length) > per * s) | (GUARD != 1):
            acc += tl.load(Part + b * spb + s * sps + d * spd, mask=d < D, other=0.0)
    tl.store(Out + b * sob + d * sod, acc, mask=d < D)


@triton.jit
def split_k(X, Part, N, K, BN: tl.constexpr, BK: tl.constexpr, FAULT: tl.constexpr):
    s = tl.program_id(0)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BN,), dtype=tl.float32)
    for k in range(s * BK, min(s * BK + BK, K)):
        acc += tl.load(X + k * N + rn, mask=rn < N, other=0.0)
    last = N
    if FAULT == 1:  # the fix-up pass reads the column that is not stored
        last = N - 1
    tl.store(Part + s * N + rn, acc, mask=rn < last)


@triton.jit
def fix_up(Part, Out, N, K, BN: tl.constexpr, BK: tl.constexpr):
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    acc = tl.zeros((BN,), dtype=tl.float32)
    for s in range(0, tl.cdiv(K, BK)):
        acc += tl.load(Part + s * N + rn, mask=rn < N, other=0.0)
    tl.store(Out + rn, acc, mask=rn < N)


@triton.jit
def swizzled(C, M, N, scm, scn, BM: tl.constexpr, BN: tl.constexpr, FAULT: tl.constexpr):
    """Tiles in column-major order."""
    pid = tl.program_id(0)
    down = tl.cdiv(M, BM)
    if FAULT == 1:  # tiles across where tiles down belong
        down = tl.cdiv(N, BN)
    rm = (pid % down) * BM + tl.arange(0, BM)
    rn = (pid // down) * BN + tl.arange(0, BN)
    if FAULT == 2:  # strides swapped
        at = C + rm[:, None] * scn + rn[None, :] * scm
    else:
        at = C + rm[:, None] * scm + rn[None, :] * scn
    tl.store(at, tl.zeros((BM, BN), tl.float32), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def ragged(O, Indptr, N, som, son, BM: tl.constexpr, BN: tl.constexpr, FAULT: tl.constexpr):
    """Rows of a request, found through a table of offsets."""
    b = tl.program_id(0)
    first = tl.load(Indptr + b)
    rows = tl.load(Indptr + b + 1) - first
    rm = tl.program_id(1) * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    if FAULT == 1:  # one row of the next request
        rows += 1
    if FAULT == 2:  # a request's first row belongs to nobody
        first += 1
        rows -= 1
    mask = (rm[:, None] < rows) & (rn[None, :] < N)
    tl.store(O + (first + rm)[:, None] * som + rn[None, :] * son, tl.zeros((BM, BN), tl.float32), mask=mask)


@triton.jit
def two_sites(C, N, sc, BN: tl.constexpr, FAULT: tl.constexpr):
    """Whole tiles are stored without a mask, the last one with."""
    start = tl.program_id(0) * BN
    rn = start + tl.arange(0, BN)
    whole = start + BN <= N
    if FAULT == 1:  # the tile that is not whole is taken for one
        whole = start + BN <= N + 1
    if whole:
        tl.store(C + rn * sc, tl.zeros((BN,), tl.float32))
    elif FAULT != 2:  # there is no other branch
        tl.store(C + rn * sc, tl.zeros((BN,), tl.float32), mask=rn < N)


@triton.jit
def backwards(C, N, sc, BN: tl.constexpr, FAULT: tl.constexpr):
    """The index runs against the stride."""
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    last = N - 1
    if FAULT == 1:  # the first element lands behind the end
        last = N
    tl.store(C + (last - rn) * sc, tl.zeros((BN,), tl.float32), mask=rn < N)


@triton.jit
def two_outputs(C, L, M, N, scm, scn, BN: tl.constexpr, FAULT: tl.constexpr):
    """One program of each row stores the row's number as well."""
    r = tl.program_id(0)
    tile = tl.program_id(1)
    rn = tile * BN + tl.arange(0, BN)
    tl.store(C + r * scm + rn * scn, tl.zeros((BN,), tl.float32), mask=rn < N)
    if FAULT == 0:
        if tile == 0:
            tl.store(L + r, 0.0)
    elif FAULT == 1:  # a short row has no second tile
        if tile == 1:
            tl.store(L + r, 0.0)
    else:  # everybody stores it
        tl.store(L + r, 0.0)


@triton.jit
def shifted_tail(C, N, sc, BN: tl.constexpr, FAULT: tl.constexpr):
    """The last tile; with the fault it is moved back so that it is whole, over its neighbour."""
    start = tl.program_id(0) * BN
    if FAULT == 1:
        start = min(start, N - BN)
    rn = start + tl.arange(0, BN)
    tl.store(C + rn * sc, tl.zeros((BN,), tl.float32), mask=rn < N)


@triton.jit
def in_place(C, N, sc, BN: tl.constexpr, FAULT: tl.constexpr):
    """Every element from itself; with the fault, from its neighbour, which may be another program's."""
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    source = rn
    if FAULT == 1:
        source = rn + 1
    x = tl.load(C + source * sc, mask=source < N, other=0.0)
    tl.store(C + rn * sc, x * 2.0, mask=rn < N)


@triton.jit
def early_return(C, N, sc, BN: tl.constexpr, FAULT: tl.constexpr):
    start = tl.program_id(0) * BN
    last = N
    if FAULT == 1:  # the last tile goes home too early
        last = N - 1
    if start >= last:
        return
    rn = start + tl.arange(0, BN)
    tl.store(C + rn * sc, tl.zeros((BN,), tl.float32), mask=rn < N)


@triton.jit
def heads(C, H, N, sch, scn, BN: tl.constexpr, GROUP: tl.constexpr, FAULT: tl.constexpr):
    """A program stores all heads of its group."""
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    first = tl.program_id(0) * GROUP
    for g in range(0, GROUP):
        head = first + g
        if FAULT == 1:  # the last group may be smaller
            live = rn < N
        else:
            live = (rn < N) & (head < H)
        tl.store(C + head * sch + rn * scn, tl.zeros((BN,), tl.float32), mask=live)


@triton.jit
def wide(C, N, sc, BN: tl.constexpr, WIDE: tl.constexpr):
    """Offsets of 32 or 64 bits."""
    row = tl.program_id(0)
    rn = tl.arange(0, BN)
    if WIDE:
        row = row.to(tl.int64)
    tl.store(C + row * sc + rn, tl.zeros((BN,), tl.float32), mask=rn < N)


@triton.jit
def branched(C, N, sc, BN: tl.constexpr):
    """What one branch is taken for says nothing of the other one."""
    row = tl.program_id(0)
    rn = tl.arange(0, BN)
    if row < 1024:
        for _ in range(0, tl.cdiv(N, sc)):
            tl.store(C + row.to(tl.int64) * sc + rn, tl.zeros((BN,), tl.float32), mask=rn < N)
    else:
        for _ in range(0, min(row * sc, 1)):
            tl.store(C + row.to(tl.int64) * sc + rn, tl.zeros((BN,), tl.float32), mask=rn < N)
