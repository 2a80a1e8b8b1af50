"""The directory of a database: its marker file, its writer lock, and cleaning up after a crash.

::

    data/whamming.json      marks the directory as a database; records its format, its kind of store, and which
                            indexes are missing if it is an incomplete backup
    data/writer.lock        locked by the process that writes
    data/docs/              the index "docs"
    data/.docs.*.new        an index that is being created, or a leftover of a crash
    data/.docs.*.dropped    an index that is being removed, or a leftover of a crash

Every other entry with a valid index name is listed as an index. An entry that is not an index is listed as broken. It
can only be dropped if it is a symbolic link or a directory with nothing but files of an index.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Final, Literal

from whamming.native import InvalidArgumentError
from whamming.storage.dropping import remove_dropped
from whamming.storage.files.locks import PRIVATE_DIRECTORY, sync, sync_parents, try_lock, unlock
from whamming.storage.files.regular import read_small
from whamming.storage.files.temporary import locked_path, remove_leftovers
from whamming.storage.settings import is_name
from whamming.storage.storage_errors import (
    NO_ROOM,
    FormatError,
    NotFoundError,
    StorageError,
    WriterBusyError,
    from_system,
)
from whamming.storage.store.protocol import backend

MEMORY: Final = ":memory:"
"""The path of a database that has no directory."""
FORMAT: Final = 3
MARK: Final = "whamming.json"
_MARK_BYTES: Final = 1 << 16
"""Maximum size of the marker file; it has less than 100 bytes, unless it belongs to an incomplete backup."""
MAX_MISSING: Final = 256
"""How many missing indexes the marker file of an incomplete backup names."""
_LOCK: Final = "writer.lock"
RESERVED: Final = (MARK, _LOCK)
"""Names of files that an index cannot have."""
DEFAULT_STORE: Final = "lmdb"

Mode = Literal["w", "r"]


def check_path(path: str | Path) -> None:
    """Refuse what is not a path, and an empty path, which would be the working directory.

    Unless it exists, also refuse one that looks like a server's address or a misspelt ``:memory:``.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str):
        raise InvalidArgumentError(f"path = {path!r}; it must be a directory, or {MEMORY!r}")
    if not text:
        raise InvalidArgumentError(f"the path of the database is empty; give a directory, or {MEMORY}")
    if Path(text).exists():
        return
    address = address_in(text)
    if address is not None:
        raise InvalidArgumentError(
            f'{text} looks like the address of a server; connect to it with whamming.connect("{address}"), or write '
            f"./{text} for a directory of that name"
        )
    if re.fullmatch(r":[^/]*:", text) and text != MEMORY:
        raise InvalidArgumentError(f"{text} is not {MEMORY}; write ./{text} for a directory of that name")


def address_in(path: str) -> str | None:
    """Return the address of a server if a path looks like one, or like a URL. None: it does not."""
    if re.fullmatch(r"(\[[^/]*\]|[^/:]+):\d+", path):
        return path
    url = re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+:/+([^/]*).*", path, re.DOTALL)  # a Path has one slash of two
    if url is None:
        return None
    return url[1] if re.fullmatch(r".+:\d+", url[1]) else "HOST:PORT"


def prepare(path: Path, mode: Mode, create: bool, store: str | None) -> str:
    """Check that a directory is a database, or create it. Returns its kind of store."""
    mark = path / MARK
    try:
        if mark.exists():
            return _read_mark(mark, store)
        making = mode == "w" and create
        remedy = "give a new or empty directory" if making else "give the directory of a database"
        if path.exists() and not path.is_dir():
            kind = "it is a file" if path.is_file() else "it is not a directory"
            raise FormatError(f"{path} is not a Whamming database: {kind}; {remedy}")
        if path.exists() and any(map(_is_foreign, path.iterdir())):
            raise FormatError(f"{path} is not a Whamming database: it has no {MARK}; {remedy}")
        if not making:
            changes = ["with mode='w'"] * (mode == "r") + ["without create=False"] * (not create)
            raise NotFoundError(f"there is no database at {path}; open it {' and '.join(changes)} to create one")
        store_kind = store or DEFAULT_STORE
        if not backend(store_kind).persistent:
            raise InvalidArgumentError(f"store = {store_kind!r} cannot keep data in {path}; open ':memory:' instead")
        path.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        sync_parents(path)  # before the marker is written, so that a marker proves that the parents are on disk
        _write_mark(mark, store_kind)
    except OSError as error:
        raise from_system(error, path) from error
    return store_kind


