"""What an up-projection with a quantised weight refuses, in torch and in Triton alike."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from mla_verify.kernels.triton_launch import overlap, overlaps_itself

__all__ = ["FP8_CODES", "refuse_fp8", "refuse_mxfp4"]

FP8_CODES: Final = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)


def refuse_fp8(x: Tensor, out: Tensor, w_q: Tensor, *, codes: tuple[torch.dtype, ...] = FP8_CODES) -> None:
    """Raise ValueError for shapes, dtypes or overlapping memory that cannot be meant."""
    _refuse(x, out, w_q, rank=w_q.shape[-1], codes=codes)


def refuse_mxfp4(x: Tensor, out: Tensor, w_q: Tensor) -> None:
    """The same, with two codes to a byte of `w_q`."""
    _refuse(x, out, w_q, rank=2 * w_q.shape[-1], codes=(torch.uint8,))


def _refuse(x: Tensor, out: Tensor, w_q: Tensor, *, rank: int, codes: tuple[torch.dtype, ...]) -> None:
    tokens, heads, latent = x.shape
    if w_q.dtype not in codes:
        raise ValueError(f"w_q is {w_q.dtype}, wanted one of {', '.join(map(str, codes))}")
    if w_q.shape[0] != heads or rank != latent:
        raise ValueError(f"w_q has shape {tuple(w_q.shape)}, which does not fit x of shape {tuple(x.shape)}")
    if tuple(out.shape) != (tokens, heads, w_q.shape[1]):
        raise ValueError(f"out has shape {tuple(out.shape)}, wanted {(tokens, heads, w_q.shape[1])}")
    if out.dtype != x.dtype:
        raise ValueError(f"out is {out.dtype}, wanted {x.dtype} as x")
    if overlap(out, x) or overlaps_itself(out):
        raise ValueError("out overlaps x or itself: it would be overwritten while it is still read or written")
