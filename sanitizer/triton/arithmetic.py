"""Mends of the interpreter's arithmetic on bfloat16: widened to float32, computed, rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sanitizer.triton.floats import Array, narrowed, widened
from sanitizer.triton.patching import Patches

__all__ = [
    "binary_is_right",
    "dot_is_right",
    "mend_binary",
    "mend_dot",
    "mend_reductions",
    "mend_ternary",
    "mend_unary",
    "reductions_are_right",
    "ternary_is_right",
    "unary_is_right",
]

_LEFT: Final = np.array([1.5, -2.0, 0.25, -96.0], dtype=np.float32)
_RIGHT: Final = np.array([-0.5, 3.0, 0.25, 1.0078125], dtype=np.float32)


def _is_bfloat16(interpreter: Any, handle: Any) -> bool:
    """Whether `handle` holds bfloat16 bits. A comparison's result keeps its operands' type, but its data are bool."""
    return handle.dtype.scalar == interpreter.tl.bfloat16 and handle.data.dtype == np.uint16


def _wide(interpreter: Any, handle: Any) -> Any:
    if not _is_bfloat16(interpreter, handle):
        return handle
    return interpreter.TensorHandle(widened(handle.data), interpreter.tl.float32)


def _narrow(interpreter: Any, handle: Any) -> Any:
    """A float32 result as bfloat16; a comparison's stays bool."""
    if handle.data.dtype == np.bool_:
        return handle
    return interpreter.TensorHandle(narrowed(handle.data), interpreter.tl.bfloat16)


def _held(interpreter: Any, numbers: Array) -> Any:
    return interpreter.TensorHandle(narrowed(numbers), interpreter.tl.bfloat16)


def _mend(interpreter: Any, patches: Patches, name: str, operands: int) -> None:
    """Let a builder's method see its first `operands` operands, where the last of them is bfloat16, as float32."""
    stock: Callable[..., Any] = getattr(interpreter.InterpreterBuilder, name)

    def method(builder: Any, *given: Any) -> Any:
        if not _is_bfloat16(interpreter, given[operands - 1]):
            return stock(builder, *given)
        wide = [_wide(interpreter, handle) for handle in given[:operands]]
        return _narrow(interpreter, stock(builder, *wide, *given[operands:]))

    patches.set(interpreter.InterpreterBuilder, name, method)


def binary_is_right(interpreter: Any) -> bool:
    """Whether a product is rounded from the numbers, and a comparison compares them."""
    builder = interpreter.InterpreterBuilder()
    left, right = _held(interpreter, _LEFT), _held(interpreter, _RIGHT)
    product = builder.binary_op(left, right, np.multiply)
    less = builder.binary_op(left, right, np.less)
    return np.array_equal(product.data, narrowed(_LEFT * _RIGHT)) and np.array_equal(less.data, _LEFT < _RIGHT)


def mend_binary(interpreter: Any, patches: Patches) -> None:
    """Add, multiply, compare and the like."""
    _mend(interpreter, patches, "binary_op", 2)


def unary_is_right(interpreter: Any) -> bool:
    """Whether functions of one number see the number."""
    builder, numbers = interpreter.InterpreterBuilder(), np.abs(_LEFT)
    held = _held(interpreter, numbers)
    return all(
        np.array_equal(got.data, narrowed(wanted))
        for got, wanted in (
            (builder.unary_op(held, np.exp2), np.exp2(numbers)),
            (builder.unary_op(held, np.floor), np.floor(numbers)),
            (builder.create_rsqrt(held), 1 / np.sqrt(numbers)),
        )
    )


def mend_unary(interpreter: Any, patches: Patches) -> None:
    """Exponentials, roots, rounding to integers and the like."""
    for name in ("unary_op", "create_rsqrt", "create_erf"):
        _mend(interpreter, patches, name, 1)


