"""What proofs about Triton kernels of vLLM 0.32.0 and of AITER at commit e4048607 are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mla_verify.proofs.declaring import Each, Layout, Proof

__all__ = ["AITER", "VLLM"]

_FOREIGN: Final = "mla_verify.kernels.foreign_jitted"
_LENGTHS: Final = (Each("b", "batch", "B_Seqlen[b] >= 0"),)

# One slot more than values: the last one holds the split's log-sum-exp.
_PARTIALS: Final = ("batch", "heads", "NUM_KV_SPLITS", "Lv + 1")
_PARTIALS_STRIDES: Final = ("stride_mid_ob", "stride_mid_oh", "stride_mid_os", "1")
_STAGE1: Final = Proof(
    name="vLLM _fwd_grouped_kernel_stage1",
    kernel=f"{_FOREIGN}:vllm_stage1",
    pointers={
        "Q": "bf16",
        "K_Buffer": "bf16",
        "V_Buffer": "bf16",
        "Req_to_tokens": "i32",
        "B_Seqlen": "i32",
        "Att_Out": "fp32",
        "k_scale": "fp32",
        "v_scale": "fp32",
    },
    scalars={"sm_scale": "fp32"},
    configurations=(
        {
            "kv_group_num": 16,
            "q_head_num": 16,
            "BLOCK_DMODEL": 512,
            "BLOCK_DPE": 64,
            "BLOCK_DV": 512,
            "BLOCK_N": 32,
            "BLOCK_H": 16,
            "NUM_KV_SPLITS": 4,
            "PAGE_SIZE": 16,
            "logit_cap": 0,
            "Lk": 576,
            "Lv": 512,
            "IS_MLA": True,
        },
    ),
    grid=("batch", "cdiv(q_head_num, min(BLOCK_H, kv_group_num))", "NUM_KV_SPLITS"),
    layouts=(
        Layout(
            "Att_Out", ("batch", "q_head_num", "NUM_KV_SPLITS", "Lv + 1"), _PARTIALS_STRIDES, output=True, covered=False
        ),
        Layout("Q", ("batch", "q_head_num", "Lk"), ("stride_qbs", "stride_qh", "1")),
        Layout("B_Seqlen", ("batch",), ("1",)),
    ),
    each=_LENGTHS,
)
_STAGE2: Final = Proof(
    name="vLLM _fwd_kernel_stage2",
    kernel=f"{_FOREIGN}:vllm_stage2",
    pointers={"Mid_O": "fp32", "o": "bf16", "lse": "fp32", "B_Seqlen": "i32"},
    configurations=({"NUM_KV_SPLITS": 4, "BLOCK_DV": 512, "Lv": 512, "OUTPUT_FP16": 0},),
    grid=("batch", "heads"),
    layouts=(
        Layout("o", ("batch", "heads", "Lv"), ("stride_obs", "stride_oh", "1"), output=True),
        Layout("lse", ("batch", "heads"), ("stride_lse_bs", "1"), output=True),
        Layout("Mid_O", _PARTIALS, _PARTIALS_STRIDES),
        Layout("B_Seqlen", ("batch",), ("1",)),
    ),
    each=_LENGTHS,
)
VLLM: Final = (
    _STAGE1,
    _STAGE2,
)

_REDUCE: Final = Proof(
    name="AITER a16wfp4 split-K reduce",
    kernel=f"{_FOREIGN}:aiter_a16wfp4_reduce",
    pointers={"c_in_ptr": "fp32", "c_out_ptr": "bf16"},
    configurations=({"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "ACTUAL_KSPLIT": 4, "MAX_KSPLIT": 4},),
    grid=("B", "cdiv(M, BLOCK_SIZE_M)", "cdiv(N, BLOCK_SIZE_N)"),
    layouts=(
        Layout("c_out_ptr", ("B", "M", "N"), ("stride_c_out_b", "stride_c_out_m", "stride_c_out_n"), output=True),
        Layout(
            "c_in_ptr",
            ("B", "ACTUAL_KSPLIT", "M", "N"),
            ("stride_c_in_b", "stride_c_in_k", "stride_c_in_m", "stride_c_in_n"),
        ),
    ),
)
_AS_CALLED: Final = replace(
    _REDUCE,
    name="AITER a16wfp4 split-K reduce, strides as its caller passes them",
    layouts=(
        # The strides of batch and rows arrive under each other's name.
        Layout("c_out_ptr", ("B", "M", "N"), ("stride_c_out_m", "stride_c_out_b", "stride_c_out_n"), output=True),
        _REDUCE.layouts[1],
    ),
)
_BMM: Final = Proof(
    name="AITER _batched_gemm_bf16_kernel",
    kernel=f"{_FOREIGN}:aiter_bmm_bf16",
    pointers={"a_ptr": "bf16", "b_ptr": "bf16", "c_ptr": "bf16", "bias_ptr": "bf16"},
    configurations=tuple(
        {
            "HAS_BIAS": False,
            "BLOCK_SIZE_M": 64,
            "BLOCK_SIZE_N": 64,
            "BLOCK_SIZE_K": 32,
            "GROUP_SIZE_M": group,
            "NUM_KSPLIT": 1,
            "SPLITK_BLOCK_SIZE": 512,
            "EVEN_K": False,
            "cache_modifier": "",
            "num_warps": 4,
            "num_stages": 2,
            "waves_per_eu": 1,
        }
        for group in (1, 4)
    ),
    grid=("B", "cdiv(M, BLOCK_SIZE_M) * cdiv(N, BLOCK_SIZE_N)"),
    layouts=(
        Layout("c_ptr", ("B", "M", "N"), ("stride_cb", "stride_cm", "stride_cn"), output=True),
        Layout("a_ptr", ("B", "M", "K"), ("stride_ab", "stride_am", "stride_ak")),
        Layout("b_ptr", ("B", "K", "N"), ("stride_bb", "stride_bk", "stride_bn")),
    ),
    preconditions=(
        "K >= 1",
        "K <= SPLITK_BLOCK_SIZE",
        *(f"stride_{name} > 0" for name in ("ab", "am", "ak", "bb", "bk", "bn", "cb", "cm", "cn", "biasb")),
    ),
)
_MLA_REDUCE: Final = Proof(
    name="AITER _mla_decode_fwd_reduce_kernel",
    kernel=f"{_FOREIGN}:aiter_mla_reduce",
    pointers={
        "output_ptr": "bf16",
        "segm_output_ptr": "fp32",
        "segm_max_ptr": "fp32",
        "segm_expsum_ptr": "fp32",
        "seq_lens_ptr": "i32",
        "query_start_len_ptr": "i32",
    },
    scalars={"output_stride_0": "i64", "output_stride_1": "i64", "block_tables_stride": "i64"},
    configurations=(
        {
            "out_scale_ptr": None,
            "num_query_heads": 16,
            "TILE_SIZE": 64,
            "KV_LORA_RANK": 512,
            "BLOCK_Q": 16,
            "NUM_SEGMENTS_PER_SEQ": 8,
            "ALL_DECODE": True,
            "FP8_MIN": -448,
            "FP8_MAX": 448,
        },
    ),
    grid=("num_rows", "num_query_heads"),
    layouts=(
        Layout(
            "output_ptr",
            ("num_rows", "num_query_heads", "KV_LORA_RANK"),
            ("output_stride_0", "output_stride_1", "1"),
            output=True,
        ),
        Layout("seq_lens_ptr", ("num_rows",), ("1",)),
    ),
    each=(Each("b", "num_rows", "seq_lens_ptr[b] >= 0"),),
)
# Without keys there are no tiles, by whose number it divides.
_MLA_REDUCE_KEYS: Final = replace(
    _MLA_REDUCE,
    name="AITER _mla_decode_fwd_reduce_kernel, no request without keys",
    each=(Each("b", "num_rows", "seq_lens_ptr[b] >= 1"),),
)
AITER: Final = (_REDUCE, _AS_CALLED, _BMM, _MLA_REDUCE, _MLA_REDUCE_KEYS)
