"""A fake: graphs on CPU tensors that keep the documented rules of CUDA graphs; no GPU was asked.

Capturing records operators and runs none of them. Whatever is allocated meanwhile stays where it is for as long as the
graph lives, with undefined contents. A replay runs the recorded operators on the recorded addresses, with the Python
values of the capture. Anything that would wait for the device is an error while capturing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.gpu.fakes.recording import READ_BY_THE_HOST, Record, Work

__all__ = ["FakeCudaGraphs"]

_NOT_PERMITTED: Final = "CUDA error: operation not permitted when stream is capturing"
_INVALIDATED: Final = "CUDA error: operation failed due to a previous error during capture"


class _FakeGraph:
    """Recorded work, and the memory that was allocated for it."""

    def __init__(self, work: Sequence[Work]) -> None:
        self._work = tuple(work)

    def replay(self) -> None:
        """Run the work again."""
        with torch.no_grad():
            for one in self._work:
                one.run()


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.record = Record()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.removeprefix("aten::") in READ_BY_THE_HOST:
            raise RuntimeError(_NOT_PERMITTED)
        return self.record.add(func, args, kwargs or {})


class FakeCudaGraphs:
    """Stands in for `sanitizer.cuda_graphs.CudaGraphs`."""

    def __init__(self) -> None:
        self._memory: list[Tensor] = []

    def warm_up(self, call: Callable[[], object]) -> None:
        """Call it a few times."""
        for _ in range(3):
            call()

    def capture(self, call: Callable[[], object]) -> _FakeGraph:
        """Record one call."""
        recorder = _Recorder()
        try:
            with _capturing(), recorder:
                call()
        except RuntimeError:
            # Ending a capture in which something failed is an error of its own.
            raise RuntimeError(_INVALIDATED)  # noqa: B904 - the context is what torch leaves, too
        finally:
            recorder.record.undo()
        self._memory += recorder.record.allocated
        return _FakeGraph(recorder.record.work)

    def pool(self) -> Sequence[Tensor]:
        """All memory that captures have allocated."""
        return self._memory


@contextlib.contextmanager
def _capturing() -> Generator[None, None, None]:
    """While capturing torch says so, and reading a tensor on the host is an error, past the dispatcher too."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(_NOT_PERMITTED)

    with (
        mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True),
        mock.patch.object(torch.Tensor, "tolist", refuse),
        mock.patch.object(torch.Tensor, "numpy", refuse),
    ):
        yield
