"""What a kernel owes to each row of `o` and `lse`, from what it declares about rows that no key or request decides."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from mla_verify.decode.geometry import Geometry, geometry_of
from mla_verify.kernel import Kernel
from sanitizer.plan import Element
from strategies.problems import DecodeProblem

__all__ = ["real_rows", "row_rules", "undecided"]

# Padding that is declared zero has o = 0, and the lse of a row without keys: a sum over no keys is no zero.
_PADDING: Final = {
    "untouched": Element.UNTOUCHED,
    "written": Element.WRITTEN,
    "zero": Element.DETERMINED,
    "unspecified": Element.FREE,
}


def row_rules(problem: DecodeProblem, kernel: Kernel, geometry: Geometry) -> dict[str, Tensor]:
    """Rules of `o` and `lse` row by row, uint8 [num_rows]; an output whose every row is determined is left out."""
    padding = _PADDING[kernel.padding_rows]
    blind = geometry.visible == 0
    rules: dict[str, Tensor] = {}
    for name, declared in (("o", kernel.empty_rows), ("lse", kernel.empty_lse)):
        of_blind = Element.FREE if declared == "unspecified" else Element.DETERMINED
        if name == "lse" and kernel.padding_rows == "zero":
            padding = of_blind
        rows = np.full(problem.num_rows, padding, np.uint8)
        rows[: geometry.live_rows] = np.where(blind, of_blind, Element.DETERMINED)
        if rows.any():
            rules[name] = torch.from_numpy(rows)
    return rules


def undecided(problem: DecodeProblem, kernel: Kernel, geometry: Geometry, device: torch.device) -> dict[str, Tensor]:
    """Elements whose value nothing decides, as bool masks of the outputs' shapes; outputs without any are left out."""
    shapes = {
        "o": (problem.num_rows, problem.num_heads, problem.kv_lora_rank),
        "lse": (problem.num_rows, problem.num_heads),
    }
    return {
        name: (rows != Element.DETERMINED).to(device).view(-1, *(1,) * (len(shapes[name]) - 1)).expand(shapes[name])
        for name, rows in row_rules(problem, kernel, geometry).items()
    }


def real_rows(problem: DecodeProblem) -> Tensor:
    """Rows that see a key, bool [num_rows]: a batch is padded with rows of no request and with empty requests."""
    geometry = geometry_of(problem)
    rows = np.zeros(problem.num_rows, np.bool_)
    rows[: geometry.live_rows] = geometry.visible > 0
    return torch.from_numpy(rows)
