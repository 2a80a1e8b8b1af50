"""Search calls with worker threads, on an index in each kind of store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import whamming
from tests.native.examples import make_codes
from tests.native.oracle import Truth
from tests.server.calls import Bench, Call, answer_of, batch, random_table
from whamming import Database, StoredIndex
from whamming.v1.search_pb2 import QueryOptions

BITS = 40
N = 500
names = itertools.count()
"""For unique index names."""


@pytest.fixture(scope="module", params=["ram", "lmdb"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    place: Path | str = ":memory:" if request.param == "ram" else tmp_path_factory.mktemp("call") / "db"
    with whamming.open(place) as database:
        index = database.create_index("docs", BITS)
        index.upsert(range(N), make_codes("uniform", N, BITS, np.random.default_rng(0)))
        yield database


@pytest.fixture
def index(database: Database) -> StoredIndex:
    return database.index("docs")


@pytest.fixture
def bench(database: Database) -> Iterator[Bench]:
    bench = Bench(database, 2)
    yield bench
    bench.close()


def ask(call: Call, *query_ids: int, options: QueryOptions | None = None) -> None:
    """Send queries whose costs are generated from their ids."""
    tables = np.stack([random_table(BITS, query_id) for query_id in query_ids])
    call.ask(batch("docs", query_ids, options, tables=tables))


def whole(index: StoredIndex, query_id: int) -> Truth:
    return answer_of(index, random_table(BITS, query_id))
