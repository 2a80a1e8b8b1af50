"""The exceptions that storage raises.

::

    WhammingError
    ├── InvalidArgumentError (the engine's)
    │   └── NoEncoderError                       the index lacks the encoder or the kept vectors that a call needs
    └── StorageError
        ├── NotFoundError (also a KeyError)      there is no index of that name
        ├── AlreadyExistsError                   an index of that name exists, or the target path does
        ├── ReadOnlyError                        a write to a database that was opened read-only
        ├── WriterBusyError                      another process has the database open for writing
        ├── FormatError                          not a Whamming database, or written by another version
        ├── CorruptStoreError                    damaged files
        ├── IncompleteBackupError                a backup was made or restored, but lacks broken indexes
        ├── StorageFullError                     no space for a write
        ├── ClosedError                          used after close()
        └── ProcessLimitError                    too many open files, or no address space
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from whamming.native import InvalidArgumentError, WhammingError
from whamming.storage.process_limits import files_text

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error codes of a full disk, an exceeded quota, and an exceeded limit on the size of a file."""


CLOSED: Final = "the index is closed; open it again with Database.index"
MOVE_BACK: Final = "if it was moved, move it back"
"""The first remedy for files or directories that are gone. An open database then works again, without a restart."""
DROPPED: Final = "the index was dropped; if it has been created again, open it with Database.index"

NO_FILES: Final = (errno.EMFILE, errno.ENFILE)
"""Error codes of too many open files, of the process or of the machine."""


class StorageError(WhammingError):
    """The base class of storage's errors. Invalid arguments raise the engine's InvalidArgumentError instead."""


class NoEncoderError(InvalidArgumentError):
    """Vectors were given but the index has no encoder, or kept vectors are wanted but the index keeps none."""


def no_encoder(index: str) -> NoEncoderError:
    """Return the error for vectors given to an index without an encoder."""
    return NoEncoderError(
        f"the index {index!r} has no encoder; give codes, or create the index with encoder='sign', 'lsh' or 'itq'"
    )


class NotFoundError(StorageError, KeyError):
    """There is no index of that name."""

    def __str__(self) -> str:
        """Return the message without the quotes that a KeyError adds."""
        return str(self.args[0]) if self.args else ""


class AlreadyExistsError(StorageError):
    """An index of that name exists, or the target path does."""


class ReadOnlyError(StorageError):
    """A write to a database that was opened read-only."""


class WriterBusyError(StorageError):
    """Another process has the database open for writing."""


class FormatError(StorageError):
    """A directory or file that is not a Whamming database, or that another version wrote."""


class CorruptStoreError(StorageError):
    """The files are damaged. Restore a backup."""


class IncompleteBackupError(StorageError):
    """A backup was made or restored, but some indexes were broken and are not in it. The message says which."""


class StorageFullError(StorageError):
    """There was no space for a write. What is on disk is intact, and the index can still be read.

    ``async`` writes that are not on disk yet stay in memory. They are saved as soon as there is space, and are lost if
    the process ends before that.
    """


class ClosedError(StorageError):
    """The database, index or search was closed."""


class ProcessLimitError(StorageError):
    """The process has reached its limit on open files or address space. The message names the limit and the remedy."""


def from_system(error: OSError, path: Path) -> StorageError:
    """Convert an operating system error to the storage error that users see."""
    reason = error.strerror or error
    if error.errno in NO_FILES:
        return ProcessLimitError(f"{path} cannot be opened: {reason}; {files_text()}")
    if error.errno in NO_ROOM:
        return StorageFullError(f"no space to write to {path}: {reason}; free some space, then write again")
    return StorageError(f"{path} cannot be used: {reason}")


@contextlib.contextmanager
def preferring(check: Callable[[], None]) -> Iterator[None]:
    """If the block raises a StorageError, call ``check`` first, and raise its error instead if it raises one.

    For example, an index that is being dropped loses its files, but its users should get a ClosedError.
    """
    try:
        yield
    except StorageError:
        check()
        raise
