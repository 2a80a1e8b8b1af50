"""What storage refuses, and why.

::

    WhammingError
    └── StorageError
        ├── NotFoundError (also a KeyError)      no index of that name
        ├── AlreadyExistsError                   an index of that name, or something in the way
        ├── ReadOnlyError                        a write to a database that was opened for reading, or to a backup
        ├── WriterBusyError                      another process has the database open for writing
        ├── FormatError                          not a Whamming database, or of a newer version
        ├── CorruptStoreError                    files that contradict themselves
        ├── StorageFullError                     no room for a write; nothing was lost
        └── ClosedError                          used after close()
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from whamming.native import WhammingError

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says of a full disk, a full quota, and a file as long as this process may make one."""


class StorageError(WhammingError):
    """The root of what storage raises on purpose, beside the engine's InvalidArgumentError."""


class NotFoundError(StorageError, KeyError):
    """There is no index of that name."""

    def __str__(self) -> str:
        """Return the message without the quotes that a KeyError adds."""
        return str(self.args[0]) if self.args else ""


class AlreadyExistsError(StorageError):
    """An index of that name exists, or the target is not empty."""


class ReadOnlyError(StorageError):
    """A write where only reading is possible."""


class WriterBusyError(StorageError):
    """Another process has the database open for writing."""


class FormatError(StorageError):
    """A directory or file that is not ours, or that a newer version wrote."""


class CorruptStoreError(StorageError):
    """Files that contradict themselves. Restore a backup."""


class StorageFullError(StorageError):
    """There was no room for a write. What was acknowledged before is safe, and reading goes on."""


class ClosedError(StorageError):
    """The database or index was closed."""


def from_system(error: OSError, path: Path) -> StorageError:
    """Return what an error of the operating system is to our users."""
    reason = error.strerror or error
    if error.errno in NO_ROOM:
        return StorageFullError(f"no room to write to {path}: {reason}; free some space, then write again")
    return StorageError(f"{path} cannot be used: {reason}")
