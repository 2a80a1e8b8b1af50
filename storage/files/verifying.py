"""Verifying every byte of an index's LMDB file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whamming.storage.files.reading import check_file, read_manifest
from whamming.storage.files.records import (
    MANIFEST_KEY,
    array_key,
    check_array,
    segment_of,
    sequence_of,
    unpack_dead,
    unpack_delta,
)
from whamming.storage.items.segment import SEGMENT_ARRAYS
from whamming.storage.settings import IndexSettings
from whamming.storage.storage_errors import CorruptStoreError, StorageError
from whamming.storage.store.protocol import Progress, VerifyReport


def verify_file(path: Path, txn: Any, settings: IndexSettings, progress: Progress | None) -> VerifyReport:
    """Check the structure of the pages, and the checksum of every record that a read transaction sees."""
    try:
        check_file(path)
    except CorruptStoreError as error:
        return VerifyReport((str(error),), 0, 0)
    problems: list[str] = []
    checked = arrays = 0
    total = (path / "data.mdb").stat().st_size
    items: dict[int, int] = {}
    try:
        items = {segment["number"]: segment["items"] for segment in read_manifest(txn)["segments"]}
    except StorageError as error:
        problems.append(str(error))
    for key, value in txn.cursor():
        try:
            arrays += _check_record(bytes(key), value, settings, items)
        except StorageError as error:
            problems.append(str(error))
        checked += len(value)
        if progress:
            progress(min(1.0, checked / total))
    problems += [
        f"array {name} of segment {number} is missing"
        for number in sorted(items)
        for name in SEGMENT_ARRAYS
        if txn.get(array_key(number, name)) is None
    ]
    return VerifyReport(tuple(problems), checked, arrays)


def _check_record(key: bytes, value: Any, settings: IndexSettings, items: dict[int, int]) -> bool:
    """Check one record. Returns whether it is an array of a segment in use. Raises StorageError."""
    sequence, number = sequence_of(key), segment_of(key)
    if sequence is not None:
        unpack_delta(value, sequence, settings)
    elif number is not None and key[:1] == b"t":
        unpack_dead(value, number, items.get(number, 0))
    elif number is not None and len(key) == 10 and key[9] < len(SEGMENT_ARRAYS):
        if number in items:
            check_array(value, number, SEGMENT_ARRAYS[key[9]])
            return True
    elif key != MANIFEST_KEY:
        raise CorruptStoreError(f"a record has the unknown key {key.hex()}")
    return False
