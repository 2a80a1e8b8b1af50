"""Importing and exporting items as files, with a progress bar.

==========  ==========================================================================================================
``.npz``    ``codes``, ``ids`` and, if there are any, ``payload_ends`` and ``payload_data``; held in memory; compressed
            files may expand to 1 GiB, or to 16 times their size
``.npy``    the codes; ids are in a second file, ``<name>.ids.npy``; no payloads; in pieces, so any size fits
``.fvecs``  import only: vectors; a row is an int32, the dimension, followed by that many float32; in pieces
``.bvecs``  import only: packed codes, or vectors; a row is an int32, the width, followed by that many bytes; in pieces
==========  ==========================================================================================================

Codes may be packed, ``uint8 [n, ceil(bits / 8)]`` in the index's bit order; booleans, ``bool [n, bits]``; or
floating-point vectors, ``[n, bits]``, whose positive values become 1. For an index with an encoder,
:func:`read_vectors` reads vectors from the same formats. :mod:`whamming.storage.transfer.columns` reads the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tqdm import tqdm

from whamming.native import InvalidArgumentError
from whamming.native.arguments import as_whole
from whamming.storage.files.temporary import replacing
from whamming.storage.items.rows import Rows
from whamming.storage.settings import BitOrder, IndexSettings
from whamming.storage.storage_errors import from_system
from whamming.storage.transfer.columns import ROWS_AT_ONCE, Columns, RowsFile, ids_path, open_columns
from whamming.storage.vectors.arrays import DTYPES, blocks, check_dim


class ItemsIndex(Protocol):
    """An index that items can be exported from and imported into, such as :class:`StoredIndex`."""

    @property
    def name(self) -> str:
        """The name that the progress bar shows."""

    @property
    def settings(self) -> IndexSettings:
        """The settings of the index."""

    def __len__(self) -> int:
        """Return the number of items for the progress bar; it may differ from what ``scan`` returns."""

    def scan(self, size: int = ..., /) -> Iterable[Rows]:
        """Return all items in pieces of at most ``size``; codes in the index's bit order."""

    def upsert(self, ids: ArrayLike, codes: ArrayLike, payloads: Sequence[bytes | None] | None = ..., /) -> object:
        """Add items, or replace those whose id exists."""


class Piece(NamedTuple):
    """Consecutive rows of a file of codes."""

    first_row: int
    ids: NDArray[np.uint64]
    codes: NDArray[np.uint8]
    """Packed, in the requested bit order."""
    payloads: list[bytes] | None


class VectorsPiece(NamedTuple):
    """Consecutive rows of a file of vectors."""

    first_row: int
    ids: NDArray[np.uint64]
    vectors: NDArray[Any]
    """In the data type of the file."""
    payloads: list[bytes] | None


def bar(total: int, doing: str, *, shown: bool | None = None) -> Any:
    """Return a progress bar on stderr. By default it is shown only if stderr is a terminal."""
    return tqdm(total=total, desc=doing, unit=" items", unit_scale=True, disable=None if shown is None else not shown)


# -- export ----------------------------------------------------------------------------------------------------------


def export_items(index: ItemsIndex, path: str | Path, *, progress: bool | None = None) -> int:
    """Write all items of an index to a file, in no particular order. Returns how many.

    The suffix chooses the format: ``.npz``, or ``.npy``, which leaves payloads out. Neither format includes kept
    vectors; a backup has everything. A failed export never leaves an incomplete file of that name.
    """
    target = Path(path)
    if target.suffix not in (".npz", ".npy"):
        raise InvalidArgumentError(f"{target} has the suffix {target.suffix!r}; export to .npz or .npy")
    write = _write_npz if target.suffix == ".npz" else _write_npy
    try:
        with bar(len(index), f"export {index.name}", shown=progress) as shown:
            return write(target, index.settings.code_bytes, _counted(index.scan(ROWS_AT_ONCE), shown))
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
    """Write the headers, which say how many rows follow. Their size does not depend on the number of rows, so they can
    be overwritten once it is known."""
    for file, dtype, shape in ((codes, "|u1", (count, width)), (ids, "<u8", (count,))):
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})


# -- import ----------------------------------------------------------------------------------------------------------


def import_items(
    index: ItemsIndex,
    path: str | Path,
    *,
    first_id: int = 0,
    start: int = 0,
    batch: int = ROWS_AT_ONCE,
    progress: bool | None = None,
) -> int:
    """Upsert the items of a file from row ``start`` on, in batches. Returns how many.

    If the file has no ids, its rows get the ids ``first_id``, ``first_id + 1`` and so on, counted from row 0. If an
    import fails, the batches before the failure stay written. Repeat the import, or continue it at the failed row.
    """
    file = read_codes(path, index.settings.bits, index.settings.bit_order, first_id=first_id)
    pieces = file.pieces(start, batch)
    with bar(file.count - start, f"import {index.name}", shown=progress) as shown:
        for piece in pieces:
            index.upsert(piece.ids, piece.codes, piece.payloads)
            shown.update(len(piece.ids))
    return file.count - start


def read_codes(path: str | Path, bits: int, bit_order: BitOrder = "little", *, first_id: int = 0) -> CodesFile:
    """Open a file of codes with ``bits`` bits, in any of the formats above. Only its head is read, except for ``.npz``.

    If the file has no ids, its rows get the ids ``first_id``, ``first_id + 1`` and so on. Raises
    :class:`InvalidArgumentError` if the contents do not match the suffix, or the codes have another length.
    """
    source = Path(path)
    return CodesFile(source, IndexSettings(bits, bit_order), open_columns(source, "codes"), first_id)


