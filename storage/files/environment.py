"""An open LMDB file, shared by everything in this process that reads or writes it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, ClassVar, Final

import lmdb

from whamming.storage.files.locks import try_lock, unlock
from whamming.storage.storage_errors import ClosedError, StorageError, WriterBusyError

MAP_SIZE: Final = 1 << 40
"""Bytes of address space, not of memory or disk. It is never changed: that would move what searches are reading."""
MAX_READERS: Final = 1022
_LOCK_BYTES: Final = 64 << 10
"""Of the lock file: what so many readers need."""


class Environment:
    """An open LMDB environment, closed when its last user releases it: journals, and everything read from them.

    A process may open a file only once, so whoever opens it again shares it: see :meth:`shared`.
    """

    _opened: ClassVar[dict[tuple[int, int, int], Environment]] = {}
    # The garbage collector may end users at any time, in a thread that has the lock: so it is one that a thread may
    # take twice, and users are a set, which changes in one step.
    _lock: ClassVar = threading.RLock()

    def __init__(self, key: tuple[int, int, int], path: Path, *, read_only: bool) -> None:
        """Open a file; prefer :meth:`shared`."""
        self._key = key
        self._users: set[int] = set()
        self._closed = False
        self._lock_for_reading: IO[bytes] | None = None
        self.read_only = read_only
        lock = not read_only or os.access(path / "lock.mdb", os.W_OK) or os.access(path, os.W_OK)
        if lock:
            _allocate_lock_file(path)
        else:
            self._lock_for_reading = lock_data_file(path, shared=True)
        self.env = _open(path, readonly=read_only, create=not read_only, lock=lock)

    @classmethod
    def shared(cls, path: Path, user: object, *, read_only: bool) -> Environment:
        """Return the file at ``path``, opened now or before: by a reader beside the writer, or by an index that was
        closed since but has a snapshot in use."""
        status = (path / "data.mdb").stat()
        key = os.getpid(), status.st_dev, status.st_ino
        with cls._lock:
            found = cls._opened.get(key)
            if found is not None and found.read_only and not read_only:
                raise StorageError(
                    f"{path} is in use for reading in this process; close that and release its snapshots first"
                )
            if found is not None:
                found.hold(user)
            if found is None or found._closed:
                found = cls._opened[key] = cls(key, path, read_only=read_only)
                found.hold(user)
            return found

    @classmethod
    def create(cls, path: Path) -> Any:
        """Make a new file in a directory and return it as an LMDB environment, which the caller closes.

        LMDB's binding knows open files by their inodes, and forgets one a moment after it has closed it. If that file
        has been deleted, the new one may have its inode by then, and would be refused as if it were open. So no other
        thread may close a file meanwhile.
        """
        with cls._lock:
            _allocate_lock_file(path)
            return _open(path)

    def hold(self, user: object) -> None:
        """Keep the file open until the user releases it."""
        self._users.add(id(user))

    def release(self, user: object) -> None:
        """Close the file if no other user holds it."""
        with self._lock:
            self._users.discard(id(user))
            if not self._users and not self._closed:
                self._closed = True
                self._opened.pop(self._key, None)
                self.env.close()
                if self._lock_for_reading is not None:
                    unlock(self._lock_for_reading)

    @contextlib.contextmanager
    def using(self) -> Iterator[Any]:
        """Keep the file open meanwhile, even if the index is closed. Raises ClosedError."""
        user = object()
        with self._lock:
            if self._closed:
                raise ClosedError("the index is closed; open the database again")
            self.hold(user)
        try:
            yield self.env
        finally:
            self.release(user)


def lock_data_file(path: Path, *, shared: bool) -> IO[bytes]:
    """Keep a writer apart from readers that may not write to lock.mdb: by that file, readers tell the writer which
    pages they use. The writer takes the lock for itself, such readers share it, all others do without."""
    handle = try_lock(path / "data.mdb", "rb", shared=shared)
    if handle is not None:
        return handle
    if shared:
        raise StorageError(
            f"{path} is being written, and only those who may write to its lock.mdb can read it beside the writer; "
            "get that permission, or wait until the writer is done"
        )
    raise WriterBusyError(f"{path} is being read by someone who may not write to its lock.mdb; wait for them")


def _open(path: Path, **options: bool) -> Any:
    return lmdb.open(str(path), map_size=MAP_SIZE, max_readers=MAX_READERS, lib_version=0, **options)


def _allocate_lock_file(path: Path) -> None:
    """Give the lock file its room on disk. LMDB makes it with holes and writes to it through a memory map, and where
    there is no room to fill a hole with, that ends the process."""
    handle = os.open(path / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(handle).st_blocks * 512 < _LOCK_BYTES and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, _LOCK_BYTES)
    finally:
        os.close(handle)
