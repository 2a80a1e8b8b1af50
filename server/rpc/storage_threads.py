"""Run blocking database calls in threads, so that they do not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from whamming.server.search.opening import IndexOpener
from whamming.storage import Database, StoredIndex
from whamming.wire.fields import FieldError, in_field

T = TypeVar("T")

BLOCKING_THREADS: Final = 16
"""Threads for reads and writes. Concurrent writes share a commit."""
SLOW_THREADS: Final = 2
"""Threads for seals and compactions. The same number of further threads finish the removal of dropped indexes."""


class StorageThreads:
    """A database, and thread pools to call it from the event loop."""

    def __init__(self, database: Database, opener: IndexOpener | None = None) -> None:
        self.database = database
        self._opener = opener or IndexOpener(database)
        self._threads = ThreadPoolExecutor(BLOCKING_THREADS, thread_name_prefix="whamming-storage")
        self._slow_threads = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="whamming-maintain")
        self._dropping_threads = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="whamming-drop")

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

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
        self._threads.shutdown()
        self._slow_threads.shutdown(cancel_futures=True)
        self._dropping_threads.shutdown()
