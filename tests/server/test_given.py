"""Queries as they are found in the bytes of a batch: the same that protobuf reads field by field."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from whamming.native import InvalidArgumentError, wire
from whamming.server.search.given import Field, GivenQueries
from whamming.v1 import search_pb2

FIELDS: list[Field] = ["code", "weights", "table", "vector"]
UNKNOWN = {
    "a varint": b"\x98\x06\x01",  # field 99
    "eight bytes": b"\x99\x06" + bytes(8),
    "four bytes": b"\x9d\x06" + bytes(4),
    "bytes": b"\x9a\x06\x03abc",
    "a group": b"\x9b\x06\x22\x08aaaaaaaa\x9c\x06",  # with a field 4 in it
    "an id of another type": b"\x0a\x03abc",
    "a code of another type": b"\x10\x07",
}


def some_query(rng: random.Random) -> search_pb2.Query:
    """Return a query of few shapes, so that neighbours often have one."""
    query = search_pb2.Query(id=rng.choice([0, 1, 127, 128, rng.getrandbits(64)]))
    width = rng.choice([1, 16])
    if rng.random() < 0.5:
        query.code = rng.randbytes(width)
    elif rng.random() < 0.5:
        query.table.extend(rng.gauss(0, 1) for _ in range(16 * width))
    elif rng.random() < 0.5:
        query.vector.extend(rng.choice([0.5, -1.0, 3.25]) for _ in range(width))
        query.form = rng.choice([0, 1, -7])  # type: ignore[assignment]
    if rng.random() < 0.3:
        query.weights.extend(rng.gauss(0, 1) for _ in range(8))
    if rng.random() < 0.1:
        query.after.id = rng.getrandbits(64)
    if rng.random() < 0.1:
        query.options.k = rng.randrange(3)
    return query


def some_batch(seed: int, count: int) -> search_pb2.QueryBatch:
    rng = random.Random(seed)
    queries = [query for _ in range(count) for query in [some_query(rng)] * rng.choice([1, 3])]
    batch = search_pb2.QueryBatch(index=rng.choice(["", "docs"]), queries=queries)
    if rng.random() < 0.5:
        batch.options.k = 10
    return batch


def shape(query: search_pb2.Query) -> tuple[Any, ...]:
    own = query.HasField("after") or query.HasField("options")
    return (own, query.form, *(len(getattr(query, field)) for field in FIELDS))


@pytest.mark.parametrize("seed", range(50))
def test_what_was_given_is_found(seed: int) -> None:
    batch = some_batch(seed, seed)
    given = GivenQueries(batch)
    assert given.ids == [query.id for query in batch.queries]
    assert len(given) == len(batch.queries)
    for place, query in enumerate(batch.queries):
        assert given.message(place) == query
        assert given.has_own(place) == (query.HasField("after") or query.HasField("options"))
        assert given.form(place) == query.form
        for field in FIELDS:
            assert given.has(place, field) == bool(getattr(query, field))
    expected = [list(same) for _, same in groupby(range(len(given)), key=lambda i: shape(batch.queries[i]))]
    groups = list(given.alike(range(len(given))))
    assert [list(group) for group in groups] == expected
    for group in groups:
        for field in FIELDS:
            if given.has(group[0], field):
                rows = [list(getattr(batch.queries[place], field)) for place in group]
                assert given.read(group, field).tolist() == rows


def test_some_places_can_be_read() -> None:
    queries = [search_pb2.Query(id=i, table=np.full(16, i).tolist()) for i in range(10)]
    given = GivenQueries(search_pb2.QueryBatch(queries=queries))
    assert list(map(list, given.alike([1, 4, 5, 9]))) == [[1, 4, 5, 9]]
    assert given.read([9, 1], "table").tolist() == [[9.0] * 16, [1.0] * 16]
    assert list(given.alike([])) == []


@pytest.mark.parametrize("unknown", UNKNOWN.values(), ids=list(UNKNOWN))
@pytest.mark.parametrize("inside", [True, False])
def test_fields_that_nobody_knows_do_no_harm(unknown: bytes, inside: bool) -> None:
    query = search_pb2.Query(id=300, table=np.arange(16.0).tolist())
    if inside:
        query.MergeFromString(unknown)
    batch = search_pb2.QueryBatch(index="docs", queries=[query, query])
    if not inside:
        batch.MergeFromString(unknown)
    given = GivenQueries(batch)
    assert given.ids == [300, 300]
    assert given.read([0, 1], "table").tolist() == [list(np.arange(16.0))] * 2
    assert not given.has(0, "code")


def test_numbers_that_were_not_packed_are_read() -> None:
    numbers = np.arange(4.0)
    query = search_pb2.Query.FromString(b"".join(b"\x21" + number.tobytes() for number in numbers))
    given = GivenQueries(search_pb2.QueryBatch(queries=[query]))
    assert given.read([0], "table").tolist() == [numbers.tolist()]


@pytest.mark.parametrize("seed", range(50))
def test_queries_are_counted_before_they_are_read(seed: int) -> None:
    rng = random.Random(seed)
    requests = [search_pb2.SearchRequest(batch=some_batch(seed + i, rng.randrange(20))) for i in range(3)]
    unknown = [field for field in UNKNOWN.values() if field[1] == 6]  # of a request, of a batch, of a query
    requests[1].MergeFromString(rng.choice(unknown))
    requests[2].batch.MergeFromString(rng.choice(unknown))
    for query in requests[2].batch.queries[:3]:
        query.MergeFromString(b"\x9b\x06\x12\x00\x9c\x06")
    data = b"".join(request.SerializeToString() for request in requests)  # which means one request of all
    count = len(search_pb2.SearchRequest.FromString(data).batch.queries)
    assert count == wire.count_queries(data)
    assert wire.count_queries(b"\x9b\x06" + data + b"\x9c\x06") == 0, "in a group there are none"
    assert wire.count_queries(b"\x9c\x06" + data) == 0, "and nothing comes after what is no message"
    assert all(wire.count_queries(data[:size]) <= count for size in range(0, len(data), 7))
    others = search_pb2.SearchRequest(cancel=search_pb2.CancelQueries(query_ids=[2, 18, 0]))
    assert wire.count_queries(others.SerializeToString()) == 0


def test_bytes_that_are_no_batch_are_refused() -> None:
    data = some_batch(3, 10).SerializeToString()
    count = len(search_pb2.QueryBatch.FromString(data).queries)
    for count_there, broken in [(count, data[:-1]), (count + 1, data), (count - 1, data), (0, b"\x12")]:
        with pytest.raises(InvalidArgumentError, match="queries are none"):
            wire.find_queries(broken, count_there)
    with pytest.raises(InvalidArgumentError, match="9 bytes from 0 on are not inside of 8"):
        wire.gather(bytes(8), np.zeros(1, dtype=np.uint64), 9)
    with pytest.raises(InvalidArgumentError, match="not inside of 8"):
        wire.gather(bytes(8), np.array([2**64 - 1], dtype=np.uint64), 1)
