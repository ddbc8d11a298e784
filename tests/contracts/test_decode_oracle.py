"""The oracle says what attention is, and the bound around it is derived, lazy and honest about what it cannot judge."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import pytest
import torch
from torch import Tensor

from mla_verify.decode import CONTRACT, bound, oracle
from mla_verify.decode.expectation import DecodeExpectation
from mla_verify.kernel import Arithmetic, Kernel
from mla_verify.kernels.torch_decode import decode_split_kv_empty
from sanitizer.arena import Arena
from sanitizer.secrets import Secret
from strategies.paging import paging_of
from strategies.problems import DecodeProblem

KERNEL: Final = Kernel(name="k", contract="decode", load=lambda: decode_split_kv_empty)
PROBLEM: Final = DecodeProblem(
    kv_lens=(7, 0, 2),
    q_lens=(3, 1, 4),
    num_heads=2,
    kv_lora_rank=3,
    qk_rope_head_dim=2,
    page_size=2,
    softmax_scale=-1,
    padding_rows=1,
    page_order="shuffled",
    foreign_pages=3,
    page_pad=1,
    regime="gaussian",
)


def laid_out(problem: DecodeProblem, kernel: Kernel = KERNEL) -> tuple[Arena, dict[str, Tensor]]:
    """A problem's tensors under secret A, and the arena that keeps them."""
    torch.set_num_threads(1)
    arena = Arena("cpu")
    arena.load(CONTRACT.place(problem, kernel, torch.device("cpu")).tensors)
    arena.poison(Secret.A)
    return arena, arena.tensors()


def expected(problem: DecodeProblem, tensors: dict[str, Tensor], kernel: Kernel = KERNEL) -> DecodeExpectation:
    """The expectation, by its own type."""
    found = CONTRACT.expect(problem, kernel, tensors)
    assert isinstance(found, DecodeExpectation)
    return found


