"""Groups of queries that are searched together: each has its own answer, its own errors and its own end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from google.rpc import code_pb2
from hypothesis import given
from hypothesis import strategies as st

import whamming
from tests.conftest import Cases
from tests.native.examples import WEIGHT_KINDS, generated, make_codes, make_table
from tests.native.oracle import Floats, Truth
from tests.server.calls import Bench, Call, answer_of, batch, random_table
from whamming import Database, StoredIndex
from whamming.native import Batch
from whamming.server.search import results
from whamming.server.search.query import State
from whamming.server.search.results import Results
from whamming.server.search.scheduler import MAX_TOGETHER
from whamming.server.search.searcher import QUICK_SECONDS, SWEEP_SECONDS
from whamming.v1 import error_pb2
from whamming.v1.search_pb2 import COST_FORM_INNER, COST_FORM_SYMMETRIC, PLAN_PROBE, QueryOptions

BITS = 24
N = 400


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
def bench(database: Database) -> Bench:
    return Bench(database)


def tables(count: int, first: int = 0) -> Floats:
    return np.stack([random_table(BITS, seed) for seed in range(first, first + count)])


def options(k: int = 3, **others: Any) -> QueryOptions:
    return QueryOptions(k=k, **others)


def learn_speed(bench: Bench) -> None:
    """Let the scheduler learn that queries are quick, so that it runs as many together as it may."""
    for estimate in bench.searcher._scheduler._estimates.values():
        estimate.add(1e-6 * MAX_TOGETHER, MAX_TOGETHER)


async def together(bench: Bench, options: QueryOptions, **columns: Any) -> None:
    """Have one query of a kind searched, so that others of its kind are searched together."""
    call = bench.call()
    call.ask(batch("docs", [0], options, **columns))
    await call.finish()
    learn_speed(bench)


async def test_only_queries_of_small_indexes_form_groups(bench: Bench, index: StoredIndex) -> None:
    call = bench.call()
    call.ask(batch("docs", [1], options(), tables=tables(1)))
    assert call.query(1).group is None, "nothing is known of the index yet"
    await call.run()
    call.ask(batch("docs", [2], options(), tables=tables(1)))
    assert call.query(2).group is not None
    await call.finish()
    rows = int(QUICK_SECONDS / SWEEP_SECONDS / math.ceil(BITS / 64)) + 1
    index.upsert(range(rows), np.zeros((rows, 3), dtype=np.uint8))
    call = bench.call()
    call.ask(batch("docs", [3], options(), tables=tables(1)))
    await call.run()
    call.ask(batch("docs", [4], options(), tables=tables(1)))
    assert call.query(4).group is None, "it has grown"
    await call.finish()


@pytest.mark.parametrize(
    "alone",
    [
        QueryOptions(),
        QueryOptions(radius=1.0),
        QueryOptions(k=257),
        QueryOptions(k=10, chunk_size=9),
        QueryOptions(k=10, credit=9),
        QueryOptions(k=10, payloads=True),
        QueryOptions(k=10, budget={"candidates": 5}),
        QueryOptions(k=10, budget={"seconds": 5.0}),
        QueryOptions(k=10, rerank=1),
        QueryOptions(k=10, rerank_exactly=True),
    ],
    ids=str,
)
@pytest.mark.usefixtures("index")
async def test_queries_that_need_a_cursor_run_alone(bench: Bench, alone: QueryOptions) -> None:
    await bench.learn("docs", BITS)
    call = bench.call()
    call.ask(batch("docs", [1], alone, tables=tables(1)))
    call.ask(batch("docs", [2], options(), tables=tables(1), after=[(1.0, 1)]))
    assert call.query(1).group is None
    assert call.query(2).group is None


@pytest.mark.parametrize(
    "quick", [QueryOptions(k=256), QueryOptions(k=10, radius=1.0, plan=PLAN_PROBE), QueryOptions(k=10, credit=10)]
)
@pytest.mark.usefixtures("index")
async def test_queries_for_a_few_hits_form_groups(bench: Bench, quick: QueryOptions) -> None:
    await bench.learn("docs", BITS)
    call = bench.call()
    call.ask(batch("docs", [1], quick, tables=tables(1)))
    call.ask(batch("docs", [2], quick, tables=tables(1, 1)))
    assert call.query(1).group == call.query(2).group is not None
    call.ask(batch("docs", [3], quick, tables=tables(1).astype(np.float32)))
    call.ask(batch("docs", [4], quick, codes=bytes(3)))
    call.ask(batch("docs", [5], quick, codes=bytes(3), weights=np.ones((1, BITS))))
    groups = [call.query(query_id).group for query_id in range(1, 6)]
    assert groups[2] == groups[0], "types of numbers may differ"
    assert len(set(groups)) == 3, "kinds of columns may not"
    await call.finish()


@pytest.mark.parametrize("k", [1, 3, 256])
@pytest.mark.parametrize("items", [0, 2, N])
@pytest.mark.parametrize("radius", [None, 0.0, 2.5, 1e9])
async def test_a_group_is_answered(database: Database, bench: Bench, k: int, items: int, radius: float | None) -> None:
    """Fewer hits than k, none at all, exactly k: what is sent is the oracle's answer without padding."""
    index = database.create_index("docs", BITS)
    index.upsert(range(items), make_codes("clustered", items, BITS, np.random.default_rng(1)))
    await bench.learn("docs", BITS)
    wanted = options(k, radius=radius, statistics=True)
    await together(bench, wanted, tables=tables(1))
    call = bench.call()
    call.ask(batch("docs", range(40), wanted, tables=tables(40)))
    assert bench.run() == 1, "one call of the engine"
    accounts = await call.finish()
    for query_id in range(40):
        whole, account = answer_of(index, random_table(BITS, query_id)), accounts[query_id]
        hits = whole.within(radius)[:k]
        assert account.hits.bytes() == hits.bytes()
        assert account.counts == [len(hits)]
        assert account.reason == (results.COMPLETE if len(hits) == k else results.EXHAUSTED)
        (bound,) = account.bounds
        if len(hits) == items < k:
            assert bound == math.inf
        elif len(hits) == k:
            assert bound == hits.distances[-1]
        else:
            assert bound == radius
            assert bound <= whole.distances[len(hits)]
        assert account.end.stats.seconds > 0 or not items
        assert account.end.elapsed > 0


