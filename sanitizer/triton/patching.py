"""Replaces attributes of another library for a while, and puts back what was there."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final

from typing_extensions import Self  # a dependency of torch; in typing from Python 3.11 on

__all__ = ["Patches"]

_MISSING: Final = object()


class Patches:
    """A context within which attributes may be `set`; on leaving, the last set is undone first."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, object]] = []

    def set(self, owner: Any, name: str, value: object) -> None:
        """Replace an attribute of a module or class until the context is left."""
        # vars, not getattr: a class's inherited or wrapped attribute is to be uncovered again, not copied down.
        self._before.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._before:
            owner, name, value = self._before.pop()
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
