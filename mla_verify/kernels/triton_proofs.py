"""What proofs about our own Triton kernels are told: grids, layouts and what the caller keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from mla_verify.proofs.declaring import Each, Flow, Layout, Proof, Ragged

__all__ = [
    "ATTEND",
    "DECLARED",
    "FP8_PARTIALS",
    "FP8_SUMS",
    "MERGE",
    "MERGE_WITHOUT_LSE",
    "MXFP4_PARTIALS",
    "MXFP4_SUMS",
    "SPLITS",
    "SUM_PARTIALS",
    "SUM_PARTIALS_UNSCALED",
    "UP_PROJECTION",
]

_JITTED: Final = "mla_verify.kernels.jitted"

UP_PROJECTION: Final = Proof(
    name="triton_up_projection",
    kernel=f"{_JITTED}.up_projection:up_projection_kernel",
    pointers={"x_ptr": "bf16", "w_ptr": "bf16", "out_ptr": "bf16"},
    configurations=tuple(
        {"BLOCK_TOKENS": tokens, "BLOCK_RANK": rank, "BLOCK_VALUE": value}
        for tokens, rank, value in ((16, 16, 16), (16, 64, 64), (64, 64, 64), (32, 64, 128))
    ),
    grid=("programs",),
    layouts=(
        Layout(
            "out_ptr",
            ("num_tokens", "num_heads", "v_head_dim"),
            ("out_token_stride", "out_head_stride", "out_value_stride"),
            output=True,
        ),
        Layout(
            "x_ptr", ("num_tokens", "num_heads", "kv_lora_rank"), ("x_token_stride", "x_head_stride", "x_rank_stride")
        ),
        Layout(
            "w_ptr", ("num_heads", "kv_lora_rank", "v_head_dim"), ("w_head_stride", "w_rank_stride", "w_value_stride")
        ),
    ),
    preconditions=("programs >= 1",),
    most={"num_tokens": 1 << 20, "num_heads": 256, "kv_lora_rank": 4096, "v_head_dim": 1024, "programs": 1 << 30},
)

# What the two stages of the decode are promised of their tables.
_ROWS: Final = Ragged("qo_indptr_ptr", count="batch", total="num_rows")
_PAGES: Final = Ragged("kv_indptr_ptr", count="batch", total="num_indices")
_LAST_PAGE: Final = Each(
    "b",
    "batch",
    "implies(kv_indptr_ptr[b + 1] > kv_indptr_ptr[b], "
    "kv_last_page_lens_ptr[b] >= 1 and kv_last_page_lens_ptr[b] <= page_size)",
)
_LANES: Final = Each("b", "batch", "(qo_indptr_ptr[b + 1] - qo_indptr_ptr[b]) * num_heads <= lane_tiles * BLOCK_LANES")
_SIZES: Final = ("page_size >= 1", "num_kv_splits >= 1", "num_heads >= 1", "kv_lora_rank <= BLOCK_LATENT")
_PARTS: Final = ("num_rows", "num_kv_splits", "num_heads", "kv_lora_rank")
_PARTS_STRIDES: Final = ("num_kv_splits*num_heads*kv_lora_rank", "num_heads*kv_lora_rank", "kv_lora_rank", "1")
_PART_LSE_STRIDES: Final = ("num_kv_splits*num_heads", "num_heads", "1")
_TABLES: Final = {"qo_indptr_ptr": "i32", "kv_indptr_ptr": "i32", "kv_last_page_lens_ptr": "i32"}
_TABLE_LAYOUTS: Final = (
    Layout("qo_indptr_ptr", ("batch + 1",), ("1",)),
    Layout("kv_indptr_ptr", ("batch + 1",), ("1",)),
    Layout("kv_last_page_lens_ptr", ("batch",), ("1",)),
)
_MOST: Final = {
    "batch": 4096,
    "num_heads": 256,
    "kv_lora_rank": 4096,
    "num_kv_splits": 64,
    "page_size": 1024,
    "lane_tiles": 64,
    "qo_indptr_ptr": 1 << 20,
    "kv_indptr_ptr": 1 << 18,
    "kv_indices_ptr": (1 << 31) - 1,
    "kv_last_page_lens_ptr": 1024,
    "programs": 1 << 30,
    "merge_programs": 1 << 30,
}

ATTEND: Final = Proof(
    name="triton_decode.attend",
    kernel=f"{_JITTED}.decode:attend_kernel",
    pointers={
        "q_ptr": "bf16",
        "kv_ptr": "bf16",
        "parts_ptr": "fp32",
        "part_lse_ptr": "fp32",
        "kv_indices_ptr": "i32",
        "q_scale_ptr": "fp32",
        "kv_scale_ptr": "fp32",
        **_TABLES,
    },
    scalars={"sm_scale": "fp32"},
    configurations=tuple(
        {
            "Q_SCALED": scaled,
            "KV_SCALED": scaled,
            "COMPUTE": "tl.bfloat16",
            "BLOCK_LANES": lanes,
            "BLOCK_KEYS": keys,
            "BLOCK_LATENT": latent,
            "BLOCK_ROPE": rope,
        }
        for lanes, keys, latent, rope, scaled in (
            (16, 16, 16, 0, False),
            (16, 32, 64, 16, False),
            (16, 16, 512, 64, False),
            (64, 64, 128, 64, True),
        )
    ),
    grid=("programs",),
    layouts=(
        # Splits without keys are not written, and not read: see the flow below.
        Layout("parts_ptr", _PARTS, _PARTS_STRIDES, output=True, covered=False),
        Layout("part_lse_ptr", _PARTS[:3], _PART_LSE_STRIDES, output=True, covered=False),
        Layout(
            "q_ptr",
            ("num_rows", "num_heads", "kv_lora_rank + qk_rope_head_dim"),
            ("q_row_stride", "q_head_stride", "q_column_stride"),
        ),
        Layout(
            "kv_ptr",
            ("num_pages", "page_size", "kv_lora_rank + qk_rope_head_dim"),
            ("kv_page_stride", "kv_slot_stride", "kv_column_stride"),
        ),
        *_TABLE_LAYOUTS,
        Layout("kv_indices_ptr", ("num_indices",), ("1",)),
    ),
    preconditions=("programs >= 1", *_SIZES, "qk_rope_head_dim <= BLOCK_ROPE", "qk_rope_head_dim >= 0"),
    each=(
        _LAST_PAGE,
        _LANES,
        Each("i", "kv_indptr_ptr[batch]", "kv_indices_ptr[i] >= 0 and kv_indices_ptr[i] < num_pages"),
    ),
    ragged=(_ROWS, _PAGES),
    most=_MOST,
)

MERGE: Final = Proof(
    name="triton_decode.merge",
    kernel=f"{_JITTED}.decode:merge_kernel",
    pointers={"parts_ptr": "fp32", "part_lse_ptr": "fp32", "o_ptr": "bf16", "lse_ptr": "fp32", **_TABLES},
    configurations=tuple(
        {"HAS_LSE": True, "BLOCK_LANES": lanes, "BLOCK_LATENT": latent}
        for lanes, latent in ((16, 16), (16, 64), (16, 512), (64, 128))
    ),
    grid=("merge_programs",),
    layouts=(
        Layout(
            "o_ptr",
            ("num_rows", "num_heads", "kv_lora_rank"),
            ("o_row_stride", "o_head_stride", "o_column_stride"),
            output=True,
            index=("row", "head", "column"),
            live="row < qo_indptr_ptr[batch]",
        ),
        Layout(
            "lse_ptr",
            ("num_rows", "num_heads"),
            ("lse_row_stride", "lse_head_stride"),
            output=True,
            index=("row", "head"),
            live="row < qo_indptr_ptr[batch]",
        ),
        Layout("parts_ptr", _PARTS, _PARTS_STRIDES),
        Layout("part_lse_ptr", _PARTS[:3], _PART_LSE_STRIDES),
        *_TABLE_LAYOUTS,
    ),
    preconditions=("merge_programs >= 1", *_SIZES),
    each=(_LAST_PAGE, _LANES),
    ragged=(_ROWS, _PAGES),
    most=_MOST,
)

# Without an lse its pointer is that of `o`, and nothing may be stored through it.
MERGE_WITHOUT_LSE: Final = replace(
    MERGE,
    name="triton_decode.merge (no lse)",
    configurations=tuple({**part, "HAS_LSE": False} for part in MERGE.configurations),
    layouts=tuple(layout for layout in MERGE.layouts if layout.tensor != "lse_ptr"),
)
SPLITS: Final = Flow("triton_decode.attend → merge", ATTEND, MERGE, ("parts_ptr", "part_lse_ptr"))

# The two kernels of an up-projection with a quantised weight.
_BLOCKS: Final = ((16, 16), (16, 64), (32, 32), (32, 64))
_ITEMS: Final = {"num_tokens": 1 << 16, "num_heads": 256, "v_head_dim": 1024, "num_splits": 4}  # one index counts tiles
_PRODUCT: Final = {**_ITEMS, "kv_lora_rank": 1 << 14, "rank_per_split": 1 << 14, "programs": 1 << 30}
_PARTIALS: Final = Layout(
    "partials_ptr",
    ("num_splits", "num_heads", "num_tokens", "v_head_dim"),
    ("num_heads*num_tokens*v_head_dim", "num_tokens*v_head_dim", "v_head_dim", "1"),
    output=True,
)
_X: Final = Layout(
    "x_ptr", ("num_tokens", "num_heads", "kv_lora_rank"), ("x_token_stride", "x_head_stride", "x_rank_stride")
)

FP8_PARTIALS: Final = Proof(
    name="triton_up_projection_fp8.partials",
    kernel=f"{_JITTED}.quantised:fp8_partials_kernel",
    pointers={"x_ptr": "bf16", "w_ptr": "fp8e4nv", "partials_ptr": "fp32"},
    configurations=tuple(
        {"BLOCK_TOKENS": tokens, "BLOCK_VALUE": value, "GROUP": 128, "LARGEST": 448} for tokens, value in _BLOCKS
    ),
    grid=("programs",),
    layouts=(
        _PARTIALS,
        _X,
        Layout(
            "w_ptr", ("num_heads", "v_head_dim", "kv_lora_rank"), ("w_head_stride", "w_value_stride", "w_rank_stride")
        ),
    ),
    preconditions=("programs >= 1",),
    most=_PRODUCT,
)

MXFP4_PARTIALS: Final = Proof(
    name="triton_up_projection_mxfp4.partials",
    kernel=f"{_JITTED}.quantised:mxfp4_partials_kernel",
    pointers={"x_ptr": "bf16", "w_ptr": "u8", "w_scale_ptr": "u8", "partials_ptr": "fp32"},
    configurations=tuple({"BLOCK_TOKENS": tokens, "BLOCK_VALUE": value, "GROUP": 32} for tokens, value in _BLOCKS),
    grid=("programs",),
    layouts=(
        _PARTIALS,
        _X,
        Layout(
            "w_ptr",
            ("num_heads", "v_head_dim", "cdiv(kv_lora_rank, 2)"),
            ("w_head_stride", "w_value_stride", "w_pair_stride"),
        ),
        Layout(
            "w_scale_ptr",
            ("num_heads", "v_head_dim", "cdiv(kv_lora_rank, 32)"),
            ("w_scale_head_stride", "w_scale_value_stride", "w_scale_block_stride"),
        ),
    ),
    preconditions=("programs >= 1",),
    most=_PRODUCT,
)

SUM_PARTIALS: Final = Proof(
    name="triton_up_projection_fp8.sum",
    kernel=f"{_JITTED}.quantised:sum_partials_kernel",
    pointers={"partials_ptr": "fp32", "w_scale_ptr": "fp32", "out_ptr": "bf16"},
    configurations=tuple({"SCALED": True, "BLOCK_TOKENS": tokens, "BLOCK_VALUE": value} for tokens, value in _BLOCKS),
    grid=("sum_programs",),
    layouts=(
        Layout(
            "out_ptr",
            ("num_tokens", "num_heads", "v_head_dim"),
            ("out_token_stride", "out_head_stride", "out_value_stride"),
            output=True,
        ),
        replace(_PARTIALS, output=False),
        Layout("w_scale_ptr", ("1",), ("1",)),
    ),
    preconditions=("sum_programs >= 1",),
    most={**_ITEMS, "sum_programs": 1 << 30},
)

# Scales that belong to blocks are not read by the second kernel.
SUM_PARTIALS_UNSCALED: Final = replace(
    SUM_PARTIALS,
    name="triton_up_projection_mxfp4.sum",
    pointers={**SUM_PARTIALS.pointers, "w_scale_ptr": "u8"},
    configurations=tuple({**part, "SCALED": False} for part in SUM_PARTIALS.configurations),
    layouts=SUM_PARTIALS.layouts[:2],
)
FP8_SUMS: Final = Flow("triton_up_projection_fp8.partials → sum", FP8_PARTIALS, SUM_PARTIALS, ("partials_ptr",))
MXFP4_SUMS: Final = Flow(
    "triton_up_projection_mxfp4.partials → sum", MXFP4_PARTIALS, SUM_PARTIALS_UNSCALED, ("partials_ptr",)
)

DECLARED: Final[Mapping[str, tuple[str, ...]]] = {
    "triton_up_projection": ("UP_PROJECTION",),
    "triton_up_projection_copy": ("UP_PROJECTION",),
    "triton_decode": ("ATTEND", "MERGE", "MERGE_WITHOUT_LSE", "SPLITS"),
    "triton_decode_zeros": ("ATTEND", "MERGE", "MERGE_WITHOUT_LSE", "SPLITS"),
    "triton_up_projection_fp8": ("FP8_PARTIALS", "SUM_PARTIALS", "FP8_SUMS"),
    "triton_up_projection_mxfp4": ("MXFP4_PARTIALS", "SUM_PARTIALS_UNSCALED", "MXFP4_SUMS"),
}
"""Which declarations of this module a registered kernel stands on."""
