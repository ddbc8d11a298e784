"""Which device a run uses: the name checked before anything else happens, and one thread on the CPU."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import torch

from mla_verify.errors import Unavailable, UsageError

__all__ = ["device_of_worker", "devices_of", "one_thread", "one_thread_for_good", "platform_of", "resolve_device"]


def resolve_device(name: str) -> torch.device:
    """The device called `name`. Raises UsageError for a word that is no device, Unavailable for one that is absent."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"{name!r} is no device; use cpu, cuda or cuda:N (also for ROCm)") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise UsageError(f"{name!r} is not supported; use cpu, cuda or cuda:N (also for ROCm)")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise Unavailable(f"there is no {name} here: torch sees no GPU; use --device cpu")
    index = cast("int | None", device.index)  # torch's stubs leave None out
    if index is not None and index >= count:
        seen = f"torch sees {count} GPUs, cuda:0 to cuda:{count - 1}" if count > 1 else "torch sees one GPU, cuda:0"
        raise Unavailable(f"there is no {name} here: {seen}")
    return torch.device("cuda", torch.cuda.current_device() if index is None else index)


def devices_of(name: str) -> list[str]:
    """One entry per process: every core that we may use, every GPU, or the one GPU that was named."""
    device = resolve_device(name)
    if device.type == "cpu":
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return ["cpu"] * (available or 1)
    return [name] if ":" in name else [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def platform_of(device: torch.device) -> str:
    """What a result was measured on, in a few words: "cpu", or the GPU's name and the runtime behind torch."""
    if device.type != "cuda":
        return device.type
    hip = torch.version.hip
    runtime = f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}"
    return f"{torch.cuda.get_device_name(device)}, {runtime}"


@contextmanager
def one_thread(device: torch.device) -> Generator[None, None, None]:
    """Pin torch to one thread on the CPU: on small tensors the hand-over costs far more than it saves."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_of_worker(name: str, worker: str | None) -> str:
    """The device of one xdist worker ("gw3", or None without xdist): each pins one GPU, by index modulo their count."""
    if name != "cuda" or worker is None:
        return name
    count = torch.cuda.device_count()
    return f"cuda:{int(worker.removeprefix('gw')) % count}" if count else name


def one_thread_for_good(device: str) -> None:
    """Pin torch to one thread in a process that does nothing but run kernels on the CPU."""
    if device == "cpu":
        torch.set_num_threads(1)
