"""The server bounds the memory of a call, whatever the client sends and however little it reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import whamming
from tests.native.examples import make_codes
from tests.server.calls import Bench, batch, random_table
from whamming import Database
from whamming.server.search import call as calls
from whamming.server.search import cursors
from whamming.server.search.query import Query
from whamming.server.search.scheduler import ClientQueue, Flow, Scheduler
from whamming.server.search.send_buffer import RESPONSE_BYTES
from whamming.v1 import error_pb2, search_pb2
from whamming.v1.search_pb2 import QueryOptions, SearchRequest

BITS = 40
N = 500
PATIENCE = 30.0


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with whamming.open(":memory:") as database:
        index = database.create_index("docs", BITS)
        index.upsert(range(N), make_codes("uniform", N, BITS, np.random.default_rng(0)))
        yield database


@pytest.fixture
def bench(database: Database) -> Iterator[Bench]:
    bench = Bench(database)
    yield bench
    bench.close()


def tables(*seeds: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.stack([random_table(BITS, seed) for seed in seeds])


async def test_the_longest_waiting_query_ends_if_too_many_wait_for_credit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "MAX_CLIENT_CURSORS", 3)
    call = bench.call()
    for query_id in range(5):
        call.ask(batch("docs", [query_id], QueryOptions(credit=2), tables=tables(query_id)))
        await call.run()
    assert [query_id for query_id in range(5) if call[query_id].has_ended] == [0, 1]
    assert {call[query_id].reason for query_id in (0, 1)} == {search_pb2.END_REASON_SNAPSHOT_EXPIRED}
    call.grant(2, N)
    await call.run()
    assert call[2].reason == search_pb2.END_REASON_EXHAUSTED
    call.search.close()


async def test_the_cursors_of_a_client_have_a_limit_however_many_calls_it_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit was one per call: a client with 64 calls could have 64 times as many."""
    monkeypatch.setattr(cursors, "MAX_CLIENT_CURSORS", 6)
    client = ClientQueue()
    some, other = [bench.call(client=client) for _ in range(4)], bench.call()
    asked = [(call, query_id) for query_id in range(3) for call in some]
    for call, query_id in [*asked, *((other, query_id) for query_id in range(5))]:
        call.ask(batch("docs", [query_id], QueryOptions(credit=2), tables=tables(query_id)))
        await call.run()
        for one in some:
            await one.run()
    assert [call[query_id].has_ended for call, query_id in asked] == [True] * 6 + [False] * 6
    assert {call[query_id].reason for call, query_id in asked[:6]} == {search_pb2.END_REASON_SNAPSHOT_EXPIRED}
    assert all(call[query_id].end.resume is not None for call, query_id in asked[:6])
    assert not any(other[query_id].has_ended for query_id in range(5)), "another client has a limit of its own"
    assert bench.searcher.cursors.count == 6 + 5
    for call in [*some, other]:
        call.search.close()
    bench.run()
    assert bench.searcher.cursors.count == 0


@pytest.mark.parametrize("limit", ["MAX_CLIENT_BYTES", "MAX_BYTES"])
async def test_the_memory_of_waiting_cursors_has_a_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Cursors that have returned many hits take megabytes; only their number was limited."""
    call = bench.call()
    call.ask(batch("docs", [0], QueryOptions(credit=2), tables=tables(0)))
    await call.run()
    each = call.query(0).memory
    assert 500 < each < 1 << 17
    monkeypatch.setattr(cursors, limit, int(3.5 * each))
    for query_id in range(1, 6):
        call.ask(batch("docs", [query_id], QueryOptions(credit=2), tables=tables(query_id)))
        await call.run()
    assert [query_id for query_id in range(6) if call[query_id].has_ended] == [0, 1, 2]
    assert {call[query_id].reason for query_id in range(3)} == {search_pb2.END_REASON_SNAPSHOT_EXPIRED}
    for query_id in range(3, 6):
        call.grant(query_id, N)
        await call.run()
        assert call[query_id].reason == search_pb2.END_REASON_EXHAUSTED
    assert bench.searcher.cursors._size == 0
    assert bench.searcher.cursors.count == 0


async def test_the_cursors_of_all_clients_have_a_limit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is made by the client with the most waiting queries."""
    monkeypatch.setattr(cursors, "MAX_CURSORS", 5)
    greedy, modest = bench.call(), bench.call()
    greedy.ask(batch("docs", range(5), QueryOptions(credit=2), tables=tables(*range(5))))
    await greedy.run()
    modest.ask(batch("docs", [0, 1], QueryOptions(credit=2), tables=tables(0, 1)))
    await modest.run()
    await greedy.run()
    assert [greedy[query_id].has_ended for query_id in range(5)] == [True, True, False, False, False]
    assert not modest[0].has_ended
    assert not modest[1].has_ended
    assert bench.searcher.cursors.count == 5


