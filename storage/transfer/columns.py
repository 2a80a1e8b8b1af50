"""Reading files of codes or vectors, with their ids and payloads, in pieces.

==========  ==========================================================================================================
``.npz``    ``codes`` or ``vectors``, and optionally ``ids``, ``payload_ends`` and ``payload_data``; loaded into memory
``.npy``    the rows only; the ids may be in a second file, ``<name>.ids.npy``; mapped
``.fvecs``  rows of an int32 length and that many float32; mapped
``.bvecs``  rows of an int32 length and that many bytes; mapped
==========  ==========================================================================================================
"""

from __future__ import annotations

import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from whamming.native import InvalidArgumentError
from whamming.native.arguments import as_whole
from whamming.native.display import counted
from whamming.storage.files.regular import open_regular
from whamming.storage.items.payloads import Payloads
from whamming.storage.items.rows import as_ids
from whamming.storage.storage_errors import from_system
from whamming.storage.transfer.numpy_files import load_npz, map_npy

ROWS_AT_ONCE: Final = 10_000
"""How many items are held in memory, and written, at a time."""

_BROKEN: Final = (ValueError, EOFError, zipfile.BadZipFile)
"""The errors that readers raise for files that do not have the format of their suffix."""

Holds = Literal["codes", "vectors"]
PieceT = TypeVar("PieceT")


def ids_path(path: Path) -> Path:
    """Return the path of the ids that belong to a ``.npy`` file."""
    return path.with_suffix(".ids.npy")


@dataclass(frozen=True)
class Columns:
    """The contents of a file, in memory or mapped."""

    rows: NDArray[Any]
    ids: NDArray[Any] | None = None
    payloads: Payloads | None = None
    lengths: NDArray[np.int32] | None = None
    """The length that each row states for itself, in ``.fvecs`` and ``.bvecs`` files."""

    def check(self, path: Path, holds: Holds) -> None:
        """Refuse ids and payloads that do not match the rows, which were checked before."""
        rows = self.rows
        if self.ids is not None and self.ids.shape != rows.shape[:1]:
            raise InvalidArgumentError(
                f"{path} has {len(rows)} {holds} but ids of shape {[*self.ids.shape]}; give one id per row"
            )
        if self.payloads is not None:
            ends, data = self.payloads.ends, self.payloads.data
            if ends.dtype.kind not in "iu" or ends.shape != rows.shape[:1]:
                raise InvalidArgumentError(
                    f"{path} has {len(rows)} {holds} but payload_ends of {ends.dtype.name} {[*ends.shape]}; give one "
                    "integer per row"
                )
            if data.dtype != np.uint8 or data.ndim != 1:
                raise InvalidArgumentError(
                    f"{path} has payload_data of {data.dtype.name} {[*data.shape]}; it must be uint8 [bytes]"
                )
            if len(ends) and (int(ends[0]) < 0 or int(ends[-1]) > len(data) or (ends[1:] < ends[:-1]).any()):
                raise InvalidArgumentError(f"{path} has payloads that overlap or end after their {len(data)} bytes")


