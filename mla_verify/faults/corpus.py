"""The whole corpus by name: faulty kernels, and the right ones beside which they are judged."""

from __future__ import annotations

import importlib
import importlib.util
from functools import lru_cache
from typing import Any, Final

from mla_verify.faults.fault import Fault, kernel_of
from mla_verify.kernel import Kernel

__all__ = ["controls", "faults", "kernel_named"]

# A module of faults has FAULTS, a tuple of `Fault`, and may have RIGHT, a tuple of `Kernel`. Add yours here.
_MODULES: Final = ("up_projection", "quantised", "decode", "quantised_decode", "consumed", "calls")
_TRITON: Final = "triton"  # interpreted where there is no GPU; left out where Triton is not installed


def faults(*, triton: bool = True) -> tuple[Fault, ...]:
    """Every fault, the up-projection's first. triton: with those of Triton kernels, where Triton is installed."""
    return tuple(fault for module in _modules(triton=triton) for fault in getattr(module, "FAULTS", ()))


def controls(*, triton: bool = True) -> tuple[Kernel, ...]:
    """Every right kernel."""
    modules = (importlib.import_module("mla_verify.faults.right"), *_modules(triton=triton))
    return tuple(kernel for module in modules for kernel in getattr(module, "RIGHT", ()))


@lru_cache(maxsize=1)
def _named() -> dict[str, Kernel]:
    kernels = [*map(kernel_of, faults()), *controls()]
    return {kernel.name: kernel for kernel in kernels}


def kernel_named(name: str) -> Kernel:
    """The kernel of this name, faulty or right. Raises KeyError."""
    return _named()[name]


def _modules(*, triton: bool) -> list[Any]:
    names = [*_MODULES]
    if triton and importlib.util.find_spec("triton") is not None:
        names.append(_TRITON)
    return [importlib.import_module(f"mla_verify.faults.{name}") for name in names]
