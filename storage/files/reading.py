"""Reading an index's LMDB file: its manifest, its writes and its segments."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from whamming.storage.files.environment import Environment
from whamming.storage.files.pages import PageError, check_pages
from whamming.storage.files.records import (
    MANIFEST_KEY,
    array_key,
    dead_key,
    delta_key,
    segment_of,
    sequence_of,
    unpack_array,
    unpack_dead,
    unpack_delta,
    unpack_manifest,
)
from whamming.storage.items.segment import SEGMENT_ARRAYS, Segment
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.settings import IndexSettings
from whamming.storage.storage_errors import CorruptStoreError, FormatError
from whamming.storage.store.journal import SealedSegment
from whamming.storage.store.requests import REQUEST_BYTES

_CHECKS = 5


class SegmentReader:
    """A read transaction. Segments that it opens keep it alive, so that their arrays stay in place."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        environment.hold(self)
        self.txn: Any = None
        self.txn = environment.env.begin(buffers=True)

    def __del__(self) -> None:
        if self.txn is not None:
            self.txn.abort()
        self._environment.release(self)

    def segment(self, settings: IndexSettings, number: int) -> Segment:
        """Open a segment in place."""
        arrays = {}
        for name in SEGMENT_ARRAYS:
            record = self.txn.get(array_key(number, name))
            if record is None:
                raise CorruptStoreError(f"array {name} of segment {number} is missing; restore a backup")
            arrays[name] = unpack_array(record, number, name)
        return Segment(settings, arrays, owner=self)

    def sealed_segment(self, settings: IndexSettings, number: int) -> SealedSegment:
        """Open a segment in place, together with the bitmap of its dead items."""
        segment = self.segment(settings, number)
        record = self.txn.get(dead_key(number))
        dead = None if record is None else unpack_dead(record, number, segment.n)
        return SealedSegment(number, segment, dead)


def check_file(path: Path) -> None:
    """Raise CorruptStoreError if the file's pages are damaged, before LMDB reads them.

    A concurrent commit may make a sound file look damaged, so a failed check is repeated a few times.
    """
    for attempt in range(_CHECKS):
        try:
            check_pages(path / "data.mdb")
            return
        except PageError as error:
            if attempt + 1 == _CHECKS:
                raise CorruptStoreError(f"{path / 'data.mdb'}: {error}; restore a backup") from error
            time.sleep(0.01)


def read_manifest(txn: Any) -> dict[str, Any]:
    record = txn.get(MANIFEST_KEY)
    if record is None:
        raise FormatError("the file has no manifest, so it is not a Whamming index")
    return unpack_manifest(record)


def segment_numbers(manifest: dict[str, Any]) -> list[int]:
    return [segment["number"] for segment in manifest["segments"]]


def kept_requests(manifest: dict[str, Any]) -> list[bytes]:
    """Return the request ids of recent writes that are in segments, oldest first."""
    kept = bytes.fromhex(manifest.get("requests", ""))
    return [kept[at : at + REQUEST_BYTES] for at in range(0, len(kept), REQUEST_BYTES)]


def read_batches(txn: Any, settings: IndexSettings, first: int) -> list[WriteBatch]:
    """Return all writes from sequence ``first`` on. Raises CorruptStoreError if one is missing."""
    batches: list[WriteBatch] = []
    for sequence, record in delta_records(txn, first):
        if sequence != first + len(batches):
            raise CorruptStoreError(f"write {first + len(batches)} is missing; restore a backup")
        batches.append(unpack_delta(record, sequence, settings))
    return batches


def delta_records(txn: Any, first: int, last: int = 2**64 - 1) -> Iterator[tuple[int, Any]]:
    """Yield the sequence and the record of each write from ``first`` to ``last``."""
    cursor = txn.cursor()
    if not cursor.set_range(delta_key(first)):
        return
    for key, value in cursor.iternext():
        sequence = sequence_of(bytes(key))
        if sequence is None or sequence > last:
            return
        yield sequence, value


def check_keys(txn: Any, manifest: dict[str, Any]) -> None:
    """Refuse a record that nothing refers to. Its key must be damaged, and its write or bitmap would be overlooked.

    Arrays of the next segment are allowed, because an interrupted seal leaves them behind.
    """
    known = set(segment_numbers(manifest))
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


def remove_segment(txn: Any, number: int) -> None:
    """Remove all records of a segment."""
    for name in SEGMENT_ARRAYS:
        txn.delete(array_key(number, name))
    txn.delete(dead_key(number))


def has_arrays(txn: Any, numbers: Sequence[int]) -> bool:
    """Return whether one of the segments has an array in the file."""
    return any(txn.get(array_key(number, name)) is not None for number in numbers for name in SEGMENT_ARRAYS)
