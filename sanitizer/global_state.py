"""What a kernel may change for everybody in its process: defaults of torch and numpy, streams, the folder."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

__all__ = ["ProcessState"]


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of this process when the object was made; `restore` puts back what has changed since.

    Later problems, and our own code, must not feel what one kernel did.
    """

    numpy_errors: dict[str, Any] = field(default_factory=lambda: dict(np.geterr()))
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    device: torch.device = field(default_factory=torch.get_default_device)
    threads: int = field(default_factory=torch.get_num_threads)
    streams: tuple[Any, Any, Any] = field(default_factory=lambda: (sys.stdin, sys.stdout, sys.stderr))
    recursion: int = field(default_factory=sys.getrecursionlimit)
    folder: str = field(default_factory=os.getcwd)

    def restore(self) -> None:
        """Put everything back. Costs a few microseconds where nothing has changed."""
        if np.geterr() != self.numpy_errors:
            np.seterr(**self.numpy_errors)
        if torch.get_default_dtype() != self.dtype:
            torch.set_default_dtype(self.dtype)
        if torch.get_default_device() != self.device:
            torch.set_default_device(None if self.device.type == "cpu" else self.device)  # cpu: no default is set
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        sys.stdin, sys.stdout, sys.stderr = self.streams
        if sys.getrecursionlimit() != self.recursion:
            sys.setrecursionlimit(self.recursion)
        with contextlib.suppress(OSError):
            if os.getcwd() != self.folder:
                os.chdir(self.folder)
