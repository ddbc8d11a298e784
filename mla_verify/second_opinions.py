"""Reads what other tools say about a device's memory: reports of compute-sanitizer and of ROCm's address sanitizer.

Note [Reports]: compute-sanitizer puts "=========" before each of its lines. A record begins with what was wrong and
goes on, indented, with where: the instruction, the thread, the address, and for an access out of bounds the nearest
allocation. What follows "Saved host backtrace" is the host's affair. At the end a summary counts errors; a report
without one was not finished, and proves nothing. The address sanitizer ends the process at its first error, whose
record begins with "ERROR: AddressSanitizer".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sanitizer.fatal import clean
from sanitizer.finding import Finding

__all__ = ["Allocation", "Opinion", "address_sanitizer_opinion", "compute_sanitizer_opinion"]

_MARK: Final = "========="
_ACCESS: Final = re.compile(r"Invalid __(\w+?)__ (read|write|atomic\w*) of size ([\d,]+)")
_UNINITIALISED: Final = re.compile(r"Uninitialized __(\w+?)__ memory read of size ([\d,]+)")
_RACE: Final = re.compile(r"(?:Error: |ERROR: )?(?:Potential \w+ hazard|Race reported between \w+ access) at (.+)")
_BROKEN: Final = re.compile(r"Program hit (\w+) \(error (\d+)\)")
_SUMMARY: Final = re.compile(r"(?:ERROR|RACECHECK|INITCHECK|LEAK) SUMMARY: ([\d,]+)")
_AT: Final = re.compile(r"at (.+)")
_THREAD: Final = re.compile(r"by thread \([\d,]+\) in block \([\d,]+\)")
_ADDRESS: Final = re.compile(r"(?:Address|Access to) (0x[0-9a-fA-F]+)")
_NEAREST: Final = re.compile(
    r"and is (?:([\d,]+) bytes (after|before)|(inside)) the nearest allocation at (0x[0-9a-fA-F]+) of size ([\d,]+)"
)
_ASAN: Final = re.compile(r"ERROR: AddressSanitizer: ([\w-]+) on (amdgpu device \d+|address 0x[0-9a-fA-F]+)")
_ASAN_ACCESS: Final = re.compile(r"(READ|WRITE) of size (\d+)")
_ASAN_FRAME: Final = re.compile(r"#0 0x[0-9a-fA-F]+ in (.+)")
# Errors after which a device takes nothing more. Alone in a report they are what happened, beside others what followed.
_STICKY: Final = frozenset({"700", "710", "714", "715", "716", "717", "718", "719"})


@dataclass(frozen=True, slots=True)
class Allocation:
    """Where one tensor of the problem lay: its first address, and its bytes."""

    name: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a report comes to. complete: it was finished, so that no finding means that there was nothing to find."""

    findings: tuple[Finding, ...]
    complete: bool


@dataclass(slots=True)
class _Record:
    """One error of a report, with the lines that belong to it."""

    head: str
    lines: list[str] = field(default_factory=list[str])


def compute_sanitizer_opinion(report: str, *, tool: str, allocations: Sequence[Allocation] = ()) -> Opinion:
    """What compute-sanitizer's `tool` reported: findings, one for each instruction and kind of error."""
    lines = [line.removeprefix(_MARK) for line in report.splitlines() if line.startswith(_MARK)]
    complete = any(_SUMMARY.search(line) for line in lines)
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    broken: list[str] = []
    for record in _records(lines):
        hit = _BROKEN.search(record.head)
        if hit is not None:
            broken += [f"{hit.group(1)} (error {hit.group(2)})"] if hit.group(2) in _STICKY else []
            continue
        read = _read(record, allocations)
        if read is not None:
            clause, what, tensor, where = read
            found.setdefault((clause, what), []).append((tensor, where))
    findings = [
        Finding(
            clause, places[0][0], len(places), f"compute-sanitizer {tool}: {what}{places[0][1]}{_more(len(places))}"
        )
        for (clause, what), places in found.items()
    ]
    if broken and not findings:
        findings = [Finding("survival", "", 0, f"compute-sanitizer {tool}: the device ended with {clean(broken[0])}")]
    return Opinion(tuple(findings), complete)


