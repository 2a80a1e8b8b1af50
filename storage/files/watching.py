"""Noticing that somebody else has deleted, replaced or cut short the files of an open index.

LMDB does not notice. It would go on to commit to a file that has no name any more, and to read a map whose pages are
gone, which kills the process with SIGBUS. A check takes a few system calls, so it is made before each commit and each
snapshot.

An index that this process drops is closed before its directory is renamed. After that, nothing uses its journal.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Final

from whamming.storage.files.lmdb_errors import translated
from whamming.storage.storage_errors import CLOSED, MOVE_BACK, ClosedError, CorruptStoreError

_REMEDY: Final = "drop the index, or close it (stop the server) and restore a backup"


class FileWatch:
    """Compares the files of an open index with their earlier state."""

    def __init__(self, path: Path, data: IO[bytes]) -> None:
        """``path``: the directory of the index. ``data``: the open file data.mdb.

        lock.mdb is looked at by name only. If this process opened and closed it, LMDB would lose its locks on it.
        """
        self._path = path
        self._data = data
        self._data_path, self._lock_path = str(path / "data.mdb"), str(path / "lock.mdb")
        self._data_size = os.fstat(data.fileno()).st_size
        self._lock = _status(self._lock_path)  # None for a reader that has no write access

    def check_data(self) -> None:
        """Raise CorruptStoreError if data.mdb was cut short. Any thread may call this and :meth:`check`."""
        before = self._data_size  # read before the file: another thread may notice that the file has grown, and set it
        size = self._data_status().st_size
        if size < before:
            raise CorruptStoreError(
                f"{self._data_path} was cut short while it was in use: it has {size} bytes and had {before}; {_REMEDY}"
            )
        self._data_size = size  # LMDB's files never shrink

    def check(self) -> None:
        """Raise CorruptStoreError if data.mdb was cut short, or a file is no longer at its path.

        A file that was deleted can still be read safely, but what is written to it is lost.
        """
        self.check_data()
        try:
            _check_place(self._data_path, self._data_status())
            if self._lock is not None:
                _check_place(self._lock_path, self._lock)
        except OSError as error:
            raise translated(error, self._path) from error

    def _data_status(self) -> os.stat_result:
        try:
            return os.fstat(self._data.fileno())
        except (OSError, ValueError) as error:
            if self._data.closed:  # by another thread
                raise ClosedError(CLOSED) from None
            raise translated(error, self._path) from error


def _check_place(path: str, opened: os.stat_result) -> None:
    """Raise CorruptStoreError if an open file does not have its name any more."""
    now = _status(path)
    if now is None or not os.path.samestat(now, opened):
        if now is None:
            happened, remedy = "deleted or moved away", f"{MOVE_BACK}; otherwise, {_REMEDY}"
        else:
            happened, remedy = "replaced by another file", _REMEDY
        raise CorruptStoreError(f"{path} was {happened} while it was in use, so nothing can be written; {remedy}")


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # several times faster than Path.stat
    except (FileNotFoundError, NotADirectoryError):
        return None
