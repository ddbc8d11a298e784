"""Decode whose padding reaches the rows of others, once the caller quantises the whole output with one scale."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.faults.attention import attend, requests
from mla_verify.faults.fault import TARGETS, Fault
from mla_verify.kernel import Kernel

__all__ = ["FAULTS", "RIGHT"]

_LARGE: Final = 4096.0


def _decode(o: Tensor, lse: Tensor | None, sm_scale: float, *, of_padding: float | None, **inputs: Any) -> None:
    """Right in the rows of every request; rows behind them are filled with a number, or left alone."""
    if of_padding is not None:
        live = int(inputs["qo_indptr"][-1])
        o[live:] = of_padding
        if lse is not None:
            lse[live:] = -torch.inf
    for request in requests(**inputs):
        value, logsum = attend(request.query, request.keys, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2])
        o[request.rows].copy_(value)
        if lse is not None:
            lse[request.rows].copy_(logsum)


def padding_left_as_it_was(o: Tensor, lse: Tensor | None, **rest: Any) -> None:
    """Skips rows of padding, which its caller takes from `torch.empty` and quantises with the others."""
    _decode(o, lse, of_padding=None, **rest)


def padding_filled_with_a_number(o: Tensor, lse: Tensor | None, **rest: Any) -> None:
    """Writes rows of padding, but something larger than any result."""
    _decode(o, lse, of_padding=_LARGE, **rest)


def empty_requests_are_nan(o: Tensor, lse: Tensor | None, **rest: Any) -> None:
    """Declares that rows without keys mean nothing, and leaves 0/0 in them for its caller to quantise."""
    _decode(o, lse, of_padding=0.0, **rest)
    for request in requests(**{name: value for name, value in rest.items() if name != "sm_scale"}):
        o[request.rows][request.visible <= 0] = torch.nan


def padding_zeroed(o: Tensor, lse: Tensor | None, **rest: Any) -> None:
    """Right: rows of padding and rows without keys are zero, which moves no largest magnitude."""
    _decode(o, lse, of_padding=0.0, **rest)


def _fault(call: Any, what: str, reports: str = "", **declares: Any) -> Fault:
    declares["consumers"] = ("per_tensor_fp8",)
    return Fault(f"decode_{call.__name__}", "decode", call, ("independence",), what, tuple(reports.split()), declares)


FAULTS: Final[tuple[Fault, ...]] = (
    _fault(padding_left_as_it_was, "rows of padding are not written, though their caller quantises them", "B004"),
    _fault(
        padding_filled_with_a_number,
        "rows of padding are filled with large numbers, though their caller quantises them",
        padding_rows="written",
    ),
    _fault(
        empty_requests_are_nan,
        "rows without keys hold NaN, though their caller quantises them",
        "B004",
        empty_rows="unspecified",
        padding_rows="zero",
    ),
)

RIGHT: Final[tuple[Kernel, ...]] = (
    Kernel(
        name="decode_padding_zeroed",
        contract="decode",
        load=lambda: padding_zeroed,
        padding_rows="zero",
        consumers=("per_tensor_fp8",),
        target=f"{TARGETS}:decode_padding_zeroed",
    ),
)
