"""What the interpreter is spared changes no result, and is put back."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest
import torch

from sanitizer.triton import probes, shortcuts
from sanitizer.triton.mends import mended
from sanitizer.triton.patching import Patches

interpreter: Any = importlib.import_module("triton.runtime.interpreter")
helped: Any = importlib.import_module("tests.triton.helped")


def _launched() -> tuple[list[float], list[float]]:
    given = torch.arange(16, dtype=torch.float32).reshape(4, 4) % 5
    most, total = torch.empty(4), torch.empty(4)
    helped.extremes_kernel[(2,)](given, most, total)
    return most.tolist(), total.tolist()


def test_helpers_compute_the_same_in_every_launch() -> None:
    """Jitted helpers, called several times by several programs of several launches, give what they gave before."""
    plain = _launched()
    with mended():
        assert [_launched(), _launched()] == [plain, plain]
    assert _launched() == plain


def test_a_launch_patches_once_for_each_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often helpers are called, the language is patched for the kernel's module and for theirs."""
    stock, patched = interpreter._patch_lang, list[Any]()

    def counted(function: Any) -> Any:
        patched.append(function.__globals__["__name__"])
        return stock(function)

    monkeypatch.setattr(interpreter, "_patch_lang", counted)
    with mended():
        _launched()
    assert len(patched) == len(set(patched)) > 1


def test_a_restored_scope_is_patched_anew() -> None:
    """Once the language is restored, within a context too, the next launch finds it patched again."""
    with mended():
        first = _launched()
        scope = interpreter._patch_lang(helped.extremes_kernel.fn)
        if scope is not None:
            scope.restore()
        assert _launched() == first


def test_types_and_tensors_keep_what_tells_them_apart() -> None:
    """Block types and tensors made from memory equal those made anew, and differ where those differ."""
    tl = interpreter.tl

    def described() -> list[str]:
        kinds = [(tl.float32, [2, 4]), (tl.float32, [4, 2]), (tl.int32, [2, 4]), (tl.pointer_type(tl.int32), [2, 4])]
        blocks = [tl.block_type(element, sizes) for element, sizes in kinds]
        scalars = [tl.int32, tl.pointer_type(tl.int32)]
        tensors = [tl.tensor(None, kind) for kind in (*blocks, *scalars)]
        dtypes = [str(interpreter._get_np_dtype(kind)) for kind in (*blocks, *scalars)]
        return [*map(str, blocks), *(repr(sorted(map(str, vars(tensor).values()))) for tensor in tensors), *dtypes]

    plain = described()
    with mended():
        assert [described(), described()] == [plain, plain]


def test_an_overflow_that_somebody_hears_of_stays_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """In debug mode a sum that overflows still raises; outside of it, it wraps around as it always did."""
    builder = interpreter.interpreter_builder
    plain = builder.options
    assert probes.agrees_with_triton(interpreter, probes.wrapped)
    with mended():
        assert not builder.options.sanitize_overflow
        assert probes.agrees_with_triton(interpreter, probes.wrapped)
    assert builder.options is plain
    monkeypatch.setattr(builder, "options", replace(plain, debug=True))
    with Patches() as patches:
        shortcuts.shorten(interpreter, patches)
        assert builder.options.sanitize_overflow
        with pytest.raises((interpreter.InterpreterError, AssertionError)):
            probes.agrees_with_triton(interpreter, probes.wrapped)
