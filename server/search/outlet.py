"""What waits to be sent on one stream: serialised messages, a bounded number of bytes of them.

Workers put messages in, the stream's coroutine takes them out, as many as there are at a time. Where more than the
limit waits, jobs park here and are handed in again when the client has read some.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence

from whamming.server.search.scheduler import Job

MESSAGE_BYTES = 1 << 18
"""Messages are put together until they have about so many bytes."""


class Outlet:
    """A bounded queue. One coroutine takes; any thread may do the rest."""

    def __init__(self, limit: int, resume: Callable[[Sequence[Job]], None]) -> None:
        """Start empty, for so many bytes. ``resume`` hands jobs in again."""
        self._limit = limit
        self._resume = resume
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._parked: set[Job] = set()
        self._signal = asyncio.Event()
        self._signalled = False
        self._finished = False
        self._discards = False
        self._error: BaseException | None = None

    def put(self, data: bytes) -> None:
        """Add a serialised message. Always takes it: who asks for room first keeps the limit, about."""
        with self._lock:
            if self._discards:
                return
            self._waiting.append(data)
            self._bytes += len(data)
            self._wake()

    def discard(self) -> None:
        """Drop what waits and what still comes: nobody reads any more."""
        with self._lock:
            self._discards = True
            self._waiting.clear()
            self._bytes = 0

    def has_room(self) -> bool:
        """Tell whether more may be sent now."""
        return self._bytes < self._limit

    def park(self, job: Job) -> bool:
        """Keep a job until there is room, if there is none now; returns whether it was kept."""
        with self._lock:
            if self._bytes < self._limit:
                return False
            self._parked.add(job)
            return True

    def unpark(self, job: Job) -> bool:
        """Let go of a job; returns whether it was kept. Who is told so hands it in again."""
        with self._lock:
            kept = job in self._parked
            self._parked.discard(job)
            return kept

    def finish(self, error: BaseException | None = None) -> None:
        """Let :meth:`take` come to an end: with an error at once, else after what waits."""
        with self._lock:
            self._finished = True
            self._error = self._error or error
            self._wake()

    async def take(self) -> bytes | None:
        """Return the next message; None: there will be none. Raises the error that the stream was finished with."""
        while True:
            with self._lock:
                if self._error is not None:
                    raise self._error
                if self._waiting:
                    data = self._gather()
                    resumed: list[Job] = []
                    if self._bytes < self._limit:
                        resumed = list(self._parked)
                        self._parked.clear()
                    break
                if self._finished:
                    return None
                self._signal.clear()
                self._signalled = False
            await self._signal.wait()
        if resumed:
            self._resume(resumed)
        return data

    def _gather(self) -> bytes:
        pieces = [self._waiting.popleft()]
        size = len(pieces[0])
        while self._waiting and size + len(self._waiting[0]) <= MESSAGE_BYTES:
            pieces.append(self._waiting.popleft())
            size += len(pieces[-1])
        self._bytes -= size
        return b"".join(pieces)  # serialised messages end to end are the serialised union of their repeated fields

    def _wake(self) -> None:
        if not self._signalled:
            self._signalled = True
            try:
                self._loop.call_soon_threadsafe(self._signal.set)
            except RuntimeError:  # the loop has been closed: nobody reads any more
                self._discards = True
