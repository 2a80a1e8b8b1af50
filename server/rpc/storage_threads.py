"""The database as the event loop reaches it: every call runs in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from whamming.storage import Database, StoredIndex
from whamming.wire.fields import FieldError, in_field

T = TypeVar("T")

BLOCKING_THREADS: Final = 16
"""Calls that read or write storage at once; a group of writes shares a commit."""
SLOW_THREADS: Final = 2
"""Seals, compactions and fits at once."""


class StorageThreads:
    """A database, and the threads that call it."""

    def __init__(self, database: Database) -> None:
        """Start threads when they are needed."""
        self.database = database
        self._threads = ThreadPoolExecutor(BLOCKING_THREADS, thread_name_prefix="whamming-storage")
        self._slow_threads = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="whamming-maintain")

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    async def run_slowly(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function that may take minutes, in a thread that short calls do not wait for."""
        return await asyncio.get_running_loop().run_in_executor(self._slow_threads, call, *args)

    async def index(self, name: str, field: str = "index") -> StoredIndex:
        """Return an index."""
        if not name:
            raise FieldError(field, f"{field} is empty; give the name of an index")
        with in_field(field):
            return await self.run(self.database.index, name)

    def close(self) -> None:
        """Wait for what is under way."""
        self._threads.shutdown()
        self._slow_threads.shutdown(cancel_futures=True)
