"""Results that wait to be sent on one call, bounded in bytes.

Workers put results in; the call's coroutine takes them out, as many at a time as one message should carry. Queries
look at :meth:`SendBuffer.has_room` before they search; a query that finds no room blocks until the client has read.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Final

from whamming.server.search.results import Results

RESPONSE_BYTES: Final = 1 << 18
"""Results are joined into one message up to about so many bytes."""
OVERFULL: Final = 4
"""Times the limit. Queries that are refused end without looking for room, so their ends can pile up beyond it."""


class SendBuffer:
    """A bounded queue of results. One coroutine takes; any thread may call the rest.

    Everything is guarded by the lock of the call, which its queries share.
    """

    def __init__(self, limit: int, lock: threading.Lock) -> None:
        """Start empty, with room for ``limit`` bytes. To be called in the call's event loop."""
        self._limit = limit
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiting: deque[tuple[Results, int]] = deque()  # with their sizes
        self._bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._finished = False
        self._discarding = False
        self._error: BaseException | None = None
        self._last_error: BaseException | None = None

    def put(self, results: Results) -> None:
        """Add results. Called with the lock held. Never refuses: queries look for room first."""
        if not self._discarding:
            size = results.nbytes
            self._waiting.append((results, size))
            self._bytes += size
            self._wake()

    def has_room(self) -> bool:
        """Return whether a query may search for more."""
        return self._bytes < self._limit

    @property
    def is_overfull(self) -> bool:
        """So much more than the limit waits that no new queries should be taken."""
        return self._bytes > OVERFULL * self._limit

    async def drained(self) -> None:
        """Return when the buffer is not overfull."""
        while self.is_overfull:
            with self._lock:
                writer = self._writer = self._loop.create_future()
            await writer

    def discard(self) -> None:
        """Drop everything, now and from now on: nobody reads any more."""
        with self._lock:
            self._discarding = True
            self._waiting.clear()
            self._bytes = 0
            writer, self._writer = self._writer, None
        if writer is not None:
            _resolve(writer)

    def finish(self, error: BaseException | None = None, last: BaseException | None = None) -> None:
        """Let :meth:`take` end: with ``error`` at once, else after what waits, with ``last`` if it is given.

        Called with the lock held.
        """
        if not self._finished:
            self._last_error = last
        self._finished = True
        self._error = self._error or error
        self._wake()

    async def take(self) -> list[Results]:
        """Return the results of the next message; none at the end. Raises the error given to :meth:`finish`."""
        while True:
            with self._lock:
                if self._error is not None:
                    try:
                        raise self._error
                    finally:
                        self._error = None  # its traceback leads here: together they would outlive the call
                if self._waiting:
                    return self._gather()
                if self._last_error is not None:
                    self._error, self._last_error = self._last_error, None
                    continue
                if self._finished:
                    return []
                reader = self._reader = self._loop.create_future()
            await reader

    def _gather(self) -> list[Results]:
        """Take results for one message. After a query's end it has nothing of another query with the same id."""
        first, size = self._waiting.popleft()
        results = [first]
        ended = {end.query_id for end in first.ends} if self._waiting else set()
        while self._waiting:
            more, its_size = self._waiting[0]
            if size + its_size > RESPONSE_BYTES or not ended.isdisjoint(more.query_ids):
                break
            self._waiting.popleft()
            results.append(more)
            size += its_size
            ended.update(end.query_id for end in more.ends)
        self._bytes -= size
        writer, self._writer = self._writer, None
        if writer is not None:
            _resolve(writer)
        return results

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is None:
            return
        if threading.get_ident() == self._thread:
            _resolve(reader)
            return
        try:
            self._loop.call_soon_threadsafe(_resolve, reader)
        except RuntimeError:  # the loop is closed: nobody reads any more
            self._discarding = True


def _resolve(reader: asyncio.Future[None]) -> None:
    if not reader.done():
        reader.set_result(None)