def _read_mark(mark: Path, store: str | None) -> str:
    path = mark.parent
    values = _values_of(mark)
    if values["format"] > FORMAT:
        raise FormatError(f"{path} has format {values['format']}; this version reads up to {FORMAT}: upgrade whamming")
    if values["format"] < FORMAT:
        raise FormatError(
            f"{path} has format {values['format']}; this version reads {FORMAT}: import its items into a new database"
        )
    store_kind = str(values.get("store", DEFAULT_STORE))
    if store not in (None, store_kind):
        raise FormatError(f"{path} uses the store {store_kind!r}, not {store!r}; leave the store out")
    return store_kind


def _values_of(mark: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_small(mark, _MARK_BYTES))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{mark} is damaged: {error}; restore it from a backup") from error
    if not isinstance(values, dict) or not isinstance(values.get("format"), int):
        raise FormatError(f"{mark} does not name the format of the database; restore it from a backup")
    return values


def missing_from(path: Path) -> list[str]:
    """Return the names of indexes that are missing from an incomplete backup: up to ``MAX_MISSING``, sorted."""
    names = _values_of(path / MARK).get("missing", [])
    if not isinstance(names, list) or not all(isinstance(name, str) and is_name(name) for name in names):
        raise FormatError(f"{path / MARK} is damaged: its missing indexes are not names; use another backup")
    return sorted({name for name in names if not os.path.lexists(path / name)})  # it may have been created since


def record_missing(path: Path, store: str, names: Iterable[str]) -> None:
    """Record in a backup which indexes are missing from it."""
    _write_mark(path / MARK, store, sorted(names)[:MAX_MISSING])


def _is_foreign(path: Path) -> bool:
    """Return whether a file in a directory without a marker belongs to something other than a database.

    An unfinished marker file is ours: a crash left it, or another process is opening the directory right now. The
    folder ``lost+found`` is ignored, because new file systems contain one.
    """
    return not path.name.startswith(f".{MARK}.") and path.name != "lost+found"


def _write_mark(mark: Path, store: str, missing: Sequence[str] = ()) -> None:
    values = {"format": FORMAT, "store": store} | ({"missing": missing} if missing else {})
    with locked_path(mark) as part:
        with part.open("wb") as file:
            file.write(json.dumps(values).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        part.rename(mark)
    sync(mark.parent)


class WriterLock:
    """The right to write to a database, held by one Database object of one process at a time."""

    _held: Final[set[tuple[int, int, int]]] = set()
    """Process id, device and inode of each lock that this process holds."""
    _guard: Final = threading.Lock()

    def __init__(self, directory: Path, wait: float) -> None:
        """Take the lock. Raises :class:`WriterBusyError` if it is not free within ``wait`` seconds."""
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
                raise WriterBusyError(self._busy_message(path))
            time.sleep(0.02)
        return handle

    def _busy_message(self, path: Path) -> str:
        with self._guard:
            ours = _identity(path.stat()) in self._held
        if ours:
            return (
                f"this process already has {path.parent} open for writing; use that Database object, close it first, "
                "or open another one with mode='r'"
            )
        return (
            f"another process is writing to {path.parent}; wait for it (wait=seconds), stop it, or open the database "
            "with mode='r'"
        )

    def release(self) -> None:
        with self._guard:
            self._held.discard(self._key)
        unlock(self._handle)


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), status.st_dev, status.st_ino


def clean_up(path: Path, own: Sequence[str]) -> None:
    """Remove the leftovers of indexes that were being created or dropped when a process died, and sync the directory.

    ``own``: the patterns of the names of the store's files.
    The process may have died between a rename and the sync of this rename. A power failure could then undo the rename.
    """
    try:
        remove_leftovers(path)
        remove_dropped(path, own)
        sync(path)
    except OSError as error:
        raise from_system(error, path) from error


def names_in(path: Path) -> list[str]:
    """Return the names of all indexes in a directory, sorted, including stray files that have the name of an index."""
    return sorted(entry.name for entry in path.iterdir() if is_name(entry.name) and entry.name not in RESERVED)


def is_at(directory: int, path: Path) -> bool:
    """Return whether an open directory still has this path."""
    try:
        return os.path.samestat(os.fstat(directory), path.stat())
    except FileNotFoundError:
        return False
