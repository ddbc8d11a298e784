"""Wrong arithmetic is caught, and by which regimes, from one head of seven columns up to 512 + 64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from mla_verify.kernel import Arithmetic
from sanitizer.arena import Arena
from strategies.problems import DecodeProblem
from tests.contracts.no_false_alarm_decode import kernel_of, rounded_probabilities, run

REGIMES: Final = ("retrieval", "uniform", "gaussian")


@dataclass(slots=True, eq=False)
class Lane:
    """One query row with its keys, on its way through the kernel: a fault changes one thing."""

    q: Tensor  # float32 [num_heads, width]
    keys: Tensor  # float32 [visible, width]
    behind: Tensor  # float32 [keys of the request that this row does not see, width]
    scale: float


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake, and the regimes that catch it at both sizes."""

    name: str
    regimes: tuple[str, ...]
    before: Callable[[Lane], None] | None = None
    of_scores: Callable[[Tensor], Tensor] | None = None
    of_weights: Callable[[Tensor], Tensor] | None = None
    of_lse: Callable[[Tensor], Tensor] | None = None
    values_from: int = 0  # the first column of the value
    pages_wrong: bool = False
    dtype: str = "float32"


def _scale(factor: float) -> Callable[[Lane], None]:
    def change(lane: Lane) -> None:
        lane.scale *= factor

    return change


def _no_scale(lane: Lane) -> None:
    lane.scale = 1.0


def _through(dtype: torch.dtype) -> Callable[[Lane], None]:
    def change(lane: Lane) -> None:
        lane.keys = lane.keys.to(dtype).float()

    return change


def _one_key_late(lane: Lane) -> None:
    lane.keys = torch.cat((lane.keys, lane.behind[:1]))


def _drop_last(lane: Lane) -> None:
    lane.keys = lane.keys[: max(1, lane.keys.shape[0] - 1)]


def _drop_first(lane: Lane) -> None:
    lane.keys = lane.keys[min(1, lane.keys.shape[0] - 1) :]


def _no_last_column(lane: Lane) -> None:
    lane.q = lane.q.clone()
    lane.q[:, -1] = 0


def _heads_turned(lane: Lane) -> None:
    lane.q = lane.q.roll(1, 0)


def _extra_weight(weights: Tensor) -> Tensor:
    return torch.cat((weights, torch.ones_like(weights[:, :1])), 1)


FAULTS: Final = (
    Fault("scale_off_by_a_thousandth", ("retrieval", "gaussian"), before=_scale(1.001)),
    Fault("scale_missing", ("retrieval", "gaussian"), before=_no_scale),
    Fault("cache_rounded_to_bfloat16", ("retrieval", "gaussian"), before=_through(torch.bfloat16)),
    Fault("mask_one_key_late", ("retrieval", "uniform"), before=_one_key_late),
    Fault("last_key_dropped", REGIMES, before=_drop_last),
    Fault("first_key_dropped", ("uniform", "gaussian"), before=_drop_first),
    Fault("last_column_dropped", ("gaussian",), before=_no_last_column),
    Fault("heads_exchanged", ("gaussian",), before=_heads_turned),
    Fault("page_number_for_page_id", REGIMES, pages_wrong=True),
    Fault("value_from_the_rope_columns", REGIMES, values_from=3),
    Fault("sum_counts_an_unused_slot", ("uniform", "gaussian"), of_weights=_extra_weight),
    Fault("lse_in_base_2", REGIMES, of_lse=lambda lse: lse / math.log(2)),
    Fault("lse_forgets_the_maximum", ("retrieval", "gaussian"), of_lse=torch.zeros_like),
    Fault(
        "scores_rounded_to_bfloat16",
        ("gaussian",),
        of_scores=lambda scores: scores.bfloat16().float(),
        dtype="bfloat16",
    ),
    Fault("mask_one_key_late_16_bit", ("retrieval", "uniform"), before=_one_key_late, dtype="bfloat16"),
    Fault("last_key_dropped_16_bit", REGIMES, before=_drop_last, dtype="float16"),
)

