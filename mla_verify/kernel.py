"""What is registered about a kernel under test: how to call it, and everything it declares about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from mla_verify.errors import Unavailable
from strategies.limits import DecodeLimits, Limits, UpProjectionLimits

__all__ = [
    "CONSUMERS",
    "LIMITS",
    "PRECONDITIONS",
    "VALIDATIONS",
    "Arithmetic",
    "Kernel",
    "KnownDeviation",
    "Unavailable",
    "economy_is_declared",
    "limits_of",
]

LIMITS: Final[dict[str, type[UpProjectionLimits | DecodeLimits]]] = {
    "up-projection": UpProjectionLimits,
    "decode": DecodeLimits,
}

PRECONDITIONS: Final = (
    "finite_unused_slots",
    "valid_table_tails",
    "contiguous_x",
    "contiguous_w_uv",
    "contiguous_w_q",  # and w_scale
    "contiguous_out",
    "contiguous_q",
    "contiguous_o",
    "contiguous_lse",
    "contiguous_tables",
    "contiguous_cache",
    "aligned_16",
    "zeroed_workspace",
)
VALIDATIONS: Final = ("shapes", "dtypes", "overlap", "tables")
CONSUMERS: Final = ("per_tensor_fp8",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """How a kernel computes, as far as rounding goes. The bound follows it; the defaults come first."""

    accumulate: Literal["fp32"] = "fp32"
    multiply: Literal["exact", "tf32"] = "exact"
    probabilities: Literal["input dtype", "fp32"] = "input dtype"
    partials: Literal["fp32", "output dtype"] = "fp32"
    subnormals: Literal["kept", "flushed"] = "kept"
    normalise: Literal["any", "division"] = "any"
    dequantise: Literal["exact", "input dtype"] = "exact"  # what a code times its scale is kept in, if anything


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDeviation:
    """A deviation that is reported, never hidden.

    clause: the clause that does not hold; problems: for which problems; reason: why, for a person; issue: where it
    is reported upstream. quarantine: such problems are not launched at all.
    """

    clause: str
    problems: Callable[[Any], bool]
    reason: str
    issue: str = ""
    quarantine: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel under test and its declarations (docs/design.md, "Declarations").

    load: returns the callable; imports what it needs, raises `Unavailable` with the reason where it cannot.
    prepare: called once per problem with the same keyword arguments; what it returns comes back as `state=`. Tensors
        under the key "workspace" of a mapping it returns are poisoned before every run like any secret.
    limits: what may be drawn; None leaves everything free.
    baseline: the registered name of the form that this kernel replaced. The contract's own zero-filled copy is always
        compared as well.
    triton: written in Triton. On a CPU it runs in Triton's interpreter, mended and with every access recorded.
    target: by what a worker process can load this kernel again (registered name, module:callable, file.py:callable);
        set by whoever resolves it. in_process: run in this process even where a worker could be used.
    allocations, launches: how many pieces of memory one call may allocate, and how many kernels, copies and fills it
        may launch on a GPU; None declares nothing.
    consumers: what callers do with the whole padded output (`CONSUMERS`): padding must not change what becomes of the
        real rows.
    source_files: files besides the callable's own whose change means that the kernel changed.
    """

    name: str
    contract: str
    load: Callable[[], Callable[..., Any]]
    prepare: Callable[..., Any] | None = None
    summary: str = ""
    devices: tuple[str, ...] = ("cpu", "cuda")
    limits: Limits | None = None
    deterministic: bool = True
    arithmetic: Arithmetic = Arithmetic()
    preconditions: tuple[str, ...] = ()
    validates: tuple[str, ...] = ()
    empty_rows: Literal["zero", "unspecified"] = "zero"
    empty_lse: Literal["-inf", "+inf", "unspecified"] = "-inf"
    padding_rows: Literal["untouched", "written", "zero", "unspecified"] = "untouched"
    known_deviations: tuple[KnownDeviation, ...] = ()
    baseline: str | None = None
    target: str | None = None
    in_process: bool = False
    triton: bool = False
    allocations: int | None = None
    launches: int | None = None
    consumers: tuple[str, ...] = ()
    source_files: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())  # shown beside the verdict, such as "stage 1 modelled"

    def interpreted_on(self, device_type: str) -> bool:
        """Whether Triton's interpreter runs it there, which takes a hundred times as long as a compiled kernel."""
        return self.triton and device_type == "cpu"


def economy_is_declared(kernel: Kernel, device: str) -> bool:
    """Whether the kernel declares something about economy that can be measured on a device of this name."""
    return kernel.allocations is not None or (kernel.launches is not None and device.startswith("cuda"))


def limits_of(kernel: Kernel) -> Limits:
    """What may be drawn for a kernel: its limits, less what its preconditions take away."""
    limits = kernel.limits or LIMITS[kernel.contract]()
    packed = frozenset(
        word.removeprefix("contiguous_") for word in kernel.preconditions if word.startswith("contiguous_")
    )
    aligned = limits.aligned or "aligned_16" in kernel.preconditions
    return replace(limits, packed=limits.packed | packed, aligned=aligned)
