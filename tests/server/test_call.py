"""A Search call with worker threads: concurrent queries, statistics, budgets, draining and stopping."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

from tests.native.examples import make_codes
from tests.server import threaded_calls
from tests.server.calls import Bench, answer_of, batch, random_table
from tests.server.threaded_calls import BITS, N, ask, names, whole
from whamming import Database, StoredIndex
from whamming.server.search import results
from whamming.v1 import error_pb2, search_pb2
from whamming.v1.search_pb2 import PLAN_PROBE, PLAN_SWEEP, Budget, QueryOptions
from whamming.wire.service_errors import UnavailableError

database = threaded_calls.database
index = threaded_calls.index
bench = threaded_calls.bench


async def test_queries_of_a_call_progress_side_by_side(bench: Bench, index: StoredIndex) -> None:
    call = bench.call()
    ask(call, *range(8), options=QueryOptions(chunk_size=5))
    accounts = await call.finish()
    for query_id in range(8):
        assert accounts[query_id].hits.bytes() == whole(index, query_id).bytes()
    turns = [query_id for query_id, _ in itertools.groupby(call.order)]
    assert len(turns) > len(call.order) / 10, "chunks of different queries must be interleaved"
    firsts = [call.order.index(query_id) for query_id in range(8)]
    lasts = [len(call.order) - call.order[::-1].index(query_id) for query_id in range(8)]
    assert max(firsts) < min(lasts), "one query ended before another started"


async def test_more_queries_than_can_be_open(bench: Bench, index: StoredIndex) -> None:
    call = bench.call()
    for first in range(0, 200, 50):
        ask(call, *range(first, first + 50), options=QueryOptions(chunk_size=100))
    accounts = await call.finish()
    for query_id in range(200):
        assert accounts[query_id].hits.bytes() == whole(index, query_id).bytes()


async def test_queries_that_wait_for_credit_do_not_delay_others(bench: Bench, index: StoredIndex) -> None:
    call = bench.call()
    ask(call, *range(300), options=QueryOptions(credit=1))
    await call.until(lambda: all(call[query_id].ids for query_id in range(300)))
    ask(call, 1000)
    await call.until_ended(1000)
    assert call[1000].hits.bytes() == whole(index, 1000).bytes()
    assert not any(call[query_id].has_ended for query_id in range(300))
    call.search.close()


async def test_queries_without_credit_send_nothing(bench: Bench) -> None:
    call = bench.call()
    ask(call, 1, options=QueryOptions(credit=0))
    for query_id in range(2, 12):
        ask(call, query_id, options=QueryOptions(radius=-1))
        await call.until_ended(query_id)
    assert call[1].counts == []
    call.cancel(1)
    assert (await call.finish())[1].ids == []


async def test_results_of_calls_are_not_mixed(bench: Bench, index: StoredIndex) -> None:
    """Twenty calls use the same query ids, in groups and alone."""
    await bench.learn("docs", BITS)
    calls = [bench.call() for _ in range(20)]
    for turn in range(5):
        for number, call in enumerate(calls):
            tables = np.stack([random_table(BITS, 1000 * number + query_id) for query_id in range(4)])
            options = QueryOptions(k=5, payloads=turn % 2 == 1)
            call.ask(batch("docs", range(4 * turn, 4 * turn + 4), options, tables=tables))
    for number, call in enumerate(calls):
        accounts = await call.finish()
        assert sorted(accounts) == list(range(20))
        for query_id, account in accounts.items():
            assert account.hits.bytes() == whole(index, 1000 * number + query_id % 4)[:5].bytes()


async def test_cancels_right_after_a_batch(bench: Bench, index: StoredIndex) -> None:
    """Cancelled queries end without hits or with a complete answer. The other queries are answered."""
    await bench.learn("docs", BITS)
    for turn in range(15):
        call = bench.call()
        ask(call, *range(64), options=QueryOptions(k=3))
        if turn % 2:
            await asyncio.sleep(0)
        for query_id in range(0, 64, 2):
            call.cancel(query_id)
        accounts = await call.finish()
        for query_id, account in accounts.items():
            if query_id % 2 or account.reason != results.CANCELLED:
                assert account.hits.bytes() == whole(index, query_id)[:3].bytes()
            else:
                assert account.ids == []


async def test_cancelling_one_query_leaves_the_others_running(bench: Bench, index: StoredIndex) -> None:
    call = bench.call()
    ask(call, *range(5), options=QueryOptions(credit=10))
    await call.until(lambda: all(len(account.ids) == 10 for account in call.accounts.values()))
    call.cancel(3, 12345, 3)
    await call.until_ended(3)
    for query_id in (0, 1, 2, 4):
        call.grant(query_id, 10_000)
    call.cancel(3)
    call.search.grant(3, 5)
    accounts = await call.finish()
    assert accounts[3].reason == results.CANCELLED
    accounts[3].check_prefix(whole(index, 3))
    for query_id in (0, 1, 2, 4):
        assert accounts[query_id].hits.bytes() == whole(index, query_id).bytes()


@pytest.mark.parametrize("size", [1, 7, N - 1, N, N + 1])
async def test_chunks_respect_the_chunk_size(bench: Bench, index: StoredIndex, size: int) -> None:
    call = bench.call()
    ask(call, 1, options=QueryOptions(chunk_size=size))
    account = (await call.finish())[1]
    assert account.hits.bytes() == whole(index, 1).bytes()
    assert len(account.counts) >= N / size


KINDS = pytest.mark.parametrize("options", [QueryOptions(k=5), QueryOptions(chunk_size=100)], ids=["grouped", "alone"])


@KINDS
async def test_statistics_are_sent_only_on_request(bench: Bench, options: QueryOptions) -> None:
    await bench.learn("docs", BITS)
    call = bench.call()
    asking = QueryOptions(statistics=True)
    asking.MergeFrom(options)
    ask(call, 1, 2, options=options)
    ask(call, 3, options=asking)
    ask(call, 4, options=options)
    accounts = await call.finish()
    assert {query_id for query_id, account in accounts.items() if account.end.stats.verified} == {3}
    assert {query_id for query_id, account in accounts.items() if account.end.elapsed} >= {3}


@KINDS
async def test_statistics_describe_the_work_of_a_query(database: Database, bench: Bench, options: QueryOptions) -> None:
    name = f"sealed-{next(names)}"
    sealed = database.create_index(name, 64)
    sealed.upsert(range(3000), make_codes("uniform", 3000, 64, np.random.default_rng(0)))
    sealed.seal()
    await bench.learn(name, 64)
    call = bench.call()
    for plan in (PLAN_PROBE, PLAN_SWEEP):
        chosen = QueryOptions(plan=plan, statistics=True)
        chosen.MergeFrom(options)
        call.ask(batch(name, [plan], chosen, tables=random_table(64)[None]))
    accounts = await call.finish()
    probe, sweep = accounts[PLAN_PROBE].end.stats, accounts[PLAN_SWEEP].end.stats
    assert (probe.plan, sweep.plan) == ("probe", "sweep")
    assert probe.buckets >= probe.buckets_nonempty > 0
    assert sweep.buckets == 0
    assert sweep.blocks >= 3000 // 128
    for account in accounts.values():
        assert account.end.stats.candidates > 0
        assert account.end.stats.verified > 0
        assert 0 < account.end.stats.seconds < account.end.elapsed


async def test_a_query_whose_budget_ran_out_can_resume(database: Database, bench: Bench) -> None:
    index = database.index("docs")
    answer = whole(index, 1)
    call = bench.call()
    ask(call, 1, options=QueryOptions(k=300, budget=Budget(candidates=20), chunk_size=10))
    account = (await call.finish())[1]
    assert account.reason == results.BUDGET
    account.check_prefix(answer)
    resume = account.end.resume
    rest = bench.call()
    after = [resume] if resume else []
    rest.ask(batch("docs", [1], QueryOptions(), tables=random_table(BITS, 1)[None], after=after))
    assert account.ids + (await rest.finish())[1].ids == answer.ids.tolist()


# -- ends of calls -----------------------------------------------------------------------------------------------------


async def test_a_draining_call_finishes_its_queries_and_accepts_no_more(bench: Bench, index: StoredIndex) -> None:
    call = bench.call()
    ask(call, 1, options=QueryOptions(credit=5))
    await call.until(lambda: len(call[1].ids) == 5)
    call.search.drain()
    ask(call, 2, options=QueryOptions(k=1))
    await call.until_ended(2)
    assert call[2].reason == results.SHUTDOWN
    call.grant(1, 10_000)
    with pytest.raises(UnavailableError):
        await call.until(lambda: False)
    assert call[1].hits.bytes() == whole(index, 1).bytes()


async def test_an_idle_draining_call_is_unavailable(bench: Bench) -> None:
    call = bench.call()
    call.search.drain()
    with pytest.raises(UnavailableError):
        await call.read_message()


async def test_a_half_closed_draining_call_ends_with_ok(bench: Bench) -> None:
    call = bench.call()
    ask(call, 1, options=QueryOptions(k=1))
    call.search.close_requests()
    call.search.drain()
    await call.finish()
    assert call[1].reason == results.COMPLETE


async def test_a_stopped_call_ends_its_queries_and_accepts_no_more(bench: Bench) -> None:
    call = bench.call()
    ask(call, *range(5), options=QueryOptions(credit=3))
    await call.until(lambda: all(len(account.ids) == 3 for account in call.accounts.values()))
    call.search.stop(results.SHUTDOWN)
    call.search.stop(results.CANCELLED)
    ask(call, 9, options=QueryOptions(k=1))
    accounts = await call.finish()
    assert {account.reason for account in accounts.values()} == {results.SHUTDOWN}
    assert all(accounts[query_id].end.resume for query_id in range(5))


async def test_dropping_an_index_during_a_search(database: Database, bench: Bench) -> None:
    index = database.create_index("dropped", BITS)
    index.upsert(range(N), make_codes("uniform", N, BITS, np.random.default_rng(1)))
    index.seal()
    answer = answer_of(index, random_table(BITS))
    call = bench.call()
    call.ask(batch("dropped", [1], QueryOptions(credit=3), tables=random_table(BITS)[None]))
    await call.until(lambda: len(call[1].ids) == 3)
    database.drop_index("dropped")
    call.ask(batch("dropped", [2], QueryOptions(), tables=random_table(BITS)[None]))
    await call.until_ended(2)
    assert call[2].error.reason == error_pb2.ERROR_REASON_INDEX_NOT_FOUND
    assert "dropped" in call[2].error.message
    call.grant(1, 10_000)
    assert (await call.finish())[1].hits.bytes() == answer.bytes()


async def test_a_resume_token_is_valid_after_writes(database: Database, bench: Bench) -> None:
    index = database.create_index("rewritten", BITS)
    codes = make_codes("uniform", N, BITS, np.random.default_rng(1))
    index.upsert(range(N), codes)
    table = random_table(BITS)
    before = answer_of(index, table)
    place = float(before.distances[100]), int(before.ids[100])
    index.upsert(range(450, 550), codes[:100])
    index.delete([place[1], *range(20)])
    call = bench.call()
    call.ask(batch("rewritten", [1], search_pb2.QueryOptions(), tables=table[None], after=[place]))
    assert (await call.finish())[1].hits.bytes() == answer_of(index, table).after_item(*place).bytes()
    database.drop_index("rewritten")
