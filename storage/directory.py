"""The directory of a database: its mark, the lock of its writer, and what a crash leaves in it.

::

    data/whamming.json      says that the directory is ours, its format, and the kind of store
    data/writer.lock        held by the process that writes
    data/docs/              the index "docs"
    data/.docs.*.new        an index that is being made, or was when the process died
    data/.docs.*.dropped    an index that is being removed, or was
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
import uuid
from pathlib import Path
from typing import IO, Final, Literal

from whamming.native import InvalidArgumentError
from whamming.storage.files.locks import sync, try_lock, unlock
from whamming.storage.storage_errors import (
    NO_ROOM,
    FormatError,
    NotFoundError,
    StorageError,
    WriterBusyError,
    from_system,
)
from whamming.storage.store.protocol import backend

FORMAT: Final = 2
MARK: Final = "whamming.json"
_LOCK: Final = "writer.lock"
DEFAULT_STORE: Final = "lmdb"

Mode = Literal["w", "r"]


def prepare(path: Path, mode: Mode, create: bool, store: str | None) -> str:
    """Check that a directory is ours, or make it; returns the kind of store that it has."""
    mark = path / MARK
    try:
        if mark.exists():
            return _read_mark(mark, store)
        if path.exists() and (not path.is_dir() or any(map(_is_foreign, path.iterdir()))):
            raise FormatError(f"{path} is not a Whamming database: it has no {MARK}; give an empty or a new directory")
        if mode == "r" or not create:
            raise NotFoundError(f"there is no database at {path}; open it with mode='w' to make one")
        kept_in = store or DEFAULT_STORE
        if not backend(kept_in).persistent:
            raise InvalidArgumentError(f"store = {kept_in!r} keeps nothing in {path}; open ':memory:' instead")
        path.mkdir(parents=True, exist_ok=True)
        _write_mark(mark, kept_in)
    except OSError as error:
        raise from_system(error, path) from error
    return kept_in


def _read_mark(mark: Path, store: str | None) -> str:
    path = mark.parent
    try:
        values = json.loads(mark.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{mark} is damaged: {error}; restore it from a backup") from error
    if not isinstance(values, dict) or not isinstance(values.get("format"), int):
        raise FormatError(f"{mark} does not say what format the database has; restore it from a backup")
    if values["format"] > FORMAT:
        raise FormatError(f"{path} has format {values['format']}; this version reads up to {FORMAT}: upgrade whamming")
    if values["format"] < FORMAT:
        raise FormatError(
            f"{path} has format {values['format']}; this version reads {FORMAT}: import its items into a new database"
        )
    kept_in = str(values.get("store", DEFAULT_STORE))
    if store not in (None, kept_in):
        raise FormatError(f"{path} is kept in the store {kept_in!r}, not {store!r}; leave the store out")
    return kept_in


def _is_foreign(path: Path) -> bool:
    """Return whether something in a directory without a mark is not ours.

    Ours is what a crash, or another process that opens the directory right now, leaves there. A new file system begins
    with ``lost+found``.
    """
    return not path.name.startswith(f".{MARK}.") and path.name != "lost+found"


def _write_mark(mark: Path, store: str) -> None:
    part = mark.with_name(f".{MARK}.{uuid.uuid4().hex}.new")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"format": FORMAT, "store": store}) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        part.unlink(missing_ok=True)
        raise
    try:
        part.rename(mark)
    except FileNotFoundError:  # another process has opened the database meanwhile, and cleaned up
        if not mark.exists():
            raise
    sync(mark.parent)
    with contextlib.suppress(PermissionError):  # a parent that we may enter but not read
        sync(mark.parent.parent)


class WriterLock:
    """The right to write to a directory, for one handle of one process at a time."""

    _held: Final[set[tuple[int, int, int]]] = set()
    """The process, device and inode of each lock that this process holds."""
    _guard: Final = threading.Lock()

    def __init__(self, directory: Path, wait: float) -> None:
        """Take the lock; raises :class:`WriterBusyError` if it is not free within ``wait`` seconds."""
        path = directory / _LOCK
        try:
            self._handle = self._take(path, wait)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise from_system(error, path) from error
            text = f"{path} cannot be opened for writing: {error}; open the database with mode='r'"
            raise StorageError(text) from error
        self._key = _identity(os.fstat(self._handle.fileno()))
        with self._guard:
            self._held.add(self._key)

    def _take(self, path: Path, wait: float) -> IO[bytes]:
        end = time.monotonic() + wait
        while (handle := try_lock(path, "ab")) is None:
            if time.monotonic() >= end:
                raise WriterBusyError(self._who(path))
            time.sleep(0.02)
        return handle

    def _who(self, path: Path) -> str:
        with self._guard:
            ours = _identity(path.stat()) in self._held
        if ours:
            return (
                f"this process has {path.parent} open for writing already; use that database, close it first, or open "
                "another with mode='r'"
            )
        return (
            f"another process is writing to {path.parent}; wait for it (wait=seconds), stop it, or open the database "
            "with mode='r'"
        )

    def release(self) -> None:
        """Let others write."""
        with self._guard:
            self._held.discard(self._key)
        unlock(self._handle)


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), status.st_dev, status.st_ino


def clean_up(path: Path) -> None:
    """Remove what an index that was being made or dropped left behind when the process died."""
    for left in (*path.glob(".*.new"), *path.glob(".*.dropped")):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def is_at(directory: int, path: Path) -> bool:
    """Return whether an open directory is still at a path."""
    try:
        return os.path.samestat(os.fstat(directory), path.stat())
    except FileNotFoundError:
        return False
