"""The up-projection's zero-filled copy baseline: a plain product, copied into an output of zeros.

With a quantised weight, x is quantised as the contract prescribes, in float32 and step by step.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from mla_verify.formats import E8M0, FORMATS, decode, encode, exponent_codes, unpack_pairs
from mla_verify.kernel import Kernel
from strategies.problems import UpProjectionProblem
from strategies.vocabulary import QUANTISED_GROUPS

__all__ = ["baseline", "full_precision"]


def baseline(problem: UpProjectionProblem, kernel: Kernel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the up-projection writes when nothing is optimised away, in the inputs' dtype.

    On a CPU 16-bit numbers are multiplied in float32. The AMX product of torch 2.13 fills a row of x up to a
    tile of 32 with what follows it in memory, times zero: an infinity there turns the row before it into NaN.
    """
    x = tensors["x"]
    out = torch.zeros(problem.num_tokens, problem.num_heads, problem.v_head_dim, dtype=x.dtype, device=x.device)
    with full_precision(x.device):
        if problem.weight_format == "fp8":
            x, w_uv = _fp8_factors(tensors, problem.fp8_format)
        elif problem.weight_format == "mxfp4":
            x, w_uv = _mxfp4_factors(tensors)
        else:
            w_uv = tensors["w_uv"]
        if x.device.type == "cpu" and x.dtype != torch.float32:
            x, w_uv = x.to(torch.float32), w_uv.to(torch.float32)
        product = torch.bmm(x.transpose(0, 1), w_uv)  # [num_heads, num_tokens, v_head_dim]
        if problem.weight_format == "fp8":
            product = product * tensors["w_scale"]
    out.copy_(product.transpose(0, 1))
    return {"out": out}


def _fp8_factors(tensors: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    """x rounded to codes and back, and the codes of the weight as numbers, without its scale: float32."""
    groups, latent = _grouped(tensors["x"], QUANTISED_GROUPS["fp8"])
    largest = FORMATS[name].largest
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / largest
    rounded = decode(encode(groups / scale, name, saturate=True), name, dtype=torch.float32) * scale
    weight = decode(tensors["w_q"], name, dtype=torch.float32)
    return rounded.flatten(-2)[..., :latent], weight.transpose(1, 2)


def _mxfp4_factors(tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """x rounded to codes and back, and the weight dequantised: float32, and exact."""
    block = QUANTISED_GROUPS["mxfp4"]
    groups, latent = _grouped(tensors["x"], block)
    bits = groups.abs().amax(-1, keepdim=True).view(torch.int32)
    # A quarter of a power of two carries 1.75 of it and more into the next.
    exponent = ((bits + 0x200000) >> 23) - 127 - 2
    scale = decode(exponent_codes(exponent), E8M0, dtype=torch.float32)
    codes = encode(groups.to(torch.float64) / scale.to(torch.float64), "e2m1", saturate=True)
    rounded = decode(codes, "e2m1", dtype=torch.float32) * scale
    scales = decode(tensors["w_scale"], E8M0, dtype=torch.float32).repeat_interleave(block, dim=-1)
    weight = decode(unpack_pairs(tensors["w_q"]), "e2m1", dtype=torch.float32) * scales[..., :latent]
    return rounded.flatten(-2)[..., :latent], weight.transpose(1, 2)


def _grouped(x: Tensor, size: int) -> tuple[Tensor, int]:
    """x in float32, cut into groups [..., groups, size] with zeros behind its end; and where that end is."""
    latent = x.shape[2]
    size = min(size, max(latent, 1))
    padded = torch.nn.functional.pad(x.to(torch.float32), (0, -latent % size))
    return padded.unflatten(2, (padded.shape[2] // size, size)), latent


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
