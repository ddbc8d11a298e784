"""The adapter of AITER's persistent decode keeps the contract around a double of AITER that runs on a CPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from mla_verify.check import check
from mla_verify.kernels import aiter_persistent
from mla_verify.kernels.torch_decode import decode_split_kv_empty
from mla_verify.registry import resolve
from mla_verify.report import Report
from strategies.limits import DecodeLimits


def get_mla_metadata_info_v1(batch: int, *_: object, **__: object) -> list[tuple[int, torch.dtype]]:
    """AITER's sizes of the metadata: six buffers."""
    return [(batch, torch.int32)] * 6


def get_mla_metadata_v1(qo_indptr: Tensor, *tensors: Any, uni_seqlen_qo: int, **_: object) -> None:
    """AITER's planner. It ignores a flat `qo_indptr`: each request is taken to have the same number of rows."""
    work_meta_data = tensors[5]
    work_meta_data.fill_(uni_seqlen_qo)


def mla_decode_fwd(
    q: Tensor,
    kv_buffer: Tensor,
    o: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    kv_last_page_lens: Tensor,
    max_seqlen_q: int,
    *,
    work_meta_data: Tensor,
    return_lse: bool,
    page_size: int,
    sm_scale: float,
    **metadata: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """AITER's decode as far as a caller sees it: into `o`, with an lse of its own."""
    assert bool((work_meta_data == max_seqlen_q).all())
    assert set(metadata) == {
        "work_indptr",
        "work_info_set",
        "reduce_indptr",
        "reduce_final_map",
        "reduce_partial_map",
    }
    lse = torch.empty(o.shape[:2], dtype=torch.float32)
    decode_split_kv_empty(
        q=q,
        kv_buffer=kv_buffer,
        o=o,
        lse=lse,
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        kv_last_page_lens=kv_last_page_lens,
        page_size=page_size,
        sm_scale=sm_scale,
        num_kv_splits=1,
    )
    return o, lse if return_lse else None


@pytest.fixture
def aiter(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A double of AITER that can be imported, on a machine that seems to have ROCm."""
    package, mla = ModuleType("aiter"), ModuleType("aiter.mla")
    vars(package).update(
        get_mla_metadata_info_v1=get_mla_metadata_info_v1, get_mla_metadata_v1=get_mla_metadata_v1, mla=mla
    )
    vars(mla).update(mla_decode_fwd=mla_decode_fwd)
    monkeypatch.setitem(sys.modules, "aiter", package)
    monkeypatch.setitem(sys.modules, "aiter.mla", mla)
    monkeypatch.setattr(aiter_persistent, "_rocm_here", lambda: None)
    return mla


def _checked(name: str) -> Report:
    kernel = resolve(name)
    assert isinstance(kernel.limits, DecodeLimits)
    limits = replace(kernel.limits, num_heads=(16,), max_kv_len=20, max_batch=2)
    report = check(replace(kernel, devices=("cpu",), in_process=True, limits=limits), examples=12, seed=4)
    assert report.unavailable is None
    return report


@pytest.mark.parametrize("name", ["aiter_mla_decode_persistent", "aiter_mla_decode_persistent_zeros"])
@pytest.mark.usefixtures("aiter")
def test_the_adapter_keeps_the_contract(name: str) -> None:
    """A plan is made once for a problem, and the results end up where the contract wants them."""
    assert [finding.detail for finding in _checked(name).findings] == []


@pytest.mark.usefixtures("aiter")
def test_the_claim_fails_where_padding_is_not_written() -> None:
    """A decode that leaves the rows behind the last request alone does not overwrite every element."""
    assert [finding.clause for finding in _checked("aiter_mla_decode_persistent_claim").findings] == ["coverage"]


def test_a_result_that_is_wrong_is_caught(aiter: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the adapter hands on is judged."""

    def halved(*tensors: Tensor, **more: Any) -> tuple[Tensor, Tensor | None]:
        o, lse = mla_decode_fwd(*tensors, **more)  # type: ignore[arg-type] # passed on as they came
        return o.div_(2), lse

    monkeypatch.setattr(aiter, "mla_decode_fwd", halved)
    assert "agreement" in [finding.clause for finding in _checked("aiter_mla_decode_persistent").findings]