def _records(lines: Sequence[str]) -> Iterator[_Record]:
    """The errors of a report: a line with one space before it begins one, those with more go on with it."""
    record: _Record | None = None
    open_ = False
    for line in lines:
        if line.startswith(" ") and not line.startswith("  ") and line.strip():
            if record is not None:
                yield record
            record, open_ = _Record(line.strip()), True
        elif "Saved host backtrace" in line or "Host Frame" in line:
            open_ = False
        elif record is not None and open_ and line.strip():
            record.lines.append(line.strip())
    if record is not None:
        yield record


def _read(record: _Record, allocations: Sequence[Allocation]) -> tuple[str, str, str, str] | None:
    """Clause, what happened at which instruction, whose memory it was, where else; None for a line of another kind."""
    rest = " ".join(record.lines)
    at = next((hit.group(1) for line in record.lines if (hit := _AT.match(line))), "")
    thread = _THREAD.search(rest)
    by = f", {thread.group(0)}" if thread else ""
    access = _ACCESS.search(record.head)
    if access is not None:
        tensor, beside = _beside(rest, allocations)
        misaligned = ", misaligned" if "is misaligned" in rest else ""
        what = f"invalid {access.group(2)} of {access.group(3)} bytes of {access.group(1)} memory at {clean(at)}"
        return "survival", what, tensor, f"{misaligned}{beside}{by}"
    uninitialised = _UNINITIALISED.search(record.head)
    if uninitialised is not None:
        address = _ADDRESS.search(rest)
        tensor = _owner(int(address.group(1), 16), allocations) if address else ""
        of = f" of {tensor}" if tensor else ""
        size, memory = uninitialised.group(2), uninitialised.group(1)
        return "independence", f"read {size} uninitialised bytes of {memory} memory at {clean(at)}", tensor, f"{of}{by}"
    race = _RACE.match(record.head)
    if race is not None:  # what is only a warning begins with that word
        others = "; ".join(line for line in record.lines if line.startswith("and "))
        return "repeatability", f"race: {clean(record.head.removeprefix('Error: '))}", "", f" {clean(others)}".rstrip()
    return None


def _beside(rest: str, allocations: Sequence[Allocation]) -> tuple[str, str]:
    """Which tensor an access missed, and by how much, in words."""
    hit = _NEAREST.search(rest)
    if hit is None:
        return "", ""
    distance, side, _, address, size = hit.groups()
    tensor = _owner(int(address, 16), allocations)
    named = tensor or f"an allocation of {size} bytes"
    return tensor, f", {distance} bytes {side} {named}" if distance else f", inside {named}"


def _owner(address: int, allocations: Sequence[Allocation]) -> str:
    inside = (one.name for one in allocations if one.address <= address < one.address + max(one.size, 1))
    return next(inside, "")


def _more(count: int) -> str:
    return "" if count == 1 else f" ({count} such)"


def address_sanitizer_opinion(report: str, *, finished: bool) -> Opinion:
    """What ROCm's address sanitizer reported. finished: the program came to its own end, so nothing was found."""
    lines = report.splitlines()
    for index, line in enumerate(lines):
        hit = _ASAN.search(line)
        if hit is None:
            continue
        rest = "\n".join(lines[index + 1 : index + 12])
        access, frame = _ASAN_ACCESS.search(rest), _ASAN_FRAME.search(rest)
        what = f", a {access.group(1).lower()} of {access.group(2)} bytes" if access else ""
        where = f" in {clean(frame.group(1))}" if frame else ""
        return Opinion(
            (Finding("survival", "", 1, f"address sanitizer: {hit.group(1)} on {hit.group(2)}{what}{where}"),), True
        )
    return Opinion((), finished)


def environment_of(under: str) -> Mapping[str, str]:
    """What a process needs for either tool to see allocations one by one, and the lines of Triton's kernels."""
    plain = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTORCH_NO_HIP_MEMORY_CACHING": "1"}
    if under != "rocm-asan":
        return plain
    return {
        **plain,
        "HSA_XNACK": "1",  # device code that is instrumented needs retried page faults
        "HSA_DISABLE_FRAGMENT_ALLOCATOR": "1",
        "TRITON_ENABLE_ASAN": "1",
        "AMDGCN_USE_BUFFER_OPS": "0",
        "ASAN_OPTIONS": "detect_leaks=0,alloc_dealloc_mismatch=0",
    }
