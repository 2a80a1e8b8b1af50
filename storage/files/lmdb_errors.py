"""LMDB's and the system's errors, turned into ours."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import lmdb

from whamming.storage.files import environment
from whamming.storage.storage_errors import NO_ROOM, CorruptStoreError, StorageError, StorageFullError


@contextlib.contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Raise ours where LMDB or the system raises one of theirs; ``path`` is the index's directory."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        raise translated(error, path) from error


def translated(error: Exception, path: Path) -> StorageError:
    """Return our error for one of LMDB's or the system's."""
    text = str(error)
    full = isinstance(error, lmdb.MapFullError) or any(os.strerror(code) in text for code in NO_ROOM)
    if full or (os.strerror(errno.EIO) in text and _free_bytes(path) < 1 << 20):  # LMDB's word for half a write
        return StorageFullError(f"no room to write to {path}: {text}; free some space, then write again")
    if isinstance(error, lmdb.ReadersFullError):
        return StorageError(
            f"{path}: all {environment.MAX_READERS} places for readers are taken; release old snapshots, or end other "
            "reading processes"
        )
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.InvalidError | lmdb.VersionMismatchError):
        return CorruptStoreError(f"{path}: {text}; restore a backup")
    if isinstance(error, lmdb.ReadonlyError | PermissionError | lmdb.LockError) or "Permission denied" in text:
        return StorageError(f"{path} cannot be opened: {text}; check who may read and write it")
    return StorageError(f"{path}: {text}")


def _free_bytes(path: Path) -> int:
    """Return by how much an index's file may still grow."""
    try:
        status = os.statvfs(path)
        free = status.f_bavail * status.f_frsize
        longest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        return free if longest == resource.RLIM_INFINITY else min(free, longest - (path / "data.mdb").stat().st_size)
    except OSError:
        return 0
