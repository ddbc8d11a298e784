"""Up-projections that are right up to two heads, and from three on take their process down, each in its own way."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from mla_verify.faults.right import summed_then_copied
from mla_verify.kernel import Kernel
from strategies.limits import UpProjectionLimits

__all__ = ["HEADS", "TOKENS", "WAYS"]

HEADS: Final = 3  # from here on they misbehave
TOKENS: Final = 7  # and from here on, the one with a threshold in its tokens
_LIMITS: Final = UpProjectionLimits(
    num_heads=(1, 2, 3, 4, 5), kv_lora_rank=(1, 2, 5), v_head_dim=(1, 2, 5), max_num_tokens=12
)


def segfaults(**_: Any) -> None:
    """Reads the page that nobody may map."""
    ctypes.string_at(8, 1)


def aborts(**_: Any) -> None:
    """What a failed assertion in C does."""
    os.abort()


def exits(**_: Any) -> None:
    """Ends the process as if all were well."""
    os._exit(0)


def raises_system_exit(**_: Any) -> None:
    """Ends the process the polite way."""
    sys.exit(0)


def loops(**_: Any) -> None:
    """Waits for something that never comes, in C."""
    ctypes.CDLL(None).pause()


def allocates(**_: Any) -> None:
    """Asks for memory until there is none."""
    held: list[torch.UntypedStorage] = []
    while True:
        held.append(torch.UntypedStorage(1 << 26))


def closes_stdout(**_: Any) -> None:
    """Closes what others write to."""
    with contextlib.suppress(OSError):  # done already in an earlier call
        os.close(1)


def closes_everything(**_: Any) -> None:
    """Closes every descriptor, as a careless daemon does."""
    os.closerange(0, 4096)


def kills_its_parent(**_: Any) -> None:
    """Ends the process that started it."""
    os.kill(os.getppid(), signal.SIGKILL)


# name → what the finding has to say
WAYS: Final[dict[Callable[..., None], str]] = {
    segfaults: "killed by SIGSEGV",
    aborts: "killed by SIGABRT",
    exits: "exited with status 0",
    raises_system_exit: "SystemExit(0)",
    loops: "still running after",
    allocates: "ran out of memory",
    closes_stdout: "closed stdout",
    closes_everything: "closed",
    kills_its_parent: "killed the process that had started it",
}


def _kernel(name: str, misbehaves: Callable[..., None], due: Callable[[Tensor], bool]) -> Kernel:
    def call(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
        summed_then_copied(x, w_uv, out)
        if due(x):
            misbehaves()

    return Kernel(name=name, contract="up-projection", load=lambda: call, limits=_LIMITS)


for _way in WAYS:
    _name = f"{_way.__name__}_at_three_heads"
    globals()[_name] = _kernel(_name, _way, lambda x: x.shape[1] >= HEADS)

segfaults_at_seven_tokens: Final = _kernel("segfaults_at_seven_tokens", segfaults, lambda x: x.shape[0] >= TOKENS)
