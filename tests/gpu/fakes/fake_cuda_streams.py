"""A fake: streams on CPU tensors that promise no more than CUDA's do; no GPU was asked.

Work on one stream runs in order. Between streams there is only what `wait_stream` says. Of all orders that this leaves
the fake takes the one that is worst for whoever forgot to wait: work on other streams begins before the producer's, and
where the consumer does not have to wait for it, it ends after the consumer has read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.gpu.fakes.recording import Record, Work, is_view

__all__ = ["FakeCudaStreams", "FakeStream"]


@dataclass(slots=True, eq=False)
class FakeStream:
    """Stands in for `torch.cuda.Stream`: work and waits in order, of which the first `done` have been run."""

    queue: list[Work | tuple[FakeStream, int]] = field(default_factory=list["Work | tuple[FakeStream, int]"])
    done: int = 0

    def wait_stream(self, stream: FakeStream) -> None:
        """Later work here waits for everything that `stream` has been given so far."""
        self.queue.append((stream, len(stream.queue)))

    def run(self, until: int) -> None:
        """Do what has been given, in order, up to a place in the queue; and first what that waits for."""
        while self.done < until:
            step = self.queue[self.done]
            self.done += 1
            if isinstance(step, Work):
                step.run()
            else:
                stream, place = step
                stream.run(place)

    def run_to_a_wait(self) -> None:
        """Do what waits for nobody."""
        while self.done < len(self.queue):
            step = self.queue[self.done]
            if not isinstance(step, Work):
                return
            self.done += 1
            step.run()


class _Sorter(TorchDispatchMode):
    """Records work for whichever stream is the current one."""

    def __init__(self, fake: FakeCudaStreams) -> None:
        super().__init__()
        self._fake = fake

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        record = self._fake.record
        before = len(record.work)
        given = record.add(func, args, kwargs or {})
        if not is_view(func):
            self._fake.current.queue += record.work[before:]
        return given


class FakeCudaStreams:
    """Stands in for `sanitizer.cuda_streams.CudaStreams`, and for what torch.cuda says of streams while `installed`."""

    def __init__(self) -> None:
        self._default, self._producer, self._consumer = FakeStream(), FakeStream(), FakeStream()
        self.current = self._default
        self.record = Record()
        self._streams = [self._producer, self._consumer]

    @contextlib.contextmanager
    def installed(self) -> Generator[None, None, None]:
        """torch.cuda hands out streams of this fake."""
        with (
            mock.patch.object(torch.cuda, "Stream", self._stream),
            mock.patch.object(torch.cuda, "stream", self._on),
            mock.patch.object(torch.cuda, "current_stream", self._current),
        ):
            yield

    def hold_back(self) -> None:
        """Nothing to do: whatever need not have been done is late in any case."""

    def producer(self) -> AbstractContextManager[object]:
        """Work goes to the producer's stream."""
        return self._recording(self._producer)

    def consumer(self) -> AbstractContextManager[object]:
        """Work goes to the consumer's stream."""
        return self._recording(self._consumer)

    def hand_over(self) -> None:
        """The consumer's stream waits for the producer's."""
        self._consumer.wait_stream(self._producer)

    def finish(self) -> None:
        """Run what has been given, in the order that is worst for whoever forgot to wait."""
        self.record.undo()
        self.record = Record()
        for stream in self._streams:
            if stream not in (self._producer, self._consumer):
                stream.run_to_a_wait()
        for stream in (self._consumer, self._producer, *self._streams):
            stream.run(len(stream.queue))
        for stream in self._streams:
            stream.queue.clear()
            stream.done = 0

    @contextlib.contextmanager
    def _recording(self, stream: FakeStream) -> Generator[None, None, None]:
        with self._on(stream), _Sorter(self):
            yield

    @contextlib.contextmanager
    def _on(self, stream: FakeStream) -> Generator[None, None, None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def _stream(self, *_: object, **__: object) -> FakeStream:
        made = FakeStream()
        self._streams.append(made)
        return made

    def _current(self, *_: object) -> FakeStream:
        return self.current