def read_vectors(path: str | Path, dim: int | None = None, *, first_id: int = 0) -> VectorsFile:
    """Open a file of vectors ``[n, dim]``: float32, float16, float64, int8 or uint8. ``dim`` None accepts any length.

    In an ``.npz`` file the array is called ``vectors``. Otherwise this is like :func:`read_codes`.
    """
    source = Path(path)
    return VectorsFile(source, dim, open_columns(source, "vectors"), first_id)


class CodesFile(RowsFile[Piece]):
    """A file of codes that is read in pieces; see :func:`read_codes`."""

    def __init__(self, path: Path, settings: IndexSettings, columns: Columns, first_id: int) -> None:
        """Check that the file holds codes. Raises InvalidArgumentError."""
        _check_codes(path, columns.rows, settings)
        super().__init__(path, "codes", columns, first_id)
        self._settings = settings

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes in an upsert: those of a packed code."""
        return self._settings.code_bytes

    def _piece(
        self,
        numbers: NDArray[np.int64],
        ids: NDArray[np.uint64],
        rows: NDArray[Any],
        payloads: list[bytes] | None,
    ) -> Piece:
        if rows.dtype == np.uint8:
            return Piece(int(numbers[0]), ids, np.ascontiguousarray(rows), payloads)
        if rows.dtype.kind == "f":
            if np.isnan(rows).any():
                row, column = (int(x) for x in np.argwhere(np.isnan(rows))[0])
                raise InvalidArgumentError(f"row {numbers[row]} of {self.path} is NaN in column {column}")
            rows = rows > 0
        return Piece(int(numbers[0]), ids, np.packbits(rows, axis=1, bitorder=self._settings.bit_order), payloads)


class VectorsFile(RowsFile[VectorsPiece]):
    """A file of vectors that is read in pieces; see :func:`read_vectors`."""

    def __init__(self, path: Path, dim: int | None, columns: Columns, first_id: int) -> None:
        """Check that the file holds vectors. Raises InvalidArgumentError."""
        rows = columns.rows
        if rows.dtype.name not in DTYPES:
            raise InvalidArgumentError(f"{path} holds {rows.dtype.name}; vectors must be {', '.join(DTYPES)}")
        if rows.ndim != 2 or dim not in (None, rows.shape[1]):
            wanted = "dim" if dim is None else dim
            raise InvalidArgumentError(f"{path} has shape {[*rows.shape]}; vectors must be [n, {wanted}]")
        super().__init__(path, "vectors", columns, first_id)
        self.dim: int = check_dim(rows.shape[1])
        """Number of components of a vector."""

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes in an upsert: those of a vector."""
        return self.dim * self._columns.rows.itemsize

    def sample(self, count: int, seed: int = 0) -> NDArray[Any]:
        """Return ``count`` random rows, or all if there are fewer, to fit an encoder to."""
        count = min(as_whole("count", count), self.count)
        if count < 1:
            raise InvalidArgumentError(
                f"cannot sample {count} of the {self.count} vectors in {self.path}; a sample needs at least 1"
            )
        chosen = np.sort(np.random.default_rng(seed).choice(self.count, count, replace=False))
        return self._finite(self._rows(chosen, chosen), chosen)

    def _piece(
        self,
        numbers: NDArray[np.int64],
        ids: NDArray[np.uint64],
        rows: NDArray[Any],
        payloads: list[bytes] | None,
    ) -> VectorsPiece:
        return VectorsPiece(int(numbers[0]), ids, self._finite(rows, numbers), payloads)

    def _finite(self, rows: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows as a contiguous array. Raises InvalidArgumentError if a value is not finite."""
        rows = np.ascontiguousarray(rows)
        try:
            for _ in blocks(rows):
                pass
        except InvalidArgumentError:
            with np.errstate(over="ignore"):
                row, column = (int(x) for x in np.argwhere(~np.isfinite(rows.astype(np.float32)))[0])
            raise InvalidArgumentError(
                f"row {numbers[row]} of {self.path} is {rows[row, column]} in column {column}; components must be "
                f"finite and at most {np.finfo(np.float32).max:.1e}: leave out such rows, or replace the value"
            ) from None
        return rows


def _check_codes(path: Path, codes: NDArray[Any], settings: IndexSettings) -> None:
    """Refuse rows that are not codes of an index."""
    bits, packed = settings.bits, codes.dtype == np.uint8
    if not packed and codes.dtype != np.bool_ and codes.dtype.kind != "f":
        raise InvalidArgumentError(
            f"{path} holds {codes.dtype.name}; codes must be packed uint8, bool, or floating-point numbers"
        )
    width = settings.code_bytes if packed else bits
    if codes.ndim == 2 and codes.shape[1] == width:
        return
    if path.suffix == ".bvecs":
        raise InvalidArgumentError(
            f"{path} has rows of {codes.shape[1]} bytes; a .bvecs file must hold packed codes, which have {width} "
            f"bytes for {bits} bits. If the bytes are components of vectors, import them into an index with an "
            "encoder, or convert them to codes or to floating-point vectors around zero first"
        )
    kind = "packed bytes" if packed else "values"
    raise InvalidArgumentError(f"{path} has shape {[*codes.shape]}; {bits} bits need [n, {width}] {kind}")
