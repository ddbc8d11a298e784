"""Where Hypothesis remembers failures from run to run: a folder, a Redis server, and one to share that is only read."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    MultiplexedDatabase,
    ReadOnlyDatabase,
)

from mla_verify.errors import UsageError

__all__ = ["NO_DATABASES", "Databases", "Keeping", "Losable", "open_database"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CONNECT_SECONDS = 5.0


def open_database(own: str | None, *, shared: str | None = None) -> ExampleDatabase | None:
    """The database at `own`, a folder or redis://…, over a `shared` one that is read and never written.

    None where neither is named. Raises UsageError for one that cannot be opened.
    """
    local = None if own is None else _opened(own)
    common = None if shared is None else ReadOnlyDatabase(_opened(shared))
    if local is None or common is None:
        return local or common
    return MultiplexedDatabase(local, common)


@dataclass(frozen=True, slots=True)
class Databases:
    """Where failures are remembered, as a user has named it: plain data, which each process opens for itself."""

    own: str | None = None
    shared: str | None = None

    def open(self) -> ExampleDatabase | None:
        """See `open_database`."""
        return open_database(self.own, shared=self.shared)


NO_DATABASES: Final = Databases()


class Keeping(ExampleDatabase):
    """A database in which what is `kept` cannot be deleted.

    A search goes on after a clause has broken and then no longer reports that clause: to Hypothesis its saved examples
    pass from then on, and it would forget them.
    """

    def __init__(self, database: ExampleDatabase, kept: Iterable[bytes]) -> None:
        super().__init__()
        self._database = database
        self._kept = frozenset(kept)

    def save(self, key: bytes, value: bytes) -> None:
        """Save as ever."""
        self._database.save(key, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Fetch as ever."""
        return self._database.fetch(key)

    def delete(self, key: bytes, value: bytes) -> None:
        """Delete, unless it is to be kept."""
        if value not in self._kept:
            self._database.delete(key, value)


class Losable(ExampleDatabase):
    """A database on a server, without which a search goes on: what it finds is in its report and its cases as well.

    losses: what is raised where the server does not answer. name: what a user calls it.
    """

    def __init__(self, database: ExampleDatabase, losses: type[Exception], name: str) -> None:
        super().__init__()
        self._database = database
        self._losses = losses
        self._name = name
        self._lost = False

    def save(self, key: bytes, value: bytes) -> None:
        """Save, while there is a server."""
        self._asked(lambda: self._database.save(key, value))

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Fetch, while there is a server."""
        found: list[bytes] = []
        self._asked(lambda: found.extend(self._database.fetch(key)))
        return found

    def delete(self, key: bytes, value: bytes) -> None:
        """Delete, while there is a server."""
        self._asked(lambda: self._database.delete(key, value))

    def _asked(self, ask: Callable[[], None]) -> None:
        if self._lost:
            return
        try:
            ask()
        except self._losses as error:
            self._lost = True
            why = (str(error).splitlines() or [type(error).__name__])[0]
            print(f"mla-verify: lost the database {self._name}: {why}; going on without it", file=sys.stderr)


def _opened(where: str) -> ExampleDatabase:
    scheme = _SCHEME.match(where)
    if scheme is None:
        return _directory(Path(where))
    if scheme[1] in ("redis", "rediss"):
        return _redis(where)
    raise UsageError(f"a database at {scheme[1]}:// is unknown; name a folder, or redis://host:port/number")


def _directory(folder: Path) -> ExampleDatabase:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder of the database {folder}: {error.strerror}") from error
    return DirectoryBasedExampleDatabase(folder)


def _redis(url: str) -> ExampleDatabase:
    try:
        from hypothesis.extra.redis import RedisExampleDatabase
        from redis import Redis
        from redis.exceptions import RedisError
    except ImportError as error:
        raise UsageError("a database at redis:// needs the package redis: pip install 'mla-verify[redis]'") from error
    shown = re.sub(r"//[^/@]*@", "//", url)  # without the password
    try:
        server = Redis.from_url(url, socket_connect_timeout=_CONNECT_SECONDS)
        server.ping()
    except ValueError as error:
        raise UsageError(f"{shown} is no address of a Redis server; write redis://host:port/number") from error
    except RedisError as error:
        raise UsageError(f"cannot reach the database {shown}: {str(error).splitlines()[0]}") from error
    return Losable(RedisExampleDatabase(server), RedisError, shown)
