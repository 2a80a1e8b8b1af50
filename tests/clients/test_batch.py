"""Tests of ``search_batch`` on a server: refused queries, retries, and errors while sending."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

import whamming
from tests.clients.scripted import Scripted, ended, serving
from tests.serving import PATIENCE, ServerProcess
from whamming import InvalidArgumentError, OverloadedError, UnavailableError
from whamming.remote.batch import BatchSearch
from whamming.remote.queries import Queries
from whamming.v1 import error_pb2, search_pb2
from whamming.v1.search_pb2 import END_REASON_EXHAUSTED, END_REASON_FAILED, END_REASON_SNAPSHOT_EXPIRED

BITS, N = 16, 500
CODES = np.random.default_rng(0).integers(0, 256, (N, BITS // 8), dtype=np.uint8)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        with whamming.connect(server.address) as database:
            database.create_index("docs", BITS).upsert(np.arange(N), CODES)
        yield server
        server.check_log()


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float32])
def test_codes_must_be_uint8(server: ServerProcess, dtype: type) -> None:
    async def ask() -> None:
        async with whamming.aio.connect(server.address) as database:
            index = await database.index("docs")
            with pytest.raises(InvalidArgumentError, match=f"{np.dtype(dtype)}, not uint8"):
                await asyncio.wait_for(index.search_batch(CODES[:3].astype(dtype)), PATIENCE)
            with pytest.raises(InvalidArgumentError, match=f"{np.dtype(dtype)}, not uint8"):
                index.search(CODES[0].astype(dtype))

    asyncio.run(ask())


class Unpackable(Queries):
    """Queries that raise an error when the second message is packed."""

    def request(
        self, index: str, rows: NDArray[np.int64], options: search_pb2.QueryOptions
    ) -> search_pb2.SearchRequest:
        if 0 in rows:
            return super().request(index, rows, options)
        raise ZeroDivisionError


def run(script: Scripted, queries: Queries, retry_seconds: float) -> list[int]:
    """Run a batch of queries, and return the nearest id of each."""

    async def ask() -> list[int]:
        async with serving(script, retry_seconds) as connection:
            batch = BatchSearch(connection, "docs", queries, search_pb2.QueryOptions(k=1), 1)
            await asyncio.wait_for(batch.run(), PATIENCE)
            nearest: list[int] = batch.answer(single=False).ids[:, 0].tolist()
            return nearest

    return asyncio.run(ask())


def test_an_error_while_sending_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run(Scripted(lambda request: ()), Unpackable(CODES, None, None, None, None), PATIENCE)


def queries(count: int) -> Queries:
    return Queries(CODES[:count], None, None, None, None)


def test_retries_queries_whose_snapshot_expired() -> None:
    """As long as some queries are answered, the others are sent again. After that, until the retry time is over."""

    def answer(request: search_pb2.SearchRequest) -> list[search_pb2.SearchResponse]:
        first, *others = request.queries.query_ids
        return [
            ended(first, END_REASON_EXHAUSTED, [(first + 100, 0.0)]),
            *(ended(query_id, END_REASON_SNAPSHOT_EXPIRED, [(999, 0.0)]) for query_id in others),
        ]

    script = Scripted(answer)
    assert run(script, queries(4), PATIENCE) == [100, 101, 102, 103]
    assert [list(sent.query_ids) for sent in script.queries] == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [3]]
    with pytest.raises(UnavailableError):
        run(
            Scripted(lambda request: [ended(id_, END_REASON_SNAPSHOT_EXPIRED) for id_ in request.queries.query_ids]),
            queries(4),
            0.2,
        )


def test_retries_refused_queries_until_the_time_is_over() -> None:
    error = search_pb2.QueryError(reason=error_pb2.ERROR_REASON_OVERLOADED, message="9 queries under way; at most 8")
    script = Scripted(lambda request: [ended(id_, END_REASON_FAILED, error=error) for id_ in request.queries.query_ids])
    with pytest.raises(OverloadedError, match="query 0: 9 queries"):
        run(script, queries(4), 0.2)
    assert len(script.queries) > 2
