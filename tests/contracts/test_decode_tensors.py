"""A decode problem is placed as it was drawn: what is declared is live, all else is secret, all rules follow."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final, Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mla_verify.contract import Placement
from mla_verify.decode import CONTRACT
from mla_verify.kernel import Kernel
from mla_verify.kernels.torch_decode import decode_split_kv_empty, decode_split_kv_zeros
from mla_verify.registry import ARGUMENTS
from sanitizer.arena import Arena
from sanitizer.plan import Element, TensorPlan
from sanitizer.secrets import Secret
from strategies.decode import decode_problems, invalid_decode_problems
from strategies.invalid import DECODE_INVALID
from strategies.layouts import INPUT_ONLY
from strategies.paging import paging_of
from strategies.problems import DecodeProblem

CPU: Final = torch.device("cpu")
SLOW: Final = (HealthCheck.too_slow, HealthCheck.data_too_large)
KERNEL: Final = Kernel(name="k", contract="decode", load=lambda: decode_split_kv_empty)
PROBLEM: Final = DecodeProblem(
    kv_lens=(5, 0, 2),
    q_lens=(2, 1, 3),
    num_heads=2,
    kv_lora_rank=4,
    qk_rope_head_dim=2,
    page_size=2,
    padding_rows=2,
    foreign_pages=3,
    page_pad=3,
    table_slack=2,
    index_tail=3,
    page_order="shuffled",
)


def placed(problem: DecodeProblem = PROBLEM, kernel: Kernel = KERNEL) -> tuple[Placement, dict[str, TensorPlan]]:
    """A placement, and its plans by name."""
    placement = CONTRACT.place(problem, kernel, CPU)
    return placement, {plan.name: plan for plan in placement.tensors}


def given_tensor(tensor: Tensor | None) -> Tensor:
    """A tensor that has to be there."""
    assert tensor is not None
    return tensor


def test_only_slots_that_hold_a_key_are_live() -> None:
    """Slots behind a request's last key, and foreign pages, are secret."""
    _, plans = placed()
    live = given_tensor(plans["kv_buffer"].live)[:, :, 0, 0]
    paging = paging_of(PROBLEM)
    expected = torch.zeros(paging.num_pages, 2, dtype=torch.bool)
    for pages, kv_len in zip(paging.pages, PROBLEM.kv_lens, strict=True):
        for key in range(kv_len):
            expected[pages[key // 2], key % 2] = True
    assert torch.equal(live, expected)
    assert not live[list(paging.foreign)].any()


def test_tails_and_padding_are_secret() -> None:
    """Unused entries of both index forms, last-page lengths without pages, and padding rows of q are not declared."""
    _, plans = placed()
    assert given_tensor(plans["kv_indices"].live).tolist() == [True] * 4 + [False] * 3
    assert given_tensor(plans["block_table"].live).sum(1).tolist() == [3, 0, 1]
    assert given_tensor(plans["kv_last_page_lens"].live).tolist() == [True, False, True]
    assert given_tensor(plans["q"].live).view(-1).tolist() == [True] * 6 + [False] * 2


def test_both_forms_of_the_index_say_the_same() -> None:
    """Lists and table name the same pages in the same order, and the same lengths."""
    _, plans = placed()
    values = {name: given_tensor(plans[name].values).tolist() for name in plans if plans[name].dtype == torch.int32}
    pages = paging_of(PROBLEM).pages
    for request, owned in enumerate(pages):
        start, end = values["kv_indptr"][request : request + 2]
        assert tuple(values["kv_indices"][start:end]) == owned
        assert tuple(values["block_table"][request][: len(owned)]) == owned
    assert values["seq_lens"] == [5, 0, 2]
    assert values["kv_last_page_lens"] == [1, 0, 2]
    assert values["qo_indptr"] == [0, 2, 3, 6]


def test_the_plain_arguments_follow_from_the_problem() -> None:
    """Scale, page size, splits and the longest query are passed beside the tensors; no lse is passed as None."""
    placement, _ = placed(replace(PROBLEM, softmax_scale=-3, num_kv_splits=4))
    assert dict(placement.arguments) == {
        "page_size": 2,
        "max_seqlen_q": 3,
        "sm_scale": 0.125,
        "num_kv_splits": 4,
        "q_scale": None,
        "kv_scale": None,
    }
    placement, plans = placed(replace(PROBLEM, with_lse=False))
    assert placement.arguments["lse"] is None
    assert "lse" not in plans
    assert set(ARGUMENTS["decode"]) == set(plans) | set(placement.arguments)
    placement, plans = placed(replace(PROBLEM, q_format="e5m2", kv_format="e5m2", kv_scale="0.75"))
    assert given_tensor(plans["kv_scale"].values).tolist() == [0.75]
    assert (plans["kv_scale"].dtype, plans["q_scale"].shape) == (torch.float32, (1,))
    assert not {"q_scale", "kv_scale"} & set(placement.arguments)
    assert set(ARGUMENTS["decode"]) == set(plans) | set(placement.arguments)


def test_a_page_before_the_cache_lies_within_its_guard() -> None:
    """A kernel that takes −1 for a page id meets the guard, not another tensor."""
    _, plans = placed(replace(PROBLEM, page_size=64))
    assert plans["kv_buffer"].guard >= (64 * 6 + 3) * 4


@pytest.mark.parametrize(
    ("declared", "rule", "of_lse"),
    [
        ("untouched", Element.UNTOUCHED, Element.UNTOUCHED),
        ("written", Element.WRITTEN, Element.WRITTEN),
        ("zero", Element.DETERMINED, Element.DETERMINED),
        ("unspecified", Element.FREE, Element.FREE),
    ],
)
def test_padding_rows_follow_their_declaration(
    declared: Literal["untouched", "written", "zero", "unspecified"], rule: Element, of_lse: Element
) -> None:
    """What a kernel owes to rows behind the last request is what it declares, for o and lse alike."""
    _, plans = placed(replace(PROBLEM, kv_lens=(5, 1, 3)), replace(KERNEL, padding_rows=declared))
    for name, expected in (("o", rule), ("lse", of_lse)):
        rules = plans[name].rules
        rows = [Element.DETERMINED] * 8 if rules is None else rules.view(-1).tolist()
        assert rows == [Element.DETERMINED] * 6 + [expected] * 2


def test_rows_without_keys_follow_their_declaration() -> None:
    """Unspecified empty rows are free: those of a request without keys and those before the first key."""
    _, plans = placed(kernel=replace(KERNEL, empty_rows="unspecified", empty_lse="unspecified"))
    free, untouched = int(Element.FREE), int(Element.UNTOUCHED)
    for name in ("o", "lse"):
        assert given_tensor(plans[name].rules).view(-1).tolist() == [0, 0, free, free, 0, 0, untouched, untouched]


def test_preconditions_decide_what_secrets_may_hold() -> None:
    """Without preconditions unused slots are NaN and tails −1; with them slots are finite and tails are page ids."""
    _, plans = placed()
    assert plans["kv_buffer"].fills.a == "nan"
    assert plans["block_table"].fills.a == plans["kv_indices"].fills.a == -1
    assert plans["block_table"].fills.b in paging_of(PROBLEM).foreign
    kernel = replace(KERNEL, preconditions=("finite_unused_slots", "valid_table_tails"))
    _, plans = placed(kernel=kernel)
    assert plans["kv_buffer"].fills.a == "ordinary2"
    assert plans["block_table"].fills.a in range(paging_of(PROBLEM).num_pages)


def test_the_same_problem_is_placed_alike_for_every_secret() -> None:
    """Nothing but the fills depends on a secret: values, shapes and strides are the same whenever they are made."""
    _, one = placed()
    _, other = placed()
    for name, plan in one.items():
        assert (plan.shape, plan.strides, plan.offset) == (
            other[name].shape,
            other[name].strides,
            other[name].offset,
        )
        if plan.values is not None:
            assert torch.equal(plan.values, given_tensor(other[name].values))


@settings(max_examples=150, deadline=None, database=None, derandomize=True, suppress_health_check=SLOW)
@given(decode_problems(regimes=("retrieval",)))
def test_retrieval_lets_one_key_win_by_far(problem: DecodeProblem) -> None:
    """In every row and head that sees a key, the best logit leads the second by at least 200."""
    if problem.q_layout.kind in INPUT_ONLY or problem.kv_lora_rank + problem.qk_rope_head_dim == 0:
        return
    _, plans = placed(problem)
    q = given_tensor(plans["q"].values).double()
    cache = given_tensor(plans["kv_buffer"].values).double().view(-1, problem.page_size, q.shape[2])
    row = 0
    for pages, kv_len, q_len in zip(paging_of(problem).pages, problem.kv_lens, problem.q_lens, strict=True):
        keys = cache[list(pages)].view(len(pages) * problem.page_size, q.shape[2])
        for seen in range(kv_len - q_len + 1, kv_len + 1):
            logits = q[row] @ keys[: max(0, seen)].T * 2.0**problem.softmax_scale
            row += 1
            if seen > 1 and problem.num_heads:
                best = logits.topk(2, dim=1).values
                assert float((best[:, 0] - best[:, 1]).min()) >= 200


def _breaks(problem: DecodeProblem, plans: dict[str, TensorPlan]) -> bool:
    """Whether the named fault is really there."""
    q, cache, o = plans["q"], plans["kv_buffer"], plans["o"]
    indptr, lens = given_tensor(plans["kv_indptr"].values).tolist(), given_tensor(plans["seq_lens"].values).tolist()
    used = given_tensor(plans["kv_indices"].values)[: max(indptr)]
    faults = {
        "kv_width_differs": cache.shape[3] == q.shape[2] + 1,
        "o_has_fewer_rows": o.shape[0] == q.shape[0] - 1,
        "o_heads_differ": o.shape[1] != q.shape[1],
        "kv_dtype_differs": cache.dtype != q.dtype,
        "o_dtype_differs": o.dtype != q.dtype,
        "o_over_q": o.over == "q",
        "o_over_cache": o.over == "kv_buffer",
        "kv_indptr_falls": any(end < start for start, end in pairwise(indptr)),
        "page_id_outside_pool": bool((used >= cache.shape[0]).any()),
        "length_beyond_table": max(lens) > plans["block_table"].shape[1] * problem.page_size,
    }
    return faults[problem.invalid or ""]


@pytest.mark.parametrize("call", [decode_split_kv_empty, decode_split_kv_zeros], ids=lambda call: call.__name__)
@pytest.mark.parametrize("kind", sorted(DECODE_INVALID))
def test_every_invalid_kind_is_placed_for_real_and_refused(kind: str, call: object) -> None:
    """Each fault is in the tensors themselves, and a kernel that validates refuses it before writing anything."""
    arena = Arena("cpu")

    @settings(max_examples=15, deadline=None, database=None, derandomize=True, suppress_health_check=SLOW)
    @given(invalid_decode_problems(kinds=(kind,)), st.just(call))
    def one(problem: DecodeProblem, kernel: object) -> None:
        assert callable(kernel)
        placement, plans = placed(problem)
        assert _breaks(problem, plans)
        arena.load(placement.tensors)
        arena.poison(Secret.A)
        with pytest.raises(ValueError, match=r"wanted|fit|overlaps|falls|outside|ends"):
            kernel(**arena.tensors(), **placement.arguments)
        assert arena.stray() == []

    one()
