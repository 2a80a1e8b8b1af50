"""The send buffer of a call: results that wait to be sent, bounded in bytes.

Workers put results in. The coroutine of the call takes them out, one message at a time. Queries check
:meth:`SendBuffer.has_room` before they search. A query that finds no room blocks until the client has read.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import Final

from whamming.server.search.results import Results

RESPONSE_BYTES: Final = 1 << 18
"""Results are joined into one message up to about this size."""
OVERFULL: Final = 4
"""While the buffer holds more than this many times its limit, the call accepts no queries. The limit can be exceeded
because the end of a refused query is put into the buffer even if there is no room."""


class Wakeup:
    """Wakes a coroutine. Callers of :meth:`arm` and :meth:`wake` must hold the same lock.

    Create it in the event loop of the coroutine.
    """

    __slots__ = ("_future", "_loop", "_thread", "_waiting")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._future: asyncio.Future[None] | None = None
        """The future that the next :meth:`wake` resolves."""
        self._waiting: asyncio.Future[None] | None = None

    def arm(self) -> None:
        """Forget earlier wake-ups, so that the next :meth:`wait` waits for a new one."""
        self._future = self._waiting = self._loop.create_future()

    async def wait(self) -> None:
        """Wait until :meth:`wake` has been called since the last :meth:`arm`."""
        assert self._waiting is not None
        await self._waiting

    def wake(self) -> None:
        """Wake the coroutine if it waits. Any thread may call this."""
        future, self._future = self._future, None
        if future is None:
            return
        if threading.get_ident() == self._thread:
            _resolve(future)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
            self._loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class SendBuffer:
    """A bounded queue of results. The lock of the call guards all state.

    Any thread may call :meth:`put`, :meth:`has_room` and :meth:`finish`. The other methods are for the event loop, and
    only one coroutine may call :meth:`take`.
    """

    def __init__(self, limit: int, lock: threading.Lock) -> None:
        """Create an empty buffer for ``limit`` bytes. Must be called in the event loop of the call."""
        self._limit = limit
        self._lock = lock
        self._waiting: deque[tuple[Results, int]] = deque()  # with their sizes
        self._bytes = 0
        self._reader = Wakeup()
        self._writer = Wakeup()
        self._finished = False
        self._discarding = False
        self._error: BaseException | None = None
        self._last_error: BaseException | None = None

    def put(self, results: Results) -> None:
        """Add results, even if the buffer is full: queries check for room first. Called with the lock held."""
        if not self._discarding:
            size = results.nbytes
            self._waiting.append((results, size))
            self._bytes += size
            self._reader.wake()

    def has_room(self) -> bool:
        """Return whether a query may search for more."""
        return self._bytes < self._limit

    @property
    def is_overfull(self) -> bool:
        """Whether the buffer is so far above its limit that the call should accept no more queries."""
        return self._bytes > OVERFULL * self._limit

    async def drained(self) -> None:
        """Wait until the buffer is no longer overfull."""
        while self.is_overfull:
            with self._lock:
                self._writer.arm()
            await self._writer.wait()

    def discard(self) -> None:
        """Drop all results, including later ones, because nobody reads them."""
        with self._lock:
            self._discarding = True
            self._waiting.clear()
            self._bytes = 0
            self._writer.wake()

    def finish(self, error: BaseException | None = None, last: BaseException | None = None) -> None:
        """Make :meth:`take` end. Called with the lock held.

        With an ``error``, :meth:`take` raises it at once. Otherwise it first returns the waiting results, and then
        raises ``last`` if given.
        """
        if not self._finished:
            self._last_error = last
        self._finished = True
        self._error = self._error or error
        self._reader.wake()

    async def take(self) -> list[Results]:
        """Return the results of the next message, or an empty list at the end. Raises the error of :meth:`finish`."""
        while True:
            with self._lock:
                if self._error is not None:
                    try:
                        raise self._error
                    finally:
                        self._error = None  # break the cycle: its traceback refers to this frame
                if self._waiting:
                    return self._gather()
                if self._last_error is not None:
                    self._error, self._last_error = self._last_error, None
                    continue
                if self._finished:
                    return []
                self._reader.arm()
            await self._reader.wait()

    def _gather(self) -> list[Results]:
        """Take the results of one message. It never has results of two queries with the same id."""
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
        self._writer.wake()
        return results
