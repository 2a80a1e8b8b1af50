"""Packed fields as arrays: the same numbers that protobuf reads and writes one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from whamming.v1 import item_pb2, search_pb2
from whamming.wire.packed import FEW, field_bytes, pack, unpack

FIELDS = [
    (search_pb2.Chunk, "ids", np.uint64),
    (search_pb2.Chunk, "distances", np.float64),
    (search_pb2.Query, "table", np.float64),
    (search_pb2.Query, "vector", np.float32),
    (item_pb2.ItemBatch, "ids", np.uint64),
]


def some(count: int, dtype: Any) -> Any:
    rng = np.random.default_rng(count)
    if dtype == np.uint64:
        return rng.integers(0, 2**64, count, dtype=np.uint64)
    return rng.standard_normal(count).astype(dtype)


@pytest.mark.parametrize("count", [0, 1, FEW, FEW + 1, 1000, 70_000])
@pytest.mark.parametrize(("kind", "field", "dtype"), FIELDS)
def test_numbers_go_in_and_come_out(kind: type[Message], field: str, dtype: Any, count: int) -> None:
    numbers = some(2 * count, dtype)[::2]
    message = kind()
    pack(message, field, numbers)
    assert list(getattr(message, field)) == numbers.tolist()
    assert kind.FromString(message.SerializeToString()) == message
    found = unpack(message, field, dtype)
    assert found.dtype == dtype
    assert found.tobytes() == numbers.tobytes()
    assert found.flags.writeable


def test_other_fields_are_passed_over() -> None:
    ids, distances = some(500, np.uint64), some(500, np.float64)
    chunk = search_pb2.Chunk(query_id=2**64 - 1, payloads=[b"x" * i for i in range(500)], lower_bound=0.5)
    chunk.end.statistics.buckets = 7
    chunk.ids.extend(ids.tolist())
    chunk.distances.extend(distances.tolist())
    assert unpack(chunk, "ids", np.uint64).tobytes() == ids.tobytes()
    assert unpack(chunk, "distances", np.float64).tobytes() == distances.tobytes()


@pytest.mark.parametrize(
    "unknown",
    [
        b"\x98\x06\x01",  # field 99, a varint
        b"\x99\x06" + bytes(8),
        b"\x9d\x06" + bytes(4),
        b"\x9a\x06\x03abc",
        b"\x9b\x06\x12\x01a\x9c\x06",  # a group with a field 2 in it
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_fields_that_nobody_knows_do_no_harm(unknown: bytes, first: bool) -> None:
    ids = some(100, np.uint64)
    known = field_bytes(search_pb2.Chunk.IDS_FIELD_NUMBER, ids.tobytes())
    chunk = search_pb2.Chunk.FromString(unknown + known if first else known + unknown)
    assert unpack(chunk, "ids", np.uint64).tobytes() == ids.tobytes()


def test_numbers_that_were_not_packed_are_read() -> None:
    ids = some(100, np.uint64)
    tag = bytes([search_pb2.Chunk.IDS_FIELD_NUMBER << 3 | 1])
    chunk = search_pb2.Chunk.FromString(b"".join(tag + one.tobytes() for one in ids))
    assert unpack(chunk, "ids", np.uint64).tobytes() == ids.tobytes()
