"""Check that the server can listen on its address, before it opens the database.

gRPC does not report why listening failed. With several processes, gRPC sets SO_REUSEPORT, and the server would share
its port with any other program that sets this option. So the server first binds a plain socket, which fails with a
reason if the port is in use.
"""

from __future__ import annotations

import errno
import socket

from whamming.storage import StorageError


class ListenError(StorageError):
    """The server cannot listen on its address."""


def check_listen(listen: str) -> None:
    """Raise :class:`ListenError` if a server cannot listen on HOST:PORT.

    A host name may have several addresses. None may be in use, and at least one must belong to this machine.
    """
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"{listen}: unknown host {host}; choose another --listen") from error
    refusals = [_refusal(family, address) for family, _, _, _, address in found]
    for refusal in refusals:
        if refusal is not None and (refusal.errno == errno.EADDRINUSE or None not in refusals):
            raise ListenError(_text(listen, refusal)) from refusal


def _refusal(family: int, address: tuple[object, ...]) -> OSError | None:
    """Return the error of binding to an address, or None."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore connections in TIME_WAIT
            attempt.bind(address)
    except OSError as error:
        return error
    return None


def _text(listen: str, refusal: OSError) -> str:
    if refusal.errno == errno.EADDRINUSE:
        return f"{listen} is in use by another process; stop that process, or choose another --listen"
    if refusal.errno == errno.EADDRNOTAVAIL:
        return f"{listen} is not an address of this machine; choose another --listen, for example 127.0.0.1:7777"
    if refusal.errno in (errno.EACCES, errno.EPERM):
        return f"{listen}: this user may not listen on that port; choose a --listen port of 1024 or above"
    return f"cannot listen on {listen}: {refusal.strerror}; choose another --listen"
