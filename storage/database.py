"""A database: named indexes in one directory, or in memory.

::

    data/whamming.json      says that the directory is ours, and its format
    data/writer.lock        held by the process that writes
    data/docs/data.mdb      the index "docs"
    data/docs/encoder       what makes its codes of vectors, if it has an encoder
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
from typing import IO, Final, Literal, Self

from numpy.typing import ArrayLike

from whamming.native import Buckets, InvalidArgumentError, Tables, WhammingError
from whamming.storage.files.locks import sync, try_lock, unlock
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
    NO_ROOM,
    AlreadyExistsError,
    ClosedError,
    FormatError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
    WriterBusyError,
    from_system,
)
from whamming.storage.store.protocol import Progress, VerifyReport, backend, share_of
from whamming.storage.stored_index import ENCODER_FILE, StoredIndex
from whamming.storage.vectors.encoders import Encoder, Kind
from whamming.storage.vectors.fitting import fit

FORMAT: Final = 2
_MARK: Final = "whamming.json"
_LOCK: Final = "writer.lock"
MEMORY: Final = ":memory:"
DEFAULT_STORE: Final = "lmdb"

Mode = Literal["w", "r"]


def open_database(
    path: str | Path = MEMORY,
    *,
    mode: Mode = "w",
    store: str | None = None,
    wait: float = 0.0,
    create: bool = True,
) -> Database:
    """Open a database.

    Parameters
    ----------
    path : a directory, made if it is missing; or ``":memory:"``.
    mode : ``"w"``: read and write, for one process at a time; ``"r"``: read, for any number of processes.
    store : the kind of store of a new database; by default ``"lmdb"`` on disk and ``"ram"`` in memory. A database that
        exists knows its own.
    wait : seconds to wait for another writer to finish before :class:`WriterBusyError` is raised.
    create : make the directory if it is missing.
    """
    check_choice("mode", mode, ("w", "r"))
    if str(path) == MEMORY:
        if mode == "r":
            raise InvalidArgumentError("mode = 'r' of ':memory:'; there is nothing to read, open it with mode='w'")
        return Database(None, store or "ram", read_only=False)
    kept_in = _prepare(Path(path), mode, create, store)
    return Database(Path(path), kept_in, read_only=mode == "r", wait=wait)


def _prepare(path: Path, mode: Mode, create: bool, store: str | None) -> str:
    """Make sure that a directory is ours, made if need be; returns the kind of store that it has."""
    mark = path / _MARK
    try:
        if mark.exists():
            values = json.loads(mark.read_text(encoding="utf-8"))
            if not isinstance(values, dict) or not isinstance(values.get("format"), int):
                raise FormatError(f"{mark} does not say what format the database has; restore it from a backup")
            kept_in = values.get("store", DEFAULT_STORE)
            if values["format"] > FORMAT:
                raise FormatError(
                    f"{path} has format {values['format']}; this version reads up to {FORMAT}: upgrade whamming"
                )
            if store not in (None, kept_in):
                raise FormatError(f"{path} is kept in the store {kept_in!r}, not {store!r}; leave the store out")
            return str(kept_in)
        if path.exists() and (not path.is_dir() or any(map(_is_foreign, path.iterdir()))):
            raise FormatError(f"{path} is not a Whamming database: it has no {_MARK}; give an empty or a new directory")
        if mode == "r" or not create:
            raise NotFoundError(f"there is no database at {path}; open it with mode='w' to make one")
        kept_in = store or DEFAULT_STORE
        if not backend(kept_in).persistent:
            raise InvalidArgumentError(f"store = {kept_in!r} keeps nothing in {path}; open ':memory:' instead")
        path.mkdir(parents=True, exist_ok=True)
        _write_mark(mark, kept_in)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{mark} is damaged: {error}; restore it from a backup") from error
    except OSError as error:
        raise from_system(error, path) from error
    return kept_in


def _is_foreign(path: Path) -> bool:
    """Tell whether something in a directory without a mark is not ours: not what a crash, or another process that opens
    the directory right now, leaves there, nor what a new file system begins with."""
    return not path.name.startswith(f".{_MARK}.") and path.name != "lost+found"


def _write_mark(mark: Path, store: str) -> None:
    part = mark.with_name(f".{_MARK}.{uuid.uuid4().hex}.new")
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


class Database:
    """Named indexes. Use it in a ``with`` block, or call :meth:`close`. Any number of threads may use it at once."""

    def __init__(self, path: Path | None, store: str, *, read_only: bool, wait: float = 0.0) -> None:
        """Open one; prefer :func:`whamming.open`."""
        self.path = path
        self.read_only = read_only
        self._store = store
        self._backend = backend(store)
        if path is None and self._backend.persistent:
            raise InvalidArgumentError(f"store = {store!r} needs a directory; ':memory:' has none")
        self._open: dict[str, StoredIndex] = {}
        self._pinned: dict[str, int] = {}
        """The directories of indexes open for reading, which tell whether the writer has dropped them since."""
        self._lock = threading.RLock()
        self._closed = False
        self._writer: IO[bytes] | None = None
        if path is not None and not read_only:
            self._writer = _lock_for_writing(path / _LOCK, wait)
            self._clean_up(path)

    def __enter__(self) -> Self:
        """Return the database itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the database."""
        self.close()

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
        """Make an index. Raises :class:`AlreadyExistsError`.

        Parameters
        ----------
        bits : length of the codes; an encoder may tell.
        bit_order, tables, buckets, durability : see :class:`IndexSettings`.
        encoder : to bring vectors rather than codes: ``"sign"``, ``"lsh"`` or ``"itq"``, fitted now, or one that
            :func:`whamming.storage.fit` or :func:`whamming.storage.load_encoder` gave.
        dim, train, seed, centre : what :func:`whamming.storage.fit` is to know; ``train`` is its sample.
        keep_vectors : keep them with the items, as ``"float16"`` or ``"int8"``, so that a search can rank hits again.
        metric : by which it then does: ``"l2"``, ``"cosine"`` or ``"inner"``.
        exist_ok : return the index that exists if it has the same settings and encoder; of one that would have to be
            fitted first, if it has one of that kind, bits and dim.
        """
        check_name(name)
        with self._lock:
            self._check_writable()
            if not exist_ok:
                self._check_free(name)
            fitted = self._same_encoder(name, encoder, bits, dim)
        if fitted is None:  # takes its time, so without the lock
            fitted = _fitted(encoder, bits, dim, train, seed, centre)
        length = fitted.bits if fitted is not None else bits
        if length is None:
            raise InvalidArgumentError("bits is missing; say how long codes are")
        width, mark = (None, None) if fitted is None else (fitted.dim, fitted.fingerprint)
        settings = IndexSettings(length, bit_order, tables, buckets, durability, width, mark, keep_vectors, metric)
        with self._lock:
            self._check_writable()
            if exist_ok and name in self.list_indexes() and self.index(name).settings == settings:
                return self.index(name)
            self._check_free(name)
            if self.path is None:
                store = self._backend.open(Path(name), settings, read_only=False)
                self._open[name] = StoredIndex(name, store, fitted)
                return self._open[name]
            if (self.path / name).exists():
                raise AlreadyExistsError(f"{self.path / name} is in the way of an index {name!r}; choose another name")
            new = self.path / f".{name}.{uuid.uuid4().hex}.new"
            try:
                self._backend.create(new, settings)
                if fitted is not None:
                    fitted.save(new / ENCODER_FILE)
                new.rename(self.path / name)
                sync(self.path)
            except OSError as error:
                raise from_system(error, self.path) from error
            finally:
                shutil.rmtree(new, ignore_errors=True)
            return self.index(name)

    def index(self, name: str) -> StoredIndex:
        """Return an index. Raises :class:`NotFoundError`."""
        check_name(name)
        with self._lock:
            self._check_open()
            if self.path is not None and name in self._pinned and not _is_at(self._pinned[name], self.path / name):
                self._forget(name)  # but do not close it: who uses it may go on reading
            elif name in self._open and self._open[name].closed:
                self._open[name].close()  # waits for another thread that is at it
                self._forget(name)
            if name not in self._open:
                if self.path is None or not (self.path / name).is_dir():
                    raise NotFoundError(
                        f"there is no index {name!r}; there are: {', '.join(self.list_indexes()) or 'none'}"
                    )
                store = self._backend.open(self.path / name, None, read_only=self.read_only)
                try:
                    self._open[name] = StoredIndex.at(self.path / name, store)
                except BaseException:
                    store.close()
                    raise
                if self.read_only:
                    self._pinned[name] = os.open(self.path / name, os.O_RDONLY)
            return self._open[name]

    def list_indexes(self) -> list[str]:
        """Return the names of all indexes, sorted."""
        with self._lock:
            self._check_open()
            if self.path is None:
                return sorted(name for name, index in self._open.items() if not index.closed)
            try:
                return sorted(p.name for p in self.path.iterdir() if p.is_dir() and is_name(p.name))
            except OSError as error:
                raise from_system(error, self.path) from error

    def drop_index(self, name: str) -> None:
        """Remove an index with all its items. Searches that are under way finish."""
        with self._lock:
            self._check_writable()
            if name not in self.list_indexes():
                raise NotFoundError(
                    f"there is no index {name!r}; there are: {', '.join(self.list_indexes()) or 'none'}"
                )
            opened = self._open.pop(name, None)
            if opened is not None:
                opened.close()
            if self.path is not None:
                gone = self.path / f".{name}.{uuid.uuid4().hex}.dropped"
                try:
                    (self.path / name).rename(gone)
                    sync(self.path)
                except OSError as error:
                    raise from_system(error, self.path) from error
                shutil.rmtree(gone, ignore_errors=True)

    def backup(self, path: str | Path) -> None:
        """Write a copy of all indexes to a new directory, which is a database of its own. Writing goes on meanwhile."""
        target = Path(path)
        self._check_target(target)
        names = self.list_indexes()
        new = target.with_name(f".{target.name}.{uuid.uuid4().hex}.new")  # so that half a backup never looks whole
        try:
            kept_in = self._store if self._backend.persistent else DEFAULT_STORE
            _prepare(new, "w", True, kept_in)
            for name in names:
                self.index(name).backup(new / name)
            sync(new)
            new.rename(target)
            sync(target.parent)
        except OSError as error:
            raise from_system(error, target) from error
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _check_target(self, target: Path) -> None:
        if self.path is not None and target.resolve().is_relative_to(self.path.resolve()):
            raise InvalidArgumentError(f"{target} is inside of the database at {self.path}; give a path outside of it")
        if target.exists():
            raise AlreadyExistsError(f"{target} exists; give a path that does not")

    def verify(self, progress: Progress | None = None) -> dict[str, VerifyReport]:
        """Check every byte of every index against its checksum; returns a report per index."""
        names = self.list_indexes()
        reports = {}
        for done, name in enumerate(names):
            try:
                reports[name] = self.index(name).verify(share_of(progress, done, len(names)))
            except WhammingError as error:
                reports[name] = VerifyReport((str(error),), 0, 0)
        return reports

    def close(self) -> None:
        """Close all indexes. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            opened, self._open = self._open, {}
            self._closed = True
            with contextlib.ExitStack() as closing:  # the rest is closed even where one of them fails
                if self._writer is not None:
                    closing.callback(unlock, self._writer)
                for index in opened.values():
                    closing.callback(index.close)
                while self._pinned:
                    os.close(self._pinned.popitem()[1])

    def _check_free(self, name: str) -> None:
        if name in self.list_indexes():
            raise AlreadyExistsError(f"there is an index {name!r} already, with {self.index(name).settings}")

    def _same_encoder(
        self, name: str, encoder: Kind | Encoder | None, bits: int | None, dim: int | None
    ) -> Encoder | None:
        """Return the encoder of an index that exists, if it is what a new one would be; called with the lock held."""
        found = self.index(name).encoder if name in self.list_indexes() else None
        if found is None or found.kind != encoder or bits not in (None, found.bits) or dim not in (None, found.dim):
            return None
        return found

    def _forget(self, name: str) -> None:
        """Know of an index no more, as if it had never been opened. Called with the lock held."""
        self._open.pop(name, None)
        if name in self._pinned:
            os.close(self._pinned.pop(name))

    def _clean_up(self, path: Path) -> None:
        """Remove what an index that was being made or dropped left behind when the process died."""
        for left in (*path.glob(".*.new"), *path.glob(".*.dropped")):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the database is closed; open it again with whamming.open()")

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise ReadOnlyError("the database was opened for reading; open it with mode='w' to write")


