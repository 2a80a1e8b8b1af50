"""A small in-memory index, and queries that a test runs slice by slice, without worker threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import whamming
from tests.native.examples import make_codes
from tests.native.oracle import Truth
from tests.server.calls import Bench, Call, answer_of, batch, random_table
from whamming import Database, StoredIndex
from whamming.native import Position
from whamming.server.search.query import State
from whamming.v1.search_pb2 import QueryOptions

BITS = 24
N = 400
TABLE = random_table(BITS)


@pytest.fixture
def database() -> Iterator[Database]:
    with whamming.open(":memory:") as database:
        yield database


@pytest.fixture
def index(database: Database) -> StoredIndex:
    index = database.create_index("docs", BITS)
    index.upsert(range(N), make_codes("clustered", N, BITS, np.random.default_rng(1)))
    return index


@pytest.fixture
def whole(index: StoredIndex) -> Truth:
    return answer_of(index, TABLE)


@pytest.fixture
def bench(database: Database) -> Bench:
    return Bench(database)


def ask(call: Call, *query_ids: int, after: Sequence[Position] = (), **options: Any) -> None:
    """Send queries with the same cost table."""
    tables = np.stack([TABLE] * len(query_ids))
    call.ask(batch("docs", query_ids, QueryOptions(**options), tables=tables, after=after))


async def blocked_on_credit(bench: Bench, credit: int) -> Call:
    """Return a call whose query 1 has used up its credit."""
    call = bench.call()
    ask(call, 1, credit=credit)
    await call.run()
    assert call.query(1).state is State.BLOCKED_ON_CREDIT
    assert len(call[1].ids) == credit
    return call


async def blocked_on_buffer(bench: Bench) -> Call:
    """Return a call whose query 1 has filled the send buffer."""
    call = bench.call(buffer_bytes=1)
    ask(call, 1, chunk_size=5)
    bench.run()
    assert call.query(1).state is State.BLOCKED_ON_BUFFER
    assert call.waiting > 0
    return call
