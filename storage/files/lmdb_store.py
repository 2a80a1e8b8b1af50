"""The store ``lmdb``: an index in one LMDB file, read in place.

What the file holds, by key (FORMAT.md has the bytes)::

    m               the manifest: settings, segments, up to which write the delta is sealed
    d + sequence    a batch of writes that is not sealed yet
    s + segment + array number     one array of a segment, a single large value
    t + segment     the bitmap of a segment's dead items, as of the last seal or merge

A write is one small record. Sealing writes a segment's arrays, one transaction each, to which nothing refers yet, and
then in one transaction the manifest, the bitmaps and the removal of the batches that the segment contains. A crash
leaves at worst arrays without a manifest entry, which the next writer removes.

Arrays are read from the memory map under one read transaction per set of segments; it lives as long as anything that
was read under it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Final

import lmdb

from whamming.native import InvalidArgumentError
from whamming.storage.files.locks import sync, try_lock, unlock
from whamming.storage.files.pages import PageError, check_pages
from whamming.storage.files.records import (
    FORMAT,
    HEADER,
    LARGEST_VALUE,
    MANIFEST_KEY,
    array_key,
    check_array,
    dead_key,
    delta_bytes,
    delta_key,
    pack_array,
    pack_dead,
    pack_delta,
    pack_manifest,
    segment_of,
    sequence_of,
    unpack_array,
    unpack_dead,
    unpack_delta,
    unpack_manifest,
)
from whamming.storage.items.rows import Rows, WriteBatch
from whamming.storage.items.segment import SEGMENT_ARRAYS, Live, Segment
from whamming.storage.settings import IndexSettings
from whamming.storage.storage_errors import (
    NO_ROOM,
    AlreadyExistsError,
    CorruptStoreError,
    FormatError,
    StorageError,
    StorageFullError,
    WriterBusyError,
)
from whamming.storage.store.contents import Contents, Snapshot
from whamming.storage.store.faults import point
from whamming.storage.store.protocol import Progress, VerifyReport
from whamming.storage.store.segmented import SegmentedStore

log = logging.getLogger("whamming.storage")

MAP_SIZE: Final = 1 << 40
"""Bytes of address space, not of memory or disk. It is never changed: that would move what searches are reading."""
MAX_READERS: Final = 1022
_LOCK_BYTES: Final = 64 << 10
"""Of the lock file: what so many readers need."""
_CHECKS = 5
_PIN_COMMITS: Final = 256
"""Commits after which segments are read under a newer transaction: pages that were freed since the oldest one in use,
some 16 KiB with each commit, cannot be used again."""


class _File:
    """An open LMDB environment, closed when its last user lets go of it: stores, and everything read from them.

    A process may open a file only once, so whoever opens it again shares it: see :meth:`shared`.
    """

    _opened: ClassVar[dict[tuple[int, int, int], _File]] = {}
    # The garbage collector may end users at any time, in a thread that has the lock: so it is one that a thread may
    # take twice, and users are a set, which changes in one step.
    _lock: ClassVar = threading.RLock()

    def __init__(self, key: tuple[int, int, int], path: Path, *, read_only: bool) -> None:
        self._key = key
        self._users: set[int] = set()
        self._closed = False
        self._unwritten: IO[bytes] | None = None
        self.read_only = read_only
        lock = not read_only or os.access(path / "lock.mdb", os.W_OK) or os.access(path, os.W_OK)
        if lock:
            _allocate_lock_file(path)
        else:
            self._unwritten = _lock(path, shared=True)
        self.env = lmdb.open(
            str(path),
            map_size=MAP_SIZE,
            readonly=read_only,
            create=not read_only,
            lock=lock,
            max_readers=MAX_READERS,
            lib_version=0,
        )

    @classmethod
    def shared(cls, path: Path, user: object, *, read_only: bool) -> _File:
        """Return the file at ``path``, opened now or before: by a reader beside the writer, or by a store that was
        closed since but has a snapshot in use."""
        status = (path / "data.mdb").stat()
        key = os.getpid(), status.st_dev, status.st_ino
        with cls._lock:
            file = cls._opened.get(key)
            if file is not None and file.read_only and not read_only:
                raise StorageError(
                    f"{path} is in use for reading in this process; close that and let go of its snapshots first"
                )
            if file is not None:
                file.hold(user)
            if file is None or file._closed:
                file = cls._opened[key] = cls(key, path, read_only=read_only)
                file.hold(user)
            return file

    @classmethod
    @contextlib.contextmanager
    def opening(cls) -> Iterator[None]:
        """Let no other thread close a file while a new one is made and opened.

        LMDB's binding knows open files by their inodes, and forgets one a moment after it has closed it. If that file
        has been deleted, a new one may have its inode by then, and would be refused as if it were open.
        """
        with cls._lock:
            yield

    def hold(self, user: object) -> None:
        """Keep the file open until the user releases it."""
        self._users.add(id(user))

    def release(self, user: object) -> None:
        """Let go of the file."""
        with self._lock:
            self._users.discard(id(user))
            if not self._users and not self._closed:
                self._closed = True
                self._opened.pop(self._key, None)
                self.env.close()
                if self._unwritten is not None:
                    unlock(self._unwritten)


class _SegmentSet:
    """A read transaction, and with it the place of all arrays of a set of segments."""

    def __init__(self, file: _File) -> None:
        self._file = file
        file.hold(self)
        self.txn: Any = None
        self.txn = file.env.begin(buffers=True)

    def __del__(self) -> None:
        if self.txn is not None:
            self.txn.abort()
        self._file.release(self)

    def segments(self, numbers: Sequence[int]) -> dict[int, Segment]:
        """Open segments in place."""
        return {number: self._segment(number) for number in numbers}

    def _segment(self, number: int) -> Segment:
        arrays = {}
        for name in SEGMENT_ARRAYS:
            record = self.txn.get(array_key(number, name))
            if record is None:
                raise CorruptStoreError(f"array {name} of segment {number} is missing; restore a backup")
            arrays[name] = unpack_array(record, number, name)
        return Segment(arrays, owner=self)


class LmdbStore(SegmentedStore):
    """An index in an LMDB file."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        """Open the index in a directory; the caller sees to it that only one process opens it for writing."""
        self._path = path
        if not (path / "data.mdb").exists():
            raise FormatError(f"{path} holds no index: data.mdb is missing")
        with _errors(path):
            if not read_only:
                _check(path)
            self._file = _File.shared(path, self, read_only=read_only)
        self._writer: IO[bytes] | None = None
        self._sequence = self._sealing = self._generation = self._txnid = self._pinned = 0
        try:
            with _errors(path):
                if not read_only:
                    self._writer = _lock(path, shared=False)
                    # Shows LMDB a commit whose writer died before it could announce it: readers see none yet.
                    self._file.env.begin(write=True).abort()
                contents = self._load(check=read_only)
                super().__init__(contents.settings, contents, read_only=read_only)
                if not read_only:
                    self._file.env.reader_check()
                    self._remove_orphans()
        except BaseException:
            self._let_go()
            raise

    # -- reading the file -------------------------------------------------------------------------------------------

    def _load(self, *, check: bool = False) -> Contents:
        """Read everything anew: segments, tombstones, delta."""
        group = _SegmentSet(self._file)
        if check:  # now that a transaction keeps a writer from reusing the pages that we look at
            _check(self._path)
        txn = group.txn
        manifest = self._manifest = _read_manifest(txn)
        settings = IndexSettings.from_json(manifest["settings"])
        numbers = [segment["number"] for segment in manifest["segments"]]
        segments = group.segments(numbers)
        sealed = []
        for number, segment in segments.items():
            record = txn.get(dead_key(number))
            dead = None if record is None else unpack_dead(record, number, segment.n)
            sealed.append(Live(segment, dead, number))
        contents = Contents(settings, sealed)
        self._generation = manifest["generation"]
        self._sequence = manifest["sealed"]
        self._txnid = self._pinned = txn.id()
        self._read_delta(txn, contents)
        _check_keys(txn, manifest)
        return contents

    def _read_delta(self, txn: Any, contents: Contents) -> None:
        for sequence, record in _delta(txn, self._sequence + 1):
            if sequence != self._sequence + 1:
                raise CorruptStoreError(f"write {self._sequence + 1} is missing; restore a backup")
            contents.add(unpack_delta(record, sequence, contents.settings.code_bytes))
            self._sequence = sequence

    def _refresh(self) -> None:
        if self._file.env.info()["last_txnid"] == self._txnid:
            return
        with _errors(self._path):
            with self._file.env.begin(buffers=True) as txn:
                if _read_manifest(txn)["generation"] == self._generation:
                    self._read_delta(txn, self._contents)
                    self._txnid = txn.id()
                    if self._txnid - self._pinned >= _PIN_COMMITS:
                        self._pin()
                    return
            version = self._contents.version
            try:
                self._contents = self._load()
            except BaseException:
                self._generation = self._txnid = -1  # so that the next snapshot tries again
                raise
            self._contents.version += version + 1

    def _pin(self) -> None:
        """Read segments under a new transaction. Called with ``_state`` held."""
        with contextlib.suppress(lmdb.ReadersFullError):
            self._remap(_SegmentSet(self._file))

    def _remap(self, group: _SegmentSet) -> None:
        numbers = [part.number for part in self._contents.sealed if part.number is not None]
        self._contents.remap(group.segments(numbers))
        self._pinned = group.txn.id()

    # -- writing the file -------------------------------------------------------------------------------------------

    def _check_batch(self, batch: WriteBatch) -> None:
        if delta_bytes(batch) > LARGEST_VALUE:
            raise InvalidArgumentError(
                f"a batch of {len(batch)} changes takes {delta_bytes(batch)} bytes; at most {LARGEST_VALUE} are "
                "written at once, so write it in several"
            )

    def _save(self, batches: Sequence[WriteBatch]) -> None:
        point("before commit")
        if self._file.env.info()["last_txnid"] - self._pinned >= _PIN_COMMITS:
            with _errors(self._path), self._state:
                self._pin()
        with _errors(self._path), self._file.env.begin(write=True) as txn:
            if next(_delta(txn, self._sequence + 1), None) is not None:  # of a commit that was interrupted when done
                with self._state:
                    self._read_delta(txn, self._contents)
                    for batch in self._unsaved:  # which come after them, also where they are among them
                        self._contents.add(batch)
            for number, batch in enumerate(batches, self._sequence + 1):
                txn.put(delta_key(number), pack_delta(number, batch))
            point("in commit")
        point("after commit")
        self._sequence += len(batches)

    def _mark(self) -> None:
        self._sealing = self._sequence

    def _delta_to_drop(self) -> bool:
        return self._sealing > int(self._manifest["sealed"])

    def _store(self, segment: Segment) -> int:
        number = int(self._manifest["next_segment"])
        self._file.env.reader_check()  # readers that died keep pages from being used again
        try:
            for name, data in segment.arrays.items():
                if data.nbytes + HEADER > LARGEST_VALUE:
                    raise StorageError(f"array {name} would take {data.nbytes} bytes; one value holds {LARGEST_VALUE}")
                record = pack_array(number, name, data)
                with self._writing, _errors(self._path), self._file.env.begin(write=True) as txn:
                    txn.put(array_key(number, name), record)
                point(f"stored {name}")
        except StorageError:
            with contextlib.suppress(StorageError), self._writing:  # writes need the room more
                self._remove_orphans()
            raise
        return number

    def _install(self, old: Sequence[Live], new: Segment | None, number: int | None, *, seals: bool) -> None:
        before, generation = (self._contents.sealed, self._contents.frozen), self._generation
        self._contents.replace(old, new, number)
        try:
            self._install_in_file([part.number for part in old if part.number is not None], new, seals=seals)
        except BaseException:
            with self._file.env.begin() as txn:  # to know: an interrupt may come when it is done
                self._manifest = _read_manifest(txn)
            if self._manifest["generation"] == generation:
                self._contents.sealed, self._contents.frozen = before
            self._generation = self._manifest["generation"]
            raise

    def _install_in_file(self, replaced: Sequence[int], new: Segment | None, *, seals: bool) -> None:
        sealed = self._contents.sealed
        manifest = dict(self._manifest)
        manifest["generation"] += 1
        manifest["next_segment"] += new is not None
        manifest["segments"] = [{"number": part.number, "items": part.segment.n} for part in sealed]
        if seals:
            manifest["sealed"] = self._sealing
        with _errors(self._path), self._file.env.begin(write=True) as txn:
            txn.put(MANIFEST_KEY, pack_manifest(manifest))
            for part in sealed:
                if part.dead is not None and part.number is not None:
                    txn.put(dead_key(part.number), pack_dead(part.number, part.dead))
            if seals:
                for sequence, _ in list(_delta(txn, 0, self._sealing)):
                    txn.delete(delta_key(sequence))
            for number in replaced:
                _remove_segment(txn, number)
            point("in install")
        point("after install")
        self._manifest = manifest
        self._generation = manifest["generation"]
        try:
            group = _SegmentSet(self._file)
        except lmdb.ReadersFullError:
            log.warning("%s: too many snapshots are in use; the new segment stays in memory meanwhile", self._path)
            return
        if new is not None:
            new.forget()  # its copy in the file takes over: there is no need to have both in memory
        try:
            self._remap(group)
        except BaseException as error:
            version = self._contents.version
            self._contents = self._load()
            self._contents.version += version + 1
            if not isinstance(error, Exception):
                raise
            log.warning("%s: reading the new segment back failed; everything was read anew", self._path, exc_info=True)

    def _merge(self, parts: Sequence[Live], progress: Progress | None) -> None:
        """Merge segments that are as they were written: under a new one's checksums, damage would pass for sound."""
        with _errors(self._path), self._file.env.begin(buffers=True) as txn:
            for number in (part.number for part in parts if part.number is not None):
                for name in SEGMENT_ARRAYS:
                    check_array(txn.get(array_key(number, name)), number, name)
        super()._merge(parts, progress)

    def _remove_orphans(self) -> None:
        """Remove the arrays of a segment that was not installed, as it came to a crash or an error."""
        number = self._manifest["next_segment"]
        with _errors(self._path):
            with self._file.env.begin() as txn:
                found = any(txn.get(array_key(number, name)) is not None for name in SEGMENT_ARRAYS)
            if found:
                with self._file.env.begin(write=True) as txn:
                    _remove_segment(txn, number)

    def _most_rows(self) -> int:
        """Items whose largest array fits one value: the codes in fast buckets, or the blocks."""
        settings = self.settings
        tables = 32 if settings.tables != "none" else 1
        width = max(settings.code_bytes * (tables if settings.buckets == "fast" else 1), 4 * tables)
        return min(2**31, (LARGEST_VALUE - HEADER) // (width + 8))

    # -- the rest ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _held(self) -> Iterator[Any]:
        """Keep the file open meanwhile, whoever closes the index."""
        user = object()
        with self._state:
            self._check_open()
            self._file.hold(user)
        try:
            yield self._file.env
        finally:
            self._file.release(user)

    def _sizes(self) -> tuple[int, int]:
        with self._held() as env:
            stat = env.stat()
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] + 2
        try:
            size = (self._path / "data.mdb").stat().st_size
        except FileNotFoundError:  # the index has been dropped; the file is still there for who has it open
            size = 0
        return size, pages * stat["psize"]

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Check the pages' structure and every record's checksum."""
        problems: list[str] = []
        checked = arrays = 0
        with _errors(self._path), self._held() as env, env.begin(buffers=True) as txn:
            try:
                _check(self._path)
            except CorruptStoreError as error:
                return VerifyReport((str(error),), 0, 0)
            total = (self._path / "data.mdb").stat().st_size
            known: set[int] = set()
            try:
                manifest = _read_manifest(txn)
                known = {segment["number"] for segment in manifest["segments"]}
                items = {segment["number"]: segment["items"] for segment in manifest["segments"]}
            except StorageError as error:
                problems.append(str(error))
            for key, value in txn.cursor():
                try:
                    size = self._verify_record(bytes(key), value, known, items if known else {})
                    arrays += size > 0 and bytes(key[:1]) == b"s"
                except StorageError as error:
                    problems.append(str(error))
                checked += len(value)
                if progress:
                    progress(min(1.0, checked / total))
            problems += [
                f"array {name} of segment {number} is missing"
                for number in sorted(known)
                for name in SEGMENT_ARRAYS
                if txn.get(array_key(number, name)) is None
            ]
        return VerifyReport(tuple(problems), checked, arrays)

    def _verify_record(self, key: bytes, value: Any, known: set[int], items: dict[int, int]) -> int:
        sequence, number = sequence_of(key), segment_of(key)
        if sequence is not None:
            unpack_delta(value, sequence, self.settings.code_bytes)
        elif number is not None and key[:1] == b"t":
            unpack_dead(value, number, items.get(number, 0))
        elif number is not None and len(key) == 10 and key[9] < len(SEGMENT_ARRAYS):
            if number in known:
                return check_array(value, number, SEGMENT_ARRAYS[key[9]])
        elif key != MANIFEST_KEY:
            raise CorruptStoreError(f"a record with the unknown key {key!r}")
        return 0

    def backup(self, path: Path) -> None:
        """Copy the file as of now, without its free pages; writing goes on meanwhile."""
        with self._held() as env:
            if not self.read_only:
                self.flush()
            _make_directory(path)
            with _errors(path):
                env.copy(str(path), compact=True)
                for written in (path / "data.mdb", path, path.parent):
                    sync(written)

    def _release(self) -> None:
        super()._release()
        self._let_go()

    def _let_go(self) -> None:
        if self._writer is not None:
            unlock(self._writer)
        self._file.release(self)


def write_index(path: Path, settings: IndexSettings, snapshot: Snapshot | None = None) -> None:
    """Make an index at ``path``, a directory that does not exist yet: empty, or with all items of a snapshot."""
    _make_directory(path)
    with _errors(path):
        with _File.opening():
            _allocate_lock_file(path)
            env = lmdb.open(str(path), map_size=MAP_SIZE, max_readers=MAX_READERS, lib_version=0)
        try:
            manifest = {
                "format": FORMAT,
                "settings": settings.to_json(),
                "generation": 1,
                "next_segment": 1,
                "sealed": 0,
                "segments": [],
            }
            with env.begin(write=True) as txn:
                txn.put(MANIFEST_KEY, pack_manifest(manifest))
        finally:
            env.close()
        for written in (path, path.parent):
            sync(written)
    if snapshot is not None and len(snapshot):
        store = LmdbStore(path, read_only=False)
        try:
            for rows in snapshot.scan(1 << 18):
                codes = settings.to_engine(rows.codes)
                store.write(WriteBatch(rows.ids[:0], Rows(rows.ids, codes, rows.payloads)))
            store.seal()
        finally:
            store.close()


class LmdbBackend:
    """See :class:`whamming.storage.store.protocol.Backend`."""

    persistent = True

    def create(self, path: Path, settings: IndexSettings) -> None:
        """Make an empty index."""
        write_index(path, settings)

    def open(self, path: Path, settings: IndexSettings | None, *, read_only: bool) -> LmdbStore:
        """Open an index."""
        return LmdbStore(path, read_only=read_only)


backend = LmdbBackend()


def _check(path: Path) -> None:
    """Refuse a file whose pages contradict themselves, before LMDB trusts them.

    A commit at the same moment may look like that for once, so it is tried again.
    """
    for attempt in range(_CHECKS):
        try:
            check_pages(path / "data.mdb")
            return
        except PageError as error:
            if attempt + 1 == _CHECKS:
                raise CorruptStoreError(f"{path / 'data.mdb'}: {error}; restore a backup") from error
            time.sleep(0.01)


def _read_manifest(txn: Any) -> dict[str, Any]:
    record = txn.get(MANIFEST_KEY)
    if record is None:
        raise FormatError("the file has no manifest; it is not an index of this program")
    return unpack_manifest(record)


def _check_keys(txn: Any, manifest: dict[str, Any]) -> None:
    """Refuse a record that nothing refers to: its key is damaged, so a write or a segment's dead items are not found.

    Arrays of the next segment are no such thing: a seal that broke off has left them.
    """
    known = {segment["number"] for segment in manifest["segments"]}
    for key in map(bytes, txn.cursor().iternext(values=False)):
        sequence, number = sequence_of(key), segment_of(key)
        if sequence is not None:
            expected = sequence > manifest["sealed"]
        elif number is None:
            expected = key == MANIFEST_KEY
        elif key == dead_key(number):
            expected = number in known
        else:
            is_array = key[:-1] == array_key(number, SEGMENT_ARRAYS[0])[:-1]
            expected = is_array and (number in known or number == manifest["next_segment"])
        if not expected:
            raise CorruptStoreError(f"a record has the unexpected key {key.hex()}; restore a backup")


def _delta(txn: Any, first: int, last: int = 2**64 - 1) -> Iterator[tuple[int, Any]]:
    cursor = txn.cursor()
    if not cursor.set_range(delta_key(first)):
        return
    for key, value in cursor.iternext():
        sequence = sequence_of(bytes(key))
        if sequence is None or sequence > last:
            return
        yield sequence, value


def _remove_segment(txn: Any, number: int) -> None:
    for name in SEGMENT_ARRAYS:
        txn.delete(array_key(number, name))
    txn.delete(dead_key(number))


def _lock(path: Path, *, shared: bool) -> IO[bytes]:
    """Keep a writer and readers that may not write to lock.mdb apart: by that file, readers tell the writer which pages
    they use. The writer takes the lock for itself, such readers share it, all others do without."""
    handle = try_lock(path / "data.mdb", "rb", shared=shared)
    if handle is not None:
        return handle
    if shared:
        raise StorageError(
            f"{path} is being written, and read beside the writer only by who may write to its lock.mdb; "
            "get that permission, or wait until the writer is done"
        )
    raise WriterBusyError(f"{path} is being read by someone who may not write to its lock.mdb; wait for them")


def _allocate_lock_file(path: Path) -> None:
    """Give the lock file its room on disk. LMDB makes it with holes and writes to it through a memory map, and where
    there is no room to fill a hole with, that ends the process."""
    handle = os.open(path / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(handle).st_blocks * 512 < _LOCK_BYTES and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, _LOCK_BYTES)
    finally:
        os.close(handle)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise AlreadyExistsError(f"{path} exists; give a path that does not") from None
    except OSError as error:
        raise _translated(error, path) from error


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turn LMDB's and the system's errors into ours."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        raise _translated(error, path) from error


def _translated(error: Exception, path: Path) -> StorageError:
    text = str(error)
    full = isinstance(error, lmdb.MapFullError) or any(os.strerror(code) in text for code in NO_ROOM)
    if full or (os.strerror(errno.EIO) in text and _free_bytes(path) < 1 << 20):  # LMDB's word for half a write
        return StorageFullError(f"no room to write to {path}: {text}; free some space, then write again")
    if isinstance(error, lmdb.ReadersFullError):
        return StorageError(
            f"{path}: all {MAX_READERS} places for readers are taken; let go of old snapshots, or end other readers"
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
