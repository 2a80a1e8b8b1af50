"""Items in and out as files, with a progress bar.

==========  ==========================================================================================================
``.npz``    ``codes``, ``ids`` and, where there are any, ``payload_ends`` and ``payload_data``: all at once in memory
``.npy``    codes only, with the ids beside it in ``<name>.ids.npy``; piece by piece, for more than fits into memory
``.fvecs``  in only: vectors, each an int32 dimension and so many float32; piece by piece
``.bvecs``  in only: packed codes, each an int32 width and so many bytes; piece by piece
==========  ==========================================================================================================

Codes come packed, ``uint8 [n, ceil(bits / 8)]`` in the index's bit order, as booleans, ``bool [n, bits]``, or as
floating-point vectors, ``[n, bits]``, of which a value greater than zero is a 1.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tqdm import tqdm

from whamming.native import InvalidArgumentError
from whamming.native.cursor import as_whole
from whamming.storage.errors import from_system
from whamming.storage.files import replacing
from whamming.storage.rows import Payloads, Rows, as_ids
from whamming.storage.settings import BitOrder, IndexSettings

BATCH: Final = 10_000
"""Items that are held in memory, and written, at a time."""

_BROKEN: Final = (KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)
"""What numpy says of files that are not what their suffix promises."""


class ItemsIndex(Protocol):
    """What items are exported from and imported into: :class:`StoredIndex`, or an index elsewhere."""

    @property
    def name(self) -> str:
        """For the progress bar."""

    @property
    def settings(self) -> IndexSettings:
        """What the index is."""

    def __len__(self) -> int:
        """Return the number of items; for the progress bar, it need not be that of ``scan``."""

    def scan(self, size: int = ..., /) -> Iterable[Rows]:
        """Return all items in pieces of at most ``size``; codes in the index's bit order."""

    def upsert(self, ids: ArrayLike, codes: ArrayLike, payloads: Sequence[bytes | None] | None = ..., /) -> object:
        """Add items, or replace those whose id exists."""


class Piece(NamedTuple):
    """Some rows of a file, one after the other."""

    first_row: int
    ids: NDArray[np.uint64]
    codes: NDArray[np.uint8]
    """Packed, in the bit order that was asked for."""
    payloads: list[bytes] | None


def bar(total: int, doing: str, *, shown: bool | None = None) -> Any:
    """Return a progress bar on the error stream; by default only where that is a terminal."""
    return tqdm(total=total, desc=doing, unit=" items", unit_scale=True, disable=None if shown is None else not shown)


def ids_path(path: Path) -> Path:
    """Return where the ids of a ``.npy`` file of codes are."""
    return path.with_suffix(".ids.npy")


# -- out -------------------------------------------------------------------------------------------------------------


def export_items(index: ItemsIndex, path: str | Path, *, progress: bool | None = None) -> int:
    """Write all items of an index, as of now, in no particular order; returns how many.

    The suffix chooses the form: ``.npz``, or ``.npy``, which leaves payloads out. An export that fails leaves nothing
    under that name that it did not find there.
    """
    target = Path(path)
    if target.suffix not in (".npz", ".npy"):
        raise InvalidArgumentError(f"{target} has the suffix {target.suffix!r}; export to .npz or .npy")
    write = _write_npz if target.suffix == ".npz" else _write_npy
    try:
        with bar(len(index), f"export {index.name}", shown=progress) as shown:
            return write(target, index.settings.code_bytes, _counted(index.scan(BATCH), shown))
    except OSError as error:
        raise from_system(error, target) from error


def _counted(pieces: Iterable[Rows], shown: Any) -> Iterator[Rows]:
    for rows in pieces:
        yield rows
        shown.update(len(rows))


def _write_npz(target: Path, width: int, pieces: Iterable[Rows]) -> int:
    rows = Rows.concatenate([Rows.none(width), *pieces])
    columns: dict[str, NDArray[Any]] = {"ids": rows.ids, "codes": rows.codes}
    if rows.payloads is not None:
        columns |= {"payload_ends": rows.payloads.ends, "payload_data": rows.payloads.data}
    with replacing(target) as (file,):
        np.savez(file, **columns)  # type: ignore[arg-type]
    return len(rows)


def _write_npy(target: Path, width: int, pieces: Iterable[Rows]) -> int:
    count = 0
    with replacing(target, ids_path(target)) as (codes, ids):
        _write_headers(codes, ids, count, width)
        for rows in pieces:
            codes.write(rows.codes.tobytes())
            ids.write(rows.ids.astype("<u8").tobytes())
            count += len(rows)
        _write_headers(codes, ids, count, width)
    return count


