"""Small Triton kernels that do one thing each, for the tests of mends and recorder."""

# No `from __future__ import annotations`: the interpreter compares the annotation `tl.constexpr` with the type itself.
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
import triton
import triton.language as tl

__all__ = [
    "add_atomically",
    "arithmetic_kernel",
    "assuming_kernel",
    "blocked_copy",
    "chain_kernel",
    "copy_kernel",
    "described_copy",
    "logic_kernel",
    "shifted_kernel",
    "swap_kernel",
    "twice_kernel",
    "unaligned_kernel",
]


@triton.jit
def arithmetic_kernel(a_ptr, b_ptr, product_ptr, row_ptr, SIZE: tl.constexpr):  # noqa: N803
    """A product, and per row a maximum and a sum of selected exponentials."""
    i = tl.arange(0, SIZE)
    at = i[:, None] * SIZE + i[None, :]
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    tl.store(product_ptr + at, tl.dot(a, b, input_precision="ieee"))
    grown = tl.where(a > 0, tl.exp(a.to(tl.float32)).to(a.dtype), -1.0)
    tl.store(row_ptr + i, tl.max(a * 2.0, axis=1).to(tl.float32) + tl.sum(grown.to(tl.float32), axis=1))


@triton.jit
def logic_kernel(numbers_ptr, out_ptr):
    """Every way to join blocks of truth values."""
    i = tl.arange(0, 8)
    n = tl.load(numbers_ptr + i)
    tl.store(out_ptr + i, tl.where((not n > 5) and (2 < n < 5 or n == 0), 1, 0))


@triton.jit
def copy_kernel(source_ptr, target_ptr, count, shift, SIZE: tl.constexpr):  # noqa: N803
    """target[i] = source[i + shift]; `count` elements, SIZE to a program."""
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(target_ptr + i, tl.load(source_ptr + i + shift, mask=i < count), mask=i < count)


@triton.jit
def twice_kernel(target_ptr, VARIED: tl.constexpr):  # noqa: N803
    """Every program stores to the same four elements: its own number, or the same one."""
    i = tl.arange(0, 4)
    tl.store(target_ptr + i, i * 0 + (tl.program_id(0) + 1 if VARIED else 7))


@triton.jit
def chain_kernel(target_ptr, lock_ptr, ORDERED: tl.constexpr):  # noqa: N803
    """Every program reads what the one before it stored, with or without an atomic in between."""
    me = tl.program_id(0)
    if ORDERED:
        tl.atomic_add(lock_ptr, 1)
    before = tl.load(target_ptr + me - 1, mask=me > 0, other=0)
    tl.store(target_ptr + me, before + 1)


@triton.jit
def add_atomically(target_ptr, SIZE: tl.constexpr):  # noqa: N803
    """Every program adds one to every element."""
    i = tl.arange(0, SIZE)
    tl.atomic_add(target_ptr + i, (i * 0 + 1).to(target_ptr.dtype.element_ty))


@triton.jit
def assuming_kernel(source_ptr, target_ptr, stride, SIZE: tl.constexpr):  # noqa: N803
    """target[i] = source[i · stride], the stride being taken to be positive."""
    tl.assume(stride > 0)
    i = tl.arange(0, SIZE)
    tl.store(target_ptr + i, tl.load(source_ptr + i * stride))


@triton.jit
def swap_kernel(target_ptr, shift):
    """One compare-and-swap."""
    tl.atomic_cas(target_ptr + shift, 0, 5)


@triton.jit
def described_copy(source_ptr, target_ptr, rows, SIZE: tl.constexpr):  # noqa: N803
    """Copies tiles by tensor descriptors."""
    source = tl.make_tensor_descriptor(source_ptr, shape=[rows, SIZE], strides=[SIZE, 1], block_shape=[SIZE, SIZE])
    target = tl.make_tensor_descriptor(target_ptr, shape=[rows, SIZE], strides=[SIZE, 1], block_shape=[SIZE, SIZE])
    first = tl.program_id(0) * SIZE
    target.store([first, 0], source.load([first, 0]))


@triton.jit
def blocked_copy(source_ptr, target_ptr, rows, SIZE: tl.constexpr):  # noqa: N803
    """Copies tiles by block pointers."""
    first = tl.program_id(0) * SIZE
    source = tl.make_block_ptr(source_ptr, (rows, SIZE), (SIZE, 1), (first, 0), (SIZE, SIZE), (1, 0))
    target = tl.make_block_ptr(target_ptr, (rows, SIZE), (SIZE, 1), (first, 0), (SIZE, SIZE), (1, 0))
    tl.store(target, tl.load(source, boundary_check=(0, 1)), boundary_check=(0, 1))


@triton.jit
def shifted_kernel(target_ptr, shift):
    """Stores four elements so many elements away."""
    tl.store(target_ptr + shift + tl.arange(0, 4), tl.arange(0, 4))


@triton.jit
def unaligned_kernel(target_ptr, SIZE: tl.constexpr):  # noqa: N803
    """Stores 4-byte words to addresses that are not multiples of 4."""
    i = tl.arange(0, SIZE)
    tl.store((target_ptr + 1).to(tl.pointer_type(tl.int32)) + i, i)
