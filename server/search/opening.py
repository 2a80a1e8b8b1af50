"""Open indexes in separate threads, because opening an index with many recent writes takes long."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from whamming.storage import Database, StoredIndex
from whamming.wire.service_errors import UnavailableError

OPENING_THREADS: Final = 2
"""Threads that open indexes. More would compete with the searches for the interpreter lock."""


class IndexOpener:
    """Opens indexes in threads of its own. If several calls need the same index, it is opened once for all of them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._threads = ThreadPoolExecutor(OPENING_THREADS, thread_name_prefix="whamming-open")
        self._lock = threading.RLock()
        self._opening: dict[str, Future[StoredIndex]] = {}
        self._closed = False

    def open(self, name: str) -> Future[StoredIndex]:
        """Start to open an index, unless it is being opened already. After :meth:`close`, the result is an error."""
        with self._lock:
            if self._closed:
                refused: Future[StoredIndex] = Future()
                refused.set_exception(UnavailableError("the server is shutting down; send the request again"))
                return refused
            found = self._opening.get(name)
            if found is None:
                found = self._opening[name] = self._threads.submit(self._database.index, name)
                found.add_done_callback(lambda done: self._forget(name))
            return found

    def _forget(self, name: str) -> None:
        with self._lock:
            self._opening.pop(name, None)

    def close(self) -> None:
        """Wait for the indexes that are being opened."""
        with self._lock:
            self._closed = True
        self._threads.shutdown(cancel_futures=True)