@given(data=st.data())
@generated(20)
def test_groups_of_many_calls(cases: Cases, data: st.DataObject) -> None:
    """Queries of several calls in one run of the engine: whole answers, each on its own call."""
    seed = data.draw(st.integers(0, 2**32 - 1))
    bits = data.draw(st.sampled_from([1, 9, 24, 70]))
    n = data.draw(st.sampled_from([1, 5, 300]))
    k = data.draw(st.sampled_from([1, 4, 200]))
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    kind = data.draw(st.sampled_from(WEIGHT_KINDS))
    rng = np.random.default_rng(seed)

    async def run() -> None:
        with whamming.open(":memory:") as database:
            index = database.create_index("docs", bits)
            index.upsert(range(n), make_codes("clustered", n, bits, rng))
            if data.draw(st.booleans()):
                index.seal()
            bench = Bench(database)
            await bench.learn("docs", bits)
            calls: list[tuple[Call, list[Floats]]] = []
            for size in sizes:
                near = make_codes("uniform", 1, bits, rng)[0]
                costs = [make_table(kind, near, bits, rng) for _ in range(size)]
                call = bench.call()
                call.ask(batch("docs", range(size), QueryOptions(k=k), tables=np.stack(costs)))
                calls.append((call, costs))
            for call, costs in calls:
                accounts = await call.finish()
                for query_id, table in enumerate(costs):
                    assert accounts[query_id].hits.bytes() == answer_of(index, table)[:k].bytes()
                    cases.add()

    asyncio.run(run())


