"""Registrations of our own Triton kernels: both optimised forms beside the zero-filled forms that they replace."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mla_verify.kernel import Arithmetic, Kernel
from mla_verify.kernels import triton_decode, triton_quantised, triton_up_projection
from mla_verify.registry import add
from strategies.limits import DecodeLimits, UpProjectionLimits

__all__ = ["TRITON_KERNELS"]

_CHECKED: Final = ("shapes", "dtypes", "overlap")
# Weights are rounded to the cache's dtype before they meet the values; one correctly rounded division ends it.
_DECODE: Final = Arithmetic(probabilities="input dtype", normalise="division")
_TILES: Final = "mla_verify/kernels/jitted/tiles.py"
# Formats that one device's Triton knows: NVIDIA's and gfx950's, gfx942's. The interpreter knows them all.
_CODES: Final = {"fp8": ("e4m3fn", "e5m2"), "fnuz": ("e4m3fnuz",)}


def _quantised(name: str, formats: tuple[str, ...]) -> tuple[Kernel, Kernel]:
    """Both forms of the decode on codes of these formats: the optimised one, and the form that it replaces."""
    optimised = Kernel(
        name=f"triton_decode_{name}",
        contract="decode",
        load=lambda: triton_decode.load_triton_decode(formats),
        summary=f"triton_decode on codes of {' or '.join(formats)}: of the cache, or of q and the cache",
        limits=DecodeLimits(kv_formats=formats, quantised_q="optional"),
        arithmetic=_DECODE,
        validates=_CHECKED,
        triton=True,
        baseline=f"triton_decode_{name}_zeros",
        source_files=("mla_verify/kernels/jitted/decode.py",),
    )
    return optimised, replace(
        optimised,
        name=f"triton_decode_{name}_zeros",
        load=lambda: triton_decode.load_triton_decode_zeros(formats),
        summary="the same from torch.zeros, copied into o and lse: the form that it replaces",
        baseline=None,
    )


def _quantised_weight(name: str, weight: triton_quantised.Weight, formats: tuple[str, ...]) -> tuple[Kernel, Kernel]:
    """Both forms of the up-projection with a weight in this format."""
    limits = UpProjectionLimits(weight_formats=(weight,), fp8_formats=formats or ("e4m3fn",))
    optimised = Kernel(
        name=f"triton_up_projection_{name}",
        contract="up-projection",
        load=lambda: triton_quantised.load_triton_quantised(weight, formats),
        summary=f"Triton, {name} weight, split along the rank, scratch from torch.empty, straight into out",
        limits=limits,
        validates=_CHECKED,
        triton=True,
        baseline=f"triton_up_projection_{name}_copy",
        source_files=("mla_verify/kernels/jitted/quantised.py", _TILES),
    )
    return optimised, replace(
        optimised,
        name=f"triton_up_projection_{name}_copy",
        load=lambda: triton_quantised.load_triton_quantised_copy(weight, formats),
        summary="the same from zeros, copied into out: the form that it replaces",
        baseline=None,
    )


TRITON_KERNELS: Final = (
    Kernel(
        name="triton_up_projection",
        contract="up-projection",
        load=triton_up_projection.load_triton_up_projection,
        summary="Triton, straight into out: any strides, interpreted on a CPU",
        validates=_CHECKED,
        triton=True,
        baseline="triton_up_projection_copy",
        source_files=("mla_verify/kernels/jitted/up_projection.py", _TILES),
    ),
    Kernel(
        name="triton_up_projection_copy",
        contract="up-projection",
        load=triton_up_projection.load_triton_up_projection_copy,
        summary="the same into zeros, copied into out: the form that it replaces",
        validates=_CHECKED,
        triton=True,
        source_files=("mla_verify/kernels/jitted/up_projection.py", _TILES),
    ),
    Kernel(
        name="triton_decode",
        contract="decode",
        load=triton_decode.load_triton_decode,
        summary="Triton two-stage split-KV decode, output and scratch from torch.empty",
        arithmetic=_DECODE,
        validates=_CHECKED,
        triton=True,
        baseline="triton_decode_zeros",
        source_files=("mla_verify/kernels/jitted/decode.py",),
    ),
    Kernel(
        name="triton_decode_zeros",
        contract="decode",
        load=triton_decode.load_triton_decode_zeros,
        summary="the same from torch.zeros, copied into o and lse: the form that it replaces",
        arithmetic=_DECODE,
        validates=_CHECKED,
        triton=True,
        source_files=("mla_verify/kernels/jitted/decode.py",),
    ),
    *(kernel for name, formats in _CODES.items() for kernel in _quantised(name, formats)),
    *(kernel for name, formats in _CODES.items() for kernel in _quantised_weight(name, "fp8", formats)),
    *_quantised_weight("mxfp4", "mxfp4", ()),
)

for _kernel in TRITON_KERNELS:
    add(_kernel)
