"""A database in this process: named indexes in one directory, or in memory."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from numpy.typing import ArrayLike

from whamming.native import Buckets, InvalidArgumentError, Tables, WhammingError
from whamming.storage.backups import check_target, new_copy
from whamming.storage.directory import (
    DEFAULT_STORE,
    MEMORY,
    RESERVED,
    Mode,
    WriterLock,
    check_path,
    clean_up,
    names_in,
    prepare,
    record_missing,
)
from whamming.storage.dropping import check_droppable, finish_drop, remedy_for
from whamming.storage.files.locks import PRIVATE_DIRECTORY, sync
from whamming.storage.files.temporary import locked_path, remove
from whamming.storage.index_info import IndexInfo
from whamming.storage.open_indexes import OpenIndexes
from whamming.storage.settings import (
    BitOrder,
    Durability,
    IndexSettings,
    KeptVectors,
    Metric,
    check_choice,
    check_name,
    is_name,
)
from whamming.storage.storage_errors import (
    MOVE_BACK,
    AlreadyExistsError,
    ClosedError,
    CorruptStoreError,
    FormatError,
    IncompleteBackupError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
    from_system,
)
from whamming.storage.store.protocol import Progress, VerifyReport, backend, share_of
from whamming.storage.stored_index import StoredIndex
from whamming.storage.unpicklable import Unpicklable
from whamming.storage.vectors.encoder_file import ENCODER_FILE, read_encoder
from whamming.storage.vectors.encoders import Encoder, Kind, check_encoder
from whamming.storage.vectors.fitting import encoder_for_index
from whamming.storage.verbs import DatabaseVerbs, verb

log = logging.getLogger("whamming.storage")

SHOWN_NAMES: Final = 10
"""How many names of indexes an error message lists."""


def open_database(
    path: str | Path = MEMORY,
    *,
    mode: Mode = "w",
    store: str | None = None,
    wait: float = 0.0,
    create: bool = True,
) -> Database:
    """Open a database, and create it if it does not exist.

    Parameters
    ----------
    path : a directory, or ``":memory:"``.
    mode : ``"w"`` reads and writes; one process at a time may do so. ``"r"`` reads; any number of processes may.
    store : the kind of store for a new database. The default is ``"lmdb"`` on disk and ``"ram"`` in memory. An existing
        database records its own store, so leave this out.
    wait : how many seconds to wait for another writer to finish before raising :class:`WriterBusyError`.
    create : create the directory if it does not exist; if False, raise :class:`NotFoundError` instead.
    """
    check_choice("mode", mode, ("w", "r"))
    check_path(path)
    if str(path) == MEMORY:
        if mode == "r":
            raise InvalidArgumentError("mode = 'r' with ':memory:'; a new database has nothing to read: use mode='w'")
        return Database(None, store or "ram", read_only=False)
    store_kind = prepare(Path(path), mode, create, store)
    return Database(Path(path), store_kind, read_only=mode == "r", wait=wait)


class Database(Unpicklable, DatabaseVerbs):
    """Named indexes. Use it in a ``with`` block, or call :meth:`close`. Any number of threads may use it at once.

    ``_closing`` is held while the database is being closed. ``open_indexes.py`` describes the other locks.
    """

    def __init__(self, path: Path | None, store: str, *, read_only: bool, wait: float = 0.0) -> None:
        """Prefer :func:`whamming.open`."""
        self.path = None if path is None else path.absolute()  # the working directory may change
        self.read_only = read_only
        self._store = store
        self._backend = backend(store)
        if path is None and self._backend.persistent:
            raise InvalidArgumentError(f"store = {store!r} needs a directory; ':memory:' works with store='ram'")
        self.indexes = OpenIndexes(self.path, self._backend, read_only=read_only)
        """The indexes that are open."""
        self._closing = threading.RLock()
        self._writer: WriterLock | None = None
        if path is not None and not read_only:
            self._writer = WriterLock(path, wait)
            clean_up(path, self._backend.files)
        self.directory = None if path is None else path.stat()  # shows whether somebody replaces it later

    def __repr__(self) -> str:
        where = MEMORY if self.path is None else str(self.path)
        state = ", closed" if self.indexes.closed else ", read-only" if self.read_only else ""
        return f"Database({where!r}{state})"

    @verb
    def __enter__(self) -> Self:
        return self

    @verb
    def __exit__(self, *exc: object) -> None:
        self.close()

    @verb
    def create_index(
        self,
        name: str,
        bits: int | None = None,
        *,
        bit_order: BitOrder = "little",
        tables: Tables = "single",
        buckets: Buckets = "compact",
        durability: Durability = "fsync",
        encoder: Kind | Encoder | None = None,
        dim: int | None = None,
        train: ArrayLike | None = None,
        seed: int = 0,
        centre: bool | None = None,
        keep_vectors: KeptVectors | None = None,
        metric: Metric = "l2",
        exist_ok: bool = False,
    ) -> StoredIndex:
        fitted = existing_encoder(self, name, encoder, bits, dim, exist_ok=exist_ok)
        if fitted is None:  # fitting is slow, so it runs without the lock
            fitted = encoder_for_index(encoder, bits, dim, train, seed, centre)
            if fitted is not None:
                check_encoder(fitted)
        length = fitted.bits if fitted is not None else bits
        if length is None:
            raise InvalidArgumentError("bits is missing; give the length of the codes, 1 to 4096")
        width, mark = (None, None) if fitted is None else (fitted.dim, fitted.fingerprint)
        settings = IndexSettings(length, bit_order, tables, buckets, durability, width, mark, keep_vectors, metric)
        with self.indexes.locked(name):
            self._check_writable()
            existing = self._check_name_is_free(name, settings if exist_ok else None)
            if existing is not None:
                return existing
            self._discard(name)
            if self.path is None:
                index = StoredIndex(name, self._backend.open(Path(name), settings, read_only=False), fitted)
                self.indexes.add(index)
                return index
            if (self.path / name).exists():
                raise AlreadyExistsError(f"{self.path / name} exists but is not an index; choose another index name")
            try:
                with locked_path(self.path / name, directory=True) as around:
                    new = around / name  # stores create the directory themselves
                    self._backend.create(new, settings)
                    new.chmod(PRIVATE_DIRECTORY)  # the store may have chosen another mode
                    if fitted is not None:
                        fitted.save(new / ENCODER_FILE)
                    read_encoder(new, settings)  # fail now rather than when the index is opened
                    new.rename(self.path / name)
                    sync(self.path)
            except OSError as error:
                raise self._from_system(error) from error
            made = self._index(name)  # still under the lock, so nobody can drop the index before it is opened
        self.indexes.make_room()
        return made

    @verb
    def index(self, name: str) -> StoredIndex:
        check_name(name)
        found = self.indexes.find(name)
        if found is None:
            with self.indexes.locked(name):
                found = self._index(name)
            self.indexes.make_room()
        return found

    def _index(self, name: str) -> StoredIndex:
        """Return an index, and open it if necessary. The caller holds the lock of its name."""
        found = self.indexes.find(name)
        if found is not None:
            return found
        if self.path is None or not self._exists(name):
            raise self._not_found(name)
        if not (self.path / name).is_dir():
            raise FormatError(f"{self.path / name} is not an index but a stray file; move it away")
        return self.indexes.open(name)

    def find_open(self, name: str) -> StoredIndex | None:
        """Return an index if it is open, and None if it has to be opened. Never waits.

        Raises NotFoundError if there is no index of that name.
        """
        check_name(name)
        found = self.indexes.find(name)
        if found is None and not self._exists(name):
            raise self._not_found(name)
        return found

    def _exists(self, name: str) -> bool:
        """Return whether there is an index of that name, which may be broken."""
        if self.path is None:
            return self.indexes.find(name) is not None
        try:
            self.path.stat()
        except OSError as error:
            raise self._from_system(error) from error
        return is_name(name) and name not in RESERVED and os.path.lexists(self.path / name)

    @verb
    def list_indexes(self) -> list[str]:
        self.indexes.check_open()
        if self.path is None:
            return sorted(self._open_names())
        try:
            names = names_in(self.path)
        except OSError as error:
            raise self._from_system(error) from error
        return sorted({*names, *self._open_names()})

    def _open_names(self) -> list[str]:
        """Return the names of all indexes that are open. The directory of such an index may have been deleted.

        Empty in a reader process. If a directory is gone there, the writer process may have dropped the index.
        """
        if self.read_only:
            return []
        return [name for name, index in self.indexes.all().items() if not index.closed]

    @verb
    def describe_indexes(self) -> list[IndexInfo]:
        infos = []
        for name in self.list_indexes():
            try:
                with self.visiting(name) as index:
                    infos.append(IndexInfo(name, index.settings, index.stats()))
            except (NotFoundError, ClosedError):  # dropped in the meantime
                self.indexes.check_open()
            except WhammingError as error:
                infos.append(IndexInfo(name, error=error))
            except Exception as error:  # whatever a store raises: one broken index must not hide the others
                log.exception("unexpected error in the index %s", name)
                infos.append(IndexInfo(name, error=StorageError(f"unexpected error: {error}")))
        return infos

    @contextlib.contextmanager
    def visiting(self, name: str) -> Iterator[StoredIndex]:
        """Use an index for a moment. If it had to be opened for that, close it again.

        Raises CorruptStoreError if the index is open, but its files are gone.
        """
        check_name(name)
        index = self.indexes.find(name)
        if index is not None:
            try:
                index.check_files(writing=True)
            except CorruptStoreError:
                if self.indexes.find(name) is not index:
                    raise self._not_found(name) from None  # it has just been dropped
                raise
            yield index
            return
        with self.indexes.locked(name):
            index = self._index(name)
        try:
            yield index
        finally:
            self.indexes.close_if_idle(index)

    @verb
    def drop_index(self, name: str) -> None:
        self.begin_drop(name)()

    def begin_drop(self, name: str) -> Callable[[], None]:
        """Drop an index, up to the point where its name is free and no crash can bring it back.

        Returns a function that does the rest: it closes the index, which may have to wait for a running merge, and
        removes its files.
        """
        check_name(name)
        with self.indexes.locked(name):
            self._check_writable()
            exists = self._exists(name)
            if not exists and self.indexes.find(name) is None:  # an index whose directory is gone may still be open
                raise self._not_found(name)
            if self.path is not None and exists:
                check_droppable(self.path / name, self._backend.files)
            opened = self.indexes.remove(name)
            if opened is not None:
                opened.abandon()
            gone = None
            if self.path is not None and exists:
                gone = self.path / f".{name}.{uuid.uuid4().hex}.dropped"
                try:
                    (self.path / name).rename(gone)
                    sync(self.path)
                except OSError as error:
                    finish_drop(opened, None, ())
                    raise self._from_system(error) from error
        return lambda: finish_drop(opened, gone, self._backend.files)

    @verb
    def backup(self, path: str | Path) -> None:
        broken = self.copy_to(Path(path))
        if broken:
            reasons = "; ".join(broken.values())
            raise IncompleteBackupError(f"the backup {path} was made, but is not complete: {reasons}")

    def copy_to(self, target: Path, missing: Sequence[str] = ()) -> dict[str, str]:
        """Copy all indexes to a new directory, except broken ones. Returns why each of these is not in the copy.

        The copy records their names, and those of ``missing``: indexes that this database itself lacks.
        """
        check_target(target, self.path)
        broken = {}
        store = self._store if self._backend.persistent else DEFAULT_STORE
        with new_copy(target, store) as new:
            for name in self._without_stray_files():
                try:
                    self.index(name).backup(new / name)
                except (CorruptStoreError, FormatError) as error:
                    remove(new / name)
                    broken[name] = f"index {name!r} is not in it: {error}"
            if broken or missing:
                record_missing(new, store, (*broken, *missing))
        return broken

    @verb
    def verify(self, progress: Progress | None = None) -> dict[str, VerifyReport]:
        names = self._without_stray_files()
        reports = {}
        for done, name in enumerate(names):
            try:
                with self.visiting(name) as index:
                    reports[name] = index.verify(share_of(progress, done, len(names)))
            except WhammingError as error:
                reports[name] = VerifyReport((str(error),), 0, 0)
        return reports

    @verb
    def close(self) -> None:
        with self._closing:
            writer, self._writer = self._writer, None
            self.indexes.close(*([] if writer is None else [writer.release]))

    def _not_found(self, name: str) -> NotFoundError:
        names = self.list_indexes()
        listed = ", ".join(names[:SHOWN_NAMES]) or "none"
        more = f", and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        return NotFoundError(f"there is no index {name!r}; there are: {listed}{more}")

    def _from_system(self, error: OSError) -> StorageError:
        """Convert an error of the operating system. If the database's directory was lost, say so."""
        assert self.path is not None
        if not isinstance(error, FileNotFoundError) or self.path.exists():
            return from_system(error, self.path)
        return CorruptStoreError(
            f"{self.path} was deleted or moved away while it was in use; {MOVE_BACK}; otherwise, restore a backup, "
            "then open it again (restart the server)"
        )

    def _without_stray_files(self) -> list[str]:
        """Return the names of all indexes except stray files, which have nothing to verify or to back up."""
        opened = self.indexes.all()
        return [
            name for name in self.list_indexes() if self.path is None or name in opened or (self.path / name).is_dir()
        ]

    def _check_name_is_free(self, name: str, wanted: IndexSettings | None = None) -> StoredIndex | None:
        """Return None if there is no index of that name. If there is one with the settings ``wanted``, return it.

        Raises AlreadyExistsError. The caller holds the lock of the name.
        """
        if not self._exists(name):
            return None
        try:
            index = self._index(name)
            index.check_files(writing=True)
        except WhammingError as error:
            remedy = "drop it" if self.path is None else remedy_for(self.path / name, self._backend.files)
            raise AlreadyExistsError(
                f"the index {name!r} already exists but cannot be used: {error}; {remedy}, or choose another name"
            ) from error
        if index.settings != wanted:
            raise AlreadyExistsError(index.settings.taken(name, wanted))
        return index

    def _discard(self, name: str) -> None:
        """Close an index whose directory is gone. The caller holds the lock of its name."""
        lost = self.indexes.remove(name)
        if lost is not None:
            lost.abandon()
            lost.close()

    def _check_writable(self) -> None:
        self.indexes.check_open()
        if self.read_only:
            raise ReadOnlyError("the database was opened read-only; open it with mode='w' to write")


def existing_encoder(
    database: Database,
    name: str,
    encoder: Kind | Encoder | None,
    bits: int | None,
    dim: int | None,
    *,
    exist_ok: bool,
) -> Encoder | None:
    """Return the encoder of an existing index if it has the requested kind, bits and dim. None: fit a new one.

    Called before an encoder is fitted. Raises an error if the database is read-only, or if the name is taken and
    ``exist_ok`` is False.
    """
    check_name(name)
    with database.indexes.locked(name):
        database._check_writable()
        if not exist_ok:
            database._check_name_is_free(name)
        found = database._index(name).encoder if database._exists(name) else None
    if found is None or found.kind != encoder or bits not in (None, found.bits) or dim not in (None, found.dim):
        return None
    return found
