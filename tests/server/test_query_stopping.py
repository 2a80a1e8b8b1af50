"""Stopping queries in each of their states."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.native.oracle import Truth
from tests.server import stepped_queries
from tests.server.calls import LONG, Bench
from tests.server.stepped_queries import ask, blocked_on_buffer, blocked_on_credit
from tests.serving import PATIENCE
from whamming.server.search import results
from whamming.server.search.call import CANCELLED_TOGETHER
from whamming.server.search.query import State
from whamming.server.search.scheduler import MAX_OPEN
from whamming.v1.search_pb2 import CancelQueries, SearchRequest, SearchResponse

database = stepped_queries.database
index = stepped_queries.index
whole = stepped_queries.whole
bench = stepped_queries.bench


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("reason", [results.CANCELLED, results.SHUTDOWN])
async def test_a_query_that_has_not_begun_ends_at_once(bench: Bench, reason: Any) -> None:
    call = bench.call()
    ask(call, 1, statistics=True)
    call.search.stop(reason)
    assert call.under_way == set()
    await call.read()
    assert call[1].reason == reason
    assert call[1].end.resume is None
    assert call[1].end.stats.candidates == 0
    assert bench.run() == 1, "a worker still takes it, and finds that it has ended"
    assert call.waiting == 0
    assert call.search.flow.open == 0


@pytest.mark.usefixtures("index")
async def test_queries_beyond_the_open_limit_are_cancelled_at_once(bench: Bench) -> None:
    call = bench.call(buffer_bytes=1)
    ask(call, *range(MAX_OPEN + 36), chunk_size=100)
    bench.run()
    begun = [query_id for query_id in range(MAX_OPEN + 36) if call.query(query_id).has_begun]
    assert begun == list(range(MAX_OPEN))
    call.cancel(*range(MAX_OPEN, MAX_OPEN + 36))
    assert call.under_way == set(range(MAX_OPEN))
    await call.read()
    for query_id in range(MAX_OPEN, MAX_OPEN + 36):
        assert call[query_id].reason == results.CANCELLED
    call.cancel(*range(MAX_OPEN))
    await call.finish()


@pytest.mark.usefixtures("index")
async def test_closing_a_call_leaves_no_work_for_queries_that_have_not_begun(bench: Bench) -> None:
    """Their ends were made although nobody reads them, and a worker had to take each of them."""
    call = bench.call()
    ask(call, *range(100), chunk_size=3)
    bench.step()
    call.search.close()
    assert call.under_way == {0}
    assert bench.run() == 1, "only the query that has begun"
    assert call.under_way == set()
    assert call.search.flow.open == 0
    assert call.search._request_bytes == 0


async def falling(count: Callable[[], int]) -> list[int]:
    """Return by how much a number falls in each turn of the event loop until it is 0, largest first."""
    counts = [count()]
    async with asyncio.timeout(PATIENCE):
        while counts[-1]:
            await asyncio.sleep(0)
            counts.append(count())
    return sorted((before - after for before, after in itertools.pairwise(counts)), reverse=True)


def receiving(*requests: SearchRequest) -> Callable[[], Awaitable[SearchRequest | None]]:
    """Return a function that receives some requests, and then waits for more."""
    left = iter(requests)

    async def receive() -> SearchRequest | None:
        request = next(left, None)
        if request is None:
            await asyncio.get_running_loop().create_future()
        return request

    return receive


async def discard(response: SearchResponse) -> None:
    """Do not send a response."""


@pytest.mark.usefixtures("index")
async def test_cancelling_many_queries_takes_several_turns_of_the_event_loop(bench: Bench) -> None:
    """The event loop stopped until all queries of all calls had ended."""
    count = 4 * CANCELLED_TOGETHER + 1
    request = SearchRequest(cancel=CancelQueries(query_ids=range(count)))
    calls = [bench.call() for _ in range(3)]
    for call in calls:
        ask(call, *range(count))
    serving = [asyncio.ensure_future(call.search.run(receiving(request), discard)) for call in calls]
    first, second, *_ = await falling(lambda: sum(len(call.under_way) for call in calls))
    assert first <= len(calls) * CANCELLED_TOGETHER, "each call begins at once"
    assert second <= CANCELLED_TOGETHER, "then one of them continues in each turn"
    for task in serving:
        task.cancel()
    await asyncio.wait(serving)


@pytest.mark.usefixtures("index")
async def test_one_call_is_closed_in_each_turn_of_the_event_loop(bench: Bench) -> None:
    calls = [bench.call() for _ in range(10)]
    for call in calls:
        ask(call, *range(10))
    serving = [asyncio.ensure_future(call.search.run(receiving(), discard)) for call in calls]
    await asyncio.sleep(0)
    for task in serving:
        task.cancel()
    assert (await falling(lambda: sum(bool(call.under_way) for call in calls)))[0] == 1
    await asyncio.wait(serving)


@pytest.mark.usefixtures("index")
async def test_a_query_is_stopped_between_slices(bench: Bench, whole: Truth) -> None:
    call = bench.call()
    ask(call, 1, chunk_size=3)
    bench.step()
    assert call.query(1).state is State.WAITING
    call.cancel(1)
    assert call.under_way == {1}, "a worker has to free its cursor"
    assert bench.run() == 1
    await call.read()
    assert call[1].reason == results.CANCELLED
    call[1].check_prefix(whole)
    assert call.search.flow.open == 0


@pytest.mark.usefixtures("index")
async def test_a_query_is_stopped_while_a_worker_searches(bench: Bench, whole: Truth) -> None:
    """The engine returns the proven hits, and the worker ends the query."""
    call = bench.call()
    ask(call, 1, chunk_size=3)
    bench.step()
    query = call.query(1)
    assert query.take()
    call.cancel(1)
    assert query.state is State.SEARCHING
    assert call.under_way == {1}
    assert query.search(LONG)
    assert call.under_way == set()
    await call.read()
    assert call[1].reason == results.CANCELLED
    call[1].check_prefix(whole)


@pytest.mark.usefixtures("index")
async def test_a_stop_before_the_end_of_a_slice_is_not_lost(bench: Bench) -> None:
    call = bench.call()
    ask(call, 1, credit=0)
    ask(call, 2, chunk_size=1)
    bench.step()
    query = call.query(1)
    assert query.state is State.BLOCKED_ON_CREDIT
    query.wake()
    assert query.take()
    call.cancel(1)
    assert query.leave() is State.WAITING, "a stopped query does not block"
    assert query.search(LONG)
    await call.read()
    assert call[1].reason == results.CANCELLED


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("sent", [0, 5])
async def test_a_stopped_query_continues_on_another_call(bench: Bench, whole: Truth, sent: int) -> None:
    call = await blocked_on_credit(bench, sent)
    call.search.stop(results.SHUTDOWN)
    assert call.query(1).state is State.WAITING
    assert bench.run() == 1
    await call.read()
    account = call[1]
    assert account.reason == results.SHUTDOWN
    assert not account.end.exact
    resume = account.end.resume
    assert resume == ((float(whole.distances[4]), int(whole.ids[4])) if sent else None)
    assert call.search.flow.open == 0
    rest = bench.call()
    ask(rest, 1, after=[resume] if resume else ())
    assert account.ids + (await rest.finish())[1].ids == whole.ids.tolist()


@pytest.mark.usefixtures("index")
async def test_a_query_blocked_on_the_buffer_is_stopped(bench: Bench, whole: Truth) -> None:
    call = await blocked_on_buffer(bench)
    call.cancel(1)
    assert call.query(1).state is State.WAITING
    assert bench.run() == 1
    assert call.under_way == set()
    await call.read()
    assert call[1].reason == results.CANCELLED
    call[1].check_prefix(whole)
    assert not bench.step(), "room in the buffer does not wake a query that has ended"


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("ready", [blocked_on_buffer, lambda bench: blocked_on_credit(bench, 3)])
async def test_the_first_stop_counts(bench: Bench, ready: Any) -> None:
    call = await ready(bench)
    call.cancel(1, 1)
    call.search.stop(results.SHUTDOWN)
    call.search.expire()
    call.cancel(1)
    assert bench.run() == 1, "the query is resubmitted once"
    await call.read()
    assert call[1].reason == results.CANCELLED


@pytest.mark.usefixtures("index")
async def test_a_query_that_has_ended_is_not_stopped_again(bench: Bench) -> None:
    call = bench.call()
    ask(call, 1, k=1)
    query = call.query(1)
    await call.run()
    with call.search.lock:
        assert not query.stop(results.CANCELLED)
        assert not query.grant(5)
        assert query.end_unbegun() is None
    assert query.stop_reason is None
    assert not query.take()
    assert call[1].reason == results.COMPLETE
    assert call.waiting == 0


@pytest.mark.usefixtures("index")
async def test_a_query_without_hits_returns_its_own_resume_token(bench: Bench) -> None:
    call = bench.call()
    ask(call, 1, after=[(1.5, 7)])
    ask(call, 2, after=[(1.5, 7)], credit=0)
    call.cancel(1)
    await call.run()
    call.cancel(2)
    await call.run()
    assert call[1].end.resume == call[2].end.resume == (1.5, 7)


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("index")
async def test_grants_and_stops_race_with_a_worker(bench: Bench, whole: Truth) -> None:
    """However the worker and the event loop interleave, every hit and the end are sent exactly once."""
    for turn in range(300):
        call = bench.call()
        ask(call, 1, credit=1)
        over = threading.Event()

        def work(over: threading.Event = over) -> None:
            while not over.is_set():
                bench.step()
            bench.run()

        worker = threading.Thread(target=work)
        worker.start()
        for _ in range(turn % 7):
            call.grant(1, 2)
        call.cancel(1)
        over.set()
        worker.join(20)
        assert not worker.is_alive()
        await call.read()
        assert call[1].reason == results.CANCELLED
        assert len(call[1].ids) <= 1 + 2 * (turn % 7)
        call[1].check_prefix(whole)
        assert call.search.flow.open == 0