# -- errors of one query or request ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", ["weights", "tables"])
async def test_a_query_that_is_not_finite_fails_alone(
    bench: Bench, index: StoredIndex, column: str, wrong: float
) -> None:
    await bench.learn("docs", BITS)
    rng = np.random.default_rng(0)
    weights = rng.random((12, BITS))
    costs = np.stack([np.stack([0 * row, row], axis=1) for row in weights])
    given: dict[str, Any] = {"codes": bytes(3), "weights": weights} if column == "weights" else {"tables": costs}
    await together(bench, options(), **{name: rows if name == "codes" else rows[:1] for name, rows in given.items()})
    broken: dict[str, Any] = {name: bytes(36) if name == "codes" else np.array(rows) for name, rows in given.items()}
    broken[column].reshape(12, -1)[5, 7] = wrong
    call = bench.call()
    call.ask(batch("docs", range(12), options(), **broken))
    bench.run()
    accounts = await call.finish()
    for query_id in range(12):
        account = accounts[query_id]
        if query_id == 5:
            assert account.error.code == code_pb2.INVALID_ARGUMENT
            assert account.error.reason == error_pb2.ERROR_REASON_INVALID_ARGUMENT
            assert account.error.field == column
            assert str(wrong) in account.error.message
        else:
            assert account.hits.bytes() == answer_of(index, costs[query_id])[:3].bytes()


async def test_a_request_that_does_not_fit_the_index_fails_alone(bench: Bench, index: StoredIndex) -> None:
    """Codes have no width of their own, so requests of different widths come into one group."""
    await bench.learn("docs", BITS)
    await together(bench, options(), codes=bytes(3))
    calls = [bench.call() for _ in range(3)]
    for call, width in zip(calls, [3, 4, 3], strict=True):
        call.ask(batch("docs", range(2), options(), codes=bytes(2 * width)))
    assert calls[0].query(0).group == calls[1].query(0).group
    assert bench.run() == 1
    plain = answer_of(index, np.stack([np.zeros(BITS), np.ones(BITS)], axis=1))[:3]
    for place, call in enumerate(calls):
        accounts = await call.finish()
        for account in accounts.values():
            if place == 1:
                assert account.error.field == "codes"
                assert "8 bytes for 2 queries" in account.error.message
            else:
                assert account.hits.bytes() == plain.bytes()


async def test_a_group_of_an_index_that_is_gone_fails(bench: Bench, database: Database, index: StoredIndex) -> None:
    await bench.learn("docs", BITS)
    call = bench.call()
    call.ask(batch("docs", range(3), options(), tables=tables(3)))
    database.drop_index("docs")
    accounts = await call.finish()
    assert {account.error.reason for account in accounts.values()} == {error_pb2.ERROR_REASON_INDEX_NOT_FOUND}
    assert all("docs" in account.error.message for account in accounts.values())


async def test_an_index_made_anew_is_searched_as_it_is(bench: Bench, database: Database, index: StoredIndex) -> None:
    """Its queries were grouped for the old one, of other codes."""
    await bench.learn("docs", BITS)
    call = bench.call()
    call.ask(batch("docs", [1], options(), tables=tables(1)))
    call.ask(batch("docs", [2], options(), codes=bytes(1)))
    database.drop_index("docs")
    database.create_index("docs", 8).upsert([5], np.zeros((1, 1), dtype=np.uint8))
    accounts = await call.finish()
    assert accounts[1].error.field == "tables"
    assert accounts[2].ids == [5]


@pytest.mark.usefixtures("index")
async def test_answers_that_cannot_be_sent_fail(database: Database, bench: Bench) -> None:
    """Rather than leave their client waiting; other calls of the group get their answers."""
    await bench.learn("docs", BITS)
    await together(bench, options(), tables=tables(1))
    calls = [bench.call() for _ in range(3)]

    class Full(type(calls[0].search)):  # type: ignore[misc]
        """A call without memory for answers."""

        def send(self, some: Results) -> None:
            if len(some.ends) > 1:
                raise MemoryError
            super().send(some)

    calls[1].search.__class__ = Full
    for call in calls:
        call.ask(batch("docs", range(4), options(), tables=tables(4)))
    assert bench.run() == 1
    for place, call in enumerate(calls):
        accounts = await call.finish()
        for account in accounts.values():
            if place == 1:
                assert account.error.reason == error_pb2.ERROR_REASON_OUT_OF_MEMORY
            else:
                assert account.reason == results.COMPLETE


# -- stopping and blocking ---------------------------------------------------------------------------------------------


