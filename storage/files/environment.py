"""An open LMDB file, shared by all its readers and its writer in this process."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, ClassVar, Final

import lmdb

from whamming.storage.files.locks import PRIVATE_FILE, try_lock, unlock
from whamming.storage.process_limits import LARGE_MAP, LARGE_MAPS, LEAST_MAP, SMALL_FILE, SMALL_MAP
from whamming.storage.storage_errors import CLOSED, ClosedError, StorageError, WriterBusyError

MAX_READERS: Final = 1022
_LOCK_BYTES: Final = 64 << 10
"""Size of the lock file for MAX_READERS."""


class Environment:
    """An open LMDB environment with a set of users: journals, and everything that was read from them.

    It is closed when its last user releases it. A process may open an LMDB file only once, so a second user shares the
    open environment: see :meth:`shared`.
    """

    _opened: ClassVar[dict[tuple[int, int, int], Environment]] = {}
    # The garbage collector may release a user at any time, even in a thread that holds the lock. Hence the lock is
    # reentrant, and the users are a set, which changes atomically.
    _lock: ClassVar = threading.RLock()

    def __init__(self, key: tuple[int, int, int], path: Path, *, read_only: bool) -> None:
        """Open the file in a directory. Callers use :meth:`shared`."""
        self._key = key
        self._users: set[int] = set()
        self._closed = False
        self.writing_at: Path | None = None
        """The directory of the journal that writes to the file; None if there is none."""
        self._lock_for_reading: IO[bytes] | None = None
        self.read_only = read_only
        lock = not read_only or os.access(path / "lock.mdb", os.W_OK) or os.access(path, os.W_OK)
        if lock:
            _allocate_lock_file(path)
        else:
            self._lock_for_reading = lock_data_file(path, shared=True)
        self.env = self._mapped(path, readonly=read_only, create=not read_only, lock=lock)

    def _mapped(self, path: Path, **options: Any) -> Any:
        """Open the file with a large map, or with a smaller one if the file is small and many are mapped."""
        large = len(self._opened) < LARGE_MAPS or (path / "data.mdb").stat().st_size > SMALL_FILE
        for size in (LARGE_MAP, SMALL_MAP) if large else (SMALL_MAP,):
            try:
                return _open(path, size, **options)
            except lmdb.Error as error:
                if os.strerror(errno.ENOMEM) not in str(error):
                    raise
        return _open(path, LEAST_MAP, **options)

    @classmethod
    def shared(cls, path: Path, user: object, *, read_only: bool) -> Environment:
        """Return the open environment of ``path``, opening it if necessary.

        It may be open already, because a reader and the writer share it, or because an index was closed while one of
        its snapshots is still in use.
        """
        status = (path / "data.mdb").stat()
        key = os.getpid(), status.st_dev, status.st_ino
        with cls._lock:
            found = cls._opened.get(key)
            if found is not None and found.read_only and not read_only:
                raise StorageError(
                    f"{path} is open for reading in this process; close that database and release its snapshots first"
                )
            if found is not None:
                found.hold(user)
            if found is None or found._closed:
                found = cls._opened[key] = cls(key, path, read_only=read_only)
                found.hold(user)
            return found

    @classmethod
    def create(cls, path: Path) -> Any:
        """Create a new LMDB file in a directory and return its environment, which the caller closes.

        The lock keeps other threads from closing a file meanwhile. The lmdb package identifies open files by inode,
        and forgets an inode only a moment after closing the file. If a file was deleted, the new one may reuse its
        inode in that moment, and lmdb would refuse it as already open.
        """
        with cls._lock:
            _allocate_lock_file(path)
            return _open(path, LEAST_MAP)

    def hold(self, user: object) -> None:
        """Keep the file open until the user calls :meth:`release`."""
        self._users.add(id(user))

    def release(self, user: object) -> None:
        """Remove a user, and close the file if it was the last."""
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
        """Keep the file open during the block, even if the index is closed. Raises ClosedError."""
        user = object()
        with self._lock:
            if self._closed:
                raise ClosedError(CLOSED)
            self.hold(user)
        try:
            yield self.env
        finally:
            self.release(user)


def lock_data_file(path: Path, *, shared: bool) -> IO[bytes]:
    """Lock data.mdb, so that a writer never runs together with readers that cannot write to lock.mdb.

    Readers tell the writer through lock.mdb which pages they use. The writer takes an exclusive lock on data.mdb.
    Readers that cannot write to lock.mdb take a shared lock on data.mdb. Other readers take none.
    """
    handle = try_lock(path / "data.mdb", "rb", shared=shared)
    if handle is not None:
        return handle
    if shared:
        raise StorageError(
            f"{path} is being written, and this process cannot write to its lock.mdb, which readers need while another "
            "process writes; get write permission for it, or wait until the writer has finished"
        )
    raise WriterBusyError(
        f"{path} is being read by a process that cannot write to its lock.mdb; wait until it has finished"
    )


def _open(path: Path, map_size: int, **options: Any) -> Any:
    options = {"map_size": map_size, "max_readers": MAX_READERS, "mode": PRIVATE_FILE, "lib_version": 0, **options}
    return lmdb.open(str(path), **options)


def _allocate_lock_file(path: Path) -> None:
    """Reserve disk space for the lock file.

    LMDB creates this file as a sparse file and writes to it through a memory map. If the disk is full when it writes,
    a signal kills the process.
    """
    handle = os.open(path / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        if os.fstat(handle).st_blocks * 512 < _LOCK_BYTES and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, _LOCK_BYTES)
    finally:
        os.close(handle)
