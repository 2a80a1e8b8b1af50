"""Convert between numpy arrays and the columns of messages.

Reading a field of a message copies its bytes once. The arrays returned here are views of that copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whamming.native.arguments import SUM_BYTES
from whamming.storage import Payloads
from whamming.v1 import types_pb2
from whamming.wire.enums import ELEMENT_TYPES
from whamming.wire.fields import FieldError

_TYPE_NUMBERS: Final = {dtype: number for number, dtype in ELEMENT_TYPES.items()}
_FLOAT32: Final = np.dtype("<f4")
_NO_SUM: Final = bytes(SUM_BYTES - 1) + b"\x80"
"""Stands for an exact distance that was not given. It is -2^127; exact distances have at most 126 digits."""


def id_column(ids: NDArray[np.uint64]) -> types_pb2.IdColumn:
    return types_pb2.IdColumn(uint64=ids.astype("<u8", copy=False).tobytes())


def ids_of(column: types_pb2.IdColumn, field: str) -> NDArray[np.uint64]:
    """Return the ids of a column. ``field`` is its name in error messages."""
    return numbers_of(column.uint64, "<u8", f"{field}.uint64")


def numbers_of(data: bytes, dtype: str, field: str) -> NDArray[Any]:
    """Return the bytes of a field as numbers of a fixed size."""
    width = np.dtype(dtype).itemsize
    if len(data) % width:
        raise FieldError(field, f"{field} has {len(data)} bytes; it must be a multiple of {width}")
    return np.frombuffer(data, dtype=dtype)


def matrix(rows: NDArray[Any]) -> types_pb2.Matrix:
    """Pack rows of numbers. They become float32 if the protos do not have their type."""
    dtype = rows.dtype.newbyteorder("<")
    if dtype not in _TYPE_NUMBERS:
        dtype = _FLOAT32
    data = np.ascontiguousarray(rows, dtype=dtype).tobytes()
    return types_pb2.Matrix(type=_TYPE_NUMBERS[dtype], columns=rows.shape[1], data=data)  # type: ignore[arg-type]


def matrix_of(message: types_pb2.Matrix, field: str) -> NDArray[Any]:
    """Return a matrix as an array ``[n, columns]``."""
    dtype = ELEMENT_TYPES.get(message.type)
    if dtype is None:
        known = ", ".join(f"{number} ({kind.name})" for number, kind in ELEMENT_TYPES.items())
        raise FieldError(f"{field}.type", f"{field}.type = {message.type}; choose one of {known}")
    width, data = message.columns * dtype.itemsize, message.data  # read the field once: each access copies it
    if width == 0 or len(data) % width:
        raise FieldError(
            f"{field}.data",
            f"{field}.data has {len(data)} bytes; rows of {message.columns} x {dtype.name} have {width} each",
        )
    return np.frombuffer(data, dtype=dtype).reshape(-1, message.columns)


def sum_column(sums: Sequence[bytes]) -> bytes:
    """Pack exact distances, some of which may be missing: empty. If all are missing, the column is empty."""
    return b"".join([each or _NO_SUM for each in sums]) if any(sums) else b""


def sum_list_of(column: bytes, count: int, field: str) -> list[bytes]:
    """Return ``count`` exact distances. Missing ones are empty."""
    if not column:
        return [b""] * count
    if len(column) != count * SUM_BYTES:
        raise FieldError(
            field, f"{field} has {len(column)} bytes for {count} rows; it must have {SUM_BYTES} per row, or none at all"
        )
    sums = [column[start : start + SUM_BYTES] for start in range(0, len(column), SUM_BYTES)]
    return [b"" if each == _NO_SUM else each for each in sums]


def payload_column(payloads: Payloads) -> types_pb2.PayloadColumn:
    """Pack payloads that are stored contiguously."""
    lengths = payloads.lengths().astype("<u4")
    return types_pb2.PayloadColumn(lengths=lengths.tobytes(), data=payloads.data.tobytes())


def payload_list_column(payloads: Sequence[bytes]) -> types_pb2.PayloadColumn:
    """Pack payloads that are separate byte strings."""
    lengths = np.fromiter(map(len, payloads), dtype="<u4", count=len(payloads))
    return types_pb2.PayloadColumn(lengths=lengths.tobytes(), data=b"".join(payloads))


def payloads_of(message: types_pb2.PayloadColumn, count: int, field: str) -> Payloads:
    """Return the payloads of ``count`` rows."""
    lengths = numbers_of(message.lengths, "<u4", f"{field}.lengths")
    if len(lengths) != count:
        raise FieldError(
            f"{field}.lengths", f"{field}.lengths has {len(lengths)} numbers for {count} rows; give one per row"
        )
    ends, data = np.cumsum(lengths, dtype=np.uint64), message.data
    total = int(ends[-1]) if count else 0
    if total != len(data):
        raise FieldError(f"{field}.data", f"{field}.data has {len(data)} bytes; the sum of {field}.lengths is {total}")
    return Payloads(ends, np.frombuffer(data, dtype=np.uint8))


def payload_list_of(message: types_pb2.PayloadColumn, count: int) -> list[bytes]:
    """Return payloads as separate byte strings. If the column is empty, all payloads are empty."""
    lengths, data = message.lengths, message.data
    if not lengths:
        return [b""] * count
    ends = np.cumsum(np.frombuffer(lengths, dtype="<u4"), dtype=np.int64).tolist()
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
