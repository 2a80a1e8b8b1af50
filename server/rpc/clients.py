"""Clients: who they are, and how many calls each may have.

A client is a connection, for now: :func:`name_of` is the only place that decides this. Queries are scheduled fairly by
client, and each client may have a limited number of calls. So a client that opens many calls takes time and calls from
itself, not from others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from whamming.server.search.scheduler import ClientQueue
from whamming.wire.service_errors import OverloadedError, UnavailableError

FORWARDED: Final = "whamming-client"
"""Metadata of a forwarded call: the name of the client that made it. Only other processes of this server may set it."""


def name_of(context: Any) -> str:
    """Return the name of the client that made a call."""
    peer: str = context.peer()
    if peer.startswith("unix:"):  # a process of this server: clients cannot connect to its socket
        for key, value in context.invocation_metadata() or ():
            if key == FORWARDED:
                return str(value)
    return peer


class Client:
    """One client, while it has calls."""

    __slots__ = ("calls", "name", "queue")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue = ClientQueue()
        """Its place among the clients whose queries wait for a worker."""
        self.calls = 0


class ClientCall:
    """A running call of a client."""

    __slots__ = ("client",)

    def __init__(self, client: Client) -> None:
        self.client = client


class Clients:
    """All clients with running calls. Refuses calls above a limit, and all calls during shutdown."""

    def __init__(self, max_calls: int, max_client_calls: int) -> None:
        """Allow ``max_calls`` running calls in total, and ``max_client_calls`` of one client."""
        self._max_calls = max_calls
        self._max_client_calls = max_client_calls
        self._clients: dict[str, Client] = {}
        self.count = 0
        """Number of running calls."""
        self.peak = 0
        """The highest count since it was last reset."""
        self.closed = False

    @contextlib.contextmanager
    def call(self, context: Any) -> Iterator[ClientCall]:
        """Count one call for the duration of a ``with`` block, or refuse it."""
        if self.closed:
            raise UnavailableError("the server is shutting down; try again later")
        if self.count >= self._max_calls:
            raise OverloadedError(f"{self.count} calls are running, the maximum is {self._max_calls}; try again later")
        name = name_of(context)
        client = self._clients.get(name) or Client(name)
        if client.calls >= self._max_client_calls:
            raise OverloadedError(
                f"{client.calls} calls of this client are running, the maximum is {self._max_client_calls}; wait for "
                "some to end, or open another connection"
            )
        self._clients[name] = client
        client.calls += 1
        self.count += 1
        self.peak = max(self.peak, self.count)
        try:
            yield ClientCall(client)
        finally:
            self.count -= 1
            client.calls -= 1
            if not client.calls:
                del self._clients[name]
