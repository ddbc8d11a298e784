"""Hooks into the interpreter: every load, store, atomic and launch is told to a recording."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from torch import Tensor

from sanitizer.secrets import Secret
from sanitizer.triton.floats import Array
from sanitizer.triton.patching import Patches

__all__ = ["Listener", "hooked"]

Program = tuple[int, int, int]
_SPARE: Final = np.zeros(2, dtype=np.uint64)  # where a compare-and-swap goes that lies nowhere

_NOT_THE_KERNEL: Final = ("triton.", __name__)

# What a load that lies nowhere gives under secret B, by the kind and size of the element: 3 in floats.
_ORDINARY: Final = {("u", 2): 0x4040, ("u", 1): 0x44}


class Listener(Protocol):
    """What is told about accesses. Each answer says which lanes lie in known memory; None says that all do."""

    secret: Secret

    def launch(self, kernel: str, arguments: dict[str, Tensor]) -> None:
        """A launch begins."""
        ...

    def landed(self, grid: Program) -> None:
        """A launch is over."""
        ...

    def load(self, addresses: Array, size: int, *, program: Program, grid: Program, atomic: bool) -> Array | None:
        """A program loads."""
        ...

    def store(
        self, addresses: Array, size: int, values: Array | None, *, program: Program, grid: Program
    ) -> Array | None:
        """A program stores; `values` is None where it does so by an atomic."""
        ...

    def assumed(self, place: str, *, program: Program) -> None:
        """A program assumes something that does not hold; `place` is the source line."""
        ...


@contextlib.contextmanager
def hooked(interpreter: Any, listener: Listener) -> Generator[None, None, None]:
    """Let `listener` hear everything that interpreted kernels do to memory."""
    hooks = _Hooks(interpreter, listener)
    with Patches() as patches:
        builder = interpreter.InterpreterBuilder
        for name, make in (
            ("create_masked_load", hooks.load),
            ("create_masked_store", hooks.store),
            ("create_atomic_rmw", hooks.rmw),
            ("create_atomic_cas", hooks.cas),
            ("create_atomic_load", hooks.atomic),
            ("create_atomic_store", hooks.atomic),
            ("create_atomic_poll", hooks.atomic),
            ("create_assume", hooks.assume),
        ):
            if hasattr(builder, name):
                patches.set(builder, name, make(getattr(builder, name)))
        patches.set(interpreter.GridExecutor, "__call__", hooks.launch(interpreter.GridExecutor.__call__))
        yield


class _Hooks:
    """Makes each hook from the stock method that it stands in front of."""

    def __init__(self, interpreter: Any, listener: Listener) -> None:
        self._handle = interpreter.TensorHandle
        self._int1 = interpreter.tl.int1
        self._dtype: Callable[[Any], np.dtype[Any]] = interpreter._get_np_dtype
        self._builder = interpreter.interpreter_builder
        self._listener = listener
        self._atomic = False

    def load(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """Before a load."""

        def create_masked_load(builder: Any, ptrs: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
            active, addresses, size = self._lanes(ptrs, mask)
            if addresses.size:
                known = self._listener.load(
                    addresses, size, program=builder.grid_idx, grid=builder.grid_dim, atomic=self._atomic
                )
                if known is not None and not known.all():
                    mask, other = self._withheld(ptrs, active, known, other)
            return stock(builder, ptrs, mask, other, *rest, **named)

        return create_masked_load

    def store(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """Before a store."""

        def create_masked_store(builder: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
            active, addresses, size = self._lanes(ptrs, mask)
            if addresses.size:
                values = None if self._atomic else np.broadcast_to(value.data, active.shape)[active]
                known = self._listener.store(addresses, size, values, program=builder.grid_idx, grid=builder.grid_dim)
                if known is not None and not known.all():
                    mask = self._masked(active, known)
            return stock(builder, ptrs, value, mask, *rest, **named)

        return create_masked_store

    def rmw(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """Before an atomic read-modify-write."""

        def create_atomic_rmw(builder: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
            active, addresses, size = self._lanes(ptr, mask)
            if addresses.size:
                known = self._listener.store(addresses, size, None, program=builder.grid_idx, grid=builder.grid_dim)
                if known is not None and not known.all():
                    mask = self._masked(active, known)
            return stock(builder, op, ptr, val, mask, *rest)

        return create_atomic_rmw

    def cas(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """Before an atomic compare-and-swap, which has no mask: lanes that lie nowhere go to spare memory."""

        def create_atomic_cas(builder: Any, ptr: Any, cmp: Any, val: Any, *rest: Any) -> Any:
            every = self._handle(np.ones(ptr.data.shape, dtype=np.bool_), self._int1)
            active, addresses, size = self._lanes(ptr, every)
            known = self._listener.store(addresses, size, None, program=builder.grid_idx, grid=builder.grid_dim)
            if known is not None and not known.all():
                moved = np.where(known.reshape(active.shape), ptr.data, np.uint64(_SPARE.ctypes.data))
                ptr = self._handle(moved, ptr.dtype)
            return stock(builder, ptr, cmp, val, *rest)

        return create_atomic_cas

    def atomic(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """Around an atomic that the interpreter makes of plain loads and stores."""

        def create_atomic(builder: Any, *arguments: Any) -> Any:
            before, self._atomic = self._atomic, True
            try:
                return stock(builder, *arguments)
            finally:
                self._atomic = before

        return create_atomic

    def assume(self, _: Callable[..., Any]) -> Callable[..., Any]:
        """Instead of the stock method, which raises: compiled code does not, and goes on."""

        def create_assume(builder: Any, condition: Any) -> None:
            if not bool(condition):
                self._listener.assumed(_line_of_the_kernel(), program=builder.grid_idx)

        return create_assume

    def launch(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """Around a launch."""

        def call(executor: Any, *arguments: Any, **named: Any) -> Any:
            given = {**dict(zip(executor.arg_names, arguments, strict=False)), **named}
            self._listener.launch(executor.fn.__name__, dict(_tensors(given)))
            try:
                return stock(executor, *arguments, **named)
            finally:
                self._listener.landed(getattr(self._builder, "grid_dim", None) or (1, 1, 1))

        return call

    def _lanes(self, ptrs: Any, mask: Any) -> tuple[Array, Array, int]:
        """The mask in the pointers' shape, the addresses that it lets through, and bytes per element."""
        data, active = ptrs.data, mask.data
        if active.shape != data.shape:
            active = np.broadcast_to(active, data.shape)
        return active, data[active].view(np.int64), max(1, ptrs.get_element_ty().primitive_bitwidth // 8)

    def _masked(self, active: Array, known: Array) -> Any:
        allowed = active.copy()
        allowed[active] = known
        return self._handle(allowed, self._int1)

    def _withheld(self, ptrs: Any, active: Array, known: Array, other: Any) -> tuple[Any, Any]:
        """Mask and other of a load whose unknown lanes give the current secret."""
        mask = self._masked(active, known)
        dtype = ptrs.get_element_ty()
        plain = self._dtype(dtype)
        given = np.zeros(active.shape, dtype=plain) if other is None else np.broadcast_to(other.data, active.shape)
        filled = np.where(active & ~mask.data, _secret_number(self._listener.secret, plain), given)
        return mask, self._handle(filled.astype(plain), dtype)


def _line_of_the_kernel() -> str:
    """The file and line of the innermost caller outside Triton and this module."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_NOT_THE_KERNEL):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _secret_number(secret: Secret, dtype: np.dtype[Any]) -> Any:
    """One element of `dtype` that no input gave: all bits set (a NaN in floats, −1 in tables), ordinary, or zero."""
    if secret is Secret.Z:
        return np.zeros((), dtype=dtype)
    if secret is Secret.A:
        return np.full(dtype.itemsize, 0xFF, dtype=np.uint8).view(dtype)[0] if dtype != np.bool_ else np.True_
    return np.asarray(_ORDINARY.get((dtype.kind, dtype.itemsize), 3)).astype(dtype)


def _tensors(given: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors among a launch's arguments, those inside tuples, wrappers and descriptors included."""
    for name, value in given.items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, tuple):
            yield from _tensors({f"{name}[{index}]": part for index, part in enumerate(value)})
        elif isinstance(getattr(value, "base", None), Tensor):
            yield name, value.base