async def test_a_query_is_refused_if_no_cursor_can_make_room(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Granting credit without reading hits keeps cursors from being ended, so it must not make room for more."""
    monkeypatch.setattr(cursors, "MAX_CLIENT_CURSORS", 3)
    client = ClientQueue()
    stalled, fresh = bench.call(client=client, buffer_bytes=1), bench.call(client=client)
    stalled.ask(batch("docs", range(3), QueryOptions(chunk_size=2), tables=tables(0, 1, 2)))
    bench.run()
    assert all(stalled.query(query_id).has_begun for query_id in range(3))
    fresh.ask(batch("docs", [0], QueryOptions(credit=2), tables=tables(0)))
    await fresh.run()
    assert fresh[0].error.reason == error_pb2.ERROR_REASON_OVERLOADED
    await stalled.run()  # its queries end, and make room
    fresh.ask(batch("docs", [1], QueryOptions(credit=2), tables=tables(0)))
    await fresh.run()
    assert not fresh[1].has_ended


async def test_running_requests_have_a_limit_in_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_REQUEST_BYTES", 3 * BITS * 2 * 8)
    call = bench.call()
    options = QueryOptions(credit=0)
    call.ask(batch("docs", [1, 2], options, tables=tables(1, 2)))
    call.ask(batch("docs", [3, 4], options, tables=tables(3, 4)))
    await call.run()
    assert {call[query_id].error.reason for query_id in (3, 4)} == {error_pb2.ERROR_REASON_OVERLOADED}
    call.cancel(1, 2)
    await call.run()
    call.ask(batch("docs", [5, 6, 7], QueryOptions(k=1), tables=tables(5, 6, 7)))
    await call.run()
    assert all(call[query_id].reason == search_pb2.END_REASON_COMPLETE for query_id in (5, 6, 7))


async def test_reading_stops_while_the_send_buffer_is_overfull(bench: Bench) -> None:
    """Refused queries end without waiting for room, so the server must stop reading requests instead."""
    call = bench.call(buffer_bytes=1 << 12)
    bad = QueryOptions(k=0)
    received = 0
    sent: list[search_pb2.SearchResponse] = []
    reading = asyncio.Event()

    async def receive() -> SearchRequest | None:
        nonlocal received
        assert not call.search.buffer.is_overfull, "the request would be held until the client reads"
        if received == 400:
            return None
        received += 1
        first = 10 * received
        return SearchRequest(queries=batch("docs", range(first, first + 10), bad, tables=np.ones((10, BITS, 2))))

    async def send(response: search_pb2.SearchResponse) -> None:
        await reading.wait()
        sent.append(response)

    serving = asyncio.create_task(call.search.run(receive, send))
    for _ in range(1000):
        await asyncio.sleep(0)
    assert 0 < received < 100
    reading.set()
    await asyncio.wait_for(serving, PATIENCE)
    assert received == 400
    assert sum(len(response.ends.query_ids) for response in sent) == 4000


async def test_ends_of_refused_queries_are_sent_in_several_messages(bench: Bench) -> None:
    """The text of their errors counts, too."""
    call = bench.call()
    sent: list[search_pb2.SearchResponse] = []
    left = [SearchRequest(queries=batch("docs", range(4096), QueryOptions(k=0), tables=np.ones((1, BITS, 2))))]

    async def receive() -> SearchRequest | None:
        return left.pop() if left else None

    async def send(response: search_pb2.SearchResponse) -> None:
        sent.append(response)

    await asyncio.wait_for(call.search.run(receive, send), PATIENCE)
    assert [query_id for response in sent for query_id in response.ends.query_ids] == list(range(4096))
    assert max(response.ByteSize() for response in sent) <= RESPONSE_BYTES


def test_queries_of_one_message_use_all_workers() -> None:
    """Each worker that finds more work wakes the next one, even if all queries belong to one flow."""
    together = threading.Barrier(3, timeout=PATIENCE)

    class Task:
        group = None

        def __init__(self, flow: Flow) -> None:
            self.flow = flow

    def run(jobs: Sequence[Task], seconds: float) -> Sequence[Task]:
        together.wait()
        done.release()
        return ()

    done = threading.Semaphore(0)
    scheduler: Scheduler[Task] = Scheduler(3, 0.001, run)
    try:
        flow = Flow()
        scheduler.submit(flow, [Task(flow) for _ in range(3)])
        scheduler.dispatch()
        for _ in range(3):
            assert done.acquire(timeout=PATIENCE)
    finally:
        scheduler.close()


async def test_queries_of_an_index_that_is_not_ready_run_on_workers(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(database)
    await bench.learn("docs", BITS)
    call = bench.call()
    ran: list[int] = []
    original = bench.searcher._search_together

    def search_together(queries: Sequence[Query], seconds: float) -> Sequence[Query]:
        ran.append(len(queries))
        return original(queries, seconds)

    monkeypatch.setattr(bench.searcher, "_search_together", search_together)
    for query_id, ready in ((1, True), (2, False), (3, True)):
        if not ready:
            database.index("docs").upsert([query_id], make_codes("uniform", 1, BITS, np.random.default_rng(query_id)))
        call.ask(batch("docs", [query_id], QueryOptions(k=1), tables=tables(query_id)))
        before = len(ran)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not ready:
            assert len(ran) == before
        await call.run()
        assert call[query_id].has_ended
    bench.close()
