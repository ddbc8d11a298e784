"""What callers do with a padded output: whether the rows of padding in it change what becomes of the real ones.

`per_tensor_fp8`: the caller quantises the whole output to e4m3fn with one scale, its largest magnitude over 448, as
before a product in fp8. A NaN or a large number in a row that belongs to nobody then reaches every request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from sanitizer.finding import Finding
from sanitizer.indices import describe_mask

__all__ = ["misled"]

_LARGEST: Final = 448.0  # of e4m3fn


def misled(
    consumers: tuple[str, ...], name: str, by_secret: Mapping[str, Tensor], real: Tensor, *, blamed: Tensor | None
) -> tuple[Finding, ...]:
    """An `independence` finding for every consumer to which real rows of an output depend on the others.

    by_secret: the output [num_rows, …] of each run, by the secret's letter. real: bool [num_rows], rows that see a
    key. blamed: elements that other findings name already; where they are in real rows nothing is said. A consumer
    must give the real rows the bits that it gives them by themselves, whatever the other rows hold.
    """
    if bool(real.all()) or not bool(real.any()) or (blamed is not None and bool(blamed[real].any())):
        return ()
    return tuple(finding for consumer in consumers if (finding := _CHECKS[consumer](name, by_secret, real)) is not None)


def _per_tensor_fp8(name: str, by_secret: Mapping[str, Tensor], real: Tensor) -> Finding | None:
    """Compare the real rows' codes by the largest magnitude of all rows with those by their own."""
    for secret, output in by_secret.items():
        rows = output[real].float()
        if rows.numel() == 0:
            return None
        alone, together = rows.abs().amax(), output.float().abs().amax()
        changed = _codes(rows, alone) != _codes(rows, together)
        if bool(changed.any()):
            mask = torch.zeros(output.shape, dtype=torch.bool, device=output.device)
            mask[real] = changed
            return Finding(
                "independence",
                name,
                int(changed.sum()),
                f"{describe_mask(name, mask)}: quantised to other codes through a per-tensor amax over padding rows: "
                f"{float(together):.7g} with them, {float(alone):.7g} without (under secret {secret})",
            )
    return None


def _codes(rows: Tensor, amax: Tensor) -> Tensor:
    """e4m3fn codes of `rows` as bytes, with the scale that follows from a largest magnitude."""
    scale = torch.where(amax == 0, 1.0, amax / _LARGEST)
    return (rows / scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)


_Check = Callable[[str, Mapping[str, Tensor], Tensor], Finding | None]
_CHECKS: Final[dict[str, _Check]] = {"per_tensor_fp8": _per_tensor_fp8}
