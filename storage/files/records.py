"""Packing and unpacking the records of an index's file. FORMAT.md describes their bytes, with examples.

Every record begins with a header that names its kind and has a CRC-32 of the record. The CRC is computed with its own
four bytes as 0.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from whamming.native.arguments import as_whole
from whamming.storage.items.payloads import Payloads
from whamming.storage.items.rows import Rows
from whamming.storage.items.segment import SEGMENT_ARRAYS
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.settings import IndexSettings
from whamming.storage.storage_errors import CorruptStoreError, FormatError
from whamming.storage.store.requests import REQUEST_BYTES

FORMAT: Final = 3
"""The version of the file format that this code writes and reads."""

MANIFEST_KEY: Final = b"m"
_DELTA, _ARRAY, _DEAD = b"d", b"s", b"t"
LARGEST_VALUE: Final = 2**32 - 1
"""LMDB's size limit of a value in bytes."""

HEADER: Final = 48
"""Size of an array's header in bytes. A large value starts 16 bytes into a page, so the array itself starts on a cache
line."""

_PAYLOADS, _VECTORS = 1, 2
"""Flags of a delta record: which columns follow the codes."""

_Buffer = TypeVar("_Buffer", bytearray, memoryview)

_array_header = struct.Struct("<4sIQQB23x")
_delta_header = struct.Struct("<4sIQIIQB15s")
_manifest_header = struct.Struct("<4sII")


def delta_key(sequence: int) -> bytes:
    """Return the key of a write batch. Keys sort by sequence."""
    return _DELTA + sequence.to_bytes(8, "big")


def array_key(segment: int, name: str) -> bytes:
    """Return the key of a segment's array."""
    return _ARRAY + segment.to_bytes(8, "big") + bytes([SEGMENT_ARRAYS.index(name)])


def dead_key(segment: int) -> bytes:
    """Return the key of a segment's bitmap of dead items."""
    return _DEAD + segment.to_bytes(8, "big")


def segment_of(key: bytes) -> int | None:
    """Return the segment that a key belongs to, or None if it belongs to none."""
    return int.from_bytes(key[1:9], "big") if key[:1] in (_ARRAY, _DEAD) else None


def sequence_of(key: bytes) -> int | None:
    """Return the sequence of a write batch's key, or None for any other key."""
    return int.from_bytes(key[1:], "big") if key[:1] == _DELTA and len(key) == 9 else None


def pack_array(segment: int, name: str, data: memoryview) -> memoryview:
    """Return an array with its header."""
    packed = np.empty(HEADER + data.nbytes, dtype=np.uint8)
    if data.nbytes:
        packed[HEADER:] = np.frombuffer(data, dtype=np.uint8)  # numpy releases the interpreter lock while it copies
    _array_header.pack_into(packed.data, 0, b"WHAa", 0, segment, data.nbytes, SEGMENT_ARRAYS.index(name))
    return with_checksum(packed.data)


def pack_dead(segment: int, dead: NDArray[np.uint8]) -> bytearray:
    """Return a segment's bitmap of dead items with its header."""
    packed = bytearray(HEADER + dead.nbytes)
    packed[HEADER:] = dead.tobytes()
    _array_header.pack_into(packed, 0, b"WHAt", 0, segment, dead.nbytes, 255)
    return with_checksum(packed)


def with_checksum(packed: _Buffer) -> _Buffer:
    """Write the checksum into a record whose bytes 4 to 7 are still 0."""
    struct.pack_into("<I", packed, 4, zlib.crc32(packed))
    return packed


def checked(record: Any, what: str, magic: bytes, header: int) -> memoryview:
    """Return a record as bytes, after verifying its magic number and its checksum."""
    view = memoryview(record).cast("B")
    if view.nbytes < header or view[:4] != magic:
        raise CorruptStoreError(f"{what} does not begin with a header {magic!r} of {header} bytes; restore a backup")
    found = zlib.crc32(view[8:], zlib.crc32(bytes(4), zlib.crc32(view[:4])))
    stored = int.from_bytes(view[4:8], "little")
    if found != stored:
        raise CorruptStoreError(f"{what} has checksum {found:08x} instead of {stored:08x}; restore a backup")
    return view


def unpack_array(record: Any, segment: int, name: str) -> memoryview:
    """Return an array's bytes, in place. Checks only the header, as the checksum would require reading everything."""
    view = memoryview(record).cast("B")
    what = f"array {name} of segment {segment}"
    if view.nbytes < HEADER:
        raise CorruptStoreError(f"{what} has {view.nbytes} bytes, too few for its header; restore a backup")
    magic, _, number, size, kind = _array_header.unpack_from(view)
    if (magic, number, kind) != (b"WHAa", segment, SEGMENT_ARRAYS.index(name)) or size != view.nbytes - HEADER:
        raise CorruptStoreError(f"{what} has a header that does not match it; restore a backup")
    return view[HEADER:]


def check_array(record: Any, segment: int, name: str) -> int:
    """Check an array's header and checksum. Returns its size in bytes."""
    unpack_array(record, segment, name)
    return checked(record, f"array {name} of segment {segment}", b"WHAa", HEADER).nbytes


def unpack_dead(record: Any, segment: int, n: int) -> NDArray[np.uint8]:
    """Return a copy of a segment's bitmap of dead items."""
    what = f"the bitmap of dead items of segment {segment}"
    view = checked(record, what, b"WHAt", HEADER)
    _, _, number, size, _ = _array_header.unpack_from(view)
    if number != segment or size != view.nbytes - HEADER or size != (n + 7) // 8:
        raise CorruptStoreError(
            f"{what} has a header or a size that does not match the {n} items of segment {segment}; restore a backup"
        )
    return np.frombuffer(view[HEADER:], dtype=np.uint8).copy()


