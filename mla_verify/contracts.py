"""The contracts by name, imported when one is asked for."""

from __future__ import annotations

import importlib
from typing import Final

from mla_verify.contract import Contract

__all__ = ["contract_named"]

_PACKAGES: Final = {"up-projection": "mla_verify.up_projection", "decode": "mla_verify.decode"}


def contract_named(name: str) -> Contract:
    """The contract called `name`; names are checked where kernels are registered."""
    contract: Contract = importlib.import_module(_PACKAGES[name]).CONTRACT
    return contract
