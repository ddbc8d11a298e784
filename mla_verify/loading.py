"""Loads a kernel and makes what its examination needs; says why where it cannot run."""

from __future__ import annotations

from dataclasses import replace

import torch

from mla_verify.contracts import contract_named
from mla_verify.devices import resolve_device
from mla_verify.errors import Unavailable
from mla_verify.examine import Bench
from mla_verify.interpreting import check_interpreted, interpret_on, names_triton
from mla_verify.kernel import Kernel
from mla_verify.on_device import backends_of
from mla_verify.registry import check_signature
from sanitizer.arena import Arena
from sanitizer.fences import Fencing

__all__ = ["open_bench"]


def open_bench(kernel: Kernel, *, device: str = "cpu") -> Bench:
    """Load a kernel and make its arena. Raises Unavailable where it cannot run here, UsageError where it never can."""
    where = resolve_device(device)
    if where.type not in kernel.devices:
        raise Unavailable(f"{kernel.name} runs on {', '.join(kernel.devices)}, not on {where.type}")
    interpret_on(where.type)
    function = kernel.load()
    if not kernel.triton and names_triton(function):
        kernel = replace(kernel, triton=True)
    if kernel.interpreted_on(where.type):
        check_interpreted(function, name=kernel.name)
    prepared = kernel.prepare is not None
    check_signature(function, kernel.contract, name=kernel.name, prepared=prepared, limits=kernel.limits)
    fencing, no_fences = _fences_on(where)
    return Bench(
        kernel=kernel,
        contract=contract_named(kernel.contract),
        function=function,
        device=where,
        arena=Arena(where, fencing=fencing),
        no_fences=no_fences,
        backends=backends_of(where),
    )


def _fences_on(device: torch.device) -> tuple[Fencing | None, str]:
    """What puts tensors between fences on a device, or why nothing does; a CPU's arena brings its own."""
    if device.type != "cuda":
        return None, ""
    from sanitizer.mapped_memory import DeviceFences
    from sanitizer.mapping_drivers import NoDriver, mapping_driver

    try:
        return DeviceFences(mapping_driver(device), device), ""
    except NoDriver as reason:
        return None, str(reason)
