"""The open indexes of a database. Indexes that are idle are closed, so that a database can have many.

An open index takes memory, some file descriptors, and address space to map its file. Hence only a limited number is
open at a time (``process_limits.py``). When there are more, those that were used least recently are closed. A
:class:`StoredIndex` that was closed for this reason is opened again when it is used. Snapshots and running searches of
an index keep its file mapped, even when the index is closed.

Locks, in the order in which they may be taken:

- a lock per index name, see :meth:`OpenIndexes.locked`: held while that index is opened, created, dropped or closed for
  being idle.
- ``_lock``: held for the few steps that read or change the tables. An open index is therefore found at once, even while
  another index is being opened.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import WeakValueDictionary

from whamming.native import WhammingError
from whamming.storage.directory import is_at
from whamming.storage.process_limits import max_open_indexes
from whamming.storage.storage_errors import CLOSED, DROPPED, ClosedError, ProcessLimitError
from whamming.storage.store.protocol import Backend, Store
from whamming.storage.stored_index import StoredIndex

CLOSED_FOR_ROOM = 16
"""How many idle indexes are closed if the process has reached one of its limits."""


class OpenIndexes:
    """The table of open indexes. Any number of threads may use it at once."""

    def __init__(self, path: Path | None, backend: Backend, *, read_only: bool) -> None:
        self._path = path
        self._backend = backend
        self._read_only = read_only
        self.max_open = max_open_indexes() if backend.persistent else None
        """How many indexes may be open. More are open only if all are in use. None: no limit, because indexes in memory
        cannot be closed and opened again."""
        self._open: dict[str, StoredIndex] = {}
        self._idle: WeakValueDictionary[str, StoredIndex] = WeakValueDictionary()
        """Indexes that were closed for being idle, and that somebody still refers to."""
        self._pinned: dict[str, int] = {}
        """Descriptors of index directories, in a reader process. They show whether the writer has dropped the index."""
        self._name_locks: WeakValueDictionary[str, threading.RLock] = WeakValueDictionary()
        """Each entry exists only while a thread holds the lock or waits for it."""
        self._lock = threading.RLock()
        self.closed = False

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> dict[str, StoredIndex]:
        """Return all open indexes by name."""
        with self._lock:
            return dict(self._open)

    def refresh(self) -> None:
        """Apply what the writer process has written, so that an idle reader process releases old pages of the files."""
        for index in self.all().values():
            with contextlib.suppress(WhammingError):  # whoever uses the index gets the error
                index.refresh()

    def check_open(self) -> None:
        """Raise ClosedError if the database is closed."""
        if self.closed:
            raise ClosedError("the database is closed; open it again with whamming.open()")

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock of an index name."""
        with self._lock:
            self.check_open()
            lock = self._name_locks.setdefault(name, threading.RLock())
        with lock:
            self.check_open()
            yield

    def find(self, name: str) -> StoredIndex | None:
        """Return an index if it is open; None if it is not, or if the writer has dropped it."""
        with self._lock:
            self.check_open()
            index = self._open.get(name)
            if index is None or index.closed:
                return None
            if self._path is not None and name in self._pinned and not is_at(self._pinned[name], self._path / name):
                return None
            index.touch()
            return index

    def add(self, index: StoredIndex) -> None:
        """Add a new index that is not in a directory."""
        with self._lock:
            self._open[index.name] = index

    def open(self, name: str) -> StoredIndex:
        """Open an index that is not open, or that the writer has replaced. The caller holds the lock of its name.

        Call :meth:`make_room` afterwards, without the lock.
        """
        assert self._path is not None
        with self._lock:
            before, idle = self._open.get(name), self._idle.get(name)
        if before is not None and before.closed:  # an index that the writer has dropped stays open: it may be in use
            before.close()  # waits for another thread that is closing it
        self.forget(name)
        if idle is not None and not idle.closed:
            self._reopen(idle)
            return idle
        index = StoredIndex(name, self._open_store(name), directory=self._path / name, reopen=self.reopen)
        try:
            index.read_encoder()
            self._register(index)
        except BaseException:
            index.close()
            raise
        return index

    def reopen(self, index: StoredIndex) -> None:
        """Open an index again that was closed for being idle."""
        with self.locked(index.name):
            if not index.is_open:
                if index.closed or self._idle.get(index.name) is not index:
                    raise ClosedError(DROPPED if index.dropped else CLOSED)
                self._reopen(index)
        self.make_room()

    def _reopen(self, index: StoredIndex) -> None:
        index.resume(self._open_store(index.name))
        self._register(index)

    def _register(self, index: StoredIndex) -> None:
        assert self._path is not None
        pin = os.open(self._path / index.name, os.O_RDONLY) if self._read_only else None
        index.touch()
        with self._lock:
            self._idle.pop(index.name, None)
            self._open[index.name] = index
            if pin is not None:
                self._pinned[index.name] = pin

    def _open_store(self, name: str) -> Store:
        assert self._path is not None
        while True:
            try:
                return self._backend.open(self._path / name, None, read_only=self._read_only)
            except ProcessLimitError:
                if not self._close_idle(CLOSED_FOR_ROOM):
                    raise

    def make_room(self) -> None:
        """Close idle indexes if too many are open. The caller holds no lock."""
        if self.max_open is not None and len(self._open) > self.max_open:
            self._close_idle(len(self._open) - self.max_open)

    def _close_idle(self, count: int) -> int:
        """Close some indexes that nobody uses, beginning with the least recently used. Returns how many were closed."""
        closed = 0
        for index in sorted(self.all().values(), key=lambda index: index.used_at):
            if closed == count:
                break
            closed += self.close_if_idle(index)
        return closed

    def close_if_idle(self, index: StoredIndex) -> bool:
        """Close an index unless somebody uses it. It can be opened again. Returns whether it was closed."""
        name = index.name
        with self._lock:
            lock = self._name_locks.setdefault(name, threading.RLock())
        if self.max_open is None or not lock.acquire(blocking=False):
            return False
        try:
            store = index.pause()
            if store is None:
                return False
            with self._lock:
                if self._open.get(name) is index:
                    self._idle[name] = index
                    self.forget(name)
            store.close()
        finally:
            lock.release()
        return True

    def forget(self, name: str) -> StoredIndex | None:
        """Remove an index from the tables, and return it if it was open."""
        with self._lock:
            if name in self._pinned:
                os.close(self._pinned.pop(name))
            return self._open.pop(name, None)

    def remove(self, name: str) -> StoredIndex | None:
        """Remove an index that is dropped. Returns it if it was open, or if somebody still refers to it."""
        with self._lock:
            opened, idle = self.forget(name), self._idle.pop(name, None)
            return idle if opened is None else opened

    def close(self, *others: Callable[[], None]) -> None:
        """Close all indexes, and call the other functions, even if one of them fails."""
        with self._lock:
            self.closed = True  # from now on locked() raises an error
            locks = list(self._name_locks.values())
        for lock in locks:
            with lock:  # wait until no index is being opened, created or dropped
                pass
        with contextlib.ExitStack() as closing:  # closes the rest even if one of them fails
            for other in others:
                closing.callback(other)
            for name in list(self._idle):
                idle = self._idle.get(name)
                if idle is not None:
                    closing.callback(idle.close)
            for name in list(self._open):
                index = self.forget(name)
                if index is not None:
                    closing.callback(index.close)
