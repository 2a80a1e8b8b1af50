"""Whether an address can be listened on, asked before anything is opened, so that a refusal can say why not.

gRPC says only that it failed. With several processes it sets SO_REUSEPORT, and would share the port with any other
server that does; a plain socket is refused where somebody listens already.
"""

from __future__ import annotations

import errno
import socket

from whamming.storage import StorageError


class ListenError(StorageError):
    """The address to serve cannot be listened on."""


def check_listen(listen: str) -> None:
    """Raise :class:`ListenError` if HOST:PORT cannot be listened on.

    A name may stand for several addresses. None of them may be in use, and one of them must be this machine's.
    """
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"{listen}: the host {host} is not known; choose another --listen") from error
    refusals = [_refusal(family, address) for family, _, _, _, address in found]
    for refusal in refusals:
        if refusal is not None and (refusal.errno == errno.EADDRINUSE or None not in refusals):
            raise ListenError(_text(listen, refusal)) from refusal


def _refusal(family: int, address: tuple[object, ...]) -> OSError | None:
    """Return why an address cannot be bound; None if it can."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that linger are not in the way
            attempt.bind(address)
    except OSError as error:
        return error
    return None


def _text(listen: str, refusal: OSError) -> str:
    if refusal.errno == errno.EADDRINUSE:
        return f"{listen} is in use by another process; choose another --listen, or stop it"
    if refusal.errno == errno.EADDRNOTAVAIL:
        return f"{listen} is not an address of this machine; choose another --listen, as 127.0.0.1 or 0.0.0.0"
    if refusal.errno in (errno.EACCES, errno.EPERM):
        return f"{listen}: this user may not listen on that port; choose one from 1024 on as --listen"
    return f"{listen} cannot be listened on: {refusal.strerror}; choose another --listen"
