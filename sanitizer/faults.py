"""Says which tensor a process touched the fence of when it died, and by how much.

Two sides share a file. The process that runs kernels notes in it what lies between fences, and has its signal handler
write down the fault. Whoever started the process reads both after its death.

Note [Fault handler]: the handler is a few instructions of machine code. One written in Python would need the
interpreter's lock: a thread of OpenMP that faults while the main thread holds the lock, and waits for the thread, would
wait for ever.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Fault", "Fenced", "catch_faults", "note", "read_fault"]

_SIGNALS: Final = (signal.SIGSEGV, signal.SIGBUS)
_SIGINFO: Final = struct.Struct("=iii4xQ")  # signal, errno, code, address, as Linux lays them out on 64 bits
_SIGINFO_BYTES: Final = 128
_ERROR_CODE: Final = struct.Struct("=Q")
_WROTE: Final = 2  # the bit of x86's page-fault error code that tells a write from a read
_FROM_KERNEL: Final = 128  # code of a fault without an address: on x86, a general protection fault
_TABLE: Final = 256  # bytes from the file's beginning to the table of what is fenced
_TABLE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Fenced:
    """A piece of memory between fences: [low, start) is in front of it, [end, high) behind. All are addresses."""

    name: str
    low: int
    start: int
    end: int
    high: int
    itemsize: int
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """An access that ended a process. tensor: whose fence it hit, "" for none; elements: how far out, in elements."""

    tensor: str
    elements: int
    words: str


@dataclass(slots=True)
class _Table:
    """This process's side of the file; closed as long as nobody asked for reports."""

    descriptor: int | None = None
    position: int = _TABLE


_table: Final = _Table()
_kept_alive: Final[list[Any]] = []  # what the signal handler needs for the rest of the process


def note(fenced: Sequence[Fenced], *, afresh: bool = False) -> None:
    """Note what lies between fences from now on, in addition to the rest or `afresh`. Does nothing unless asked for."""
    if _table.descriptor is None:
        return
    if afresh:
        _table.position = _TABLE
    lines = [f"{one.low} {one.start} {one.end} {one.high} {one.itemsize} {one.name}\t{one.remark}\n" for one in fenced]
    text = "".join(lines).encode()
    if _table.position + len(text) < _TABLE_BYTES:
        os.pwrite(_table.descriptor, text + b"\0", _table.position)
        _table.position += len(text)


def catch_faults(descriptor: int) -> None:
    """Have segmentation faults and bus errors of this process written to a file before they end it.

    descriptor: of an empty file that stays open. Does nothing but keep the table where the machine is no x86-64.
    """
    _table.descriptor = descriptor
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return
    code = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=_READ_WRITE_EXECUTE)
    code.write(_handler(descriptor))
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    stack = ctypes.create_string_buffer(_STACK_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sigaltstack(ctypes.byref(_Stack(ctypes.addressof(stack), 0, _STACK_BYTES)), None)
    action = _Action(address, (ctypes.c_ubyte * 128)(), _SA_SIGINFO | _SA_ONSTACK | _SA_RESETHAND, None)
    for number in _SIGNALS:
        libc.sigaction(int(number), ctypes.byref(action), None)
    _kept_alive.extend((code, stack))


_READ_WRITE_EXECUTE: Final = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
_STACK_BYTES: Final = 1 << 16  # so that a stack that overflowed can be reported too
_SA_SIGINFO: Final = 4
_SA_ONSTACK: Final = 0x08000000
_SA_RESETHAND: Final = -0x80000000  # as a C int: the second fault ends the process


class _Action(ctypes.Structure):
    """struct sigaction of Linux's C libraries on 64 bits."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Stack(ctypes.Structure):
    """stack_t."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def _handler(descriptor: int) -> bytes:
    """The signal handler (signal, siginfo, context): write siginfo and the error code, then send the signal again.

    The signal stays blocked until the handler returns, and its action is the default one by then: so the process dies
    of it, whether an instruction or somebody else had sent it. See Note [Fault handler].
    """
    write = b"\xb8\x01\x00\x00\x00" + b"\x0f\x05"  # mov eax, 1 (write); syscall
    return b"".join(
        (
            b"\x41\x89\xf8",  # mov r8d, edi: the signal
            b"\x49\x89\xd1",  # mov r9, rdx: the context
            b"\xbf" + struct.pack("<i", descriptor),  # mov edi, descriptor
            b"\xba" + struct.pack("<i", _SIGINFO_BYTES),  # mov edx, …; rsi is siginfo already
            write,
            b"\x49\x8d\xb1\xc0\x00\x00\x00",  # lea rsi, [r9 + 192]: gregs[REG_ERR]
            b"\xba" + struct.pack("<i", _ERROR_CODE.size),  # mov edx, …
            write,
            b"\xb8\x27\x00\x00\x00\x0f\x05",  # mov eax, 39 (getpid); syscall
            b"\x89\xc7",  # mov edi, eax
            b"\x44\x89\xc6",  # mov esi, r8d
            b"\xb8\x3e\x00\x00\x00\x0f\x05",  # mov eax, 62 (kill); syscall
            b"\xc3",  # ret
        )
    )


# The other side


def read_fault(descriptor: int) -> Fault | None:
    """What the process that wrote this file died of; None where no access did."""
    head = os.pread(descriptor, _TABLE, 0)
    if len(head) < _SIGINFO_BYTES + _ERROR_CODE.size:
        return None
    number, _, code, address = _SIGINFO.unpack_from(head)
    if number not in _SIGNALS or code <= 0:  # code: sent by a process, not by an instruction
        return None
    if code == _FROM_KERNEL:
        words = (
            "made an access without a valid address: a wild pointer, or an instruction that needs an aligned address "
            "and did not get one (then the kernel has to declare aligned_16)"
        )
        return Fault("", 0, words)
    (error,) = _ERROR_CODE.unpack_from(head, _SIGINFO_BYTES)
    return _nearest(address, "wrote" if error & _WROTE else "read", _fenced(os.pread(descriptor, _TABLE_BYTES, _TABLE)))


def _fenced(table: bytes) -> list[Fenced]:
    found: list[Fenced] = []
    for line in table.split(b"\0", 1)[0].decode(errors="replace").splitlines():
        low, start, end, high, itemsize, rest = line.split(" ", 5)
        name, _, remark = rest.partition("\t")
        found.append(Fenced(name, int(low), int(start), int(end), int(high), int(itemsize), remark))
    return found


def _nearest(address: int, what: str, fenced: Sequence[Fenced]) -> Fault | None:
    """The memory whose fence lies at `address`; of two neighbours the nearer one."""
    best: tuple[int, Fault] | None = None
    for one in fenced:
        if one.end <= address < one.high:
            elements, side = (address - one.end) // one.itemsize + 1, "past the end"
        elif one.low <= address < one.start:
            elements, side = -(-(one.start - address) // one.itemsize), "before the beginning"
        else:
            continue
        distance = elements * one.itemsize
        named = f"{one.name} ({one.remark})" if one.remark else one.name
        many = "1 element" if elements == 1 else f"{elements} elements"
        fault = Fault(one.name, elements, f"{what} {distance} bytes {side} of {named} ({many})")
        if best is None or distance <= best[0]:  # of equals the latest: memory may have been handed out again
            best = distance, fault
    return best[1] if best else None
