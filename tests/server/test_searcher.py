"""Groups: queries that are searched together. Each has its own answer, error and end."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from google.rpc import code_pb2
from hypothesis import given
from hypothesis import strategies as st

import whamming
from tests.conftest import Cases
from tests.native.examples import WEIGHT_KINDS, generated, make_codes, make_table
from tests.native.oracle import Floats
from tests.server import stepped_queries
from tests.server.calls import Bench, Call, answer_of, batch, random_table
from tests.server.query_groups import options, tables, together
from tests.server.stepped_queries import BITS, N
from whamming import Database, StoredIndex
from whamming.native import Batch
from whamming.server.search import results
from whamming.server.search.query import State
from whamming.server.search.results import Results
from whamming.server.search.searcher import QUICK_SECONDS, SWEEP_SECONDS
from whamming.v1 import error_pb2
from whamming.v1.search_pb2 import PLAN_PROBE, QueryOptions

database = stepped_queries.database
index = stepped_queries.index
bench = stepped_queries.bench


async def test_only_queries_of_small_indexes_form_groups(bench: Bench, index: StoredIndex) -> None:
    call = bench.call()
    call.ask(batch("docs", [1], options(), tables=tables(1)))
    assert call.query(1).group is None, "the size of the index is not known yet"
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
    assert call.query(4).group is None, "the index has become too large"
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
    assert groups[2] == groups[0], "element types may differ"
    assert len(set(groups)) == 3, "queries with other columns form other groups"
    await call.finish()


@pytest.mark.parametrize("k", [1, 3, 256])
@pytest.mark.parametrize("items", [0, 2, N])
@pytest.mark.parametrize("radius", [None, 0.0, 2.5, 1e9])
async def test_a_group_gets_exact_answers(
    database: Database, bench: Bench, k: int, items: int, radius: float | None
) -> None:
    """With fewer hits than k, no hits, or exactly k, the answer is that of the oracle, without padding."""
    index = database.create_index("docs", BITS)
    index.upsert(range(items), make_codes("clustered", items, BITS, np.random.default_rng(1)))
    await bench.learn("docs", BITS)
    wanted = options(k, radius=radius, statistics=True)
    await together(bench, wanted, tables=tables(1))
    call = bench.call()
    call.ask(batch("docs", range(40), wanted, tables=tables(40)))
    assert bench.run() == 1, "all in one engine call"
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
def test_groups_of_many_calls_get_exact_answers(cases: Cases, data: st.DataObject) -> None:
    """Queries of several calls share an engine call. Each answer is sent on its own call."""
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
async def test_a_query_with_a_non_finite_cost_fails_alone(
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
    """Requests do not state the width of codes, so requests with different widths can form one group."""
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


async def test_a_group_of_a_dropped_index_fails(bench: Bench, database: Database, index: StoredIndex) -> None:
    await bench.learn("docs", BITS)
    call = bench.call()
    call.ask(batch("docs", range(3), options(), tables=tables(3)))
    database.drop_index("docs")
    accounts = await call.finish()
    assert {account.error.reason for account in accounts.values()} == {error_pb2.ERROR_REASON_INDEX_NOT_FOUND}
    assert all("docs" in account.error.message for account in accounts.values())


async def test_a_recreated_index_is_searched_with_its_new_settings(
    bench: Bench, database: Database, index: StoredIndex
) -> None:
    """The queries were grouped when the name belonged to an index with other settings."""
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
async def test_queries_whose_answers_cannot_be_sent_fail(database: Database, bench: Bench) -> None:
    """Their client gets an error instead of waiting forever. Other calls of the group get their answers."""
    await bench.learn("docs", BITS)
    await together(bench, options(), tables=tables(1))
    calls = [bench.call() for _ in range(3)]

    class Full(type(calls[0].search)):  # type: ignore[misc]
        """A call that runs out of memory when it sends several answers."""

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


# -- slow groups -------------------------------------------------------------------------------------------------------


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


async def test_the_rest_of_an_interrupted_group_is_searched_later(
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
