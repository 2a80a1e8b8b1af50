"""Run blocking database calls in threads, so that they do not block the event loop.

Clients share the threads fairly (:mod:`~whamming.server.rpc.client_threads`). A write may wait 10 seconds or more for a
seal of its index. So writes of items have threads of their own, and reads never wait for them. Encoding vectors may
take seconds per message, so it has threads of its own, too, which the clients use in turns of a few milliseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from whamming.server.rpc.client_threads import ClientThreads
from whamming.server.rpc.clients import CURRENT
from whamming.server.search.opening import IndexOpener
from whamming.storage import Database, StoredIndex
from whamming.storage.vectors.steps import Steps, run_until
from whamming.wire.fields import FieldError, in_field

T = TypeVar("T")

BLOCKING_THREADS: Final = 16
"""Threads for reads, and for all other short calls."""
WRITING_THREADS: Final = 16
"""Threads for writes. Concurrent writes share a commit. A write of 16 MiB takes several times as much memory."""
CLIENT_THREADS: Final = 4
"""How many of each kind one client may use at the same time."""
ENCODING_THREADS: Final = 2
"""Threads for encoding vectors."""
ENCODING_SECONDS: Final = 0.02
"""How long a client may encode before it is another client's turn. A step may exceed this by about as much."""
SLOW_THREADS: Final = 2
"""Threads for seals and compactions. The same number of further threads finish the removal of dropped indexes."""


class StorageThreads:
    """A database, and thread pools to call it from the event loop."""

    def __init__(self, database: Database, opener: IndexOpener | None = None) -> None:
        self.database = database
        self._opener = opener or IndexOpener(database)
        self._threads = ClientThreads(BLOCKING_THREADS, CLIENT_THREADS, "whamming-storage")
        self._writing_threads = ClientThreads(WRITING_THREADS, CLIENT_THREADS, "whamming-write")
        self._encoding_threads = ClientThreads(ENCODING_THREADS, ENCODING_THREADS, "whamming-encode")
        self._slow_threads = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="whamming-maintain")
        self._dropping_threads = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="whamming-drop")

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function that does not write items in a thread."""
        return await asyncio.wrap_future(self._threads.submit(CURRENT.get(), call, *args))

    async def write(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function that writes items in a thread."""
        return await asyncio.wrap_future(self._writing_threads.submit(CURRENT.get(), call, *args))

    async def encode(self, steps: Steps[T]) -> T:
        """Run steps that encode vectors. Cancelling stops them after the current step or turn."""
        while True:
            result: tuple[T] | None = await asyncio.wrap_future(
                self._encoding_threads.submit(CURRENT.get(), _take_turn, steps)
            )
            if result is not None:
                return result[0]

    async def run_long(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function that may take minutes, in a separate thread pool."""
        return await asyncio.get_running_loop().run_in_executor(self._slow_threads, call, *args)

    async def drop(self, name: str) -> None:
        """Drop an index, and wait until its files are removed. Cancelling stops the waiting, not the removal."""
        finishing = await self.run(lambda: self._dropping_threads.submit(self.database.begin_drop(name)))
        await asyncio.shield(asyncio.wrap_future(finishing))

    async def index(self, name: str, field: str = "index") -> StoredIndex:
        """Return an index by name. ``field`` is the request field named in errors."""
        if not name:
            raise FieldError(field, f"{field} is empty; give the name of an index")
        with in_field(field):
            found = await self.run(self.database.find_open, name)
            if found is not None:
                return found
            opening = asyncio.wrap_future(self._opener.open(name))
            return await asyncio.shield(opening)  # others may be waiting for it

    def close(self) -> None:
        """Wait for running calls, and for reads and writes that are queued. Drop queued seals and compactions."""
        self._opener.close()
        self._encoding_threads.close()
        self._writing_threads.close()
        self._threads.close()
        self._slow_threads.shutdown(cancel_futures=True)
        self._dropping_threads.shutdown()


def _take_turn(steps: Steps[T]) -> tuple[T] | None:
    """Run steps for one turn of a client. Returns the result in a tuple, or None if there is more to do."""
    return run_until(steps, time.perf_counter() + ENCODING_SECONDS)