def _write_headers(codes: IO[bytes], ids: IO[bytes], count: int, width: int) -> None:
    """Say how many rows the files have: as many bytes for any number, so that it can be told when all are written."""
    for file, dtype, shape in ((codes, "|u1", (count, width)), (ids, "<u8", (count,))):
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})


# -- in --------------------------------------------------------------------------------------------------------------


def import_items(
    index: ItemsIndex,
    path: str | Path,
    *,
    first_id: int = 0,
    start: int = 0,
    batch: int = BATCH,
    progress: bool | None = None,
) -> int:
    """Upsert the items of a file, from row ``start`` on, a batch at a time; returns how many.

    A file without ids gets ``first_id``, ``first_id + 1``, ... from its row 0 on. An import that breaks off has
    written some batches; repeated, or started where it broke off, it comes to the same.
    """
    file = read_codes(path, index.settings.bits, index.settings.bit_order, first_id=first_id)
    pieces = file.pieces(start, batch)
    with bar(file.count - start, f"import {index.name}", shown=progress) as shown:
        for piece in pieces:
            index.upsert(piece.ids, piece.codes, piece.payloads)
            shown.update(len(piece.ids))
    return file.count - start


def read_codes(path: str | Path, bits: int, bit_order: BitOrder = "little", *, first_id: int = 0) -> CodesFile:
    """Open a file of codes of so many bits, in any of the forms above; nothing but its head is read yet, save of
    ``.npz``. A file without ids gets ``first_id``, ``first_id + 1``, ...

    Raises :class:`InvalidArgumentError` for a file that is not of that form, or holds codes of another length.
    """
    source = Path(path)
    settings = IndexSettings(bits, bit_order)
    if source.suffix not in _READERS:
        raise InvalidArgumentError(f"{source} has the suffix {source.suffix!r}; import from {', '.join(_READERS)}")
    try:
        columns = _READERS[source.suffix](source)
    except _BROKEN as error:
        raise InvalidArgumentError(f"{source} is not a file of codes: {error}") from error
    except OSError as error:
        raise from_system(error, source) from error
    columns.check(source, settings)
    count = len(columns.codes)
    first_id = as_whole("first_id", first_id)
    if columns.ids is None and not 0 <= first_id <= 2**64 - count:
        raise InvalidArgumentError(f"first_id = {first_id} for {count} items; ids are 0 to 2**64 - 1")
    return CodesFile(source, settings, columns, first_id)


class CodesFile:
    """A file of codes, to be read in pieces; see :func:`read_codes`."""

    def __init__(self, path: Path, settings: IndexSettings, columns: _Columns, first_id: int) -> None:
        """Wrap what was opened."""
        self.path = path
        self.count = len(columns.codes)
        """Rows."""
        self._settings = settings
        self._columns = columns
        self._first_id = first_id

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.count

    def pieces(self, start: int = 0, size: int = BATCH) -> Iterator[Piece]:
        """Return the rows from ``start`` on, in pieces of at most ``size``.

        Raises :class:`InvalidArgumentError` where it meets a row that cannot be a code, or an id that cannot be one.
        """
        start, size = as_whole("start", start), as_whole("size", size)
        if not 0 <= start <= self.count:
            raise InvalidArgumentError(f"start = {start}; {self.path} has {self.count} rows")
        if size < 1:
            raise InvalidArgumentError(f"size = {size}; it must be 1 or more rows")
        return (self._piece(first, min(first + size, self.count)) for first in range(start, self.count, size))

    def _piece(self, first: int, last: int) -> Piece:
        columns = self._columns
        ids = (
            np.arange(last - first, dtype=np.uint64) + np.uint64(self._first_id + first)
            if columns.ids is None
            else as_ids(columns.ids[first:last])
        )
        payloads = None if columns.payloads is None else [columns.payloads[row] for row in range(first, last)]
        return Piece(first, ids, self._packed(np.asarray(columns.codes[first:last]), first), payloads)

    def _packed(self, rows: NDArray[Any], first: int) -> NDArray[np.uint8]:
        dimensions = self._columns.dimensions
        if dimensions is not None:
            width = rows.shape[1]
            wrong = np.flatnonzero(dimensions[first : first + len(rows)] != width)
            if len(wrong):
                row = first + int(wrong[0])
                raise InvalidArgumentError(f"row {row} of {self.path} has {dimensions[row]} components, row 0 {width}")
        if rows.dtype == np.uint8:
            return np.ascontiguousarray(rows)
        if rows.dtype.kind == "f":
            if np.isnan(rows).any():
                row, column = (int(x) for x in np.argwhere(np.isnan(rows))[0])
                raise InvalidArgumentError(f"row {first + row} of {self.path} is not a number in column {column}")
            rows = rows > 0
        return np.packbits(rows, axis=1, bitorder=self._settings.bit_order)


