"""Runs one saved case once and bare, in a process that another tool watches: `python -m mla_verify.bare_replay …`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from mla_verify.cases import load_case
from mla_verify.errors import Unavailable, UsageError
from mla_verify.examine import kernel_call
from mla_verify.interpreting import interpret_on
from mla_verify.loading import open_bench
from mla_verify.replaying import kernel_of_case
from sanitizer.apart import laid_apart
from sanitizer.fatal import exception_words
from sanitizer.stopwatch import synchronise

__all__ = ["run_bare"]


def run_bare(path: Path, *, target: str | None, device: str) -> int:
    """Run a case's problems, each once and with tensors of their own; prints where the last one's lay, as JSON."""
    interpret_on(device)
    case = load_case(path)
    bench = open_bench(kernel_of_case(path, case, target), device=device)
    for problem in (*case.after, case.problem):
        placement = bench.contract.place(problem, bench.kernel, bench.device)
        tensors = laid_apart(placement.tensors, bench.device)
        synchronise(bench.device)
        lay = {
            name: [tensor.data_ptr(), tensor.untyped_storage().nbytes()]
            for name, tensor in tensors.items()
            if tensor.numel()
        }
        print(json.dumps({"tensors": lay}), flush=True)  # before the call, which may end the process
        with torch.no_grad():
            prepare = bench.kernel.prepare
            state = None if prepare is None else prepare(**tensors, **placement.arguments)
            kernel_call(bench, placement, state=state)(tensors)
        synchronise(bench.device)
    return 0


def main() -> int:
    """Entry of the watched process: case, device, and the target or an empty word."""
    path, device, target = sys.argv[1:4]
    try:
        return run_bare(Path(path), target=target or None, device=device)
    except (Unavailable, UsageError) as error:
        print(json.dumps({"unavailable": str(error)}), flush=True)
        return 3
    except Exception as error:  # noqa: BLE001 - the kernel's own: the tool that watches has said why
        print(json.dumps({"raised": exception_words(error)}), flush=True)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
