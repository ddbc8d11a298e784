"""From layouts to plans: preconditions change where a tensor lies and what its secrets may be, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
import torch

from mla_verify.decode import CONTRACT
from mla_verify.decode.invalid import make_invalid
from mla_verify.judging import Reference, differ, merged
from mla_verify.kernel import Kernel
from mla_verify.placement import PLAIN_FILLS, cache_fills, dtype_of, plan, table_fills
from mla_verify.up_projection import CONTRACT as UP_PROJECTION
from sanitizer.plan import Fills
from strategies.layouts import Layout, strides_of
from strategies.limits import UpProjectionLimits
from strategies.problems import DecodeProblem, UpProjectionProblem
from tests.contracts.no_false_alarm_up_projection import registered
from tests.contracts.test_decode_tensors import KERNEL

UP_KERNEL: Final = registered("direct")
SHAPE: Final = (3, 4)
PADDED: Final = Layout("padded_rows", 5, 3)


def _asking(*preconditions: str) -> Kernel:
    return replace(KERNEL, preconditions=preconditions)


def test_a_dtype_is_called_by_its_torch_name() -> None:
    """Another name is refused with those that there are."""
    assert [dtype_of(name) for name in ("float32", "float16", "bfloat16")] == [
        torch.float32,
        torch.float16,
        torch.bfloat16,
    ]
    with pytest.raises(ValueError, match=r"^dtype 'float8' is not one of float32, float16, bfloat16$"):
        dtype_of("float8")


def test_without_preconditions_a_tensor_lies_as_drawn() -> None:
    """Strides and offset are the layout's; what is not said has its default."""
    placed = plan("x", SHAPE, PADDED, torch.float32, "input", kernel=KERNEL)
    assert (placed.strides, placed.offset) == strides_of(SHAPE, PADDED)
    assert (placed.name, placed.shape, placed.dtype, placed.role) == ("x", SHAPE, torch.float32, "input")
    assert (placed.values, placed.live, placed.rules) == (None, None, None)
    assert (placed.fills, placed.guard, placed.form) == (PLAIN_FILLS, 64, "view")


@pytest.mark.parametrize(
    ("group", "precondition", "contiguous"),
    [
        (None, "contiguous_x", True),
        (None, "contiguous_tables", False),
        ("tables", "contiguous_tables", True),
        ("tables", "contiguous_x", False),
        (None, "valid_table_tails", False),
    ],
)
def test_contiguity_is_promised_by_name_or_by_group(group: str | None, precondition: str, contiguous: bool) -> None:
    """Rows then lie one behind the other; where the first one begins stays as drawn."""
    placed = plan("x", SHAPE, PADDED, torch.float32, "input", kernel=_asking(precondition), group=group)
    assert placed.strides == ((4, 1) if contiguous else strides_of(SHAPE, PADDED)[0])
    assert placed.offset == 3
    flush = plan(
        "x", SHAPE, Layout("padded_rows", 5), torch.float32, "input", kernel=_asking(precondition), group=group
    )
    assert flush.offset == 0


@pytest.mark.parametrize(
    ("dtype", "offset", "aligned"),
    [
        (torch.float32, 0, 0),
        (torch.float32, 1, 4),
        (torch.float32, 4, 4),
        (torch.float32, 5, 8),
        (torch.bfloat16, 3, 8),
        (torch.uint8, 3, 16),
        (torch.float64, 3, 4),
        (torch.complex128, 3, 3),
    ],
    ids=str,
)
def test_alignment_moves_the_first_element_up_to_the_next_16_bytes(
    dtype: torch.dtype, offset: int, aligned: int
) -> None:
    """Nowhere else, and only where it was promised; strides stay."""
    layout = replace(PADDED, offset=offset)
    placed = plan("x", SHAPE, layout, dtype, "input", kernel=_asking("aligned_16"))
    assert (placed.strides, placed.offset) == (strides_of(SHAPE, layout)[0], aligned)
    assert plan("x", SHAPE, layout, dtype, "input", kernel=KERNEL).offset == offset


def test_preconditions_choose_the_secrets_of_caches_and_tables() -> None:
    """NaN and −1 where nothing is promised; finite numbers and valid pages where it is. B's page is always foreign."""
    assert cache_fills(KERNEL) == Fills("nan", "ordinary", 0)
    assert cache_fills(_asking("finite_unused_slots")) == Fills("ordinary2", "ordinary", 0)
    assert table_fills(KERNEL, foreign=9, other=4) == Fills(-1, 9, 0)
    assert table_fills(_asking("valid_table_tails"), foreign=9, other=4) == Fills(4, 9, 0)
    assert table_fills(_asking("valid_table_tails"), foreign=9) == Fills(0, 9, 0)


