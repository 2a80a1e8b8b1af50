"""Check that the server can listen on its address, before it opens the database.

gRPC does not report why listening failed. With several processes, gRPC sets SO_REUSEPORT, and the server would share
its port with any other program of the user that sets this option. So the server first listens on a plain socket, which
fails with a reason if the port is in use. It keeps this socket until gRPC listens. Otherwise, two servers that start at
the same time could both find the port free, and then share it.
"""

from __future__ import annotations

import contextlib
import errno
import socket

from whamming.storage import StorageError


class ListenError(StorageError):
    """The server cannot listen on its address."""


def check_listen(listen: str, *, shared: bool = False) -> contextlib.ExitStack:
    """Raise :class:`ListenError` if a server cannot listen on HOST:PORT.

    A host name may have several addresses. None of them may be in use, and at least one must belong to this machine.
    ``shared``: the server will listen with SO_REUSEPORT. No other server passes this check until the caller closes what
    is returned. Connections that arrive meanwhile may be reset.
    """
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"{listen}: unknown host {host}; choose another --listen") from error
    with contextlib.ExitStack() as held:
        refusals: list[OSError | None] = []
        for family, _, _, _, address in found:
            try:
                made = held.enter_context(_listening(family, address, alone=len(found) == 1))
                refusals.append(None)
            except OSError as error:
                refusals.append(error)
                continue
            if shared:  # from now on, a socket with this option can listen on the port, too
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for refusal in refusals:
            if refusal is not None and (refusal.errno == errno.EADDRINUSE or None not in refusals):
                raise ListenError(_text(listen, refusal)) from refusal
        return held.pop_all() if shared else contextlib.ExitStack()
    raise AssertionError("unreachable: an ExitStack without callbacks suppresses no error")


def _listening(family: int, address: tuple[object, ...], *, alone: bool) -> socket.socket:
    """Return a plain socket that listens on an address. Raises OSError.

    Binding is not enough: with SO_REUSEADDR, several sockets can be bound to one port, but only one of them can listen.
    ``alone``: the host has no other address. If False, an IPv6 socket leaves the IPv4 port free.
    """
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore connections in TIME_WAIT
        if family == socket.AF_INET6 and not alone:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(1)
    except BaseException:
        made.close()
        raise
    return made


def _text(listen: str, refusal: OSError) -> str:
    if refusal.errno == errno.EADDRINUSE:
        return f"{listen} is in use by another process; stop that process, or choose another --listen"
    if refusal.errno == errno.EADDRNOTAVAIL:
        return f"{listen} is not an address of this machine; choose another --listen, for example 127.0.0.1:7777"
    if refusal.errno in (errno.EACCES, errno.EPERM):
        return f"{listen}: this user may not listen on that port; choose a --listen port of 1024 or above"
    return f"cannot listen on {listen}: {refusal.strerror}; choose another --listen"
