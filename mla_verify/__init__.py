"""Contracts, kernels under test and the check that joins problems with the sanitizer.

Here belong: the two contracts (tensors, oracle, bound, baseline), the registry of kernels, the check, the command line,
the pytest plugin and the reports. Byte-level work belongs in `sanitizer`, drawing in `strategies`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mla_verify.kernel import Arithmetic, Kernel, KnownDeviation, Unavailable
    from mla_verify.registry import register

__all__ = ["Arithmetic", "Kernel", "KnownDeviation", "Unavailable", "register"]

_HOMES = {
    "Arithmetic": "mla_verify.kernel",
    "Kernel": "mla_verify.kernel",
    "KnownDeviation": "mla_verify.kernel",
    "Unavailable": "mla_verify.errors",
    "register": "mla_verify.registry",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that importing the package costs nothing."""
    import importlib

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mla_verify' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
