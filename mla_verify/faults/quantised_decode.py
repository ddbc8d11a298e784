"""Decode on fp8 codes with one fault at a time: scales lost, doubled or rounded, codes read as another format's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.faults.attention import Request, attend, requests
from mla_verify.faults.fault import TARGETS, Fault
from mla_verify.kernel import Arithmetic, Kernel
from strategies.limits import DecodeLimits

__all__ = ["FAULTS", "RIGHT"]

_FNUZ_LARGEST: Final = 240.0
_LARGEST: Final = 448.0
_FORMATS: Final = ("e4m3fn", "e4m3fnuz", "e5m2")
_CODES: Final = DecodeLimits(kv_formats=_FORMATS, quantised_q="optional")
_Rewrite = Callable[[Tensor], Tensor]


def _number(scale: Tensor | None) -> Tensor | float:
    return 1.0 if scale is None else scale


def _dequantised(
    q_scale: Tensor | float, kv_scale: Tensor | float, *, keys: _Rewrite | None = None, **inputs: Any
) -> Iterator[Request]:
    """Every request with its codes times these scales; `keys` changes the codes of the cache before that."""
    for request in requests(**inputs):
        codes = request.keys if keys is None else keys(request.keys)
        yield replace(request, query=request.query * q_scale, keys=codes * kv_scale, pages=request.pages * kv_scale)


def _store(request: Request, o: Tensor, lse: Tensor | None, value: Tensor, logsum: Tensor) -> None:
    o[request.rows].copy_(value)
    if lse is not None:
        lse[request.rows].copy_(logsum)


def _decode(
    o: Tensor, lse: Tensor | None, sm_scale: float, *, q_scale: Any, kv_scale: Any, of_o: Any = 1.0, **inputs: Any
) -> None:
    """Attention with these scales, and its output times `of_o`: right with those that it was given."""
    for request in _dequantised(_number(q_scale), _number(kv_scale), **inputs):
        value, logsum = attend(request.query, request.keys, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2])
        _store(request, o, lse, value * of_o, logsum)


def scale_applied_twice(o: Tensor, lse: Tensor | None, kv_scale: Tensor, **rest: Any) -> None:
    """Dequantises the values, and multiplies the output once more."""
    _decode(o, lse, kv_scale=kv_scale, of_o=kv_scale, **rest)


def scale_forgotten_on_values(o: Tensor, lse: Tensor | None, kv_scale: Tensor, **rest: Any) -> None:
    """Folds the cache's scale into the softmax scale, and sums the codes of the values as they are."""
    _decode(o, lse, kv_scale=kv_scale, of_o=1 / kv_scale, **rest)


def scale_forgotten_on_keys(o: Tensor, lse: Tensor | None, kv_scale: Tensor, **rest: Any) -> None:
    """Scales the output, and takes the codes of the keys as they are."""
    _decode(o, lse, kv_scale=None, of_o=kv_scale, **rest)


def query_scale_ignored(o: Tensor, lse: Tensor | None, q_scale: Tensor | None, **rest: Any) -> None:
    """Has no parameter for the query's scale."""
    _decode(o, lse, q_scale=None, **rest)


def query_scale_of_the_cache(o: Tensor, lse: Tensor | None, q_scale: Tensor | None, **rest: Any) -> None:
    """Multiplies a quantised query by the cache's scale."""
    _decode(o, lse, q_scale=None if q_scale is None else rest["kv_scale"], **rest)


def scale_cut_to_a_power_of_two(o: Tensor, lse: Tensor | None, kv_scale: Tensor, **rest: Any) -> None:
    """Keeps the exponent of the cache's scale alone."""
    _decode(o, lse, kv_scale=kv_scale.log2().floor().exp2(), **rest)


def scale_in_16_bits(o: Tensor, lse: Tensor | None, kv_scale: Tensor, **rest: Any) -> None:
    """Keeps the cache's scale in bfloat16."""
    _decode(o, lse, kv_scale=kv_scale.bfloat16().float(), **rest)


def scale_at_the_request(
    o: Tensor, lse: Tensor | None, sm_scale: float, q_scale: Tensor | None, kv_scale: Tensor, **inputs: Any
) -> None:
    """Takes the cache's scale from the place of the request, in a tensor that has one for all."""
    count = inputs["seq_lens"].shape[0]
    scales = kv_scale.as_strided((count,), (1,))
    for number, request in enumerate(_dequantised(_number(q_scale), 1.0, **inputs)):
        keys = request.keys * scales[number]
        value, logsum = attend(request.query, keys, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2])
        _store(request, o, lse, value, logsum)


def rope_left_unscaled(
    o: Tensor, lse: Tensor | None, sm_scale: float, q_scale: Tensor | None, kv_scale: Tensor, **inputs: Any
) -> None:
    """Dequantises the latent columns, and takes the codes of the rope columns as they are."""
    for request in _dequantised(_number(q_scale), 1.0, **inputs):
        keys = request.keys.clone()
        keys[:, : o.shape[2]] *= kv_scale
        value, logsum = attend(request.query, keys, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2])
        _store(request, o, lse, value, logsum)


