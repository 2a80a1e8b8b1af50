"""Pack and read columns as any client would, without ``whamming.wire``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from whamming.v1 import types_pb2

ELEMENT_TYPES = {
    "<f4": types_pb2.ELEMENT_TYPE_FLOAT32,
    "<f2": types_pb2.ELEMENT_TYPE_FLOAT16,
    "|i1": types_pb2.ELEMENT_TYPE_INT8,
    "<f8": types_pb2.ELEMENT_TYPE_FLOAT64,
    "|u1": types_pb2.ELEMENT_TYPE_UINT8,
}
"""Element types by numpy type string."""


def pack_ids(ids: Iterable[int]) -> types_pb2.IdColumn:
    return types_pb2.IdColumn(uint64=np.fromiter(ids, dtype="<u8").tobytes())


def read_ids(column: types_pb2.IdColumn) -> list[int]:
    ids: list[int] = np.frombuffer(column.uint64, dtype="<u8").tolist()
    return ids


def pack_matrix(rows: ArrayLike, dtype: str | None = None) -> types_pb2.Matrix:
    """Pack rows of numbers ``[n, columns]``, by default without changing their type."""
    data: Any = np.asarray(rows, dtype=dtype)
    return types_pb2.Matrix(type=ELEMENT_TYPES[data.dtype.str], columns=data.shape[1], data=data.tobytes())


def pack_sums(sums: Sequence[bytes]) -> bytes:
    """Pack exact distances of 16 bytes. Empty ones become the value for a row without one."""
    return b"".join(one or bytes(15) + b"\x80" for one in sums) if any(sums) else b""


def read_sums(column: bytes, count: int) -> list[bytes]:
    """Read exact distances. Fails if the column has neither 16 bytes per row nor none at all."""
    assert len(column) in (0, 16 * count), "the column of exact distances does not match the rows"
    sums = [column[16 * row : 16 * row + 16] for row in range(count)]
    return [b"" if one == bytes(15) + b"\x80" else one for one in sums]


def pack_payloads(payloads: Sequence[bytes]) -> types_pb2.PayloadColumn:
    lengths = np.array([len(payload) for payload in payloads], dtype="<u4")
    return types_pb2.PayloadColumn(lengths=lengths.tobytes(), data=b"".join(payloads))


def read_payloads(column: types_pb2.PayloadColumn) -> list[bytes]:
    """Read payloads. Fails if the data does not match the lengths."""
    ends = np.cumsum(np.frombuffer(column.lengths, dtype="<u4"), dtype=np.int64).tolist()
    data = column.data  # protobuf copies it at each access
    assert len(data) == (ends[-1] if ends else 0), "payload data does not match the lengths"
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
