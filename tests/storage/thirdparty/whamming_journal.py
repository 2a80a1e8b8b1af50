"""An example of a third-party store for Whamming: a journal of plain files, used by the segmented store.

::

    docs/manifest.json       the settings, the segments, the current log, and the number of writes before it
    docs/log-3               per write: length and CRC-32 of its record, 4 bytes each, then the record, an .npz
    docs/segment-2.npz       the arrays of a segment
    docs/dead-5.npz          the bitmaps of dead items, by segment

A new manifest replaces the old one by a rename, so installing a segment is atomic. Files that the manifest does not
name are removed when the index is next opened for writing.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from whamming.storage import (
    SEGMENT_ARRAYS,
    CorruptStoreError,
    FormatError,
    IndexSettings,
    JournalState,
    Payloads,
    Progress,
    Rows,
    SealedSegment,
    Segment,
    SegmentedStore,
    Snapshot,
    StorageError,
    VerifyReport,
    WriteBatch,
)

_MANIFEST = "manifest.json"
_FILES = (_MANIFEST, f"{_MANIFEST}.new", "log-*", "dead-*.npz", "segment-*.npz")
_HEAD = struct.Struct("<II")
_PARSING = threading.Lock()
"""NumPy parses headers with ``ast``, which sometimes fails in CPython 3.11 if several threads use it at once."""


class FileJournal:
    """See :class:`whamming.storage.Journal`."""

    persistent = True
    max_rows = 2**31

    def __init__(self, path: Path, *, read_only: bool) -> None:
        """Open the files in a directory."""
        if not (path / _MANIFEST).exists():
            raise FormatError(f"{path} is not an index: {_MANIFEST} is missing")
        self._path = path
        self._read_only = read_only
        self._manifest: dict[str, Any] = {}
        self._log: BinaryIO | None = None
        self._end = 0  # of the last record that the store has seen
        self._count = 0  # of records up to there
        self._stored = 0

    @property
    def settings(self) -> IndexSettings:
        """The settings of the index."""
        return IndexSettings.from_json(self._manifest["settings"])

    @property
    def position(self) -> int:
        """The number of writes appended so far."""
        return int(self._manifest["before"]) + self._count

    def load(self) -> JournalState:
        """Read all files that the manifest names."""
        while True:
            self._manifest = manifest = json.loads((self._path / _MANIFEST).read_text(encoding="utf-8"))
            try:
                return self._load(manifest)
            except FileNotFoundError:  # the writer has just replaced them
                if json.loads((self._path / _MANIFEST).read_text(encoding="utf-8")) == manifest:
                    raise

    def _load(self, manifest: dict[str, Any]) -> JournalState:
        dead = {int(number): bitmap for number, bitmap in _arrays_in(self._path / manifest["dead"]).items()}
        segments = []
        for number in manifest["segments"]:
            segment = Segment(self.settings, _arrays_in(self._path / f"segment-{number}.npz"))
            segments.append(SealedSegment(number, segment, dead.get(number)))
        self._close_log()
        self._log = (self._path / manifest["log"]).open("rb" if self._read_only else "r+b")
        self._end = self._count = 0
        batches = self._new_batches()
        if not self._read_only:
            self._log.truncate(self._end)  # removes an incomplete write, left by a crash
            self._remove_others()
        return JournalState(segments, batches, [bytes.fromhex(request) for request in manifest["requests"]])

    def _new_batches(self) -> list[WriteBatch]:
        batches = []
        for end, batch in _records(self._path / self._manifest["log"], self._end):
            batches.append(batch)
            self._end = end
            self._count += 1
        return batches

    def refresh(self) -> JournalState | Sequence[WriteBatch]:
        """Read the rest of the log, or everything if the manifest has changed."""
        if json.loads((self._path / _MANIFEST).read_text(encoding="utf-8")) != self._manifest:
            return self.load()
        assert self._log is not None
        return self._new_batches() if os.fstat(self._log.fileno()).st_size > self._end else ()

    def check_files(self, *, writing: bool) -> None:
        """Check that the log still has a name. Everything is read into memory, so reading is always safe."""
        log = self._log
        if log is None or self._read_only or not writing:
            return
        links = 1
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile: a seal has replaced it
            links = os.fstat(log.fileno()).st_nlink
        if not links and log is self._log:
            raise CorruptStoreError(f"{log.name} was deleted while it was in use; restore a backup")

    def check(self, batch: WriteBatch) -> None:
        """Accept every batch."""

    def append(self, batches: Sequence[WriteBatch]) -> Sequence[WriteBatch]:
        """Append one record per batch to the log."""
        assert self._log is not None
        self.check_files(writing=True)
        recovered = self._new_batches()  # complete records of an interrupted append
        self._log.truncate(self._end)
        self._log.seek(self._end)
        self._log.write(b"".join(map(_record, batches)))
        self._log.flush()
        os.fsync(self._log.fileno())
        self._end = self._log.tell()
        self._count += len(batches)
        return recovered

    def store(self, segment: Segment) -> int:
        """Write a segment's arrays to a file."""
        number: int = max(self._stored, *self._manifest["segments"], 0) + 1
        self._stored = number
        with (self._path / f"segment-{number}.npz").open("wb") as file:
            _save(file, {name: np.frombuffer(data, np.uint8) for name, data in segment.arrays.items()})
            file.flush()
            os.fsync(file.fileno())
        return number

    def check_segments(self, numbers: Sequence[int]) -> None:
        """Verify the checksums of the files."""
        for number in numbers:
            _check_segment(self._path / f"segment-{number}.npz")

    def install(self, segments: Sequence[SealedSegment], sealed_up_to: int | None) -> None:
        """Write the bitmaps and a log of the remaining writes, then a manifest that names them."""
        assert self._log is not None
        manifest = dict(self._manifest)
        manifest["generation"] += 1
        manifest["segments"] = [part.number for part in segments]
        manifest["dead"] = f"dead-{manifest['generation']}.npz"
        with (self._path / manifest["dead"]).open("wb") as file:
            _save(file, {str(part.number): part.dead for part in segments if part.dead is not None})
            file.flush()
            os.fsync(file.fileno())
        if sealed_up_to is not None:
            manifest["log"] = f"log-{manifest['generation']}"
            batches = [batch for _, batch in _records(self._path / self._manifest["log"], 0)]
            sealed, kept = batches[: sealed_up_to - manifest["before"]], batches[sealed_up_to - manifest["before"] :]
            requests = [*manifest["requests"], *(batch.request.hex() for batch in sealed if batch.request)]
            manifest["requests"] = requests[-1024:]
            manifest["before"] = sealed_up_to
            with (self._path / manifest["log"]).open("wb") as file:
                file.write(b"".join(map(_record, kept)))
                file.flush()
                os.fsync(file.fileno())
        _write_manifest(self._path, manifest)
        self._manifest = manifest
        if sealed_up_to is not None:
            self._close_log()
            self._log = (self._path / manifest["log"]).open("r+b")
            self._end, self._count = self._log.seek(0, os.SEEK_END), len(kept)
        self._remove_others()

    def reopen(self) -> Mapping[int, Segment]:
        """Keep segments in memory."""
        return {}

    def _remove_others(self) -> None:
        """Remove the files of a journal that the manifest does not name."""
        manifest = self._manifest
        named = {_MANIFEST, "encoder", manifest["log"], manifest["dead"]}
        named |= {f"segment-{number}.npz" for number in manifest["segments"]}
        for file in self._path.iterdir():
            if file.name not in named and any(fnmatch(file.name, pattern) for pattern in _FILES):
                file.unlink()

    def sizes(self) -> tuple[int, int]:
        """Return the size of all files in bytes."""
        size = 0
        for file in self._path.iterdir():
            with contextlib.suppress(FileNotFoundError):  # a seal or merge has just replaced it
                size += file.stat().st_size
        return size, size

    def verify(self, progress: Progress | None) -> VerifyReport:
        """Verify every record and array against its checksum."""
        while True:
            manifest = self._manifest
            report = self._verify(manifest, progress)
            if report.ok or manifest is self._manifest:
                return report  # otherwise a seal or merge has replaced files meanwhile

    def _verify(self, manifest: dict[str, Any], progress: Progress | None) -> VerifyReport:
        problems: list[str] = []
        files = [self._path / f"segment-{number}.npz" for number in manifest["segments"]]
        for done, file in enumerate(files):
            try:
                _check_segment(file)
            except StorageError as error:
                problems.append(str(error))
            if progress:
                progress(done / len(files))
        try:
            for _ in _records(self._path / manifest["log"], 0):
                pass
        except (CorruptStoreError, FileNotFoundError) as error:
            problems.append(str(error))
        return VerifyReport(tuple(problems), self.sizes()[0], len(files) * len(SEGMENT_ARRAYS))

    def backup(self, path: Path, snapshot: Snapshot) -> None:
        """Copy the files as they are now."""
        while True:
            path.mkdir(parents=True)
            manifest = self._manifest
            segments = [f"segment-{number}.npz" for number in manifest["segments"]]
            try:
                for name in (manifest["log"], manifest["dead"], *segments):
                    shutil.copyfile(self._path / name, path / name)
            except FileNotFoundError:  # a seal or merge has just replaced them
                shutil.rmtree(path)
                if manifest is self._manifest:
                    raise
                continue
            _write_manifest(path, manifest)
            return

    def close(self) -> None:
        """Close the log."""
        self._close_log()

    def _close_log(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()


class FileBackend:
    """See :class:`whamming.storage.Backend`."""

    persistent = True
    files: Sequence[str] = _FILES

    def create(self, path: Path, settings: IndexSettings) -> None:
        """Create an empty index."""
        path.mkdir(parents=True)
        (path / "log-0").touch()
        np.savez(path / "dead-0.npz")
        manifest = {"settings": settings.to_json(), "generation": 0, "segments": [], "before": 0, "requests": []}
        _write_manifest(path, manifest | {"log": "log-0", "dead": "dead-0.npz"})

    def open(self, path: Path, settings: IndexSettings | None, *, read_only: bool) -> SegmentedStore:
        """Open an index."""
        return SegmentedStore(FileJournal(path, read_only=read_only), read_only=read_only)


backend = FileBackend()


def _save(file: IO[bytes], arrays: dict[str, Any]) -> None:
    np.savez(file, **arrays)


def _write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    part = path / f"{_MANIFEST}.new"
    with part.open("w", encoding="utf-8") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path / _MANIFEST)


