"""Requests on a Search call: which ones end the call, and which ones only fail their queries."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.server import threaded_calls
from tests.server.calls import Bench, Call, batch, random_table
from tests.server.threaded_calls import BITS, ask, whole
from tests.serving import PATIENCE
from whamming import StoredIndex
from whamming.v1 import error_pb2
from whamming.v1.search_pb2 import CancelQueries, GrantCredit, QueryBatch, QueryOptions, SearchRequest, SearchResponse
from whamming.wire.fields import FieldError

database = threaded_calls.database
index = threaded_calls.index
bench = threaded_calls.bench
Receive = Callable[[], Awaitable[SearchRequest | None]]


def requests_of(*requests: SearchRequest, then: asyncio.Event | None = None) -> Receive:
    """Return a function that receives the given requests, then the end of the stream, after ``then`` if it is given."""
    left = iter(requests)

    async def receive() -> SearchRequest | None:
        request = next(left, None)
        if request is None and then is not None:
            await then.wait()
        return request

    return receive


async def run(bench: Bench, *requests: SearchRequest, **limits: Any) -> list[SearchResponse]:
    """Serve a call whose client sends some requests and reads all responses."""
    sent: list[SearchResponse] = []

    async def write(message: SearchResponse) -> None:
        sent.append(message)

    await Call(bench, **limits).search.run(requests_of(*requests), write)
    return sent


def queries(*query_ids: int, **options: Any) -> SearchRequest:
    tables = np.stack([random_table(BITS, query_id) for query_id in query_ids])
    return SearchRequest(queries=batch("docs", query_ids, QueryOptions(**options), tables=tables))


async def test_a_call_without_queries_ends_with_ok(bench: Bench) -> None:
    assert await run(bench) == []
    assert await run(bench, SearchRequest(cancel=CancelQueries(query_ids=[1]))) == []
    assert await run(bench, SearchRequest(grant=GrantCredit(query_id=1, hits=3))) == []


async def test_a_call_ends_after_its_last_query(bench: Bench, index: StoredIndex) -> None:
    messages = await run(bench, queries(1, 2, k=4), queries(3, k=4))
    ended = [query_id for message in messages for query_id in message.ends.query_ids]
    assert sorted(ended) == [1, 2, 3]


@pytest.mark.parametrize(
    ("requests", "field", "words"),
    [
        ([SearchRequest()], "request", "empty"),
        ([SearchRequest(queries=QueryBatch(index="docs"))], "queries.query_ids", "0 queries"),
        ([queries(*range(11))], "queries.query_ids", "11 queries in a batch; it must have 1 to 10"),
        ([queries(7, 7)], "queries.query_ids", "query id 7 is in use"),
        ([queries(7, credit=0), queries(6, 7)], "queries.query_ids", "query id 7 is in use"),
        ([queries(7, credit=0), queries(6, 7, k=0)], "queries.query_ids", "query id 7 is in use"),
        ([SearchRequest(cancel=CancelQueries(query_ids=range(11)))], "cancel.query_ids", "11 queries to cancel"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_invalid_requests_end_the_call(
    bench: Bench, requests: Sequence[SearchRequest], field: str, words: str
) -> None:
    with pytest.raises(FieldError) as caught:
        await run(bench, *requests, max_queries=10)
    assert caught.value.field == field
    assert words in str(caught.value)


class Numbers(Sequence[int]):
    """Numbers that count how many of them are read."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self.reads = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: Any) -> Any:
        self.reads += len(self._numbers[at]) if isinstance(at, slice) else 1
        return self._numbers[at]


async def test_finding_a_repeated_id_reads_each_id_once(bench: Bench) -> None:
    """It took a quarter of a second for 4096 ids, in the event loop."""
    query_ids = Numbers([*range(999), 997])
    with pytest.raises(FieldError, match="query id 997 is in use"):
        bench.call().search._check_unused(query_ids)
    assert query_ids.reads <= len(query_ids)


async def test_an_id_can_be_reused_after_its_end(bench: Bench) -> None:
    """This holds for queries that were answered, refused or cancelled, in a group or alone."""
    call = bench.call()
    kinds = [QueryOptions(k=1), QueryOptions(k=1, payloads=True), QueryOptions(credit=1), QueryOptions(k=0)]
    for turn in range(400):
        ask(call, 7, options=kinds[turn % 4])
        if turn % 4 == 2:
            call.cancel(7)
        await call.until_ended(7)


async def test_too_many_running_queries_are_refused(bench: Bench, index: StoredIndex) -> None:
    call = bench.call(max_queries=10)
    ask(call, *range(8), options=QueryOptions(credit=0))
    place = (1.5, 3)
    tables = np.stack([random_table(BITS, query_id) for query_id in range(8, 11)])
    call.ask(batch("docs", range(8, 11), QueryOptions(k=1), tables=tables, after=[place] * 3))
    await call.until_ended(8, 9, 10)
    for query_id in (8, 9, 10):
        assert call[query_id].error.reason == error_pb2.ERROR_REASON_OVERLOADED
        assert "11 queries" in call[query_id].error.message
        assert call[query_id].end.resume == place
    assert call.under_way == set(range(8)), "no query of the batch was accepted"
    ask(call, 8, 9, options=QueryOptions(k=1))
    await call.until_ended(8, 9)
    assert call[8].hits.bytes() == whole(index, 8)[:1].bytes()
    call.cancel(*range(8))
    await call.finish()


async def test_invalid_options_refuse_only_their_batch(bench: Bench, index: StoredIndex) -> None:
    call = bench.call(max_k=100)
    ask(call, 1, 2, options=QueryOptions(k=101))
    ask(call, 3, options=QueryOptions(k=100))
    accounts = await call.finish()
    for query_id in (1, 2):
        assert accounts[query_id].error.field == "options.k"
        assert re.search("k = 101.* 1 to 100", accounts[query_id].error.message)
    assert accounts[3].hits.bytes() == whole(index, 3)[:100].bytes()


async def test_a_disconnected_client_stops_its_queries(bench: Bench) -> None:
    """gRPC cancels the task of the call, here during a write."""
    written, forever = asyncio.Event(), asyncio.Event()

    async def write(_: SearchResponse) -> None:
        written.set()
        await forever.wait()

    call = bench.call()
    serving = asyncio.create_task(
        call.search.run(requests_of(queries(1, 2), queries(3, credit=2), then=forever), write)
    )
    await written.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    ask(call, 99)  # a closed call ignores new queries
    other = bench.call()
    ask(other, 1, options=QueryOptions(k=1))
    await other.finish()
    async with asyncio.timeout(PATIENCE):
        while call.under_way or call.search.flow.open:
            await asyncio.to_thread(lambda: None)
    assert call.waiting == 0


async def test_a_request_error_comes_before_waiting_results(bench: Bench) -> None:
    sent = iter([queries(1, k=1)])

    async def receive() -> SearchRequest:
        for request in sent:
            return request
        raise FieldError("request", "3 bytes are not a message")

    async def write(_: SearchResponse) -> None:
        pass

    call = bench.call()
    with pytest.raises(FieldError, match="3 bytes"):
        await call.search.run(receive, write)
