"""Keeps what a kernel may change for everybody in its process: defaults of torch and numpy, streams, the folder."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator

import numpy as np
import torch

__all__ = ["kept_state"]


@contextlib.contextmanager
def kept_state() -> Generator[None, None, None]:
    """Put back, at the end, what the code inside has changed: later problems and our own code must not feel it."""
    errors = np.geterr()
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    device = torch.get_default_device()
    streams = sys.stdin, sys.stdout, sys.stderr
    depth = sys.getrecursionlimit()
    folder = os.getcwd()
    try:
        yield
    finally:
        np.seterr(**errors)
        sys.stdin, sys.stdout, sys.stderr = streams
        sys.setrecursionlimit(depth)
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)  # cpu is what no default means
        with contextlib.suppress(OSError):
            if os.getcwd() != folder:
                os.chdir(folder)
