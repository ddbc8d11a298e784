"""What goes wrong outside a kernel: a wrong request, in the user's words, and the exit code it ends with.

Imports nothing of ours, so that these can be raised when another package shadows one of our rooms.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Final

__all__ = ["INTERRUPTED", "ExitCode", "Unavailable", "UsageError"]

INTERRUPTED: Final = 130  # what a shell calls a command that Ctrl-C has ended


class ExitCode(IntEnum):
    """What a command ends with. Of several, the first of USAGE, VIOLATION, UNAVAILABLE, HOLDS counts."""

    HOLDS = 0
    VIOLATION = 1
    USAGE = 2
    UNAVAILABLE = 3

    @classmethod
    def of_several(cls, codes: list[ExitCode]) -> ExitCode:
        """The one code that stands for several kernels' codes."""
        order = (cls.USAGE, cls.VIOLATION, cls.UNAVAILABLE)
        return next((code for code in order if code in codes), cls.HOLDS)


class UsageError(Exception):
    """The request cannot be carried out as it stands. The message says what, got, wanted and how to mend it."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class Unavailable(RuntimeError):
    """The kernel cannot run here; the message says what is missing, in one sentence."""

    exit_code: ClassVar[ExitCode] = ExitCode.UNAVAILABLE
