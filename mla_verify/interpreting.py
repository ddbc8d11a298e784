"""Triton kernels on a CPU: interpreted, with Triton's known errors mended, and every load and store recorded."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

from mla_verify.errors import UsageError
from sanitizer.observing import Observer

__all__ = ["check_interpreted", "interpret_on", "interpreting", "names_triton", "programs_seen", "recorder"]

_VARIABLE: Final = "TRITON_INTERPRET"
_MEND: Final = f"set {_VARIABLE}=1 before triton is imported"


def interpret_on(device: str) -> None:
    """On a CPU, have Triton interpret what is decorated from now on: it decides when a kernel is decorated."""
    if device == "cpu":
        os.environ[_VARIABLE] = "1"


def check_interpreted(function: Callable[..., Any], *, name: str) -> None:
    """Raise UsageError for a Triton kernel that was decorated to be compiled, which no CPU can run."""
    standard = sys.modules.get("triton.language.standard")
    if standard is not None and _is_compiled(getattr(standard, "cdiv", None)):
        raise UsageError(f"{name}: triton was imported before {_VARIABLE} was set, so it compiles; {_MEND}")
    for jitted in filter(_is_compiled, _reach_of(function)):
        raise UsageError(
            f"{name}: {getattr(jitted, '__name__', 'a Triton kernel')} was decorated before {_VARIABLE} was set, so it "
            f"can only be compiled, which needs a GPU; {_MEND}"
        )


def names_triton(function: Callable[..., Any]) -> bool:
    """Whether a callable can name a Triton kernel: then it is one, whether its registration says so or not."""
    return any(type(value).__module__.startswith("triton.runtime.") for value in _reach_of(function))


def _is_compiled(value: Any) -> bool:
    while type(value).__module__ == "triton.runtime.autotuner":  # autotuners and heuristics wrap what they launch
        value = value.fn
    return type(value).__module__ == "triton.runtime.jit" and type(value).__name__ == "JITFunction"


def _reach_of(function: Callable[..., Any]) -> Iterator[Any]:
    """What a function can name: its module's globals, and what it closes over."""
    yield from getattr(function, "__globals__", {}).values()
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a cell that is still empty
            yield cell.cell_contents


@contextlib.contextmanager
def interpreting(*, triton: bool) -> Generator[tuple[str, ...], None, None]:
    """The context in which kernels run; yields what a report has to say about it. Nothing where `triton` is false."""
    if not triton:
        yield ()
        return
    import triton as installed

    from sanitizer.triton.mends import mended

    with mended() as mends:
        yield (f"interpreted by Triton {installed.__version__}; mended: {', '.join(mends) or 'nothing'}",)


def recorder(*, triton: bool) -> Observer | None:
    """What watches the runs of one audit; None where they are not interpreted."""
    if not triton:
        return None
    from sanitizer.triton.recorder import Recorder

    return Recorder()


def programs_seen(observer: Observer | None, tensor: str) -> tuple[Any, dict[int, str]] | None:
    """Which program stored each element of an output last, as `Recording.programs` says; None where none was seen."""
    if observer is None:
        return None
    from sanitizer.triton.recorder import Recorder

    recording = observer.recording if isinstance(observer, Recorder) else None
    return None if recording is None else recording.programs(tensor)
