"""Every kernel of the corpus under its own name, so that a worker process can load it as module:name."""

from __future__ import annotations

from mla_verify.faults.corpus import kernel_named
from mla_verify.kernel import Kernel


def __getattr__(name: str) -> Kernel:
    """The kernel of this name."""
    try:
        return kernel_named(name)
    except KeyError:
        raise AttributeError(f"the corpus has no kernel {name!r}") from None