def _check_segment(path: Path) -> None:
    try:
        arrays = _arrays_in(path)  # zip files have a CRC-32 per array
        for name in SEGMENT_ARRAYS:
            arrays[name]
    except Exception as error:
        raise CorruptStoreError(f"{path} is damaged: {error}; restore a backup") from error


def _records(path: Path, start: int) -> Iterator[tuple[int, WriteBatch]]:
    """Yield all complete records from an offset on, each with the offset of its end."""
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
    columns: dict[str, Any] = {"deletes": batch.deletes, "ids": rows.ids, "codes": rows.codes}
    columns["request"] = np.frombuffer(batch.request, dtype=np.uint8)
    if rows.payloads is not None:
        columns |= {"ends": rows.payloads.ends, "data": rows.payloads.data}
    if rows.vectors is not None:
        columns["vectors"] = rows.vectors
    file = io.BytesIO()
    _save(file, columns)
    body = file.getvalue()
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _arrays_in(source: Any) -> dict[str, Any]:
    """Return all arrays of an ``.npz`` file."""
    with _PARSING, np.load(source) as arrays:
        return dict(arrays)


def _unpack(body: bytes) -> WriteBatch:
    columns = _arrays_in(io.BytesIO(body))
    payloads = Payloads(columns["ends"], columns["data"]) if "ends" in columns else None
    rows = Rows(columns["ids"], columns["codes"], payloads, columns.get("vectors"))
    return WriteBatch(columns["deletes"], rows, columns["request"].tobytes())