@dataclass(frozen=True)
class _Columns:
    """What a file holds, in memory or mapped."""

    codes: NDArray[Any]
    ids: NDArray[Any] | None = None
    payloads: Payloads | None = None
    dimensions: NDArray[np.int32] | None = None
    """What each row says of its own length."""

    def check(self, path: Path, settings: IndexSettings) -> None:
        """Refuse columns that do not belong together, or to an index."""
        codes, bits, packed = self.codes, settings.bits, self.codes.dtype == np.uint8
        if not packed and codes.dtype != np.bool_ and codes.dtype.kind != "f":
            raise InvalidArgumentError(
                f"{path} holds {codes.dtype}; codes are packed uint8, bool, or floating-point numbers by their sign"
            )
        width = settings.code_bytes if packed else bits
        if codes.ndim != 2 or codes.shape[1] != width:
            if path.suffix == ".bvecs":
                raise InvalidArgumentError(
                    f"{path} has rows of {codes.shape[1]} bytes; .bvecs files are read as packed codes only, of "
                    f"{width} bytes for {bits} bits: bytes that are numbers have no sign to take, make codes or "
                    "floating-point vectors around zero of them first"
                )
            kind = "packed bytes" if packed else "values"
            raise InvalidArgumentError(f"{path} has shape {codes.shape}; {bits} bits need [n, {width}] {kind}")
        if self.ids is not None and self.ids.shape != codes.shape[:1]:
            raise InvalidArgumentError(f"{path} has {len(codes)} codes but ids of shape {self.ids.shape}")
        if self.payloads is not None:
            ends, data = self.payloads.ends, self.payloads.data
            if ends.dtype.kind not in "iu" or ends.shape != codes.shape[:1]:
                raise InvalidArgumentError(f"{path} has {len(codes)} codes but payload_ends of shape {ends.shape}")
            if data.dtype != np.uint8 or data.ndim != 1:
                raise InvalidArgumentError(f"{path} has payload_data of {data.dtype}, shape {data.shape}; not bytes")
            if len(ends) and (int(ends[0]) < 0 or int(ends[-1]) > len(data) or (ends[1:] < ends[:-1]).any()):
                raise InvalidArgumentError(f"{path} has payloads that overlap or end after their {len(data)} bytes")


def _open_npz(path: Path) -> _Columns:
    with path.open("rb") as file:
        loaded = np.load(file)
        if isinstance(loaded, np.ndarray):
            raise ValueError("it holds one array, like a .npy file")
        with loaded:
            payloads = None
            if "payload_ends" in loaded:
                payloads = Payloads(loaded["payload_ends"], loaded["payload_data"])
            return _Columns(loaded["codes"], loaded.get("ids"), payloads)


def _open_npy(path: Path) -> _Columns:
    beside = ids_path(path)
    return _Columns(_map_npy(path), _map_npy(beside) if beside.exists() else None)


def _map_npy(path: Path) -> NDArray[Any]:
    loaded = np.load(path, mmap_mode="r")
    if not isinstance(loaded, np.ndarray):
        loaded.close()
        raise ValueError("it holds several arrays, like a .npz file")
    return loaded


def _open_fvecs(path: Path) -> _Columns:
    words = np.memmap(path, dtype="<i4", mode="r", shape=(_count_rows(path, 4), _dimension(path) + 1))
    return _Columns(words[:, 1:].view("<f4"), dimensions=words[:, 0])


def _open_bvecs(path: Path) -> _Columns:
    rows = np.memmap(path, dtype=np.uint8, mode="r", shape=(_count_rows(path, 1), _dimension(path) + 4))
    return _Columns(rows[:, 4:], dimensions=rows[:, :4].view("<i4")[:, 0])


def _dimension(path: Path) -> int:
    """Return how many components a row has, as the first one says."""
    with path.open("rb") as file:
        dimension = int.from_bytes(file.read(4), "little", signed=True)
    if dimension < 1:
        raise ValueError(f"its first row has {dimension} components")
    return dimension


def _count_rows(path: Path, component: int) -> int:
    """Return how many rows there are, with components of so many bytes."""
    size, row = path.stat().st_size, 4 + component * _dimension(path)
    if size % row:
        raise ValueError(f"it has {size} bytes, which is not a multiple of its first row's {row}: it was cut short")
    return size // row


_READERS: Final = {".npz": _open_npz, ".npy": _open_npy, ".fvecs": _open_fvecs, ".bvecs": _open_bvecs}
