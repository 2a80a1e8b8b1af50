"""A journal in an LMDB file. The file is read in place.

The records of the file, by key (FORMAT.md describes their bytes)::

    m               the manifest: settings, segments, and the last write that the segments contain
    d + sequence    a batch of writes that is not in a segment yet
    s + segment + array number     an array of a segment, as one large value
    t + segment     the bitmap of a segment's dead items, as of the last seal or merge

A write is one small record. Storing a segment writes its arrays in one transaction each. Nothing refers to these arrays
yet. Installing the segment is one transaction, which writes the manifest and the bitmaps, and removes the batches that
the segment contains. At worst, a crash leaves arrays without a manifest entry. The next writer removes them.

Arrays are read from the memory map under one read transaction per set of segments. The transaction lives as long as
anything that was read under it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import lmdb

from whamming.native import InvalidArgumentError
from whamming.storage.files.environment import Environment, lock_data_file
from whamming.storage.files.lmdb_errors import translated, translated_errors
from whamming.storage.files.locks import PRIVATE_DIRECTORY, PRIVATE_FILE, sync, unlock
from whamming.storage.files.reading import (
    SegmentReader,
    check_file,
    check_keys,
    delta_records,
    has_arrays,
    kept_requests,
    read_batches,
    read_manifest,
    remove_segment,
    segment_numbers,
)
from whamming.storage.files.records import (
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
    request_of,
)
from whamming.storage.files.verifying import verify_file
from whamming.storage.files.watching import FileWatch
from whamming.storage.items.segment import SEGMENT_ARRAYS, Segment
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.settings import IndexSettings
from whamming.storage.storage_errors import (
    AlreadyExistsError,
    CorruptStoreError,
    FormatError,
    StorageError,
    StorageFullError,
    WriterBusyError,
)
from whamming.storage.store.faults import point
from whamming.storage.store.journal import JournalState, SealedSegment
from whamming.storage.store.protocol import Progress, VerifyReport
from whamming.storage.store.requests import KEPT
from whamming.storage.store.snapshot import Snapshot

log = logging.getLogger("whamming.storage")

_PIN_COMMITS: Final = 256
"""After this many commits, segments are reopened under a newer transaction. Each commit frees some 16 KiB of pages, and
they cannot be reused while an older transaction is open."""


class LmdbJournal:
    """See :class:`whamming.storage.Journal`."""

    persistent = True

    def __init__(self, path: Path, *, read_only: bool) -> None:
        """Open the file in a directory. The caller ensures that only one process opens it for writing."""
        if not (path / "data.mdb").exists():
            raise FormatError(f"{path} is not an index: data.mdb is missing")
        if (path / "data.mdb").stat().st_size == 0:  # LMDB would report it as missing
            raise CorruptStoreError(f"{path / 'data.mdb'} is empty; restore a backup")
        self._path = path
        self._file: IO[bytes] | None = None  # locked if this journal writes
        self._read_only = read_only
        self._checked = not read_only
        self._manifest: dict[str, Any] = {}
        self._settings: IndexSettings | None = None
        self._sequence = 0  # of the last write that the store has seen
        self._generation = self._txnid = self._pinned = -1
        with translated_errors(path):
            if not read_only:
                check_file(path)
            self._environment = Environment.shared(path, self, read_only=read_only)
            try:
                self._file = (path / "data.mdb").open("rb") if read_only else self._lock_for_writing()
                self._watch = FileWatch(path, self._file)
                if not read_only:
                    # If a writer died before announcing its last commit, this makes readers see the commit.
                    self._environment.env.begin(write=True).abort()
                    self._environment.env.reader_check()
            except BaseException:
                self.close()
                raise

    def _lock_for_writing(self) -> IO[bytes]:
        try:
            locked = lock_data_file(self._path, shared=False)
        except WriterBusyError:
            other = self._environment.writing_at
            if other is None:
                raise
            raise CorruptStoreError(
                f"{self._path} has the files of the open index {other.name}: its directory was moved, or is linked "
                f"twice; move it back, or drop {other.name} to use the files under this name"
            ) from None
        self._environment.writing_at = self._path
        return locked

    @property
    def settings(self) -> IndexSettings:
        """The settings of the index; available after :meth:`load`."""
        assert self._settings is not None
        return self._settings

    @property
    def max_rows(self) -> int:
        """How many items a segment may have, so that its largest array fits in one value."""
        settings = self.settings
        tables = 32 if settings.tables != "none" else 1
        width = max(settings.code_bytes * (tables if settings.buckets == "fast" else 1), 4 * tables)
        return min(2**31, (LARGEST_VALUE - HEADER) // (width + 8))

    @property
    def position(self) -> int:
        """The sequence of the last write."""
        return self._sequence

    def check_files(self, *, writing: bool) -> None:
        """Check the size of the data file and, if ``writing``, that the files are still at their paths."""
        if writing:
            self._watch.check()
        else:
            self._watch.check_data()

    # -- reading ----------------------------------------------------------------------------------------------------

    def load(self) -> JournalState:
        """Read everything again: segments, dead items and writes."""
        self._generation = self._txnid = -1  # so that the next refresh loads again if this fails
        self._watch.check_data()
        with translated_errors(self._path):
            reader = SegmentReader(self._environment)
            if not self._checked:  # the read transaction keeps a writer from reusing pages while they are checked
                check_file(self._path)
                self._checked = True
            txn = reader.txn
            manifest = read_manifest(txn)
            settings = IndexSettings.from_json(manifest["settings"])
            segments = [reader.sealed_segment(settings, number) for number in segment_numbers(manifest)]
            batches = read_batches(txn, settings, manifest["sealed"] + 1)
            check_keys(txn, manifest)
            self._manifest, self._settings = manifest, settings
            self._sequence = manifest["sealed"] + len(batches)
            self._generation = manifest["generation"]
            self._txnid = self._pinned = txn.id()
            if not self._read_only:
                with contextlib.suppress(StorageFullError):  # orphans are harmless; the next segment overwrites them
                    self._remove_orphans()
        return JournalState(segments, batches, kept_requests(manifest))

    def refresh(self) -> JournalState | Sequence[WriteBatch]:
        """Return the new writes, or everything if the segments have changed."""
        self._watch.check_data()
        with translated_errors(self._path):
            if self._environment.env.info()["last_txnid"] == self._txnid:
                return ()
            with self._environment.env.begin(buffers=True) as txn:
                if read_manifest(txn)["generation"] == self._generation:
                    batches = read_batches(txn, self.settings, self._sequence + 1)
                    self._txnid = txn.id()
                    self._sequence += len(batches)
                    return batches
        return self.load()

    def reopen(self) -> Mapping[int, Segment]:
        """After a change of the segments or _PIN_COMMITS commits, return all, mapped under a new transaction."""
        if self._pinned >= 0 and self._environment.env.info()["last_txnid"] - self._pinned < _PIN_COMMITS:
            return {}
        with translated_errors(self._path):
            try:
                reader = SegmentReader(self._environment)
            except lmdb.ReadersFullError:
                log.warning("%s: too many snapshots are in use; the new segment stays in memory for now", self._path)
                return {}
            if read_manifest(reader.txn)["generation"] != self._generation:
                return {}  # another process has just changed the segments; the next refresh reads everything
            found = {number: reader.segment(self.settings, number) for number in segment_numbers(self._manifest)}
            self._pinned = reader.txn.id()
            return found

    # -- writing ----------------------------------------------------------------------------------------------------

    def check(self, batch: WriteBatch) -> None:
        """Refuse a batch whose record would exceed LMDB's size limit."""
        if delta_bytes(batch) > LARGEST_VALUE:
            raise InvalidArgumentError(
                f"a batch of {len(batch)} changes takes {delta_bytes(batch)} bytes; a batch may take at most "
                f"{LARGEST_VALUE}: write several smaller ones"
            )

    def append(self, batches: Sequence[WriteBatch]) -> Sequence[WriteBatch]:
        """Commit one record per batch, all in one transaction."""
        point("before commit")
        self._watch.check()
        with translated_errors(self._path), self._environment.env.begin(write=True, buffers=True) as txn:
            # Batches that an earlier call committed before it raised an error.
            recovered = read_batches(txn, self.settings, self._sequence + 1)
            last = self._sequence + len(recovered)
            for number, batch in enumerate(batches, last + 1):
                txn.put(delta_key(number), pack_delta(number, batch))
            point("in commit")
        point("after commit")
        self._sequence = last + len(batches)
        return recovered

    def store(self, segment: Segment) -> int:
        """Write a segment's arrays, one commit each, so that other writes can run in between."""
        self._watch.check()
        number = int(self._manifest["next_segment"])
        env = self._environment.env
        env.reader_check()  # frees the pages of readers that died
        try:
            for name, data in segment.arrays.items():
                if data.nbytes + HEADER > LARGEST_VALUE:
                    raise StorageError(f"array {name} has {data.nbytes} bytes; at most {LARGEST_VALUE} can be stored")
                record = pack_array(number, name, data)
                with translated_errors(self._path), env.begin(write=True) as txn:
                    txn.put(array_key(number, name), record)
                point(f"stored {name}")
        except StorageError:
            with contextlib.suppress(StorageError):  # the disk may be full: free the space for writes
                self._remove_orphans()
            raise
        return number

    def check_segments(self, numbers: Sequence[int]) -> None:
        """Verify the checksums of the arrays of some segments."""
        self._watch.check_data()
        with translated_errors(self._path), self._environment.env.begin(buffers=True) as txn:
            for number in numbers:
                for name in SEGMENT_ARRAYS:
                    check_array(txn.get(array_key(number, name)), number, name)

    def install(self, segments: Sequence[SealedSegment], sealed_up_to: int | None) -> None:
        """Commit the manifest and the bitmaps, and remove the records that are no longer needed."""
        self._watch.check()
        manifest = dict(self._manifest)
        old, now = set(segment_numbers(manifest)), {segment.number for segment in segments}
        manifest["generation"] += 1
        manifest["next_segment"] = max((manifest["next_segment"], *(number + 1 for number in now)))
        manifest["segments"] = [{"number": part.number, "items": part.segment.n} for part in segments]
        if sealed_up_to is not None:
            manifest["sealed"] = sealed_up_to
        bitmaps = {part.number: pack_dead(part.number, part.dead) for part in segments if part.dead is not None}
        with translated_errors(self._path), self._environment.env.begin(write=True) as txn:
            for number, bitmap in bitmaps.items():
                txn.put(dead_key(number), bitmap)
            if sealed_up_to is not None:
                sealed = [(sequence, request_of(record)) for sequence, record in delta_records(txn, 0, sealed_up_to)]
                requests = [*kept_requests(manifest), *(request for _, request in sealed if request)]
                manifest["requests"] = b"".join(requests[-KEPT:]).hex()
                for sequence, _ in sealed:
                    txn.delete(delta_key(sequence))
            txn.put(MANIFEST_KEY, pack_manifest(manifest))
            for number in old - now:
                remove_segment(txn, number)
            point("in install")
        point("after install")
        self._manifest = manifest
        self._generation = manifest["generation"]
        self._pinned = -1

    def _remove_orphans(self) -> None:
        """Remove the arrays of a segment that was never installed because of a crash or an error."""
        number = self._manifest["next_segment"]
        with translated_errors(self._path):
            with self._environment.env.begin() as txn:
                found = has_arrays(txn, [number])
            if found:
                with self._environment.env.begin(write=True) as txn:
                    remove_segment(txn, number)

    # -- the rest ---------------------------------------------------------------------------------------------------

    def sizes(self) -> tuple[int, int]:
        """Return the size of the file, and of its pages in use, in bytes."""
        self._watch.check_data()
        with self._environment.using() as env:
            stat = env.stat()
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] + 2
        try:
            size = (self._path / "data.mdb").stat().st_size
        except FileNotFoundError:  # the index was dropped; only open handles of the file are left
            size = 0
        return size, pages * stat["psize"]

    def verify(self, progress: Progress | None) -> VerifyReport:
        """Check the structure of the pages and the checksum of every record."""
        self._watch.check_data()
        with translated_errors(self._path), self._environment.using() as env, env.begin(buffers=True) as txn:
            return verify_file(self._path, txn, self.settings, progress)

    def backup(self, path: Path, snapshot: Snapshot) -> None:
        """Copy the current state of the file, without its free pages."""
        self._watch.check_data()
        with self._environment.using() as env:
            make_directory(path)
            with translated_errors(path):
                env.copy(str(path), compact=True)
                (path / "data.mdb").chmod(PRIVATE_FILE)  # LMDB has no option for the mode of a copy
                for written in (path / "data.mdb", path, path.parent):
                    sync(written)

    def close(self) -> None:
        if self._file is not None:
            if not self._read_only:
                self._environment.writing_at = None
            unlock(self._file)
            self._file = None
        self._environment.release(self)


def make_directory(path: Path) -> None:
    """Create the directory of a new index."""
    try:
        path.mkdir(mode=PRIVATE_DIRECTORY, parents=True)
    except FileExistsError:
        raise AlreadyExistsError(f"{path} already exists; give a path that does not exist") from None
    except OSError as error:
        raise translated(error, path) from error
