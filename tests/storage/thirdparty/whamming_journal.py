"""A store for Whamming that somebody else might have written: an index in memory, and on disk a journal of its writes.

::

    docs/settings.json    what the index is
    docs/journal          per write the length and the CRC-32 of its record, 4 bytes each, then the record, an .npz

Opening it replays the journal; compacting writes it anew.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from whamming.storage import (
    ClosedError,
    CorruptStoreError,
    Durability,
    FormatError,
    IndexSettings,
    ReadOnlyError,
    Rows,
    Snapshot,
    StoreStats,
    VerifyReport,
    WriteBatch,
)
from whamming.storage.items.rows import Payloads
from whamming.storage.store import ram
from whamming.storage.store.protocol import Progress

_SETTINGS = "settings.json"
_JOURNAL = "journal"
_HEAD = struct.Struct("<II")


class JournalStore:
    """See :class:`whamming.storage.Store`."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        """Open the index in a directory."""
        if not (path / _JOURNAL).exists():
            raise FormatError(f"{path} holds no index: {_JOURNAL} is missing")
        self.settings = IndexSettings.from_json(json.loads((path / _SETTINGS).read_text(encoding="utf-8")))
        self._path = path
        self._read_only = read_only
        self._closed = False
        self._lock = threading.Lock()
        self._file: BinaryIO
        self._end: int
        self._start()
        if not read_only:
            self._file.truncate(self._end)  # what a crash left of the last write

    def snapshot(self) -> Snapshot:
        """Return an immutable view of every write that has been acknowledged."""
        with self._lock:
            self._check_open()
            if self._read_only:
                self._refresh()
            return self._memory.snapshot()

    def write(self, batch: WriteBatch, durability: Durability | None = None) -> None:
        """Append a batch to the journal, then apply it."""
        with self._lock:
            self._check_writable()
            if len(batch) == 0:
                return
            self._file.write(_record(batch))
            self._file.flush()
            self._end = self._file.tell()
            if (durability or self.settings.durability) == "fsync":
                os.fsync(self._file.fileno())
            self._memory.write(batch, durability)

    def seal(self, progress: Progress | None = None) -> None:
        """Turn recent writes into a segment with tables, in memory."""
        with self._lock:
            self._check_writable()
        self._memory.seal(progress)

    def compact(self, progress: Progress | None = None) -> None:
        """Merge the segments, and write the journal anew without what is gone."""
        with self._lock:
            self._check_writable()
            self._memory.compact(progress)
            part = self._path / f"{_JOURNAL}.new"
            with part.open("wb") as file:
                for rows in self._memory.snapshot().scan():
                    codes = self.settings.to_engine(rows.codes)
                    file.write(_record(WriteBatch(rows.ids[:0], Rows(rows.ids, codes, rows.payloads))))
                file.flush()
                os.fsync(file.fileno())
            part.rename(self._path / _JOURNAL)
            self._file.close()
            self._file = (self._path / _JOURNAL).open("r+b")
            self._end = self._file.seek(0, os.SEEK_END)

    def stats(self) -> StoreStats:
        """Tell what the store holds."""
        self.snapshot()
        return replace(self._memory.stats(), disk_bytes=self._end, used_bytes=self._end)

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Check every record against its checksum."""
        with self._lock:
            self._check_open()
            try:
                for end, _ in _records(self._path / _JOURNAL, 0):
                    if progress:
                        progress(end / self._end)
            except CorruptStoreError as error:
                return VerifyReport((str(error),), self._end, 0)
            return VerifyReport((), self._end, 0)

    def backup(self, path: Path) -> None:
        """Copy both files."""
        with self._lock:
            self._check_open()
            path.mkdir(parents=True)
            for name in (_SETTINGS, _JOURNAL):
                shutil.copyfile(self._path / name, path / name)

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            if not self._closed:
                self._closed = True
                if not self._read_only:
                    os.fsync(self._file.fileno())
                self._file.close()
                self._memory.close()

    def _start(self) -> None:
        self._memory = ram.backend.open(self._path, self.settings, read_only=False)
        self._file = (self._path / _JOURNAL).open("rb" if self._read_only else "r+b")
        self._end = 0
        self._replay()

    def _replay(self) -> None:
        for end, batch in _records(self._path / _JOURNAL, self._end):
            self._memory.write(batch)
            self._end = end
        self._file.seek(self._end)

    def _refresh(self) -> None:
        now, then = (self._path / _JOURNAL).stat(), os.fstat(self._file.fileno())
        if not os.path.samestat(now, then):  # the writer has compacted it
            self._file.close()
            self._memory.close()
            self._start()
        elif now.st_size > self._end:
            self._replay()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the index is closed; open the database again")

    def _check_writable(self) -> None:
        self._check_open()
        if self._read_only:
            raise ReadOnlyError("the database was opened for reading; open it with mode='w' to write")


class JournalBackend:
    """See :class:`whamming.storage.Backend`."""

    persistent = True

    def create(self, path: Path, settings: IndexSettings) -> None:
        """Make an empty index."""
        path.mkdir(parents=True)
        (path / _SETTINGS).write_text(json.dumps(settings.to_json()), encoding="utf-8")
        (path / _JOURNAL).touch()

    def open(self, path: Path, settings: IndexSettings | None, *, read_only: bool) -> JournalStore:
        """Open an index."""
        return JournalStore(path, read_only=read_only)


backend = JournalBackend()


def _records(path: Path, start: int) -> Iterator[tuple[int, WriteBatch]]:
    """Return all whole records from a place on, each with the place where it ends."""
    with path.open("rb") as file:
        file.seek(start)
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            size, checksum = _HEAD.unpack(head)
            body = file.read(size)
            if len(body) < size:
                return
            if zlib.crc32(body) != checksum:
                raise CorruptStoreError(f"{path}: the record before byte {file.tell()} is damaged; restore a backup")
            yield file.tell(), _unpack(body)


def _record(batch: WriteBatch) -> bytes:
    rows = batch.upserts
    payloads = rows.payloads or Payloads.empty(len(rows))
    file = io.BytesIO()
    np.savez(file, deletes=batch.deletes, ids=rows.ids, codes=rows.codes, ends=payloads.ends, data=payloads.data)
    body = file.getvalue()
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _unpack(body: bytes) -> WriteBatch:
    with np.load(io.BytesIO(body)) as columns:
        payloads = Payloads(columns["ends"], columns["data"])
        return WriteBatch(columns["deletes"], Rows(columns["ids"], columns["codes"], payloads))