def ternary_is_right(interpreter: Any) -> bool:
    """Whether clamping compares numbers, and a fused multiply-add computes with them."""
    builder = interpreter.InterpreterBuilder()
    number, low, high = (_held(interpreter, numbers) for numbers in (_LEFT, -np.abs(_RIGHT), np.abs(_RIGHT)))
    clipped = builder.ternary_op(number, low, high, np.clip)
    fused = builder.create_fma(number, low, high)
    return np.array_equal(clipped.data, narrowed(np.clip(_LEFT, -np.abs(_RIGHT), np.abs(_RIGHT)))) and np.array_equal(
        fused.data, narrowed(_LEFT * -np.abs(_RIGHT) + np.abs(_RIGHT))
    )


def mend_ternary(interpreter: Any, patches: Patches) -> None:
    """Clamp, select, fused multiply-add."""
    for name in ("ternary_op", "create_fma"):
        _mend(interpreter, patches, name, 3)


def dot_is_right(interpreter: Any) -> bool:
    """Whether a product of bfloat16 matrices multiplies numbers and not bit patterns."""
    left, right = np.stack([_LEFT, _RIGHT]), np.stack([_RIGHT, _LEFT], axis=1)
    into = interpreter.TensorHandle(np.ones((2, 2), dtype=np.float32), interpreter.tl.float32)
    got = interpreter.InterpreterBuilder().create_dot(
        _held(interpreter, left), _held(interpreter, right), into, interpreter._ir.INPUT_PRECISION.IEEE, 0
    )
    return np.allclose(got.data, left @ right + 1, rtol=1e-5, atol=0)


def mend_dot(interpreter: Any, patches: Patches) -> None:
    """Products of bfloat16 matrices, whatever they are added to."""
    stock = interpreter.InterpreterBuilder.create_dot

    def create_dot(builder: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        result = stock(builder, _wide(interpreter, a), _wide(interpreter, b), _wide(interpreter, d), *rest)
        return _narrow(interpreter, result) if _is_bfloat16(interpreter, d) else result

    patches.set(interpreter.InterpreterBuilder, "create_dot", create_dot)


def reductions_are_right(interpreter: Any) -> bool:
    """Whether sums and maxima of bfloat16 are those of the numbers."""
    tl = interpreter.tl
    block = tl.tensor(_held(interpreter, _LEFT), tl.block_type(tl.bfloat16, [4]))
    total = interpreter.ReduceOps(0, tl.standard._sum_combine, False).sum(block)
    most = interpreter.ReduceOps(0, tl.standard._elementwise_max, False).min_max(block, np.max)
    running = interpreter.ScanOps(0, tl.standard._sum_combine, False).cumsum(block)[0]
    return (
        np.array_equal(total.handle.data, narrowed(np.array([_LEFT.sum()])))
        and np.array_equal(most.handle.data, narrowed(np.array([_LEFT.max()])))
        and np.array_equal(running.handle.data, narrowed(np.cumsum(_LEFT)))
    )


def mend_reductions(interpreter: Any, patches: Patches) -> None:
    """Sums, extremes, running sums and products; a float32 accumulator, one rounding at the end."""
    tl = interpreter.tl

    def wide_tensor(tensor: Any) -> Any:
        return tl.tensor(_wide(interpreter, tensor.handle), tl.block_type(tl.float32, list(tensor.handle.data.shape)))

    def narrow_tensor(tensor: Any) -> Any:
        if tensor.dtype != tl.float32:  # the place of an extreme
            return tensor
        data = tensor.handle.data
        dtype = tl.block_type(tl.bfloat16, list(data.shape)) if tensor.type.is_block() else tl.bfloat16
        return tl.tensor(_narrow(interpreter, tensor.handle), dtype)

    def mend(owner: Any, name: str) -> None:
        stock: Callable[..., Any] = getattr(owner, name)

        def method(self: Any, given: Any, *rest: Any, **named: Any) -> Any:
            first = given[0] if isinstance(given, tuple) else given
            if not _is_bfloat16(interpreter, first.handle):
                return stock(self, given, *rest, **named)
            result = stock(self, wide_tensor(first), *rest, **named)
            if isinstance(result, list | tuple):
                return type(result)(narrow_tensor(part) for part in result)
            return narrow_tensor(result)

        patches.set(owner, name, method)

    for owner, names in ((interpreter.ReduceOps, ("sum", "min_max")), (interpreter.ScanOps, ("cumsum", "cumprod"))):
        for name in names:
            mend(owner, name)