def by_hand(problem: DecodeProblem, tensors: dict[str, Tensor]) -> tuple[list[list[list[float]]], list[list[float]]]:
    """Attention one number at a time, with sums that do not round."""
    q, cache = tensors["q"].tolist(), tensors["kv_buffer"].tolist()
    pages = paging_of(problem).pages
    o: list[list[list[float]]] = []
    lse: list[list[float]] = []
    for request, q_len in enumerate(problem.q_lens):
        for row in range(q_len):
            seen = max(0, problem.kv_lens[request] - (q_len - 1 - row))
            keys = [cache[pages[request][k // problem.page_size]][k % problem.page_size][0] for k in range(seen)]
            o.append([])
            lse.append([])
            for query in q[len(o) - 1]:
                logits = [
                    math.fsum(a * b for a, b in zip(query, key, strict=True)) * 2.0**problem.softmax_scale
                    for key in keys
                ]
                weights = [math.exp(logit) for logit in logits]
                total = math.fsum(weights)
                columns = range(problem.kv_lora_rank)
                sums = [math.fsum(w * key[c] for w, key in zip(weights, keys, strict=True)) for c in columns]
                o[-1].append([value / total if keys else 0.0 for value in sums])
                lse[-1].append(math.log(total) if keys else -math.inf)
    return o, lse


def test_the_oracle_agrees_with_attention_by_hand() -> None:
    """Ragged requests, several rows, empty rows, shuffled pages: the same numbers to the last bits of float64."""
    arena, tensors = laid_out(PROBLEM)
    found = expected(PROBLEM, tensors)
    o, lse = by_hand(PROBLEM, tensors)
    live = sum(PROBLEM.q_lens)
    torch.testing.assert_close(
        found.references["o"].value[:live], torch.tensor(o, dtype=torch.float64), rtol=1e-13, atol=1e-13
    )
    torch.testing.assert_close(
        found.references["lse"].value[:live], torch.tensor(lse, dtype=torch.float64), rtol=1e-13, atol=1e-13
    )
    assert arena.nbytes


def test_the_oracle_is_the_same_tile_by_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that are converted piece by piece, and lanes taken block by block, give the same answer and bound."""
    _arena, tensors = laid_out(PROBLEM)
    whole = expected(PROBLEM, tensors)
    monkeypatch.setattr(oracle, "_TILE", 12)
    monkeypatch.setattr(oracle, "_HELD", 0)
    monkeypatch.setattr(bound, "_BLOCK", 8)
    tiled = expected(PROBLEM, tensors)
    for name in ("o", "lse"):
        one, other = whole.references[name], tiled.references[name]
        torch.testing.assert_close(one.value, other.value, rtol=1e-14, atol=1e-14)
        index = torch.isfinite(one.value).nonzero(as_tuple=True)
        torch.testing.assert_close(one.bound(index)[0], other.bound(index)[0], rtol=1e-12, atol=0.0)


def test_a_nan_in_the_inputs_reaches_the_answer() -> None:
    """The oracle repairs nothing: NaN in a value column of a key is NaN in that column of every row that sees it."""
    problem = replace(PROBLEM, kv_lens=(4,), q_lens=(2,), regime="uniform")
    _arena, tensors = laid_out(problem)
    page = paging_of(problem).pages[0][0]
    tensors["kv_buffer"][page, 1, 0, 2] = math.nan
    value = expected(problem, tensors).references["o"].value[:2]
    assert value.isnan().all(0).all(0).tolist() == [True, True, True]  # its logits are NaN, and so is everything
    assert expected(problem, tensors).judge({"o": torch.zeros(3, 2, 3)}, skip={}).disagreements


@pytest.mark.parametrize("regime", ["retrieval", "uniform", "gaussian", "extreme", "special"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    "arithmetic",
    [
        Arithmetic(),
        Arithmetic(probabilities="fp32"),
        Arithmetic(multiply="tf32", partials="output dtype", subnormals="flushed"),
    ],
    ids=["default", "fp32", "all"],
)
def test_the_lower_limit_is_below_the_bound(regime: str, dtype: str, arithmetic: Arithmetic) -> None:
    """What accepts an element without working its bound out never accepts more than the bound does."""
    kernel = replace(KERNEL, arithmetic=arithmetic)
    for seed in range(4):
        problem = replace(PROBLEM, regime=regime, dtype=dtype, seed=seed, kv_lens=(40, 0, 3))
        _arena, tensors = laid_out(problem, kernel)
        found = expected(problem, tensors, kernel)
        for reference in (*found.references.values(), *found.of_baseline.values()):
            lower = (reference.value.abs() * reference.relative + reference.absolute).expand_as(reference.value)
            seen = torch.zeros(reference.value.shape, dtype=torch.bool)
            seen[:3] = seen[6:8] = True  # the rows that see a key
            index = seen.nonzero(as_tuple=True)
            limit, judged = reference.bound(index)
            assert bool((lower[index] <= limit).all())
            assert bool(judged.all())


@pytest.mark.parametrize(
    ("wider", "dtype"),
    [
        (Arithmetic(probabilities="input dtype"), "bfloat16"),
        (Arithmetic(probabilities="input dtype"), "float16"),
        (Arithmetic(probabilities="fp32", multiply="tf32"), "float32"),
        (Arithmetic(probabilities="fp32", partials="output dtype"), "bfloat16"),
    ],
)
def test_a_declared_arithmetic_widens_the_bound(wider: Arithmetic, dtype: str) -> None:
    """Every declaration that admits more rounding gives every element more room."""
    problem = replace(PROBLEM, kv_lens=(9,), q_lens=(2,), padding_rows=0, dtype=dtype)
    exact = replace(KERNEL, arithmetic=Arithmetic(probabilities="fp32"))
    _arena, tensors = laid_out(problem)
    index = torch.ones(2, 2, 3).nonzero(as_tuple=True)
    limits = [
        expected(problem, tensors, kernel).references["o"].bound(index)[0]
        for kernel in (exact, replace(KERNEL, arithmetic=wider))
    ]
    assert bool((limits[1] > limits[0]).all())


def test_flushed_subnormals_widen_the_bound_around_subnormal_values() -> None:
    """A value that flushing may lose is wholly within the bound of a kernel that flushes, and not of one that keeps."""
    problem = replace(PROBLEM, kv_lens=(1,), q_lens=(1,), padding_rows=0, with_lse=False)
    _arena, tensors = laid_out(problem)
    tensors["kv_buffer"][paging_of(problem).pages[0][0], 0] = 2.0**-130
    zeros = {"o": torch.zeros(1, 2, 3)}
    keeps = expected(problem, tensors)
    flushes = expected(problem, tensors, replace(KERNEL, arithmetic=Arithmetic(subnormals="flushed")))
    assert keeps.judge(zeros, skip={}).disagreements
    assert not flushes.judge(zeros, skip={}).disagreements


def test_what_a_bound_cannot_judge_is_counted() -> None:
    """Logits too large for float32 leave nothing to compare: the elements are excused, and their number is told."""
    problem = replace(PROBLEM, kv_lens=(3,), q_lens=(1,), padding_rows=0, with_lse=False)
    _arena, tensors = laid_out(problem)
    tensors["q"].mul_(1e30)
    judgement = expected(problem, tensors).judge({"o": torch.full((1, 2, 3), 0.5)}, skip={})
    assert judgement.disagreements == ()
    assert judgement.not_judged == 6


def test_a_row_without_keys_must_be_exactly_zero() -> None:
    """No bound lies around a row that sees no key: the smallest subnormal is already wrong, −0 is not."""
    _arena, tensors = laid_out(PROBLEM)
    found = expected(PROBLEM, tensors)
    right = found.references["o"].value.float()
    right[3] = -0.0
    assert found.judge({"o": right}, skip={}).disagreements == ()
    right[3, 1, 2] = 2.0**-149
    (wrong,) = found.judge({"o": right}, skip={}).disagreements
    assert wrong.wrong.nonzero().tolist() == [[3, 1, 2]]


def test_the_differential_says_who_is_right() -> None:
    """Where kernel and baseline differ, the oracle decides between them, in words."""
    _arena, tensors = laid_out(PROBLEM)
    found = expected(PROBLEM, tensors)
    baseline = CONTRACT.baseline(PROBLEM, KERNEL, tensors)
    o = baseline["o"].clone()
    o[0, 0, 0] += 1
    (difference,) = found.differential({**baseline, "o": o}, baseline, skip={}).disagreements
    assert "the baseline agrees with the oracle, the kernel does not" in difference.detail
    assert found.judge(baseline, skip={}).disagreements == ()