def test_a_page_id_outside_the_pool_is_the_first_of_both_forms_of_the_index() -> None:
    """A kernel that reads either form meets it, even where one page is all there is."""
    problem = DecodeProblem(kv_lens=(0, 1), q_lens=(1, 1), invalid="page_id_outside_pool")
    kernel = replace(KERNEL, validates=("tables",))
    plans = {one.name: one for one in CONTRACT.place(problem, kernel, torch.device("cpu")).tensors}
    pages = plans["kv_buffer"].shape[0]
    indices, table = plans["kv_indices"].values, plans["block_table"].values
    assert indices is not None
    assert table is not None
    assert int(indices[0]) == pages
    assert int(table[1, 0]) == pages


def test_a_fault_that_nobody_knows_is_refused_with_those_that_there_are() -> None:
    """A case file may have been edited by hand."""
    with pytest.raises(
        ValueError, match=r"^'no_such' is no fault of a decode problem; there are kv_width_differs, o_has"
    ):
        make_invalid(DecodeProblem(invalid="no_such"), ())


def test_real_rows_are_those_that_see_a_key() -> None:
    """Neither padding, nor rows of a request without keys, nor rows before the first key."""
    assert CONTRACT.real_rows is not None
    rows = CONTRACT.real_rows(DecodeProblem(kv_lens=(3, 0, 1), q_lens=(2, 1, 2), padding_rows=2))
    assert rows.tolist() == [True, True, False, False, True, False, False]


def test_no_judgements_add_up_to_nothing_wrong() -> None:
    """A problem without outputs to judge is right, and nothing of it was left unjudged."""
    nothing = merged(())
    assert (nothing.disagreements, nothing.not_judged, nothing.worst) == ((), 0, 0.0)


def test_an_output_shifted_over_its_input_begins_behind_it_and_within() -> None:
    """Where the output itself would have begun does not count."""
    for offset in (0, 7):
        problem = UpProjectionProblem(
            num_tokens=2, kv_lora_rank=64, v_head_dim=64, out_layout=Layout(offset=offset), invalid="out_shifted_over_x"
        )
        plans = {one.name: one for one in UP_PROJECTION.place(problem, UP_KERNEL, torch.device("cpu")).tensors}
        assert (plans["out"].over, plans["out"].form) == ("x", "view")
        assert 0 < plans["out"].offset < 2 * 64
        assert plans["out"].offset != offset


def test_a_kernel_of_quantised_weights_is_told_that_a_plain_problem_has_none() -> None:
    """Only a kernel that declares formats hears of them."""
    taking = replace(UP_KERNEL, limits=UpProjectionLimits(weight_formats=("plain", "fp8")))
    cpu = torch.device("cpu")
    told = UP_PROJECTION.place(UpProjectionProblem(), taking, cpu).arguments
    assert told == {"weight_format": "plain", "w_q": None, "w_scale": None}
    assert UP_PROJECTION.place(UpProjectionProblem(), UP_KERNEL, cpu).arguments == {}


def test_a_difference_from_the_baseline_has_no_ratio() -> None:
    """The worst ratio is the oracle's business; adding judgements up must not trip over the other kind."""
    value = torch.ones(2, dtype=torch.float64)
    reference = Reference(
        name="out",
        value=value,
        dtype=torch.float32,
        exact=value.float(),
        relative=0.0,
        absolute=0.0,
        bound=lambda index: (torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.bool)),
    )
    found = differ(reference, reference, torch.tensor([1.0, 2.0]), torch.ones(2))
    assert len(found.disagreements) == 1
    assert found.worst == 0.0
    assert merged((found, found)).worst == 0.0


def test_what_a_kernel_may_write_is_an_output_and_all_else_an_input() -> None:
    """A tensor under the wrong role could be overwritten unseen."""
    cpu = torch.device("cpu")
    decode = CONTRACT.place(DecodeProblem(with_lse=True), KERNEL, cpu).tensors
    assert {one.name for one in decode if one.role == "output"} == {"o", "lse"}
    projection = UP_PROJECTION.place(UpProjectionProblem(), UP_KERNEL, cpu).tensors
    assert {one.name for one in projection if one.role == "output"} == {"out"}
    assert {one.role for one in (*decode, *projection)} == {"input", "output"}


@pytest.mark.parametrize("latent", [1, 5, 8])
def test_extreme_problems_are_wild_in_half_of_the_latent_columns_where_q_is_zero(latent: int) -> None:
    """The other columns, the rotary ones among them, decide the weights as ever."""
    problem = DecodeProblem(
        kv_lens=(40,), num_heads=4, kv_lora_rank=latent, qk_rope_head_dim=3, regime="extreme", seed=5
    )
    plans = {one.name: one for one in CONTRACT.place(problem, KERNEL, torch.device("cpu")).tensors}
    q, kv = plans["q"].values, plans["kv_buffer"].values
    assert q is not None
    assert kv is not None
    silent = (q == 0).flatten(0, -2).all(0)
    assert int(silent[:latent].sum()) == -(-latent // 2)
    assert not silent[latent:].any()
    exponents = torch.frexp(kv.flatten(0, -2).double()).exponent.double().std(0)
    assert (exponents[silent] > 10).all()
    assert (exponents[~silent] < 5).all()
