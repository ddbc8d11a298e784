"""Faults that one call never shows: what a kernel remembers of an earlier problem spoils a later one."""

from __future__ import annotations

from typing import Final

from mla_verify.faults.fault import Fault

__all__ = ["FAULTS"]

FAULTS: Final[tuple[Fault, ...]] = ()
