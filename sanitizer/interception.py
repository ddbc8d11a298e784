"""Catches memory that a kernel asks torch for, puts guards around it and a secret into it.

Every aten factory that hands out uninitialised memory on the calling thread is intercepted, and so is `resize_`. What
a kernel receives is a storage of its own, exactly as large as it asked for, cut from a larger buffer of ours. What
C++ operators allocate for themselves, other threads and raw storages is out of reach.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

# pyright takes torch.utils.dlpack's own re-export for private; torch documents it there.
from torch.utils.dlpack import from_dlpack, to_dlpack  # pyright: ignore[reportPrivateImportUsage]

from sanitizer import faults
from sanitizer.fences import Fence, FencedPages, fenced_pages
from sanitizer.finding import Finding
from sanitizer.plan import Fills
from sanitizer.secrets import Fill, Secret, carrier_of, secret_pattern

__all__ = ["Interceptor", "Scratch", "scratch_fill"]

_GUARD: Final = 64  # bytes on either side of an allocation; keeps the alignment that torch gives
_MOST_FENCED: Final = 4_000  # pieces at a time; each takes three of the 65,530 mappings that Linux gives a process
_TORCH_ALIGNMENT: Final = 64  # bytes; what torch's own CPU allocations begin at
_HELD: Final = 256 << 20  # bytes of freed scratch that are kept for one check of all guards at the end
_DEFAULT_FILLS: Final = Fills()
_TORCH_FOLDER: Final = str(Path(torch.__file__).parent)

_aten = torch.ops.aten
_Operator = Any  # torch.ops' overloads have no usable static type


def _overloads(*names: str) -> frozenset[_Operator]:
    """All overloads of the named operators that this torch has, those with an `out` argument aside."""
    found: list[_Operator] = []
    for name in names:
        packet = getattr(_aten, name, None)
        if packet is not None:
            found += [getattr(packet, overload) for overload in packet.overloads() if "out" not in overload]
    return frozenset(found)


_UNINITIALISED: Final = _overloads(
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"
)
_INITIALISED: Final = _overloads(
    "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full"
)
_RESIZES: Final = _overloads("resize_", "resize_as_")
_HANDLED: Final = _UNINITIALISED | _INITIALISED | _RESIZES


def scratch_fill(secret: Secret, *, marked: bool) -> Fill:
    """What intercepted memory holds under `secret`. Marked memory shows later which of its elements were written."""
    return "marked" if marked else secret.fill(_DEFAULT_FILLS)


@dataclass(frozen=True, slots=True, eq=False)
class Scratch:
    """One intercepted allocation: [guard | what the kernel was given | guard] in a buffer of our own.

    first: where in the buffer the kernel's part begins. fenced: where it lies if there are fences around the buffer.
    """

    buffer: Tensor  # [bytes] uint8
    given: StorageWeakRef
    dtype: torch.dtype
    fill: Fill
    first: int
    nbytes: int
    guards: tuple[Tensor, Tensor]  # [bytes] uint8 in front and behind, views of the buffer
    expected: Tensor  # [bytes] what both guards held when handed out
    number: int
    operator: str
    shape: tuple[int, ...]
    line: tuple[str, int]  # file and line of the caller
    fenced: faults.Fenced | None = None

    @property
    def origin(self) -> str:
        """Which call asked for it, and where."""
        return _origin(self.operator, self.shape, self.line)

    @property
    def words(self) -> Tensor:
        """[words] what the kernel was given, as carrier words."""
        return self.buffer[self.first : self.first + self.nbytes].view(carrier_of(self.dtype)[0])

    @property
    def alive(self) -> bool:
        """Whether the kernel still holds it."""
        return not self.given.expired()

    def pattern(self, fill: Fill) -> Tensor:
        """[words] what it held when handed out under `fill`."""
        return _buffer_pattern(self.dtype, fill, self.buffer)[
            self.first // self.itemsize : (self.first + self.nbytes) // self.itemsize
        ]

    @property
    def itemsize(self) -> int:
        """Bytes per carrier word."""
        return carrier_of(self.dtype)[0].itemsize


def _origin(operator: str, shape: Sequence[int], line: tuple[str, int]) -> str:
    return f"torch.{operator} {list(shape)} at {Path(line[0]).name}:{line[1]}"


def _buffer_pattern(dtype: torch.dtype, fill: Fill, buffer: Tensor) -> Tensor:
    return secret_pattern(dtype, fill, buffer.numel() // dtype.itemsize, buffer.device).view(carrier_of(dtype)[0])


@cache
def _is_view(func: _Operator) -> bool:
    """Whether what an operator returns is a view of what it was given, and so nothing new."""
    returns = func._schema.returns
    alias = returns[0].alias_info if returns else None
    return alias is not None and not alias.is_write


@dataclass(eq=False)
class Interceptor(TorchDispatchMode):
    """A dispatch mode for one run under one secret.

    handed_out: how many bytes of its storage a tensor may reach (`Arena.handed_out`); growth beyond moves elsewhere.
    fence: put scratch between fences too, as the arena's tensors are.
    tracking: also remember what other operators allocate, to know what a kernel keeps.
    intercepted, allocations, allocated_bytes: pieces of memory that were guarded; that were allocated by a factory,
    zeros and ones included; and how large these were. seconds: our own time, that of the operators left out.
    """

    secret: Secret
    device: torch.device
    handed_out: Callable[[Tensor], int] | None = None
    fence: Fence | None = None
    marked: bool = False
    tracking: bool = False
    intercepted: int = 0
    allocations: int = 0
    allocated_bytes: int = 0
    seconds: float = 0.0
    scratches: list[Scratch] = field(default_factory=list[Scratch])
    tracked: dict[int, StorageWeakRef] = field(default_factory=dict[int, StorageWeakRef])
    _findings: list[Finding] = field(default_factory=list[Finding])
    _held: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(
        self, func: _Operator, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Pass every operator on; guard what hands out memory."""
        if func in _HANDLED:
            return self._handle(func, args, kwargs or {})
        if kwargs and "out" in kwargs:
            return self._run_with_out(func, args, kwargs)
        result = func(*args, **kwargs) if kwargs else func(*args)
        if self.tracking and not _is_view(func):
            self._track(result)
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare every operator a wrapper that imports torch._dynamo (over a second) and costs microseconds a call.

        Frames under a dispatch mode are not compiled anyway.
        """
        return False

    def _handle(self, func: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _UNINITIALISED:
            return self._uninitialised(func, args, kwargs)
        if func in _RESIZES:
            return self._resized(func, args, kwargs)
        return self._initialised(func, args, kwargs)

    def _uninitialised(self, func: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made, started = func(*args, **kwargs), perf_counter()
        made = self._guard(made, str(func.overloadpacket.__name__), pinned=bool(kwargs.get("pin_memory")))
        self.seconds += perf_counter() - started
        return made

    def _initialised(self, func: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = func(*args, **kwargs)
        self._count(made)
        if self.tracking:
            self._track(made)
        return made

    def _resized(self, func: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, wanted = args[0], args[1]
        shape = tuple(wanted.shape) if isinstance(wanted, Tensor) else tuple(wanted)
        if not self._reaches_beyond(tensor, shape):
            return func(*args, **kwargs)
        started = perf_counter()
        self._grow(tensor, torch.empty(shape, dtype=tensor.dtype, device=tensor.device, **_format_of(kwargs)))
        self.seconds += perf_counter() - started
        return tensor

    def _reaches_beyond(self, tensor: Tensor, shape: tuple[int, ...]) -> bool:
        count = math.prod(shape)
        if count == 0 or tensor.device.type != self.device.type or tensor.layout != torch.strided:
            return False
        return (tensor.storage_offset() + count) * tensor.itemsize > self._limit(tensor)

    def _limit(self, tensor: Tensor) -> int:
        if self.handed_out is not None:
            return self.handed_out(tensor)
        return tensor.untyped_storage().nbytes()

    def _grow(self, tensor: Tensor, target: Tensor) -> None:
        """Let `tensor` become `target`, guarded, with the elements that it had before; the rest is secret."""
        limit = self._limit(tensor)
        grown = self._guard(target, "resize_")
        words = carrier_of(tensor.dtype)[0]
        first = tensor.storage_offset() * tensor.itemsize
        old = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        old = old[first : min(limit, first + grown.untyped_storage().nbytes())].view(words)
        whole = torch.empty(0, dtype=words, device=tensor.device).set_(grown.untyped_storage())
        whole[: old.numel()].copy_(old)
        tensor.set_(grown.untyped_storage(), 0, grown.shape, grown.stride())

    def _run_with_out(self, func: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator with `out=`: a guarded tensor that it has to enlarge moves to memory that can be."""
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if "not resizable" not in str(error):
                raise
        outs = kwargs["out"] if isinstance(kwargs["out"], (tuple, list)) else (kwargs["out"],)
        for out in outs:
            out.set_(torch.empty(0, dtype=out.dtype, device=out.device))
        result = func(*args, **kwargs)
        for out in outs:
            self._grow(out, torch.empty_like(out))
        return result

    # Memory

    def _count(self, made: Tensor) -> None:
        self.allocations += 1
        self.allocated_bytes += made.numel() * made.itemsize

    def _guard(self, made: Tensor, operator: str, *, pinned: bool = False) -> Tensor:
        """A tensor just like `made`, uninitialised still, that lies between guards and holds the secret."""
        self._count(made)
        if made.device.type != self.device.type or made.layout != torch.strided or made.is_quantized:
            return made
        # Tensors without elements are left alone: one that grows in place would grow into its own guard.
        nbytes = made.untyped_storage().nbytes() if made.numel() else 0
        if nbytes == 0:
            return made
        self.intercepted += 1
        dtype, fill = made.dtype, scratch_fill(self.secret, marked=self.marked)
        carrier = carrier_of(dtype)[0]
        if pinned:  # pinned memory has to stay what it is: filled, not guarded
            whole = torch.empty(0, dtype=carrier, device=made.device).set_(made.untyped_storage())
            whole.copy_(secret_pattern(dtype, fill, nbytes // dtype.itemsize, made.device).view(carrier))
            return made
        number, line = len(self.scratches), _caller()
        fenced = self._fenced_pages(nbytes)
        if fenced is None:
            buffer, first = torch.empty(nbytes + 2 * _GUARD, dtype=torch.uint8, device=made.device), _GUARD
        else:
            buffer, first = fenced.buffer, fenced.first
        buffer.view(carrier).copy_(_buffer_pattern(dtype, fill, buffer))
        given = from_dlpack(to_dlpack(buffer[first : first + nbytes]))
        guards = (buffer[:first], buffer[first + nbytes :])
        scratch = Scratch(
            buffer=buffer,
            given=StorageWeakRef(given.untyped_storage()),
            dtype=dtype,
            fill=fill,
            first=first,
            nbytes=nbytes,
            guards=guards,
            expected=torch.cat(guards),
            number=number,
            operator=operator,
            shape=tuple(made.shape),
            line=line,
            fenced=None if fenced is None else _noted(fenced, nbytes, made, number, operator, line),
        )
        self.scratches.append(scratch)
        self._held += nbytes
        if self._held > _HELD:
            self._let_go()
        return given.view(dtype).as_strided(made.shape, made.stride())

    def _fenced_pages(self, nbytes: int) -> FencedPages | None:
        """Pages for an allocation, where it is to have fences."""
        if self.fence is None or len(self.scratches) >= _MOST_FENCED:
            return None
        if self.fence.alignment == 1:
            return fenced_pages(nbytes, self.fence)
        # Whoever relies on aligned tensors relies on what torch's own allocations begin at.
        return fenced_pages(nbytes, Fence(self.fence.side, _TORCH_ALIGNMENT))

    def _let_go(self) -> None:
        """Check and forget what the kernel has freed, before it adds up."""
        freed = [scratch for scratch in self.scratches if not scratch.alive]
        self._findings += guard_findings(freed)
        self.scratches = [scratch for scratch in self.scratches if scratch.alive]
        self._held = sum(scratch.nbytes for scratch in self.scratches)

    def _track(self, result: Any) -> None:
        for made in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(made, Tensor) and made.device.type == self.device.type and made.layout == torch.strided:
                given = StorageWeakRef(made.untyped_storage())
                self.tracked.setdefault(given.cdata, given)

    # After the run

    def guard_hits(self, kept: Sequence[Scratch] = ()) -> list[Finding]:
        """Writes beside intercepted memory, that of earlier runs in `kept` included, as `containment` findings."""
        return self._findings + guard_findings([*kept, *self.scratches])

    def scratch_of(self, tensor: Tensor) -> Scratch | None:
        """The intercepted allocation that `tensor` lies in."""
        cdata = StorageWeakRef(tensor.untyped_storage()).cdata
        return next((scratch for scratch in self.scratches if scratch.given.cdata == cdata and scratch.alive), None)


def guard_findings(scratches: Sequence[Scratch]) -> list[Finding]:
    """Which guards are not what they were. One comparison for all of them; details only when it fails."""
    if not scratches:
        return []
    now = torch.cat([guard for scratch in scratches for guard in scratch.guards])
    expected = torch.cat([scratch.expected for scratch in scratches])
    if torch.equal(now, expected):
        return []
    findings: list[Finding] = []
    for scratch in scratches:
        before = scratch.expected.tensor_split((scratch.first,))
        front, behind = ((guard != was).nonzero() for guard, was in zip(scratch.guards, before, strict=True))
        for side, places in (("in front of", front), ("behind", behind)):
            count = places.numel()
            if count:
                distance = int(places[0]) if side == "behind" else scratch.first - int(places[-1])
                name = f"scratch {scratch.number}"
                detail = (
                    f"guard {side} {name} ({scratch.origin}): {count} bytes overwritten, the nearest {distance} bytes"
                )
                detail += " past its end" if side == "behind" else " before its beginning"
                findings.append(Finding("containment", name, -(-count // scratch.dtype.itemsize), detail))
        for guard, was in zip(scratch.guards, before, strict=True):
            guard.copy_(was)
    return findings


def _noted(
    pages: FencedPages, nbytes: int, made: Tensor, number: int, operator: str, line: tuple[str, int]
) -> faults.Fenced:
    """Let the fault report know what lies between these fences."""
    start = pages.buffer.data_ptr() + pages.first
    remark = _origin(operator, made.shape, line)
    fenced = faults.Fenced(f"scratch {number}", pages.low, start, start + nbytes, pages.high, made.itemsize, remark)
    faults.note([fenced])
    return fenced


def _caller() -> tuple[str, int]:
    """File and line of the innermost frame that is neither torch's nor ours."""
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and not name.startswith(_TORCH_FOLDER):
            return name, frame.f_lineno
        frame = frame.f_back
    return "unknown", 0


def _format_of(kwargs: dict[str, Any]) -> dict[str, Any]:
    wanted = kwargs.get("memory_format")
    return {} if wanted is None or wanted == torch.preserve_format else {"memory_format": wanted}
