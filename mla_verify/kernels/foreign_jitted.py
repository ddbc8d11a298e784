"""Jitted functions of vLLM and AITER, to be lowered and never run: each by name, loaded when it is asked for."""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace
from typing import Any, Final

from mla_verify.kernels.foreign import find_source, load_source, stand_in

__all__ = ["FUNCTIONS"]

_BATCHED: Final = "aiter.ops.triton._triton_kernels.gemm.batched"
FUNCTIONS: Final = {
    "vllm_stage1": ("vllm", "_fwd_grouped_kernel_stage1"),
    "vllm_stage2": ("vllm", "_fwd_kernel_stage2"),
    "aiter_mla_reduce": ("aiter.ops.triton._triton_kernels.attention.mla", "_mla_decode_fwd_reduce_kernel"),
    "aiter_bmm_bf16": (f"{_BATCHED}.batched_gemm_bf16", "_batched_gemm_bf16_kernel"),
    "aiter_a16wfp4_reduce": (f"{_BATCHED}.batched_gemm_a16wfp4", "_batched_gemm_a16wfp4_reduce_kernel"),
}
"""Where each is."""


def __getattr__(name: str) -> Any:  # pyright: ignore[reportUnusedFunction]  what `module:name` looks up
    if name not in FUNCTIONS:
        raise AttributeError(name)
    where, function = FUNCTIONS[name]
    return getattr(_vllm() if where == "vllm" else _aiter(where), function)


def _vllm() -> Any:
    path = find_source("vllm", "v1/attention/ops/triton_decode_attention.py")
    triton = importlib.import_module("triton")
    return load_source(
        "vllm.v1.attention.ops.triton_decode_attention",
        path,
        {
            "vllm": stand_in("vllm"),
            "vllm.platforms": stand_in("vllm.platforms", current_platform=SimpleNamespace(is_rocm=lambda: False)),
            "vllm.triton_utils": stand_in("vllm.triton_utils", triton=triton, tl=triton.language),
        },
    )


def _aiter(where: str) -> Any:
    find_source("aiter", "mla.py")
    os.environ["AITER_TRITON_ONLY"] = "1"
    os.environ.setdefault("AITER_LOG_LEVEL", "ERROR")
    triton = importlib.import_module("triton")
    target = SimpleNamespace(backend="hip", arch="gfx950", warp_size=64)
    triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: target))
    return importlib.import_module(where)
