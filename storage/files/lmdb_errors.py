"""Converting errors of LMDB and the operating system to storage errors."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import lmdb

from whamming.storage.files import environment
from whamming.storage.process_limits import files_text, memory_text
from whamming.storage.storage_errors import (
    NO_FILES,
    NO_ROOM,
    CorruptStoreError,
    FormatError,
    ProcessLimitError,
    StorageError,
    StorageFullError,
)

_NOT_A_FILE: Final = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ESPIPE, errno.ENODEV, errno.EINVAL)
"""Error codes of directories, named pipes, sockets, devices and looping links."""


@contextlib.contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Convert errors of LMDB and the operating system that the block raises. ``path`` is the index's directory.

    Errors about its records, which do not know where they are from, get the path, too.
    """
    try:
        yield
    except (CorruptStoreError, FormatError) as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error
    except (lmdb.Error, OSError) as error:
        raise translated(error, path) from error


def translated(error: Exception, path: Path) -> StorageError:
    """Return the storage error for an error of LMDB or the operating system."""
    text = str(error).removeprefix(f"{path}: ")  # LMDB names the directory, too
    if isinstance(error, OSError) and error.errno in _NOT_A_FILE:
        return CorruptStoreError(f"a file of the index in {path} is not a regular file: {text}; restore a backup")
    if isinstance(error, lmdb.MapFullError):
        return StorageFullError(
            f"{path} has outgrown its map ({text}); close the index and open it again. It is then mapped larger, up to "
            "1 TiB if the process has the address space"
        )
    full = any(os.strerror(code) in text for code in NO_ROOM)
    if full or (os.strerror(errno.EIO) in text and _free_bytes(path) < 1 << 20):  # LMDB reports a short write as EIO
        return StorageFullError(f"no space to write to {path}: {text}; free some space, then write again")
    if any(os.strerror(code) in text for code in NO_FILES):
        return ProcessLimitError(f"{path} cannot be opened: {text}; {files_text()}")
    if os.strerror(errno.ENOMEM) in text:
        return ProcessLimitError(f"{path} cannot be mapped: {text}; {memory_text()}")
    if isinstance(error, lmdb.ReadersFullError):
        return StorageError(
            f"{path}: all {environment.MAX_READERS} reader slots are taken; release old snapshots, or stop other "
            "reading processes"
        )
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.InvalidError | lmdb.VersionMismatchError):
        return CorruptStoreError(f"{path}: {text}; restore a backup")
    if isinstance(error, lmdb.ReadonlyError | PermissionError | lmdb.LockError) or "Permission denied" in text:
        return StorageError(f"cannot open {path}: {text}; check its permissions")
    return StorageError(f"{path}: {text}")


def _free_bytes(path: Path) -> int:
    """Return how many more bytes can be appended to the index's file."""
    try:
        status = os.statvfs(path)
        free = status.f_bavail * status.f_frsize
        longest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        return free if longest == resource.RLIM_INFINITY else min(free, longest - (path / "data.mdb").stat().st_size)
    except OSError:
        return 0
