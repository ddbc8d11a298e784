"""The up-projection's zero-filled copy baseline: a plain product, copied into an output of zeros."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from mla_verify.kernel import Kernel
from strategies.problems import UpProjectionProblem

__all__ = ["baseline", "full_precision"]


def baseline(problem: UpProjectionProblem, kernel: Kernel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the up-projection writes when nothing is optimised away, in the inputs' dtype.

    On a CPU 16-bit numbers are multiplied in float32. The AMX product of torch 2.13 fills a row of x up to a
    tile of 32 with what follows it in memory, times zero: an infinity there turns the row before it into NaN.
    """
    x, w_uv = tensors["x"], tensors["w_uv"]
    out = torch.zeros(problem.num_tokens, problem.num_heads, problem.v_head_dim, dtype=x.dtype, device=x.device)
    with full_precision(x.device):
        if x.device.type == "cpu" and x.dtype != torch.float32:
            x, w_uv = x.to(torch.float32), w_uv.to(torch.float32)
        product = torch.bmm(x.transpose(0, 1), w_uv)  # [num_heads, num_tokens, v_head_dim]
    out.copy_(product.transpose(0, 1))
    return {"out": out}


@contextmanager
def full_precision(device: torch.device) -> Generator[None, None, None]:
    """Multiply and accumulate in float32 on an accelerator, whatever the process has allowed.

    torch lets a GPU add partial sums in the output's 16 bits unless told otherwise: a baseline that does so
    is exact nowhere.
    """
    if device.type != "cuda":
        yield
        return
    flags = torch.backends.cuda.matmul
    names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = {name: getattr(flags, name) for name in names}
    try:
        for name in names:
            setattr(flags, name, False)
        yield
    finally:
        for name, value in before.items():
            setattr(flags, name, value)