class RowsFile(ABC, Generic[PieceT]):
    """A file of rows that is read in pieces."""

    def __init__(self, path: Path, holds: Holds, columns: Columns, first_id: int) -> None:
        """Check the ids and payloads that belong to the rows; the rows were checked before."""
        columns.check(path, holds)
        self.path = path
        self.count = len(columns.rows)
        """Number of rows."""
        self._columns = columns
        self._first_id = as_whole("first_id", first_id)
        if columns.ids is None and not 0 <= self._first_id <= 2**64 - self.count:
            raise InvalidArgumentError(f"first_id = {first_id} for {self.count} items; ids must be 0 to {2**64 - 1}")

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {counted(self.count, 'row')})"

    def pieces(self, start: int = 0, size: int = ROWS_AT_ONCE) -> Iterator[PieceT]:
        """Return the rows from ``start`` on, in pieces of at most ``size``.

        Raises :class:`InvalidArgumentError` at the first row or id that is not valid.
        """
        start, size = as_whole("start", start), as_whole("size", size)
        if not 0 <= start <= self.count:
            raise InvalidArgumentError(f"start = {start}; {self.path} has {self.count} rows")
        if size < 1:
            raise InvalidArgumentError(f"size = {size}; it must be 1 or more")
        firsts = range(start, self.count, size)
        return (self._read(np.arange(first, min(first + size, self.count))) for first in firsts)

    @abstractmethod
    def _piece(
        self,
        numbers: NDArray[np.int64],
        ids: NDArray[np.uint64],
        rows: NDArray[Any],
        payloads: list[bytes] | None,
    ) -> PieceT:
        """Return a piece of consecutive rows. Raises InvalidArgumentError if one is not valid."""

    def ids(self, first: int, last: int) -> NDArray[np.uint64]:
        """Return the ids of rows ``first`` to ``last - 1``."""
        if self._columns.ids is not None:
            return as_ids(self._columns.ids[first:last])
        return np.arange(last - first, dtype=np.uint64) + np.uint64(self._first_id + first)

    def _read(self, numbers: NDArray[np.int64]) -> PieceT:
        first, last, payloads = int(numbers[0]), int(numbers[-1]) + 1, self._columns.payloads
        kept = None if payloads is None else [payloads[row] for row in range(first, last)]
        return self._piece(numbers, self.ids(first, last), self._rows(numbers, slice(first, last)), kept)

    def _rows(self, numbers: NDArray[np.int64], where: slice | NDArray[np.int64]) -> NDArray[Any]:
        """Return some rows. Raises InvalidArgumentError if one has another length than row 0."""
        rows, lengths = np.asarray(self._columns.rows[where]), self._columns.lengths
        if lengths is not None:
            width = rows.shape[1]
            wrong = np.flatnonzero(lengths[where] != width)
            if len(wrong):
                row = int(numbers[wrong[0]])
                raise InvalidArgumentError(
                    f"row {row} of {self.path} has {lengths[row]} components, but row 0 has {width}"
                )
        return rows


def open_columns(path: Path, holds: Holds) -> Columns:
    """Open a file of the format that its suffix names. Only the head of the file is read, except for ``.npz``.

    Raises :class:`InvalidArgumentError` if the file does not have that format.
    """
    if path.suffix not in _SUFFIXES:
        raise InvalidArgumentError(f"{path} has the suffix {path.suffix!r}; import from {', '.join(_SUFFIXES)}")
    try:
        if path.suffix == ".npz":
            return _open_npz(path, holds)
        return _open_npy(path) if path.suffix == ".npy" else _open_vecs(path)
    except InvalidArgumentError:  # is a ValueError, too
        raise
    except _BROKEN as error:
        raise InvalidArgumentError(f"{path} is not a file of {holds}: {error}") from error
    except OSError as error:
        raise from_system(error, path) from error


_SUFFIXES: Final = (".npz", ".npy", ".fvecs", ".bvecs")


def _open_npz(path: Path, holds: Holds) -> Columns:
    found = load_npz(path, (holds, "ids", "payload_ends", "payload_data"))
    if holds not in found:
        raise ValueError(f"it has no array {holds}")
    payloads = None
    if "payload_ends" in found:
        if "payload_data" not in found:
            raise ValueError("it has no array payload_data")
        payloads = Payloads(found["payload_ends"], found["payload_data"])
    return Columns(found[holds], found.get("ids"), payloads)


def _open_npy(path: Path) -> Columns:
    ids = ids_path(path)
    return Columns(map_npy(path), map_npy(ids) if ids.exists() else None)


def _open_vecs(path: Path) -> Columns:
    component = 4 if path.suffix == ".fvecs" else 1
    with open_regular(path) as file:
        length = _first_length(file)
        size, row = os.fstat(file.fileno()).st_size, 4 + component * length
        if size % row:
            raise ValueError(
                f"it has {size} bytes, not a multiple of the {row} bytes of its first row: it was cut short"
            )
        raw = np.memmap(file, dtype=np.uint8, mode="r", shape=(size // row, row))
    rows = raw[:, 4:].view("<f4") if path.suffix == ".fvecs" else raw[:, 4:]
    return Columns(rows, lengths=raw[:, :4].view("<i4")[:, 0])


def _first_length(file: IO[bytes]) -> int:
    """Return the number of components that the first row states."""
    length = int.from_bytes(file.read(4), "little", signed=True)
    if length < 1:
        raise ValueError(f"its first row has {length} components")
    return length
