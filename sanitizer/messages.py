"""Messages between a parent and its worker: JSON with a length in front, so that a kernel's stray output is noticed."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from typing import Any, Final

__all__ = ["Garbled", "TimedOut", "receive", "send"]

_HEADER: Final = struct.Struct("!4sI")
_MARK: Final = b"mla1"
_LARGEST: Final = 64 * 2**20  # bytes; an honest answer is a few kilobytes


class Garbled(Exception):
    """What came out of the socket is no message of ours."""


class TimedOut(Exception):
    """No whole message came in time."""


def send(sock: socket.socket, message: Any) -> None:
    """Send one message. Raises OSError when the other end is gone."""
    body = json.dumps(message).encode()
    sock.sendall(_HEADER.pack(_MARK, len(body)) + body)


def receive(sock: socket.socket, *, timeout: float | None = None) -> Any:
    """Receive one message. Raises EOFError at the end, TimedOut after `timeout` seconds, Garbled for junk."""
    deadline = None if timeout is None else time.monotonic() + timeout
    mark, length = _HEADER.unpack(_exactly(sock, _HEADER.size, deadline))
    if mark != _MARK or length > _LARGEST:
        raise Garbled(f"unexpected bytes {mark!r}")
    try:
        return json.loads(_exactly(sock, length, deadline))
    except ValueError as error:
        raise Garbled(str(error)) from error


def _exactly(sock: socket.socket, count: int, deadline: float | None) -> bytes:
    pieces: list[bytes] = []
    while count:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([sock], [], [], left)[0]:
                raise TimedOut
        piece = sock.recv(min(count, 1 << 20))
        if not piece:
            raise EOFError
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
