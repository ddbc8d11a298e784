"""What one recorded call spent: launches, allocations and temporaries, read from a trace of torch's profiler.

Note [Traces]: kineto writes a trace as JSON. Work on a GPU are complete events of the categories `kernel`, `gpu_memcpy`
and `gpu_memset`, on CUDA and ROCm alike; operators on the host are `cpu_op`; every allocation and release is an instant
event called `[memory]`, with its bytes (negative where released), address and device.
A CPU launches nothing. What counts there instead are operators that compute or copy: those within which no other such
operator ran, and matrix products in any case (one copies its operands first where their layout does not suit it).
Views, operators that only allocate, and reads by the host are left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

__all__ = ["Spending", "memory_events", "spending_of"]

_ON_THE_GPU: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_PRODUCTS: Final = frozenset({"aten::bmm", "aten::mm", "aten::addmm", "aten::baddbmm", "aten::mv", "aten::dot"})
# These hand a tensor back as it is, or call others that are counted themselves.
_PASSIVE: Final = frozenset(
    f"aten::{name}"
    for name in (
        "_local_scalar_dense",
        "_reshape_alias",
        "_unsafe_view",
        "contiguous",
        "flatten",
        "is_nonzero",
        "is_pinned",
        "item",
        "lift_fresh",
        "record_stream",
        "reshape",
        "resize_",
        "resize_as_",
        "resolve_conj",
        "resolve_neg",
        "result_type",
        "set_",
        "to",
    )
)
_FILLS: Final = frozenset({"aten::zero_", "aten::fill_"})
_FILL_KERNELS: Final = ("FillFunctor", "fill_kernel")  # what torch's own fill is called, on CUDA and ROCm
_CPU: Final = 0  # torch's number for the device type


@dataclass(frozen=True, slots=True)
class Spending:
    """What one call spent on the device that it ran on.

    launches: kernels, copies and fills that the GPU ran; on a CPU, operators that compute or copy (Note [Traces]).
    fills: those among them that only set memory to one value. allocations, allocated_bytes: whatever was allocated,
    inside C++ operators too. temporaries, temporary_bytes: allocations that one outermost operator made and released
    again before it returned. peak_bytes: the most that was held at once beyond what was held before.
    """

    launches: int
    fills: int
    allocations: int
    allocated_bytes: int
    temporaries: int
    temporary_bytes: int
    largest_temporary: int
    peak_bytes: int


def spending_of(trace: Mapping[str, Any], *, gpu: bool) -> Spending:
    """What the call in a trace spent. gpu: count a GPU's work and memory instead of the host's."""
    events: Sequence[Mapping[str, Any]] = trace["traceEvents"]
    memory = [event for event in events if event.get("name") == "[memory]"]
    mine = sorted(
        (event for event in memory if (event["args"]["Device Type"] != _CPU) == gpu), key=lambda event: event["ts"]
    )
    operators = _outline([event for event in events if event.get("cat") == "cpu_op" and event.get("ph") == "X"])
    launches, fills = _gpu_work(events) if gpu else _host_work(operators)
    sizes = [int(event["args"]["Bytes"]) for event in mine]
    temporaries = _temporaries(mine, [operator for operator in operators if operator.depth == 0])
    return Spending(
        launches=launches,
        fills=fills,
        allocations=sum(size > 0 for size in sizes),
        allocated_bytes=sum(size for size in sizes if size > 0),
        temporaries=len(temporaries),
        temporary_bytes=sum(temporaries),
        largest_temporary=max(temporaries, default=0),
        peak_bytes=_peak(sizes),
    )


def memory_events(trace: Mapping[str, Any]) -> list[int]:
    """Bytes of every allocation (positive) and release (negative) in a trace, on any device, in order of time."""
    memory = [event for event in trace["traceEvents"] if event.get("name") == "[memory]"]
    return [int(event["args"]["Bytes"]) for event in sorted(memory, key=lambda event: event["ts"])]


def _peak(sizes: Sequence[int]) -> int:
    held = peak = 0
    for size in sizes:
        held += size
        peak = max(peak, held)
    return peak


def _gpu_work(events: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    work = [event for event in events if event.get("cat") in _ON_THE_GPU and event.get("ph") == "X"]
    fills = [
        event
        for event in work
        if event["cat"] == "gpu_memset" or any(word in str(event["name"]) for word in _FILL_KERNELS)
    ]
    return len(work), len(fills)


@dataclass(slots=True)
class _Operator:
    """One operator of the host: when it ran, how deep it was nested, and whether one that counts ran within it."""

    name: str
    start: float
    end: float
    depth: int
    parent: _Operator | None
    works_within: bool = False


def _outline(events: Sequence[Mapping[str, Any]]) -> list[_Operator]:
    """The operators of a trace, outer ones before those within them."""
    operators: list[_Operator] = []
    stacks: dict[tuple[Any, Any], list[_Operator]] = {}  # per process and thread, the operators that are running
    for event in sorted(events, key=lambda event: (float(event["ts"]), -float(event["dur"]))):
        stack = stacks.setdefault((event.get("pid"), event.get("tid")), [])
        start = float(event["ts"])
        while stack and stack[-1].end <= start:
            stack.pop()
        parent = stack[-1] if stack else None
        operator = _Operator(str(event["name"]), start, start + float(event["dur"]), len(stack), parent)
        operators.append(operator)
        stack.append(operator)
    return operators


def _host_work(operators: Sequence[_Operator]) -> tuple[int, int]:
    launches = fills = 0
    for operator in reversed(operators):  # inner ones first
        counts = not _is_passive(operator.name) and (not operator.works_within or operator.name in _PRODUCTS)
        launches += counts
        fills += counts and operator.name in _FILLS
        if operator.parent is not None:
            operator.parent.works_within |= counts or operator.works_within
    return launches, fills


@cache
def _is_passive(name: str) -> bool:
    """Whether an operator only allocates, only makes a view, or leaves the work to others that are seen themselves."""
    if name in _PASSIVE or name.startswith(("aten::empty", "aten::new_empty")):
        return True
    namespace, _, short = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace, None), short, None) if short.isidentifier() else None
    if packet is None or not hasattr(packet, "overloads"):
        return False
    returns = [getattr(packet, overload)._schema.returns for overload in packet.overloads()]
    aliases = [values[0].alias_info for values in returns if values]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def _temporaries(memory: Sequence[Mapping[str, Any]], outermost: Sequence[_Operator]) -> list[int]:
    """Bytes of each allocation that was released before the outermost operator which made it returned."""
    spans = sorted((operator.start, operator.end) for operator in outermost)
    starts = [start for start, _ in spans]
    open_until: dict[int, tuple[float, int]] = {}  # address → when the operator that allocated there returns, bytes
    found: list[int] = []
    for event in memory:
        at, size, address = float(event["ts"]), int(event["args"]["Bytes"]), int(event["args"]["Addr"])
        if size > 0:
            index = bisect_left(starts, at) - 1
            if index >= 0 and at <= spans[index][1]:
                open_until[address] = spans[index][1], size
        elif address in open_until:
            end, allocated = open_until.pop(address)
            if at <= end:
                found.append(allocated)
    return found
