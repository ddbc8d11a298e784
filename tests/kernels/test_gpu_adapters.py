"""Adapters of libraries that need a GPU keep the contract around doubles of those libraries that run on a CPU."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from mla_verify.check import check
from mla_verify.errors import Unavailable
from mla_verify.kernels import flashinfer_paged, flashmla_dense
from mla_verify.kernels.torch_decode import decode_split_kv_empty
from mla_verify.registry import resolve
from strategies.limits import DecodeLimits

_EXAMPLES: Final = 8


def _decode(q: Tensor, cache: Tensor, qo_indptr: Tensor, pages: list[Tensor], seq_lens: Tensor, **more: Any) -> None:
    """Our own decode, told each request's page ids."""
    page_size = cache.shape[1]
    counts = torch.tensor([0, *(len(part) for part in pages)], dtype=torch.int32)
    decode_split_kv_empty(
        q=q,
        kv_buffer=cache,
        qo_indptr=qo_indptr,
        kv_indptr=counts.cumsum(0).int(),
        kv_indices=torch.cat(pages),
        kv_last_page_lens=((seq_lens - 1) % page_size + 1).int(),
        page_size=page_size,
        num_kv_splits=1,
        **more,
    )


def flash_mla_with_kvcache(
    q: Tensor,  # [batch, q_len, heads, width]
    k_cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    head_dim_v: int,
    tile_scheduler_metadata: object,
    num_splits: object = None,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """FlashMLA's interface: results of its own, lse as [batch, heads, q_len], +inf where no key is seen."""
    assert causal
    assert tile_scheduler_metadata == "schedule"
    assert num_splits is None
    assert softmax_scale is not None
    batch, q_len, heads, width = q.shape
    out = q.new_empty(batch * q_len, heads, head_dim_v)
    lse = torch.empty(batch * q_len, heads, dtype=torch.float32)
    counts = ((cache_seqlens + 63) // 64).tolist()
    _decode(
        q.view(-1, heads, width),
        k_cache,
        torch.arange(batch + 1, dtype=torch.int32) * q_len,
        [row[:count] for row, count in zip(block_table, counts, strict=True)],
        cache_seqlens,
        o=out,
        lse=lse,
        sm_scale=softmax_scale,
    )
    lse[lse == -torch.inf] = torch.inf
    return out.view(batch, q_len, heads, head_dim_v), lse.view(batch, q_len, heads).transpose(1, 2).contiguous()


class BatchMLAPagedAttentionWrapper:
    """FlashInfer's interface: a plan of lengths and pages, then runs into the caller's tensors, lse in base 2."""

    def __init__(self, float_workspace_buffer: Tensor) -> None:
        """Keep the workspace."""
        self.workspace = float_workspace_buffer
        self.planned: dict[str, Any] = {}

    def plan(self, **planned: Any) -> None:
        """Keep what later runs need."""
        self.planned = planned

    def run(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        ckv_cache: Tensor,
        kpe_cache: Tensor,
        out: Tensor,
        lse: Tensor | None = None,
        return_lse: bool = False,
        return_lse_base_on_e: bool = False,
    ) -> None:
        """Decode as planned."""
        plan = self.planned
        assert plan["causal"]
        assert return_lse == (lse is not None)
        starts = plan["kv_indptr"].tolist()
        _decode(
            torch.cat([q_nope, q_pe], 2),
            torch.cat([ckv_cache, kpe_cache], 2).unsqueeze(2),
            plan["qo_indptr"],
            [plan["kv_indices"][start:end] for start, end in pairwise(starts)],
            plan["kv_len_arr"],
            o=out,
            lse=lse,
            sm_scale=plan["sm_scale"],
        )
        if lse is not None and not return_lse_base_on_e:
            lse.div_(math.log(2))


def _anywhere(_: str) -> None:
    """Any machine will do."""


def _schedule(*_: object) -> tuple[str, None]:
    return "schedule", None


def _install(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **members: object) -> None:
    """Put a package of these members on the path for one test, and a GPU that it would accept."""
    for part in (folder / name, folder / name / "mla"):
        part.mkdir()
        (part / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("flashinfer.mla" if name == "flashinfer" else name)
    for key, value in members.items():
        monkeypatch.setattr(module, key, value, raising=False)
    for adapter in (flashinfer_paged, flashmla_dense):
        monkeypatch.setattr(adapter, "cuda_here", _anywhere)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(flashinfer_paged, "_WORKSPACE_BYTES", 64)


@pytest.fixture(autouse=True)
def forget_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """No double stays importable after its test."""
    for name in ("flash_mla", "flash_mla.mla", "flashinfer", "flashinfer.mla"):
        monkeypatch.setitem(sys.modules, name, None)  # so that undoing removes what the test imports
        monkeypatch.delitem(sys.modules, name)


def _findings(name: str, *, examples: int = _EXAMPLES) -> list[str]:
    kernel = resolve(name)
    assert isinstance(kernel.limits, DecodeLimits)
    limits = replace(kernel.limits, num_heads=(16,), max_kv_len=70, max_batch=2)
    report = check(replace(kernel, devices=("cpu",), in_process=True, limits=limits), examples=examples, seed=4)
    assert report.unavailable is None
    return [finding.detail for finding in report.findings]


def test_flashmla_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Returned rows and a transposed lse end up where the contract wants them, padding untouched."""
    _install(
        "flash_mla",
        tmp_path,
        monkeypatch,
        flash_mla_with_kvcache=flash_mla_with_kvcache,
        get_mla_metadata=_schedule,
    )
    assert _findings("flashmla_decode") == []


@pytest.mark.parametrize("name", ["flashinfer_mla_decode", "flashinfer_mla_decode_zeros"])
def test_flashinfer_keeps_the_contract(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is made once for a problem, lse is asked for in natural logarithms."""
    _install("flashinfer", tmp_path, monkeypatch, BatchMLAPagedAttentionWrapper=BatchMLAPagedAttentionWrapper)
    assert _findings(name) == []


def test_an_lse_in_base_2_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A double that ignores the base it is asked for does not pass: lse is compared."""

    run = BatchMLAPagedAttentionWrapper.run

    def stubborn(self: BatchMLAPagedAttentionWrapper, return_lse_base_on_e: bool = False, **tensors: Any) -> None:
        run(self, **tensors)

    monkeypatch.setattr(BatchMLAPagedAttentionWrapper, "run", stubborn)
    _install("flashinfer", tmp_path, monkeypatch, BatchMLAPagedAttentionWrapper=BatchMLAPagedAttentionWrapper)
    assert any("lse" in detail for detail in _findings("flashinfer_mla_decode"))


def test_an_lse_in_another_order_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A double whose lse comes as [batch, q_len, heads] in memory does not pass."""

    def unordered(*tensors: Any, **more: Any) -> tuple[Tensor, Tensor]:
        out, lse = flash_mla_with_kvcache(*tensors, **more)
        return out, lse.transpose(1, 2).reshape(lse.shape)

    _install("flash_mla", tmp_path, monkeypatch, flash_mla_with_kvcache=unordered, get_mla_metadata=_schedule)
    # It shows only where a request has several query rows and an lse is asked for.
    assert any("lse" in detail for detail in _findings("flashmla_decode", examples=60))


def test_flashmla_wants_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another GPU is named by its compute capability."""
    _install("flash_mla", tmp_path, monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    with pytest.raises(Unavailable, match=r"needs CUDA compute capability 9\.0, not 10\.0$"):
        resolve("flashmla_decode").load()


def test_an_old_flashinfer_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose lse comes in base 2 only is refused in words."""

    class Old:
        def run(self, q_nope: Tensor, return_lse: bool = False) -> None: ...

    _install("flashinfer", tmp_path, monkeypatch, BatchMLAPagedAttentionWrapper=Old)
    with pytest.raises(Unavailable, match="the installed flashinfer is too old"):
        resolve("flashinfer_mla_decode").load()
