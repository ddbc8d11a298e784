"""Streams of CUDA and HIP behind `sanitizer.streams`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

import torch

__all__ = ["CudaStreams"]

# torch hands streams out in turn from so many of each priority: holding them all holds those that a kernel asks for.
# Streams that a library makes for itself are not among them; only what they read too early is seen. Streams share a few
# hardware queues (CUDA_DEVICE_MAX_CONNECTIONS): a reader behind late work in the same queue waits for it after all, so
# that one run may miss a fault. Each run uses other streams, and each audit has two.
_POOL: Final = 32
_PRIORITIES: Final = (0, -1)
_MOMENT: Final = 4_000_000  # cycles of the device's clock: some milliseconds
_LONGER: Final = 4  # times as much for streams that nobody may have to wait for


class CudaStreams:
    """The streams of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        pool = [torch.cuda.Stream(device, priority=priority) for priority in _PRIORITIES for _ in range(_POOL)]
        self._producer, self._consumer = pool[0], pool[1]
        used = {self._producer.cuda_stream, self._consumer.cuda_stream}
        others = {stream.cuda_stream: stream for stream in pool if stream.cuda_stream not in used}
        self._others = [torch.cuda.default_stream(device), *others.values()]

    def hold_back(self) -> None:
        """Give every stream something to do first: the consumer's nothing, for it waits for the producer's."""
        for stream, moments in [(self._producer, 1), *((other, _LONGER) for other in self._others)]:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(moments * _MOMENT)  # pyright: ignore[reportPrivateUsage] - torch's own tests use it

    def producer(self) -> AbstractContextManager[object]:
        """Work goes to the producer's stream."""
        return torch.cuda.stream(self._producer)

    def consumer(self) -> AbstractContextManager[object]:
        """Work goes to the consumer's stream."""
        return torch.cuda.stream(self._consumer)

    def hand_over(self) -> None:
        """The consumer's stream waits for an event on the producer's."""
        self._consumer.wait_stream(self._producer)

    def finish(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._device)
