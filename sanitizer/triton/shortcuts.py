"""Spares the interpreter what it does over and over with one outcome: patching its language, describing types.

Triton interprets a kernel operation by operation and spends most of that time on types: every result gets a block type
and a shape of its own. None of these shortcuts changes a value; one that does not fit the installed Triton is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from sanitizer.triton import probes
from sanitizer.triton.patching import Patches

__all__ = ["shorten"]

_MOST: Final = 4096  # kept answers; each launch brings pointer types of its own
_unseen: dict[Any, bool] = {}  # interpreter → whether nobody hears of an overflow


def shorten(interpreter: Any, patches: Patches) -> None:
    """Put every shortcut in place that fits."""
    _drop_unseen_overflow(interpreter, patches)
    _patch_once(interpreter, patches)
    _remember_np_dtypes(interpreter, patches)
    _remember_block_types(interpreter.tl.block_type, patches)
    _remember_tensors(interpreter, patches)


class _Noticed:
    """The scope that a patching returned; once it is restored, nothing counts as patched any more."""

    def __init__(self, scope: Any, done: dict[int, Any]) -> None:
        self._scope = scope
        self._done = done

    def restore(self) -> None:
        """Undo the patching."""
        self._done.clear()
        if self._scope is not None:
            self._scope.restore()


def _patch_once(interpreter: Any, patches: Patches) -> None:
    """Patch the language once per launch for each module of jitted functions, not again for every call of a helper.

    A launch ends by restoring its scope. The Tritons that have no scopes never restore, so that once is enough there.
    """
    stock: Callable[..., Any] = interpreter._patch_lang
    done: dict[int, Any] = {}  # id of a module's globals → these, so that nothing else gets their id

    def patch_lang(function: Any) -> Any:
        module = id(function.__globals__)
        if module in done:
            return _Noticed(None, {})
        scope = stock(function)
        done[module] = function.__globals__
        return None if scope is None else _Noticed(scope, done)

    patches.set(interpreter, "_patch_lang", patch_lang)


def _drop_unseen_overflow(interpreter: Any, patches: Patches) -> None:
    """Leave out a check of every sum and product of integers, where nothing comes of it.

    Outside of its debug mode Triton computes in 64 bits whether the result fits, and then drops the answer.
    """
    builder = interpreter.interpreter_builder
    options: Any = getattr(builder, "options", None)
    if not getattr(options, "sanitize_overflow", False) or getattr(options, "debug", True):
        return
    if interpreter not in _unseen:  # found out once per process
        try:
            _unseen[interpreter] = probes.agrees_with_triton(interpreter, probes.wrapped)
        except interpreter.InterpreterError:  # somebody hears of it
            _unseen[interpreter] = False
    if _unseen[interpreter]:
        patches.set(builder, "options", replace(options, sanitize_overflow=False))


def _remember_np_dtypes(interpreter: Any, patches: Patches) -> None:
    """The NumPy type of a Triton type, which is named after its elements and its shape."""
    stock: Callable[[Any], Any] = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def get_np_dtype(dtype: Any) -> Any:
        found = known.get(dtype.name)
        if found is None:
            found = stock(dtype)
            _keep(known, dtype.name, found)
        return found

    patches.set(interpreter, "_get_np_dtype", get_np_dtype)


def _remember_block_types(block_type: Any, patches: Patches) -> None:
    """Block types of the same elements and sizes: one set of attributes, as tensors share types anyway."""
    stock: Callable[..., None] = block_type.__init__
    known: dict[Any, dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([getattr(size, "value", size) for size in shape])
        key = (id(element_ty), sizes)  # held in the answer, so that nothing else can get its id
        found = known.get(key)
        if found is not None:
            self.__dict__.update(found)
            return
        stock(self, element_ty, shape)
        attributes = dict(vars(self))
        if attributes.get("element_ty") is element_ty and all(type(size) is int for size in sizes):
            _keep(known, key, attributes)

    patches.set(block_type, "__init__", init)


def _remember_tensors(interpreter: Any, patches: Patches) -> None:
    """Tensors of one type: what they hold besides their data."""
    tensor = interpreter.tl.tensor
    if not _depends_on_type(interpreter):
        return
    stock: Callable[..., None] = tensor.__init__
    known: dict[Any, dict[str, Any]] = {}

    # The parameters are named as Triton names them.
    def init(self: Any, handle: Any, type: Any) -> None:
        described = type.__dict__
        shape = described.get("shape")
        # Block types of one shape and element type share both. The answer holds them: nothing else can get their ids.
        key = id(type) if shape is None else (id(shape), id(described.get("element_ty")))
        found = known.get(key)
        if found is not None:
            self.__dict__.update(found)
            self.handle, self.type = handle, type
            return
        stock(self, handle, type)
        attributes = dict(vars(self))
        del attributes["handle"]
        if attributes.get("type") is type:
            _keep(known, key, attributes)

    patches.set(tensor, "__init__", init)


def _depends_on_type(interpreter: Any) -> bool:
    """Whether all that a tensor holds besides its handle follows from its type, and cannot be changed through it."""
    tl = interpreter.tl
    block = tl.block_type(tl.float32, [2, 4])
    one, other = vars(tl.tensor(None, block)), vars(tl.tensor(1, block))
    return (
        one.keys() == other.keys() >= {"handle", "type", "shape", "dtype"}
        and not any(isinstance(value, list | dict | set) for value in one.values())
        and all(repr(value) == repr(other[name]) for name, value in one.items() if name != "handle")
    )


def _keep(known: dict[Any, Any], key: Any, answer: Any) -> None:
    if len(known) >= _MOST:
        known.clear()
    known[key] = answer
