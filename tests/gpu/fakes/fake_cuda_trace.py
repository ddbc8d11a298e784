"""A fake: traces of calls on a GPU, written in kineto's documented format and not recorded on one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

__all__ = ["FakeCudaTrace"]

_GPU: Final = 1  # torch's number for the device type, on CUDA and ROCm alike
_CPU: Final = 0


class FakeCudaTrace:
    """Writes a trace event by event: operators on the host, launches, what the GPU ran, and its allocations.

    Times are microseconds. The GPU runs everything later than the host launched it, as it does.
    """

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._correlation = 0

    def operator(self, name: str, start: float, duration: float) -> None:
        """An operator of the host."""
        self._add("cpu_op", name, start, duration, {"External id": len(self._events)})

    def kernel(self, name: str, launched: float) -> None:
        """A kernel, with the call of the runtime that launched it."""
        self._launch("cudaLaunchKernel", launched)
        self._on_gpu("kernel", name, launched, {"grid": [4, 1, 1], "block": [128, 1, 1]})

    def memset(self, launched: float, size: int) -> None:
        """A fill by the runtime."""
        self._launch("cudaMemsetAsync", launched)
        self._on_gpu("gpu_memset", "Memset (Device)", launched, {"bytes": size})

    def memcpy(self, launched: float, size: int) -> None:
        """A copy from the device to itself."""
        self._launch("cudaMemcpyAsync", launched)
        self._on_gpu("gpu_memcpy", "Memcpy DtoD (Device -> Device)", launched, {"bytes": size})

    def memory(self, at: float, size: int, address: int, *, on_gpu: bool = True) -> None:
        """An allocation, or with a negative size a release, as torch's allocator reports them."""
        arguments = {"Bytes": size, "Addr": address, "Device Type": _GPU if on_gpu else _CPU, "Device Id": 0}
        self._events.append(
            {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": at, "args": arguments, "s": "t"}
        )

    def written(self, *, extra: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """The whole trace."""
        return {"schemaVersion": 1, "traceEvents": [*self._events, *extra]}

    def _launch(self, call: str, at: float) -> None:
        self._correlation += 1
        self._add("cuda_runtime", call, at, 4.0, {"correlation": self._correlation})

    def _on_gpu(self, category: str, name: str, launched: float, arguments: dict[str, Any]) -> None:
        known = {"device": 0, "stream": 7, "correlation": self._correlation}
        self._add(category, name, launched + 1_000.0, 3.0, {**known, **arguments}, pid=0, tid=7)

    def _add(
        self,
        category: str,
        name: str,
        start: float,
        duration: float,
        arguments: dict[str, Any],
        *,
        pid: int = 100,
        tid: int = 100,
    ) -> None:
        self._events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": start,
                "dur": duration,
                "args": arguments,
            }
        )