def fn_read_as_fnuz(o: Tensor, lse: Tensor | None, kv_buffer: Tensor, **rest: Any) -> None:
    """Knows one of the two e4m3 formats: codes of e4m3fn stand for half, and −0 for NaN."""
    _decode(o, lse, kv_buffer=kv_buffer.view(torch.float8_e4m3fnuz), **rest)


def fnuz_read_as_fn(o: Tensor, lse: Tensor | None, kv_buffer: Tensor, **rest: Any) -> None:
    """Knows one of the two e4m3 formats: codes of e4m3fnuz stand for twice as much, and the largest for NaN."""
    _decode(o, lse, kv_buffer=kv_buffer.view(torch.float8_e4m3fn), **rest)


def minus_zero_read_as_nan(o: Tensor, lse: Tensor | None, **rest: Any) -> None:
    """Decodes every code right, but 0x80, which a negative number leaves that underflowed, to NaN."""

    def read(keys: Tensor) -> Tensor:
        return keys.masked_fill((keys == 0) & keys.signbit(), torch.nan)

    _decode(o, lse, keys=read, **rest)


def subnormal_codes_lost(o: Tensor, lse: Tensor | None, kv_buffer: Tensor, **rest: Any) -> None:
    """Decodes codes without an exponent to 0."""
    normal = float(torch.finfo(kv_buffer.dtype).smallest_normal)

    def read(keys: Tensor) -> Tensor:
        return keys.masked_fill(keys.abs() < normal, 0.0)

    _decode(o, lse, kv_buffer=kv_buffer, keys=read, **rest)


def saturated_early(o: Tensor, lse: Tensor | None, **rest: Any) -> None:
    """Takes 240, the largest number of e4m3fnuz, for the largest of every format."""

    def read(keys: Tensor) -> Tensor:
        return keys.clamp(-_FNUZ_LARGEST, _FNUZ_LARGEST)

    _decode(o, lse, keys=read, **rest)


def zero_keys_divided(o: Tensor, lse: Tensor | None, **rest: Any) -> None:
    """Scales every key by its own largest number first, and divides 0 by 0 where all of it is zero."""

    def normalised(keys: Tensor) -> Tensor:
        largest = keys.abs().amax(1, keepdim=True) if keys.shape[1] else keys
        return keys / largest * largest

    _decode(o, lse, keys=normalised, **rest)


def weights_in_fp8(
    o: Tensor, lse: Tensor | None, sm_scale: float, q_scale: Tensor | None, kv_scale: Tensor, **inputs: Any
) -> None:
    """Quantises probabilities to e4m3fn and saturates them at the largest of e4m3fnuz, without saying so."""
    for request in _dequantised(_number(q_scale), kv_scale, **inputs):
        _, logsum = attend(request.query, request.keys, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2])
        scores = torch.einsum("ihd,kd->ihk", request.query, request.keys) * sm_scale
        hidden = torch.arange(request.keys.shape[0], device=o.device) >= request.visible[:, None]
        weights = (scores - torch.where(logsum == -torch.inf, 0.0, logsum)[..., None]).exp()
        weights = weights.masked_fill(hidden[:, None], 0.0)
        coarse = (weights * _LARGEST).clamp(max=_FNUZ_LARGEST).to(torch.float8_e4m3fn).float() / _LARGEST
        _store(request, o, lse, torch.einsum("ihk,kd->ihd", coarse, request.keys[:, : o.shape[2]]), logsum)


def scores_in_16_bits(
    o: Tensor, lse: Tensor | None, sm_scale: float, q_scale: Tensor | None, kv_scale: Tensor, **inputs: Any
) -> None:
    """Adds the products of codes up in float16, which ends at 65504."""
    for request in requests(**inputs):
        products = torch.einsum("ihd,kd->ihk", request.query, request.keys).half().float()
        scores = products * (sm_scale * _number(q_scale) * kv_scale)
        hidden = torch.arange(request.keys.shape[0], device=o.device) >= request.visible[:, None]
        scores = scores.masked_fill(hidden[:, None], -torch.inf)
        logsum = torch.logsumexp(scores, -1)
        weights = (scores - torch.where(logsum == -torch.inf, 0.0, logsum)[..., None]).exp()
        values = request.keys[:, : o.shape[2]] * kv_scale
        _store(request, o, lse, torch.einsum("ihk,kd->ihd", weights, values), logsum)


def unused_codes_times_zero(
    o: Tensor, lse: Tensor | None, sm_scale: float, q_scale: Tensor | None, kv_scale: Tensor, **inputs: Any
) -> None:
    """Multiplies whole pages of codes: weight 0 behind the last key, but a NaN code times 0 is NaN."""
    for request in _dequantised(_number(q_scale), kv_scale, **inputs):
        value, logsum = attend(
            request.query, request.pages, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2]
        )
        _store(request, o, lse, value, logsum)


