"""Which queries hold cursors: their number is bounded per client and for the server.

A cursor holds memory and a snapshot, also while its query waits for credit. If there are too many, the query that has
waited longest for credit ends with a resume token. If none waits for credit, the new query is refused.
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


class _Client:
    """The queries of one client that hold cursors, and those of them that wait for credit, longest first."""

    __slots__ = ("held", "waiting")

    def __init__(self) -> None:
        self.held: set[Query] = set()
        self.waiting: dict[Query, None] = {}


class Cursors:
    """The cursors of a server. Any thread may call its methods, with or without the lock of a call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[ClientQueue, _Client] = {}
        self.count = 0
        """Number of cursors of all clients."""

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

    def wait(self, query: Query) -> None:
        """Note that a query waits for credit."""
        with self._lock:
            client = self._clients.get(query.flow.client)
            if client is not None and query in client.held:
                client.waiting[query] = None

    def resume(self, query: Query) -> None:
        """Note that a query no longer waits for credit."""
        with self._lock:
            client = self._clients.get(query.flow.client)
            if client is not None:
                client.waiting.pop(query, None)

    def remove(self, query: Query) -> None:
        """Forget the cursor of a query. Does nothing if it is not counted."""
        with self._lock:
            self._remove(query)

    def _remove(self, query: Query) -> None:
        client = self._clients.get(query.flow.client)
        if client is None or query not in client.held:
            return
        client.held.remove(query)
        client.waiting.pop(query, None)
        self.count -= 1
        if not client.held:
            del self._clients[query.flow.client]
