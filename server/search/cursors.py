"""Which queries hold cursors: their number is bounded per client and for the server, and so is their memory.

A cursor holds memory and a snapshot, also while its query waits for credit. If there are too many, the query that has
waited longest for credit ends with a resume token. If none waits for credit, the new query is refused. Queries that
wait for credit also end if their cursors take too much memory together.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from whamming.wire.service_errors import OverloadedError

if TYPE_CHECKING:
    from whamming.server.search.query import Query
    from whamming.server.search.scheduler import ClientQueue

MAX_CLIENT_CURSORS: Final = 1024
"""Maximum number of cursors of one client."""
MAX_CURSORS: Final = 8192
"""Maximum number of cursors of all clients."""
MAX_CLIENT_BYTES: Final = 256 << 20
"""Maximum memory of the cursors of one client that wait for credit."""
MAX_BYTES: Final = 1 << 30
"""Maximum memory of the cursors of all clients that wait for credit."""


class _Client:
    """The queries of one client that hold cursors, and the memory of those that wait for credit, longest first."""

    __slots__ = ("held", "size", "waiting")

    def __init__(self) -> None:
        self.held: set[Query] = set()
        self.waiting: dict[Query, int] = {}
        self.size = 0
        """The memory of all cursors in ``waiting``."""

    def stop_waiting(self, query: Query) -> int:
        """Forget that a query waits. Returns the memory of its cursor."""
        size = self.waiting.pop(query, 0)
        self.size -= size
        return size


class Cursors:
    """The cursors of a server. Any thread may call its methods, with or without the lock of a call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[ClientQueue, _Client] = {}
        self.count = 0
        """Number of cursors of all clients."""
        self._size = 0

    def add(self, query: Query) -> Query | None:
        """Count the cursor of a query. Returns a query that must end to make room for it, or None.

        Raises OverloadedError if there is no room and no query waits for credit.
        """
        with self._lock:
            client = self._clients.get(query.flow.client) or _Client()
            oldest = None
            if len(client.held) >= MAX_CLIENT_CURSORS:
                oldest = next(iter(client.waiting), None)
                if oldest is None:
                    raise OverloadedError(
                        f"{len(client.held)} queries of this client have begun, the maximum is {MAX_CLIENT_CURSORS}, "
                        "and none waits for credit; read their hits, or wait for some to end"
                    )
            elif self.count >= MAX_CURSORS:
                most = max(self._clients.values(), key=lambda one: len(one.waiting))
                oldest = next(iter(most.waiting), None)
                if oldest is None:
                    raise OverloadedError(
                        f"{self.count} queries have begun, the maximum is {MAX_CURSORS}; try again later"
                    )
            if oldest is not None:
                self._remove(oldest)
            self._clients.setdefault(query.flow.client, client).held.add(query)
            self.count += 1
            return oldest

    def wait(self, query: Query, size: int) -> None:
        """Note that a query waits for credit. Its cursor takes ``size`` bytes."""
        with self._lock:
            client = self._clients.get(query.flow.client)
            if client is not None and query in client.held:
                client.waiting[query] = size
                client.size += size
                self._size += size

    def release_memory(self, client: ClientQueue) -> list[Query]:
        """Forget the cursors of queries that must end, because those that wait take too much memory. Returns them.

        ``client``: the one whose query waits now.
        """
        ending: list[Query] = []
        with self._lock:
            while (own := self._clients.get(client)) is not None and own.size > MAX_CLIENT_BYTES:
                ending.append(self._remove(next(iter(own.waiting))))
            while self._size > MAX_BYTES:
                most = max(self._clients.values(), key=lambda one: one.size)
                ending.append(self._remove(next(iter(most.waiting))))
        return ending

    def resume(self, query: Query) -> None:
        """Note that a query no longer waits for credit."""
        with self._lock:
            client = self._clients.get(query.flow.client)
            if client is not None:
                self._size -= client.stop_waiting(query)

    def remove(self, query: Query) -> None:
        """Forget the cursor of a query. Does nothing if it is not counted."""
        with self._lock:
            self._remove(query)

    def _remove(self, query: Query) -> Query:
        client = self._clients.get(query.flow.client)
        if client is not None and query in client.held:
            client.held.remove(query)
            self._size -= client.stop_waiting(query)
            self.count -= 1
            if not client.held:
                del self._clients[query.flow.client]
        return query