async def test_cancelling_some_of_a_group_leaves_the_others_alone(bench: Bench, index: StoredIndex) -> None:
    await bench.learn("docs", BITS)
    await together(bench, options(), tables=tables(1))
    call = bench.call()
    call.ask(batch("docs", range(10), options(), tables=tables(10)))
    call.cancel(0, 4, 5, 9, 4)
    await call.read()
    assert [i for i, account in call.accounts.items() if account.has_ended] == [0, 4, 5, 9], "at once"
    accounts = await call.finish()
    for query_id, account in accounts.items():
        if query_id in (0, 4, 5, 9):
            assert account.reason == results.CANCELLED
            assert account.ids == []
        else:
            assert account.hits.bytes() == answer_of(index, random_table(BITS, query_id))[:3].bytes()


async def test_one_call_of_a_group_is_stopped(bench: Bench, index: StoredIndex) -> None:
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
async def test_queries_of_a_group_are_stopped_while_it_is_searched(
    bench: Bench, index: StoredIndex, moment: str
) -> None:
    """They end with the reason and no hits, or as if nobody had stopped them: never a mixture."""
    await bench.learn("docs", BITS)
    await together(bench, options(), tables=tables(1))
    call = bench.call()

    class Stopping(type(call.search)):  # type: ignore[misc]
        """A call whose client cancels when the answers are on their way."""

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
        assert call.under_way == {0, 1, 2, 3}, "a worker will end them"
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


async def test_a_group_waits_for_room(bench: Bench, index: StoredIndex) -> None:
    """A client that sends queries and does not read fills its buffer, and no more; other calls go on."""
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
    assert not {990, 999} & call.under_way, "cancelled at once"
    accounts = await call.finish()
    for query_id in range(980):
        assert accounts[query_id].hits.bytes() == answer_of(index, random_table(BITS, query_id))[:3].bytes()
    assert {accounts[query_id].reason for query_id in range(980, 1000)} == {results.CANCELLED}


@pytest.mark.usefixtures("index")
async def test_a_group_that_waits_for_room_is_stopped(bench: Bench) -> None:
    await bench.learn("docs", BITS)
    call = bench.call(buffer_bytes=1)
    call.ask(batch("docs", range(4), options(), tables=tables(4)))
    bench.run()
    blocked = set(call.under_way)
    assert len(blocked) == 3, "one query filled the buffer"
    call.cancel(2)
    call.search.stop(results.SHUTDOWN)
    assert call.under_way == set()
    accounts = await call.finish()
    reasons = [accounts[query_id].reason for query_id in range(4)]
    assert reasons == [results.COMPLETE, results.SHUTDOWN, results.CANCELLED, results.SHUTDOWN]


# -- how costs are given -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grouped", [False, True])
async def test_types_of_numbers_give_the_same_answer(bench: Bench, index: StoredIndex, grouped: bool) -> None:
    """Where the values are equal. float32 costs are exact in float64."""
    if grouped:
        await bench.learn("docs", BITS)
    rng = np.random.default_rng(3)
    wanted = options(50, payloads=not grouped)
    narrow = rng.random((5, BITS, 2)).astype(np.float32)
    weights = rng.standard_normal((5, BITS)).astype(np.float32)
    codes = make_codes("uniform", 5, BITS, rng)
    call = bench.call()
    for turn, kind in enumerate(("<f4", "<f8", ">f4", ">f8")):
        call.ask(batch("docs", range(10 * turn, 10 * turn + 5), wanted, tables=narrow.astype(kind)))
        ids = range(10 * turn + 5, 10 * turn + 10)
        call.ask(batch("docs", ids, wanted, codes=codes.tobytes(), weights=weights.astype(kind)))
    accounts = await call.finish()
    for row in range(5):
        ones = np.unpackbits(codes[row], bitorder="little", count=BITS)
        costs = np.where(np.stack([ones, 1 - ones], axis=1) == 1, weights[row].astype(np.float64)[:, None], 0.0)
        for turn in range(4):
            assert accounts[10 * turn + row].hits.bytes() == answer_of(index, narrow[row].astype(float))[:50].bytes()
            assert accounts[10 * turn + 5 + row].hits.bytes() == answer_of(index, costs)[:50].bytes()