def delta_bytes(batch: WriteBatch) -> int:
    """Return the size of a write batch's record in bytes."""
    payloads = batch.upserts.payloads
    return _delta_header.size + batch.nbytes + (payloads.ends.nbytes if payloads is not None else 0)


def pack_delta(sequence: int, batch: WriteBatch) -> bytearray:
    """Return a write batch as a record."""
    rows, payloads, vectors = batch.upserts, batch.upserts.payloads, batch.upserts.vectors
    size = len(payloads.data) if payloads is not None else 0
    flags = (_PAYLOADS if payloads is not None else 0) | (_VECTORS if vectors is not None else 0)
    header = _delta_header.pack(b"WHAd", 0, sequence, len(batch.deletes), len(rows), size, flags, batch.request)
    columns = [batch.deletes.astype("<u8", copy=False), rows.ids.astype("<u8", copy=False), rows.codes]
    if vectors is not None:
        columns.append(vectors)
    if payloads is not None:
        columns += [payloads.ends.astype("<u8", copy=False), payloads.data]
    return with_checksum(bytearray(b"".join([header, *(np.ascontiguousarray(column).data for column in columns)])))


def unpack_delta(record: Any, sequence: int, settings: IndexSettings) -> WriteBatch:
    """Read a write batch, after checking its checksum, sizes and flags."""
    what = f"write {sequence}"
    view = checked(record, what, b"WHAd", _delta_header.size)
    _, _, stored, deletes, upserts, size, flags, request = _delta_header.unpack_from(view)
    width = settings.vector_bytes if flags & _VECTORS else 0
    expected = _delta_header.size + 8 * deletes + upserts * (8 + settings.code_bytes + width)
    expected += 8 * upserts + size if flags & _PAYLOADS else 0
    if stored != sequence or view.nbytes != expected:
        raise CorruptStoreError(
            f"{what} has number {stored} and {view.nbytes} bytes instead of {sequence} and {expected}; restore a backup"
        )
    if bool(flags & _VECTORS) != bool(settings.vector_bytes):
        raise CorruptStoreError(
            f"{what} has flags {flags:#x}, which do not match the index's settings; restore a backup"
        )
    at = _delta_header.size

    def column(dtype: str, count: int) -> NDArray[Any]:
        nonlocal at
        values = np.frombuffer(view, dtype=dtype, count=count, offset=at)
        at += values.nbytes
        return values.copy()

    gone, ids = column("<u8", deletes), column("<u8", upserts)
    codes = column("u1", upserts * settings.code_bytes).reshape(upserts, settings.code_bytes)
    vectors = column("u1", upserts * width).reshape(upserts, width) if width else None
    payloads = None
    if flags & _PAYLOADS:
        payloads = Payloads(column("<u8", upserts), column("u1", size))
        if len(payloads.ends) and (
            int(payloads.ends[-1]) != size or (np.diff(payloads.ends.astype(np.int64)) < 0).any()
        ):
            raise CorruptStoreError(f"{what} has payloads that overlap or do not fill their bytes; restore a backup")
    return WriteBatch(gone, Rows(ids, codes, payloads, vectors), request if any(request) else b"")


def request_of(record: Any) -> bytes:
    """Return the request id of a write's record, which was checked before; empty if it has none."""
    request: bytes = _delta_header.unpack_from(record)[-1]
    return request if any(request) else b""


def pack_manifest(values: dict[str, Any]) -> bytearray:
    """Return the manifest as a record."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    return with_checksum(bytearray(_manifest_header.pack(b"WHAm", 0, len(text)) + text))


def unpack_manifest(record: Any) -> dict[str, Any]:
    """Read the manifest. Raises FormatError if the file has another format."""
    view = checked(record, "the manifest", b"WHAm", _manifest_header.size)
    _, _, size = _manifest_header.unpack_from(view)
    if size != view.nbytes - _manifest_header.size:
        raise CorruptStoreError("the manifest has the wrong length; restore a backup")
    try:
        values: dict[str, Any] = json.loads(bytes(view[_manifest_header.size :]))
        version = as_whole("format", values["format"])
        if version == FORMAT:
            _check_manifest(values)
    except (LookupError, RecursionError, TypeError, ValueError) as error:
        raise CorruptStoreError(f"the manifest is invalid: {error}; restore a backup") from error
    if version != FORMAT:
        remedy = "upgrade whamming to open it" if version > FORMAT else "import its items into a new index"
        raise FormatError(f"the index has format {version}; this version reads format {FORMAT}: {remedy}")
    return values


def _check_manifest(values: dict[str, Any]) -> None:
    """Raise a built-in exception if a value is missing, has the wrong type or is out of range."""
    IndexSettings.from_json(values["settings"])
    numbers = [values["generation"], values["next_segment"], values["sealed"]]
    for segment in values["segments"]:
        numbers += segment["number"], segment["items"]
    for number in numbers:
        if not 0 <= as_whole("a number", number) < 2**63:
            raise ValueError(f"{number} is out of range; it must be 0 to 2**63 - 1")
    if len(values.get("requests", "")) % (2 * REQUEST_BYTES):
        raise ValueError("the request ids have the wrong length")
    bytes.fromhex(values.get("requests", ""))
