"""One query from start to end: chunks, snapshots, budgets and payloads. ``query.py`` has a diagram of its states."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.native.examples import make_codes
from tests.native.oracle import Truth
from tests.server import stepped_queries
from tests.server.calls import Bench, answer_of
from tests.server.stepped_queries import BITS, TABLE, N, ask, blocked_on_credit
from whamming import Database, StoredIndex
from whamming.server.search import results
from whamming.server.search.query import PAYLOAD_BYTES, PAYLOADS_TOGETHER, State
from whamming.v1.search_pb2 import PLAN_SWEEP, Budget

database = stepped_queries.database
index = stepped_queries.index
whole = stepped_queries.whole
bench = stepped_queries.bench


# -- waiting, searching, ended -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("index")
async def test_a_query_is_answered_in_chunks(bench: Bench, whole: Truth) -> None:
    call = bench.call()
    ask(call, 1, chunk_size=7, statistics=True)
    assert call.query(1).state is State.WAITING
    assert not call.query(1).has_begun
    assert bench.step()
    assert call.query(1).state is State.WAITING, "the slice is over"
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
    assert account.counts[-1] > 0, "the end must come with the last hits"
    assert account.bounds[-1] <= whole.distances[k]


async def test_a_query_to_a_missing_index_fails(bench: Bench) -> None:
    call = bench.call()
    ask(call, 1)
    assert bench.run() == 1
    await call.read()
    assert call[1].error.reason == 4
    assert call.under_way == set()
    assert call.search.flow.open == 0


# -- snapshots ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("index")
async def test_an_old_snapshot_ends_a_query(database: Database) -> None:
    bench = Bench(database, snapshot_seconds=-1.0)
    call = bench.call()
    ask(call, 1)
    query = call.query(1)
    assert not query.is_stale, "the query has no snapshot yet"
    assert bench.run() == 1
    await call.read()
    assert call[1].reason == results.SNAPSHOT_EXPIRED
    assert not query.is_stale, "the query has released its snapshot"


@pytest.mark.usefixtures("index")
async def test_blocked_queries_with_old_snapshots_end(bench: Bench) -> None:
    call = await blocked_on_credit(bench, 2)
    ask(call, 2, credit=2)
    call.search.expire()
    assert call.query(1).state is State.BLOCKED_ON_CREDIT, "its snapshot is not old"
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
    """Even if near items have no payloads and far ones have large payloads."""
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


async def test_a_query_stopped_between_payloads_can_resume_there(database: Database, bench: Bench) -> None:
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


async def test_payloads_count_against_the_buffer(database: Database, bench: Bench) -> None:
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