@pytest.mark.parametrize("grouped", [False, True])
async def test_one_row_of_weights_for_all_queries(bench: Bench, index: StoredIndex, grouped: bool) -> None:
    if grouped:
        await bench.learn("docs", BITS)
    rng = np.random.default_rng(4)
    weights, codes = rng.random((1, BITS)), make_codes("uniform", 6, BITS, rng)
    call = bench.call()
    call.ask(batch("docs", range(6), options(20), codes=codes.tobytes(), weights=weights))
    call.ask(batch("docs", range(6, 12), options(20), codes=codes.tobytes(), weights=np.repeat(weights, 6, axis=0)))
    accounts = await call.finish()
    for row in range(6):
        ones = np.unpackbits(codes[row], bitorder="little", count=BITS)
        costs = np.stack([ones, 1 - ones], axis=1) * weights[0][:, None]
        assert accounts[row].hits.bytes() == accounts[6 + row].hits.bytes() == answer_of(index, costs)[:20].bytes()


async def test_some_queries_continue_and_others_begin(bench: Bench, index: StoredIndex) -> None:
    """Minus infinity in the column of distances: from the beginning."""
    whole = [answer_of(index, random_table(BITS, seed)) for seed in range(3)]
    place = float(whole[1].distances[99]), int(whole[1].ids[99])
    call = bench.call()
    after = [(-math.inf, 0), place, (-math.inf, 77)]
    call.ask(batch("docs", range(3), options(150), tables=tables(3), after=after))
    accounts = await call.finish()
    assert accounts[0].hits.bytes() == whole[0][:150].bytes()
    assert accounts[1].hits.bytes() == whole[1][100:250].bytes()
    assert accounts[2].hits.bytes() == whole[2][:150].bytes()


@pytest.mark.parametrize("place", [(math.inf, 0), (0.0, 2**64 - 1), (1e300, 5), (-1e300, 5)])
async def test_places_that_no_search_has_returned(bench: Bench, index: StoredIndex, place: tuple[float, int]) -> None:
    call = bench.call()
    call.ask(batch("docs", [1], QueryOptions(), tables=tables(1), after=[place]))
    account = (await call.finish())[1]
    assert account.hits.bytes() == answer_of(index, random_table(BITS)).after(*place).bytes()


async def test_codes_are_read_in_the_order_of_the_index(database: Database, bench: Bench) -> None:
    index = database.create_index("docs", BITS, bit_order="big")
    codes = make_codes("uniform", 50, BITS, np.random.default_rng(5))
    index.upsert(range(50), codes)
    weights = random_table(BITS)[:, :1].T
    call = bench.call()
    call.ask(batch("docs", [1], options(50), codes=codes[7].tobytes(), weights=weights))
    account = (await call.finish())[1]
    hits = index.search(codes[7], weights=weights[0], k=50).all()
    assert account.hits.bytes() == Truth(*hits).bytes()
    assert account.ids[0] == 7


# -- vectors -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def vectors(database: Database) -> np.ndarray[Any, np.dtype[np.float32]]:
    """An index ``vectors`` that keeps its vectors, and those vectors."""
    rows = np.random.default_rng(6).standard_normal((N, 16)).astype(np.float32)
    index = database.create_index("vectors", 16, encoder="sign", dim=16, keep_vectors="float16")
    index.upsert(range(N), vectors=rows)
    return rows


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("form", [0, COST_FORM_INNER, COST_FORM_SYMMETRIC])
async def test_vectors_are_encoded(database: Database, bench: Bench, vectors: Any, grouped: bool, form: int) -> None:
    index = database.index("vectors")
    if grouped:
        await bench.learn("vectors", 16)
    words: dict[int, Any] = {0: None, COST_FORM_INNER: "inner", COST_FORM_SYMMETRIC: "symmetric"}
    call = bench.call()
    call.ask(batch("vectors", range(5), options(20), vectors=vectors[:5], form=form))
    call.ask(batch("vectors", range(5, 10), options(20), vectors=vectors[:5].astype(np.float64), form=form))
    weights = random_table(16)[:, 0]
    call.ask(batch("vectors", [10], options(20), vectors=vectors[:1], form=form, weights=weights[None]))
    accounts = await call.finish()
    for row in range(5):
        expected = Truth(*index.search(vector=vectors[row], k=20, costs=words[form]).all()).bytes()
        assert accounts[row].hits.bytes() == accounts[5 + row].hits.bytes() == expected
    if form == COST_FORM_SYMMETRIC:
        expected = Truth(*index.search(vector=vectors[0], k=20, costs="symmetric", weights=weights).all()).bytes()
        assert accounts[10].hits.bytes() == expected
    else:
        assert accounts[10].error.field == "weights"


