"""The life of one query: every arrow of the drawing in ``query.py``, slice by slice, without worker threads."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import whamming
from tests.native.examples import make_codes
from tests.native.oracle import Truth
from tests.server.calls import LONG, Bench, Call, answer_of, batch, random_table
from whamming import Database, StoredIndex
from whamming.server.search import results
from whamming.server.search.query import PAYLOAD_BYTES, PAYLOADS_TOGETHER, Query, State
from whamming.server.search.results import END_BYTES
from whamming.server.search.scheduler import MAX_OPEN
from whamming.v1.search_pb2 import PLAN_SWEEP, Budget, QueryOptions

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


def ask(call: Call, *query_ids: int, after: Sequence[tuple[float, int]] = (), **options: Any) -> None:
    """Send queries that all have the same costs."""
    tables = np.stack([TABLE] * len(query_ids))
    call.ask(batch("docs", query_ids, QueryOptions(**options), tables=tables, after=after))


async def blocked_on_credit(bench: Bench, credit: int) -> Call:
    """A call whose query 1 has sent as many hits as it was allowed."""
    call = bench.call()
    ask(call, 1, credit=credit)
    await call.run()
    assert call.query(1).state is State.BLOCKED_ON_CREDIT
    assert len(call[1].ids) == credit
    return call


async def blocked_on_buffer(bench: Bench) -> Call:
    """A call whose query 1 has filled the buffer."""
    call = bench.call(buffer_bytes=1)
    ask(call, 1, chunk_size=5)
    bench.run()
    assert call.query(1).state is State.BLOCKED_ON_BUFFER
    assert call.waiting > 0
    return call


# -- waiting, searching, ended -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("index")
async def test_a_query_is_answered_in_chunks(bench: Bench, whole: Truth) -> None:
    call = bench.call()
    ask(call, 1, chunk_size=7, statistics=True)
    assert call.query(1).state is State.WAITING
    assert not call.query(1).has_begun
    assert bench.step()
    assert call.query(1).state is State.WAITING, "its slice is over"
    assert call.query(1).has_begun
    account = (await call.finish())[1]
    assert account.hits.bytes() == whole.bytes()
    assert max(account.counts) == 7
    assert account.reason == results.EXHAUSTED
    assert account.bounds[-1] == math.inf
    assert account.end.stats.candidates > 0


@pytest.mark.usefixtures("index")
async def test_the_first_hit_does_not_wait_for_others(database: Database, whole: Truth) -> None:
    bench = Bench(database, slice_seconds=1e-6)
    call = bench.call()
    ask(call, 1, plan=PLAN_SWEEP)
    while not call.waiting:
        assert bench.step()
    await call.read()
    assert 0 < len(call[1].ids) < N
    assert (await call.finish())[1].hits.bytes() == whole.bytes()


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("k", [1, 7, 300])
async def test_the_last_hits_come_with_the_end(bench: Bench, whole: Truth, k: int) -> None:
    call = bench.call()
    ask(call, 1, k=k)
    account = (await call.finish())[1]
    assert account.hits.bytes() == whole[:k].bytes()
    assert account.reason == results.COMPLETE
    assert account.counts[-1] > 0, "no message of its own for the end"
    assert account.bounds[-1] <= whole.distances[k]


async def test_a_query_that_cannot_begin_fails(bench: Bench) -> None:
    call = bench.call()
    ask(call, 1)
    assert bench.run() == 1
    await call.read()
    assert call[1].error.reason == 4
    assert call.under_way == set()
    assert call.search.flow.open == 0


# -- credit ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("credit", [0, 1, 5])
async def test_credit_blocks_a_query(bench: Bench, whole: Truth, credit: int) -> None:
    call = await blocked_on_credit(bench, credit)
    assert call.query(1).needs_credit
    assert not bench.step(), "a blocked query takes no worker's time"
    call.grant(1, 2)
    assert call.query(1).state is State.WAITING
    assert not call.query(1).needs_credit
    call.grant(1, 1)
    await call.run()
    assert call.query(1).state is State.BLOCKED_ON_CREDIT
    assert call[1].hits.bytes() == whole[: credit + 3].bytes()


@pytest.mark.usefixtures("index")
async def test_a_grant_of_nothing_wakes_and_blocks_again(bench: Bench) -> None:
    call = await blocked_on_credit(bench, 2)
    call.grant(1, 0)
    await call.run()
    assert call.query(1).state is State.BLOCKED_ON_CREDIT
    assert len(call[1].ids) == 2
    assert call.search.flow.open == 0


@pytest.mark.usefixtures("index")
async def test_a_grant_before_the_query_begins_is_not_lost(bench: Bench, whole: Truth) -> None:
    call = bench.call()
    ask(call, 1, credit=0)
    call.grant(1, 4)
    assert call.query(1).state is State.WAITING
    await call.run()
    assert call[1].hits.bytes() == whole[:4].bytes()


@pytest.mark.usefixtures("index")
async def test_a_grant_during_the_search_is_not_lost(bench: Bench, whole: Truth) -> None:
    """It arrives when the query has used up its credit, but its worker has not left it yet."""
    call = bench.call()
    ask(call, 1, credit=3)
    while not call.query(1).needs_credit:
        assert bench.step()
        if call.query(1).state is State.BLOCKED_ON_CREDIT:
            call.grant(1, 1)
            break
    query = call.query(1)
    assert query.take()
    call.grant(1, 2)
    assert query.state is State.SEARCHING, "its worker goes on with it"
    assert query.leave() is State.WAITING
    bench.searcher.resume([query])
    await call.run()
    assert len(call[1].ids) == 6
    assert call[1].hits.bytes() == whole[:6].bytes()


@pytest.mark.usefixtures("index")
async def test_credit_that_is_exactly_used_up_ends_the_query(bench: Bench, whole: Truth) -> None:
    call = bench.call()
    ask(call, 1, credit=5, k=5, payloads=True)  # payloads: it has a cursor of its own
    ask(call, 2, credit=N)
    ask(call, 3, credit=N - 1)
    await call.run()
    assert call[1].reason == results.COMPLETE
    assert call[2].hits.bytes() == whole.bytes()
    assert call.query(3).state is State.BLOCKED_ON_CREDIT
    call.grant(3, 1)
    if call[2].has_ended:  # the engine knew that there was nothing more
        assert call[2].reason == results.EXHAUSTED
    else:
        call.grant(2, 1)
    await call.run()
    assert call[2].reason == call[3].reason == results.EXHAUSTED


@pytest.mark.usefixtures("index")
async def test_credit_needs_no_room_and_room_no_credit(bench: Bench, whole: Truth) -> None:
    """A grant to a query that waits for room is added up and does not wake it."""
    call = bench.call(buffer_bytes=1)
    ask(call, 1, credit=10, chunk_size=4)
    bench.run()
    assert call.query(1).state is State.BLOCKED_ON_BUFFER
    for _ in range(100):
        call.grant(1, 1)
        assert call.query(1).state is State.BLOCKED_ON_BUFFER
        assert not bench.step()
    assert len(call.search.blocked) == 1
    await call.run()
    assert call.query(1).state is State.BLOCKED_ON_CREDIT
    assert call[1].hits.bytes() == whole[:110].bytes()


@pytest.mark.usefixtures("index")
async def test_a_grant_to_nobody_is_ignored(bench: Bench) -> None:
    call = bench.call()
    call.grant(99, 5)
    ask(call, 1, k=1)
    await call.run()
    call.search.grant(1, 5)
    assert not bench.step()


@pytest.mark.usefixtures("index")
async def test_a_grant_as_a_worker_leaves_keeps_the_count_of_open_queries(bench: Bench) -> None:
    """A worker that has left a query for want of credit tells the scheduler later; by then there may be credit."""
    call = bench.call()
    ask(call, *range(2 * MAX_OPEN), credit=0)
    granted: set[int] = set()

    class Granted(Query):
        """A query whose client grants a hit at that very moment."""

        __slots__ = ()

        def leave(self) -> State:
            state = super().leave()
            if state is State.BLOCKED_ON_CREDIT and self.id not in granted:
                granted.add(self.id)
                call.grant(self.id, 1)
            return state

    for query_id in call.under_way:
        call.query(query_id).__class__ = Granted
    await call.run()
    assert len(granted) == 2 * MAX_OPEN
    assert [len(account.ids) for account in call.accounts.values()] == [1] * (2 * MAX_OPEN)
    assert call.search.flow.open == 0


# -- room in the buffer ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("index")
async def test_a_full_buffer_blocks_a_query(bench: Bench, whole: Truth) -> None:
    call = await blocked_on_buffer(bench)
    held = call.waiting
    assert not bench.step(), "a blocked query takes no worker's time"
    while not call[1].has_ended:
        assert await call.read_message()
        assert call[1].has_ended or call.query(1).state is State.WAITING, "there is room"
        bench.run()
        assert call.waiting <= held + END_BYTES
    assert call[1].hits.bytes() == whole.bytes()


@pytest.mark.usefixtures("index")
async def test_queries_stay_blocked_until_there_is_room(bench: Bench) -> None:
    call = bench.call(buffer_bytes=600_000)
    ask(call, *range(150), chunk_size=N)  # several messages of waiting hits, about 6,400 bytes each
    bench.run()
    blocked = [i for i in call.under_way if call.query(i).state is State.BLOCKED_ON_BUFFER]
    assert len(blocked) > 10
    waiting = call.waiting
    assert 600_000 <= waiting < 620_000
    while call.waiting >= 600_000:
        assert not bench.step()
        await call.read_message()
    assert {call.query(i).state for i in blocked} == {State.WAITING}
    await call.finish()


# -- stop --------------------------------------------------------------------------------------------------------------


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
    assert bench.run() == 1, "the worker that takes it finds it ended"
    assert call.waiting == 0
    assert call.search.flow.open == 0


@pytest.mark.usefixtures("index")
async def test_queries_behind_64_open_ones_are_cancelled_at_once(bench: Bench) -> None:
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
async def test_a_query_is_stopped_between_slices(bench: Bench, whole: Truth) -> None:
    call = bench.call()
    ask(call, 1, chunk_size=3)
    bench.step()
    assert call.query(1).state is State.WAITING
    call.cancel(1)
    assert call.under_way == {1}, "a worker frees its cursor"
    assert bench.run() == 1
    await call.read()
    assert call[1].reason == results.CANCELLED
    call[1].check_prefix(whole)
    assert call.search.flow.open == 0


@pytest.mark.usefixtures("index")
async def test_a_query_is_stopped_while_a_worker_searches(bench: Bench, whole: Truth) -> None:
    """The engine returns what is proven, and the worker ends the query."""
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
async def test_a_stop_that_comes_before_the_worker_leaves_is_not_lost(bench: Bench) -> None:
    call = bench.call()
    ask(call, 1, credit=0)
    ask(call, 2, chunk_size=1)
    bench.step()
    query = call.query(1)
    assert query.state is State.BLOCKED_ON_CREDIT
    query.wake()
    assert query.take()
    call.cancel(1)
    assert query.leave() is State.WAITING, "it does not block any more"
    assert query.search(LONG)
    await call.read()
    assert call[1].reason == results.CANCELLED


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("sent", [0, 5])
async def test_a_query_blocked_on_credit_is_stopped_and_continues_elsewhere(
    bench: Bench, whole: Truth, sent: int
) -> None:
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
    assert not bench.step(), "room that appears wakes no query that has ended"


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("ready", [blocked_on_buffer, lambda bench: blocked_on_credit(bench, 3)])
async def test_the_first_stop_counts(bench: Bench, ready: Any) -> None:
    call = await ready(bench)
    call.cancel(1, 1)
    call.search.stop(results.SHUTDOWN)
    call.search.expire()
    call.cancel(1)
    assert bench.run() == 1, "it is handed to the scheduler once"
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
async def test_a_resume_token_outlives_a_query_without_hits(bench: Bench) -> None:
    call = bench.call()
    ask(call, 1, after=[(1.5, 7)])
    ask(call, 2, after=[(1.5, 7)], credit=0)
    call.cancel(1)
    await call.run()
    call.cancel(2)
    await call.run()
    assert call[1].end.resume == call[2].end.resume == (1.5, 7)


# -- snapshots ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("index")
async def test_an_old_snapshot_ends_a_query(database: Database) -> None:
    bench = Bench(database, snapshot_seconds=-1.0)
    call = bench.call()
    ask(call, 1)
    query = call.query(1)
    assert not query.is_stale, "it holds no snapshot yet"
    assert bench.run() == 1
    await call.read()
    assert call[1].reason == results.SNAPSHOT_EXPIRED
    assert not query.is_stale, "it holds no snapshot any more"


@pytest.mark.usefixtures("index")
async def test_snapshots_of_blocked_queries_expire(bench: Bench) -> None:
    call = await blocked_on_credit(bench, 2)
    ask(call, 2, credit=2)
    call.search.expire()
    assert call.query(1).state is State.BLOCKED_ON_CREDIT, "it is not old"
    lease = call.query(1)._lease
    assert lease is not None
    lease._until = -math.inf
    call.search.expire()
    await call.run()
    assert call[1].reason == results.SNAPSHOT_EXPIRED
    assert call[1].end.resume is not None
    assert call.query(2).state is State.BLOCKED_ON_CREDIT


async def test_a_query_sees_the_index_as_it_was_when_it_began(bench: Bench, index: StoredIndex, whole: Truth) -> None:
    call = await blocked_on_credit(bench, 3)
    index.delete(whole.ids[10:20])
    index.upsert([1000], np.zeros((1, 3), dtype=np.uint8))
    call.grant(1, 10_000)
    assert (await call.finish())[1].hits.bytes() == whole.bytes()


# -- budgets -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("k", [None, 10])
async def test_a_budget_of_candidates_ends_a_query(bench: Bench, whole: Truth, k: int | None) -> None:
    call = bench.call()
    ask(call, 1, k=k, budget=Budget(candidates=1), plan=PLAN_SWEEP, chunk_size=1)
    account = (await call.finish())[1]
    assert account.reason == results.BUDGET
    assert not account.end.exact
    account.check_prefix(whole)
    guess = account.end.guess
    if k is None:
        assert guess is None
    else:
        assert guess is not None
        assert not set(guess.ids.tolist()) & set(account.ids)
        distances = dict(zip(whole.ids.tolist(), whole.distances.tolist(), strict=True))
        pairs = list(zip(guess.distances.tolist(), guess.ids.tolist(), strict=True))
        assert pairs == sorted(pairs)
        assert all(distances[id_] == distance for distance, id_ in pairs)


@pytest.mark.usefixtures("index")
async def test_a_budget_of_seconds_ends_a_query(bench: Bench) -> None:
    call = bench.call()
    ask(call, 1, budget=Budget(seconds=1e-9), chunk_size=1)
    ask(call, 2, budget=Budget(seconds=3600.0, candidates=10**9))
    accounts = await call.finish()
    assert accounts[1].reason == results.BUDGET
    assert accounts[2].reason == results.EXHAUSTED


# -- payloads ----------------------------------------------------------------------------------------------------------


async def test_chunks_with_payloads_stay_small(database: Database, bench: Bench) -> None:
    """Also where the payloads of near items say nothing of those of far ones."""
    index = database.create_index("docs", BITS)
    codes = make_codes("uniform", N, BITS, np.random.default_rng(1))
    index.upsert(range(N), codes)
    whole = answer_of(index, TABLE)
    payloads = {id_: b"" if place < 200 else bytes([place % 251]) * 65_536 for place, id_ in enumerate(whole.ids)}
    index.upsert(range(N), codes, [payloads[np.uint64(id_)] for id_ in range(N)])
    call = bench.call()
    ask(call, 1, payloads=True)
    account = (await call.finish())[1]
    assert account.hits.bytes() == whole.bytes()
    assert account.payloads == [payloads[id_] for id_ in whole.ids]
    assert account.reason == results.EXHAUSTED
    sizes, first = [], 0
    for count in account.counts:
        sizes.append(sum(map(len, account.payloads[first : first + count])))
        first += count
    assert max(sizes) <= PAYLOAD_BYTES + PAYLOADS_TOGETHER * 65_536
    assert len(sizes) > 5


async def test_a_query_stopped_between_payloads_continues_there(database: Database, bench: Bench) -> None:
    index = database.create_index("docs", BITS)
    index.upsert(range(N), make_codes("uniform", N, BITS, np.random.default_rng(1)), [bytes(60_000)] * N)
    whole = answer_of(index, TABLE)
    call = bench.call(buffer_bytes=1 << 30)
    ask(call, 1, payloads=True, k=300, credit=290)
    while len(call[1].ids) < 20:
        assert bench.step()
        await call.read()
    sent = len(call[1].ids)
    assert sent < 290
    call.search.stop(results.SHUTDOWN)
    await call.run()
    assert call[1].end.resume == (float(whole.distances[sent - 1]), int(whole.ids[sent - 1]))
    call[1].check_prefix(whole)


async def test_payloads_count_against_credit_and_buffer(database: Database, bench: Bench) -> None:
    index = database.create_index("docs", BITS)
    index.upsert(range(N), make_codes("uniform", N, BITS, np.random.default_rng(1)), [bytes(60_000)] * N)
    whole = answer_of(index, TABLE)
    call = bench.call(buffer_bytes=1 << 20)
    ask(call, 1, payloads=True, credit=100)
    bench.run()
    assert call.query(1).state is State.BLOCKED_ON_BUFFER
    assert call.waiting <= (1 << 20) + PAYLOAD_BYTES + PAYLOADS_TOGETHER * 65_536
    await call.run()
    assert call.query(1).state is State.BLOCKED_ON_CREDIT
    assert call[1].hits.bytes() == whole[:100].bytes()
    assert [len(payload) for payload in call[1].payloads] == [60_000] * 100


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("index")
async def test_grants_and_stops_from_elsewhere_neither_hang_nor_repeat(bench: Bench, whole: Truth) -> None:
    """A worker and the event loop race 300 times; however they meet, every hit is sent once, and the end."""
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