def dequantised_in_16_bits(
    o: Tensor, lse: Tensor | None, sm_scale: float, q_scale: Tensor | None, kv_scale: Tensor | None, **inputs: Any
) -> None:
    """Keeps dequantised numbers in the dtype of o: right where that is declared."""
    for request in _dequantised(_number(q_scale), _number(kv_scale), **inputs):
        query, keys = request.query.to(o.dtype).float(), request.keys.to(o.dtype).float()
        value, logsum = attend(query, keys, request.visible, sm_scale=sm_scale, kv_lora_rank=o.shape[2])
        _store(request, o, lse, value, logsum)


def one_pass_on_codes(o: Tensor, lse: Tensor | None, **rest: Any) -> None:
    """Right: dequantises in float32."""
    _decode(o, lse, **rest)


def scales_folded(
    o: Tensor, lse: Tensor | None, sm_scale: float, q_scale: Tensor | None, kv_scale: Tensor | None, **inputs: Any
) -> None:
    """Right: multiplies codes as they are, and lets the scales into the softmax scale and the output."""
    folded = sm_scale * _number(q_scale) * _number(kv_scale)
    for request in requests(**inputs):
        value, logsum = attend(
            request.query * folded, request.keys, request.visible, sm_scale=1.0, kv_lora_rank=o.shape[2]
        )
        _store(request, o, lse, value * _number(kv_scale), logsum)


def _fault(
    call: Any, clauses: str | tuple[str, ...], what: str, reports: str = "", limits: DecodeLimits = _CODES
) -> Fault:
    named = (clauses,) if isinstance(clauses, str) else clauses
    name = f"decode_fp8_{call.__name__}"
    return Fault(name, "decode", call, named, what, tuple(reports.split()), {"limits": limits})


def _right(call: Any, **declares: Any) -> Kernel:
    name = f"decode_fp8_{call.__name__}_right"
    return Kernel(
        name=name,
        contract="decode",
        load=lambda: call,
        limits=replace(_CODES, kv_formats=("plain", *_FORMATS)),
        target=f"{TARGETS}:{name}",
        **declares,
    )


_QUERIES: Final = replace(_CODES, quantised_q="always")
_FN: Final = replace(_CODES, kv_formats=("e4m3fn",), quantised_q="never")
_FNUZ: Final = replace(_CODES, kv_formats=("e4m3fnuz",), quantised_q="never")

FAULTS: Final[tuple[Fault, ...]] = (
    _fault(scale_applied_twice, "agreement", "the cache's scale is multiplied in twice"),
    _fault(scale_forgotten_on_values, "agreement", "the cache's scale is missing from the values"),
    _fault(scale_forgotten_on_keys, "agreement", "the cache's scale is missing from the keys"),
    _fault(query_scale_ignored, "agreement", "the query's scale is ignored", limits=_QUERIES),
    _fault(query_scale_of_the_cache, "agreement", "the query has the cache's scale", "B108", limits=_QUERIES),
    _fault(scale_cut_to_a_power_of_two, "agreement", "the scale is cut to a power of two"),
    _fault(scale_in_16_bits, "agreement", "the scale is kept in bfloat16"),
    _fault(scale_at_the_request, ("independence", "survival"), "the scale is looked up by the request's number"),
    _fault(rope_left_unscaled, "agreement", "the rope columns are not dequantised"),
    _fault(fn_read_as_fnuz, "agreement", "e4m3fn is read as e4m3fnuz", "B106 B108", limits=_FN),
    _fault(fnuz_read_as_fn, "agreement", "e4m3fnuz is read as e4m3fn", "B106 B108", limits=_FNUZ),
    _fault(minus_zero_read_as_nan, "agreement", "0x80 of e4m3fn is read as NaN", "B105 B106", limits=_FN),
    _fault(subnormal_codes_lost, "agreement", "subnormal codes count as zero"),
    _fault(saturated_early, "agreement", "codes above 240 are taken for 240", "B107", limits=_FN),
    _fault(zero_keys_divided, "agreement", "a key of zeros is divided by its largest number", "B109 B111"),
    _fault(weights_in_fp8, "agreement", "probabilities are quantised, and saturate early", "B107"),
    _fault(scores_in_16_bits, "agreement", "products of codes are summed in float16", "B114 B115"),
    _fault(unused_codes_times_zero, "independence", "NaN codes in unused slots are multiplied by 0", "B020 B021"),
    _fault(dequantised_in_16_bits, "agreement", "dequantised numbers are rounded to the dtype of o"),
)

RIGHT: Final[tuple[Kernel, ...]] = (
    _right(one_pass_on_codes),
    _right(scales_folded),
    _right(dequantised_in_16_bits, arithmetic=Arithmetic(dequantise="input dtype")),
)