@pytest.mark.parametrize("k", [5, 1000])
@pytest.mark.parametrize("wanted", [{"rerank": 4}, {"rerank_exactly": True}], ids=str)
async def test_hits_are_reranked(database: Database, bench: Bench, vectors: Any, wanted: Any, k: int) -> None:
    index = database.index("vectors")
    call = bench.call()
    call.ask(batch("vectors", range(4), options(k, **wanted, chunk_size=3), vectors=vectors[:4]))
    accounts = await call.finish()
    for row in range(4):
        expected = index.search(vector=vectors[row], k=k, rerank="exact" if "rerank_exactly" in wanted else 4)
        assert accounts[row].hits.bytes() == Truth(*expected.all()).bytes()
        assert accounts[row].end.exact == ("rerank_exactly" in wanted or 4 * k >= N)


@pytest.mark.usefixtures("index")
async def test_reranking_needs_vectors(database: Database, bench: Bench, vectors: Any) -> None:
    database.create_index("signs", 16, encoder="sign", dim=16)
    call = bench.call()
    call.ask(batch("vectors", [1], options(rerank=2), codes=bytes(2)))
    call.ask(batch("docs", [2], options(rerank=2), vectors=vectors[:1]))
    call.ask(batch("signs", [3], options(rerank=2), vectors=vectors[:1]))
    call.ask(batch("vectors", [4], options(rerank=2), vectors=vectors[:1], weights=np.ones((1, 16))))
    call.ask(batch("vectors", [5], options(rerank=2), vectors=vectors[:1], after=[(1.0, 1)]))
    call.ask(batch("vectors", [6], options(rerank=2_000_000), vectors=vectors[:1]))
    accounts = await call.finish()
    assert [accounts[i].error.field for i in (1, 4, 5, 6)] == ["options.rerank"] * 4
    assert accounts[2].error.reason == accounts[3].error.reason == error_pb2.ERROR_REASON_NO_ENCODER


async def test_a_query_that_takes_too_long_for_a_group_is_searched_in_slices(
    bench: Bench, index: StoredIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    await together(bench, options(), tables=tables(1))
    run = Batch.run
    monkeypatch.setattr(Batch, "run", lambda self, seconds: run(self, seconds=1e-9))
    call = bench.call()
    call.ask(batch("docs", range(3), options(), tables=tables(3)))
    queries = [call.query(query_id) for query_id in range(3)]
    assert all(query.group is not None for query in queries)
    accounts = await call.finish()
    assert [query.group for query in queries] == [None] * 3
    assert queries[0].flow.open == 0
    for query_id in range(3):
        assert accounts[query_id].reason == results.COMPLETE
        assert accounts[query_id].hits.bytes() == answer_of(index, random_table(BITS, query_id))[:3].bytes()


async def test_queries_that_a_group_had_no_time_for_are_searched_later(
    bench: Bench, index: StoredIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    await together(bench, options(), tables=tables(1))
    run = Batch.run
    monkeypatch.setattr(Batch, "run", lambda self, seconds: min(run(self), 3))
    call = bench.call()
    call.ask(batch("docs", range(10), options(), tables=tables(10)))
    assert bench.step()
    assert [call.query(query_id).state for query_id in range(3, 10)] == [State.WAITING] * 7
    call.cancel(9)
    accounts = await call.finish()
    assert accounts[9].reason == results.CANCELLED
    for query_id in range(9):
        assert accounts[query_id].hits.bytes() == answer_of(index, random_table(BITS, query_id))[:3].bytes()
