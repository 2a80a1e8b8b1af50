"""Groups of queries that are stopped, or that wait because a client does not read."""

from __future__ import annotations

import math

import pytest

from tests.server import stepped_queries
from tests.server.calls import Bench, answer_of, batch, random_table
from tests.server.query_groups import options, tables, together
from tests.server.stepped_queries import BITS
from whamming import StoredIndex
from whamming.server.search import results
from whamming.server.search.query import State
from whamming.server.search.results import Results
from whamming.server.search.scheduler import MAX_TOGETHER

database = stepped_queries.database
index = stepped_queries.index
bench = stepped_queries.bench


async def test_cancelling_some_queries_of_a_group(bench: Bench, index: StoredIndex) -> None:
    await bench.learn("docs", BITS)
    await together(bench, options(), tables=tables(1))
    call = bench.call()
    call.ask(batch("docs", range(10), options(), tables=tables(10)))
    call.cancel(0, 4, 5, 9, 4)
    await call.read()
    assert [i for i, account in call.accounts.items() if account.has_ended] == [0, 4, 5, 9], "they end at once"
    accounts = await call.finish()
    for query_id, account in accounts.items():
        if query_id in (0, 4, 5, 9):
            assert account.reason == results.CANCELLED
            assert account.ids == []
        else:
            assert account.hits.bytes() == answer_of(index, random_table(BITS, query_id))[:3].bytes()


async def test_stopping_one_call_of_a_group(bench: Bench, index: StoredIndex) -> None:
    await bench.learn("docs", BITS)
    await together(bench, options(), tables=tables(1))
    calls = [bench.call() for _ in range(3)]
    for place, call in enumerate(calls):
        call.ask(batch("docs", range(4), options(), tables=tables(4, 10 * place)))
    calls[1].search.stop(results.SHUTDOWN)
    bench.run()
    for place, call in enumerate(calls):
        accounts = await call.finish()
        for query_id, account in accounts.items():
            if place == 1:
                assert account.reason == results.SHUTDOWN
            else:
                whole = answer_of(index, random_table(BITS, 10 * place + query_id))
                assert account.hits.bytes() == whole[:3].bytes()


@pytest.mark.parametrize("moment", ["searching", "found"])
async def test_stopping_queries_while_their_group_is_searched(bench: Bench, index: StoredIndex, moment: str) -> None:
    """They end without hits and with the stop reason, or with a complete answer."""
    await bench.learn("docs", BITS)
    await together(bench, options(), tables=tables(1))
    call = bench.call()

    class Stopping(type(call.search)):  # type: ignore[misc]
        """A call whose client cancels just before the answers are sent."""

        def send(self, some: Results) -> None:
            if moment == "found":
                self.cancel([1, 2])
            super().send(some)

    call.search.__class__ = Stopping
    call.ask(batch("docs", range(4), options(), tables=tables(4)))
    queries = [call.query(query_id) for query_id in range(4)]
    if moment == "searching":
        with call.search.lock:
            for query in queries:
                query.state = State.SEARCHING
        call.cancel(1, 2)
        assert call.under_way == {0, 1, 2, 3}, "the worker has to end them"
    bench.run()
    accounts = await call.finish()
    for query_id, account in accounts.items():
        if moment == "searching" and query_id in (1, 2):
            assert account.reason == results.CANCELLED
            assert account.counts == [0]
            assert account.bounds == [-math.inf]
        else:
            assert account.hits.bytes() == answer_of(index, random_table(BITS, query_id))[:3].bytes()
            assert account.reason == results.COMPLETE


async def test_a_group_waits_for_room_in_the_buffer(bench: Bench, index: StoredIndex) -> None:
    """A client that does not read fills only its own buffer. Other calls continue."""
    await bench.learn("docs", BITS)
    await together(bench, options(), tables=tables(1))
    call, other = bench.call(buffer_bytes=4000, max_queries=1000), bench.call()
    for first in range(0, 1000, 50):
        call.ask(batch("docs", range(first, first + 50), options(), tables=tables(50, first)))
        bench.run()
    one_group = MAX_TOGETHER * (3 * 16 + 2 * 64)
    assert 4000 <= call.waiting <= 4000 + one_group
    assert len(call.under_way) > 900
    assert {call.query(query_id).state for query_id in call.under_way} == {State.BLOCKED_ON_BUFFER}
    other.ask(batch("docs", range(5), options(), tables=tables(5)))
    bench.run()
    accounts = await other.finish()
    assert all(account.reason == results.COMPLETE for account in accounts.values())
    call.cancel(*range(980, 1000))
    assert not {990, 999} & call.under_way, "waiting queries are cancelled at once"
    accounts = await call.finish()
    for query_id in range(980):
        assert accounts[query_id].hits.bytes() == answer_of(index, random_table(BITS, query_id))[:3].bytes()
    assert {accounts[query_id].reason for query_id in range(980, 1000)} == {results.CANCELLED}


@pytest.mark.usefixtures("index")
async def test_stopping_a_group_that_waits_for_room(bench: Bench) -> None:
    await bench.learn("docs", BITS)
    call = bench.call(buffer_bytes=1)
    call.ask(batch("docs", range(4), options(), tables=tables(4)))
    bench.run()
    blocked = set(call.under_way)
    assert len(blocked) == 3, "the first query has filled the buffer"
    call.cancel(2)
    call.search.stop(results.SHUTDOWN)
    assert call.under_way == set()
    accounts = await call.finish()
    reasons = [accounts[query_id].reason for query_id in range(4)]
    assert reasons == [results.COMPLETE, results.SHUTDOWN, results.CANCELLED, results.SHUTDOWN]