def _fitted(
    encoder: Kind | Encoder | None,
    bits: int | None,
    dim: int | None,
    train: ArrayLike | None,
    seed: int,
    centre: bool | None,
) -> Encoder | None:
    """Return the encoder that a new index is to have."""
    if encoder is None:
        if dim is not None or train is not None or centre is not None:
            raise InvalidArgumentError("dim, train or centre without an encoder; say which: 'sign', 'lsh' or 'itq'")
        return None
    if not isinstance(encoder, Encoder):
        return fit(encoder, train, bits=bits, dim=dim, seed=seed, centre=centre)
    if train is not None or centre is not None:
        raise InvalidArgumentError(f"train or centre with {encoder!r}, which is fitted already; leave them out")
    if bits not in (None, encoder.bits) or dim not in (None, encoder.dim):
        raise InvalidArgumentError(f"bits = {bits}, dim = {dim} with {encoder!r}; leave them out, the encoder tells")
    return encoder


def restore(source: str | Path, target: str | Path, progress: Progress | None = None) -> None:
    """Copy a backup, or any database that is not being written, to a new directory, after checking every byte of it."""
    with open_database(source, mode="r") as database:
        database._check_target(Path(target))
        for name, report in database.verify(progress).items():
            if not report.ok:
                raise StorageError(f"index {name!r} of {source} is damaged: {report.problems[0]}; nothing was restored")
        database.backup(target)


def _lock_for_writing(path: Path, wait: float) -> IO[bytes]:
    end = time.monotonic() + wait
    try:
        while (handle := try_lock(path, "ab")) is None:
            if time.monotonic() >= end:
                raise WriterBusyError(
                    f"another process or handle is writing to {path.parent}; wait for it (wait=seconds), close it, "
                    "or open the database with mode='r'"
                )
            time.sleep(0.02)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise from_system(error, path) from error
        raise StorageError(f"{path} cannot be opened for writing: {error}; open the database with mode='r'") from error
    return handle


def _is_at(directory: int, path: Path) -> bool:
    """Tell whether an open directory is still at a path."""
    try:
        return os.path.samestat(os.fstat(directory), path.stat())
    except FileNotFoundError:
        return False
