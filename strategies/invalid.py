"""The ways in which a problem can be invalid, each under what a kernel must validate to refuse it."""

from __future__ import annotations

from typing import Final

__all__ = ["DECODE_INVALID", "UP_PROJECTION_INVALID"]

UP_PROJECTION_INVALID: Final[dict[str, str]] = {
    "out_has_fewer_rows": "shapes",  # than x, by one
    "out_has_more_rows": "shapes",
    "inner_sizes_differ": "shapes",  # w_uv's kv_lora_rank is one larger than x's
    "w_dtype_differs": "dtypes",
    "out_dtype_differs": "dtypes",
    "out_is_x": "overlap",  # same first element, same strides; needs kv_lora_rank == v_head_dim
    "out_shifted_over_x": "overlap",
    "out_stride_0": "overlap",  # every row of out is the same memory; needs two rows
    "out_rows_overlap": "overlap",  # a row of out begins before its predecessor ends
}

DECODE_INVALID: Final[dict[str, str]] = {
    "kv_width_differs": "shapes",  # the cache's last dimension is one larger than q's
    "o_has_fewer_rows": "shapes",
    "o_heads_differ": "shapes",
    "kv_dtype_differs": "dtypes",
    "o_dtype_differs": "dtypes",
    "o_over_q": "overlap",
    "o_over_cache": "overlap",
    "kv_indptr_falls": "tables",
    "page_id_outside_pool": "tables",
    "length_beyond_table": "tables",
}