SMALL: Final = DecodeProblem(
    kv_lens=(13, 7),
    q_lens=(3, 1),
    num_heads=2,
    kv_lora_rank=7,
    qk_rope_head_dim=3,
    page_size=4,
    softmax_scale=-2,
    page_order="shuffled",
    foreign_pages=2,
)
MODEL: Final = replace(
    SMALL, kv_lens=(700, 65), num_heads=16, kv_lora_rank=512, qk_rope_head_dim=64, page_size=64, softmax_scale=-3
)
_DECLARED: Final = Arithmetic(probabilities="fp32", normalise="division")


def _attention(fault: Fault) -> Callable[..., Any]:
    """A kernel, right but for one fault, that handles a row at a time."""

    def call(
        q: Tensor,
        kv_buffer: Tensor,
        o: Tensor,
        lse: Tensor,
        qo_indptr: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        sm_scale: float,
        **_: Any,
    ) -> None:
        page_size, width = kv_buffer.shape[1], kv_buffer.shape[3]
        for request, kv_len in enumerate(seq_lens.tolist()):
            pages = block_table[request, : -(-kv_len // page_size)].long()
            if fault.pages_wrong:
                pages = torch.arange(len(pages))
            keys = kv_buffer[pages].reshape(-1, width).float().nan_to_num()
            start, stop = qo_indptr[request : request + 2].tolist()
            for row in range(start, stop):
                seen = kv_len - (stop - 1 - row)
                lane = Lane(q[row].float(), keys[:seen], keys[seen:kv_len], sm_scale)
                if fault.before is not None:
                    fault.before(lane)
                o[row], lse[row] = _softmax(lane, fault, o.shape[2])

    call.__name__ = fault.name
    return call


def _softmax(lane: Lane, fault: Fault, rank: int) -> tuple[Tensor, Tensor]:
    scores = lane.q @ lane.keys.T * lane.scale
    if fault.of_scores is not None:
        scores = fault.of_scores(scores)
    peak = scores.amax(1, keepdim=True)
    weights = (scores - peak).exp()
    counted = weights if fault.of_weights is None else fault.of_weights(weights)
    total = counted.sum(1, keepdim=True)
    values = lane.keys[:, fault.values_from : fault.values_from + rank]
    lse = peak.squeeze(1) + total.log().squeeze(1)
    if fault.of_lse is not None:
        lse = total.log().squeeze(1) if fault.of_lse is torch.zeros_like else fault.of_lse(lse)
    return weights @ values / total, lse


@pytest.fixture(scope="module")
def arena() -> Arena:
    """One arena for all of them, as the check has it."""
    torch.set_num_threads(1)
    return Arena("cpu")


def _seeds_that_catch(fault: Fault, problem: DecodeProblem, arena: Arena) -> int:
    kernel = kernel_of(_attention(fault), arithmetic=_DECLARED)
    return sum(
        bool(run(replace(problem, seed=seed, dtype=fault.dtype), kernel, arena).disagreements) for seed in range(5)
    )


@pytest.mark.parametrize("size", [SMALL, MODEL], ids=["small", "model"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_wrong_arithmetic_is_caught_by_the_regimes_that_claim_it(
    fault: Fault, size: DecodeProblem, arena: Arena
) -> None:
    """Each named regime catches the fault with each of five seeds."""
    for regime in fault.regimes:
        assert _seeds_that_catch(fault, replace(size, regime=regime), arena) == 5, regime


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("size", [SMALL, MODEL], ids=["small", "model"])
def test_the_kernel_without_a_fault_is_not_caught(size: DecodeProblem, dtype: str, arena: Arena) -> None:
    """What the faults are built into is right, so that only the fault itself can be what is caught."""
    right = Fault("right", REGIMES, dtype=dtype)
    for regime in REGIMES:
        assert _seeds_that_catch(right, replace(size, regime=regime), arena) == 0


def test_probabilities_rounded_without_saying_so_are_caught(arena: Arena) -> None:
    """A kernel that keeps probabilities in its input's dtype must declare it: the bound without is too narrow."""
    undeclared = kernel_of(rounded_probabilities, arithmetic=_DECLARED)
    problem = replace(SMALL, regime="gaussian", dtype="bfloat16")
    caught = [bool(run(replace(problem, seed=seed), undeclared, arena).disagreements) for seed in range(20)]
    assert sum(caught) >= 5
