"""A Search call with worker threads and an event loop: every answer is the oracle's, every promise is kept."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import whamming
from tests.conftest import Cases
from tests.native.examples import LAYOUTS, WEIGHT_KINDS, WeightKind, datasets, generated, make_codes, make_table
from tests.native.oracle import Floats, Truth
from tests.server.calls import Bench, Call, answer_of, batch, random_table
from whamming import Database, StoredIndex
from whamming.server.search import results
from whamming.v1 import error_pb2, search_pb2
from whamming.v1.search_pb2 import (
    PLAN_PROBE,
    PLAN_SWEEP,
    Budget,
    CancelQueries,
    GrantCredit,
    QueryBatch,
    QueryOptions,
    SearchRequest,
    SearchResponse,
)
from whamming.wire.fields import FieldError
from whamming.wire.service_errors import UnavailableError

BITS = 40
N = 500
Form = Literal["codes", "weights", "tables"]
FORMS: tuple[Form, ...] = ("codes", "weights", "tables")
_names = itertools.count()
Receive = Callable[[], Awaitable[SearchRequest | None]]


@pytest.fixture(scope="module", params=["ram", "lmdb"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    place: Path | str = ":memory:" if request.param == "ram" else tmp_path_factory.mktemp("call") / "db"
    with whamming.open(place) as database:
        index = database.create_index("docs", BITS)
        index.upsert(range(N), make_codes("uniform", N, BITS, np.random.default_rng(0)))
        yield database


@pytest.fixture
def index(database: Database) -> StoredIndex:
    return database.index("docs")


@pytest.fixture
def bench(database: Database) -> Iterator[Bench]:
    bench = Bench(database, 2)
    yield bench
    bench.close()


def ask(call: Call, *query_ids: int, options: QueryOptions | None = None) -> None:
    """Send queries whose costs are made from their ids."""
    tables = np.stack([random_table(BITS, query_id) for query_id in query_ids])
    call.ask(batch("docs", query_ids, options, tables=tables))


def whole(index: StoredIndex, query_id: int) -> Truth:
    return answer_of(index, random_table(BITS, query_id))


# -- whole conversations -----------------------------------------------------------------------------------------------


@st.composite
def wishes(draw: st.DrawFn, n: int, plans: tuple[int, ...]) -> QueryOptions:
    options = QueryOptions(plan=draw(st.sampled_from(plans)), payloads=draw(st.booleans()))  # type: ignore[arg-type]
    options.chunk_size = draw(st.sampled_from([0, 0, 1, 3, 64, 2**32 - 1]))
    if draw(st.booleans()):
        options.k = draw(st.sampled_from([1, 2, 10, 100, max(n, 1), n + 1, 2**31 - 1]))
    if draw(st.integers(0, 2)) == 0:
        options.credit = draw(st.sampled_from([0, 1, 7, 100]))
    return options


def columns(form: Form, kind: WeightKind, near: Any, bits: int, big: bool, rng: Any) -> tuple[dict[str, Any], Floats]:
    """The costs of queries around codes ``[n, bytes]`` in one form, and as tables ``[n, bits, 2]``."""
    if form == "weights" and kind == "both":  # no weights give such costs
        kind = "negative"
    tables = np.stack([make_table("equal" if form == "codes" else kind, code, bits, rng) for code in near])
    if form == "tables":
        return {"tables": tables}, tables
    sent = np.packbits(np.unpackbits(near, axis=1, bitorder="little"), axis=1) if big else near
    if form == "codes":
        return {"codes": sent.tobytes()}, np.sign(tables)
    return {"codes": sent.tobytes(), "weights": tables.sum(axis=2)}, tables  # one of the two costs is zero


@given(data=st.data())
@generated(25)
def test_conversations(cases: Cases, database: Database, data: st.DataObject) -> None:
    """Batches of queries of all kinds on one call, with credit granted on the way."""
    items = data.draw(datasets(most=300))
    tables, buckets = data.draw(st.sampled_from(LAYOUTS))
    order = data.draw(st.sampled_from(["little", "big"]))
    rng = np.random.default_rng(items.seed)
    plans = (0, 1, 3) if tables == "none" else (0, 1, 2, 3)
    name = f"made-{next(_names)}"
    index = database.create_index(name, items.bits, bit_order=order, tables=tables, buckets=buckets)  # type: ignore[arg-type]
    ids = np.arange(items.n, dtype=np.uint64) if items.ids is None else items.ids
    payloads = {int(id_): b"%d" % id_ * int(rng.integers(0, 4)) for id_ in ids}
    for part in (slice(0, items.n // 2), slice(items.n // 2, None)):
        index.upsert(ids[part], items.codes[part], [payloads[int(id_)] for id_ in ids[part]])
        if data.draw(st.booleans()):
            index.seal()
    index.delete(ids[: items.n // 10])
    asked: dict[int, tuple[Floats, QueryOptions]] = {}
    numbers = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=12, unique=True))
    batches: list[QueryBatch] = []
    while numbers:
        chosen = [numbers.pop() for _ in range(min(len(numbers), data.draw(st.integers(1, 5))))]
        near = make_codes("uniform", len(chosen), items.bits, rng)
        form, kind = data.draw(st.sampled_from(FORMS)), data.draw(st.sampled_from(WEIGHT_KINDS))
        given, costs = columns(form, kind, near, items.bits, order == "big", rng)
        options = data.draw(wishes(len(index), plans))
        inside = data.draw(st.sampled_from([None, None, 0.0, 0.1, 0.7, 1.0]))
        first = answer_of(index, costs[0])
        if inside is not None and len(first):
            options.radius = first.distances[int(inside * (len(first) - 1))]
        batches.append(batch(name, chosen, options, **given))
        asked.update({query_id: (table, options) for query_id, table in zip(chosen, costs, strict=True)})

    async def converse() -> dict[int, Any]:
        bench = Bench(database, 2)
        call = bench.call()
        for message in batches:
            call.ask(message)
        while not all(account.has_ended for account in call.accounts.values()):
            for query_id, account in call.accounts.items():
                if not account.has_ended and account.granted <= len(account.ids):
                    call.grant(query_id, int(rng.integers(1, 40)))
            await call.read_message()
        await call.finish()
        bench.close()
        return call.accounts

    for query_id, account in asyncio.run(converse()).items():
        table, options = asked[query_id]
        answer = answer_of(index, table)
        hits = answer.within(options.radius if options.HasField("radius") else None)
        is_complete = options.HasField("k") and len(hits) >= options.k
        hits = hits[: options.k] if is_complete else hits
        assert account.hits.bytes() == hits.bytes()
        assert account.reason == (results.COMPLETE if is_complete else results.EXHAUSTED)
        account.check_prefix(answer)
        if options.payloads:
            assert account.payloads == [payloads[id_] for id_ in account.ids]
        if not is_complete and not options.HasField("radius"):
            assert account.bounds[-1] == math.inf
        cases.add()
    database.drop_index(name)


async def test_queries_of_a_call_progress_side_by_side(bench: Bench, index: StoredIndex) -> None:
    call = bench.call()
    ask(call, *range(8), options=QueryOptions(chunk_size=5))
    accounts = await call.finish()
    for query_id in range(8):
        assert accounts[query_id].hits.bytes() == whole(index, query_id).bytes()
    turns = [query_id for query_id, _ in itertools.groupby(call.order)]
    assert len(turns) > len(call.order) / 10, "chunks of one query after the other"
    firsts = [call.order.index(query_id) for query_id in range(8)]
    lasts = [len(call.order) - call.order[::-1].index(query_id) for query_id in range(8)]
    assert max(firsts) < min(lasts), "one had ended before another began"


async def test_more_queries_than_are_worked_on_at_once(bench: Bench, index: StoredIndex) -> None:
    call = bench.call()
    for first in range(0, 200, 50):
        ask(call, *range(first, first + 50), options=QueryOptions(chunk_size=100))
    accounts = await call.finish()
    for query_id in range(200):
        assert accounts[query_id].hits.bytes() == whole(index, query_id).bytes()


async def test_queries_that_wait_for_credit_do_not_hold_up_others(bench: Bench, index: StoredIndex) -> None:
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
    """The same query ids on twenty calls at once, searched together and alone."""
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


async def test_cancels_right_behind_a_batch(bench: Bench, index: StoredIndex) -> None:
    """Each query is answered or cancelled, and only those that were cancelled are."""
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


async def test_one_query_is_cancelled_and_the_others_go_on(bench: Bench, index: StoredIndex) -> None:
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
async def test_chunks_are_as_large_as_asked_for(bench: Bench, index: StoredIndex, size: int) -> None:
    call = bench.call()
    ask(call, 1, options=QueryOptions(chunk_size=size))
    account = (await call.finish())[1]
    assert account.hits.bytes() == whole(index, 1).bytes()
    assert len(account.counts) >= N / size


@given(cuts=st.lists(st.integers(1, 60), max_size=8), kind=st.sampled_from(WEIGHT_KINDS))
@generated(15)
def test_an_answer_in_pieces_is_the_whole_answer(
    database: Database, cases: Cases, cuts: list[int], kind: WeightKind
) -> None:
    """However often a search is stopped and resumed, by k or by cancelling, also after a compaction."""
    rng = np.random.default_rng(len(cuts))
    name = f"pieces-{next(_names)}"
    index = database.create_index(name, 12)
    codes = make_codes("uniform", 150, 12, rng)
    index.upsert(range(150), codes)
    table = make_table(kind, codes[0], 12, rng)

    async def search() -> tuple[list[int], list[float]]:
        bench = Bench(database, 1)
        ids: list[int] = []
        distances: list[float] = []
        for turn, cut in enumerate([*cuts, 200]):
            call = bench.call()
            after = [(distances[-1], ids[-1])] if ids else []
            options = QueryOptions(k=cut) if turn % 2 else QueryOptions(credit=cut)
            call.ask(batch(name, [1], options, tables=table[None], after=after))
            account = call[1]
            while not account.has_ended and len(account.ids) < cut:
                assert await call.read_message()
            call.cancel(1)
            await call.finish()
            ids += account.ids
            distances += account.distances
            if turn == 1:
                index.compact()
        bench.close()
        return ids, distances

    ids, distances = asyncio.run(search())
    answer = answer_of(index, table)
    assert ids == answer.ids.tolist()
    assert distances == answer.distances.tolist()
    cases.add()
    database.drop_index(name)


KINDS = pytest.mark.parametrize("options", [QueryOptions(k=5), QueryOptions(chunk_size=100)], ids=["grouped", "alone"])


@KINDS
async def test_statistics_are_sent_to_those_who_ask(bench: Bench, options: QueryOptions) -> None:
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
async def test_statistics_say_what_a_query_cost(database: Database, bench: Bench, options: QueryOptions) -> None:
    name = f"sealed-{next(_names)}"
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


async def test_a_budget_ends_a_query_with_what_is_known(database: Database, bench: Bench) -> None:
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


# -- requests ----------------------------------------------------------------------------------------------------------


def requests_of(*requests: SearchRequest, then: asyncio.Event | None = None) -> Receive:
    """What a client sends; it closes its side afterwards, or when something has happened."""
    left = iter(requests)

    async def receive() -> SearchRequest | None:
        request = next(left, None)
        if request is None and then is not None:
            await then.wait()
        return request

    return receive


async def run(bench: Bench, *requests: SearchRequest, **limits: Any) -> list[SearchResponse]:
    """Serve a call whose client sends some requests and reads everything."""
    sent: list[SearchResponse] = []

    async def write(message: SearchResponse) -> None:
        sent.append(message)

    await Call(bench, **limits).search.run(requests_of(*requests), write)
    return sent


def queries(*query_ids: int, **options: Any) -> SearchRequest:
    tables = np.stack([random_table(BITS, query_id) for query_id in query_ids])
    return SearchRequest(queries=batch("docs", query_ids, QueryOptions(**options), tables=tables))


async def test_a_call_without_queries_ends(bench: Bench) -> None:
    assert await run(bench) == []
    assert await run(bench, SearchRequest(cancel=CancelQueries(query_ids=[1]))) == []
    assert await run(bench, SearchRequest(grant=GrantCredit(query_id=1, hits=3))) == []


async def test_a_call_ends_when_its_queries_have(bench: Bench, index: StoredIndex) -> None:
    messages = await run(bench, queries(1, 2, k=4), queries(3, k=4))
    ended = [query_id for message in messages for query_id in message.ends.query_ids]
    assert sorted(ended) == [1, 2, 3]


@pytest.mark.parametrize(
    ("requests", "field", "words"),
    [
        ([SearchRequest()], "request", "empty"),
        ([SearchRequest(queries=QueryBatch(index="docs"))], "queries.query_ids", "0 queries in a batch"),
        ([queries(*range(11))], "queries.query_ids", "11 queries in a batch; it must have 1 to 10"),
        ([queries(7, 7)], "queries.query_ids", "query id 7 is in use"),
        ([queries(7, credit=0), queries(6, 7)], "queries.query_ids", "query id 7 is in use"),
        ([queries(7, credit=0), queries(6, 7, k=0)], "queries.query_ids", "query id 7 is in use"),
        ([SearchRequest(cancel=CancelQueries(query_ids=range(11)))], "cancel.query_ids", "11 queries to cancel"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_requests_that_make_no_sense_end_the_call(
    bench: Bench, requests: Sequence[SearchRequest], field: str, words: str
) -> None:
    with pytest.raises(FieldError) as caught:
        await run(bench, *requests, max_queries=10)
    assert caught.value.field == field
    assert words in str(caught.value)


async def test_an_id_is_free_as_soon_as_its_end_is_read(bench: Bench) -> None:
    """Whether the query was answered, refused or cancelled, with others or alone."""
    call = bench.call()
    kinds = [QueryOptions(k=1), QueryOptions(k=1, payloads=True), QueryOptions(credit=1), QueryOptions(k=0)]
    for turn in range(400):
        ask(call, 7, options=kinds[turn % 4])
        if turn % 4 == 2:
            call.cancel(7)
        await call.until_ended(7)


async def test_too_many_queries_under_way_are_refused(bench: Bench, index: StoredIndex) -> None:
    call = bench.call(max_queries=10)
    ask(call, *range(8), options=QueryOptions(credit=0))
    place = (1.5, 3)
    tables = np.stack([random_table(BITS, query_id) for query_id in range(8, 11)])
    call.ask(batch("docs", range(8, 11), QueryOptions(k=1), tables=tables, after=[place] * 3))
    await call.until_ended(8, 9, 10)
    for query_id in (8, 9, 10):
        assert call[query_id].error.reason == error_pb2.ERROR_REASON_OVERLOADED
        assert "11 queries would be under way" in call[query_id].error.message
        assert call[query_id].end.resume == place
    assert call.under_way == set(range(8)), "none of the batch was taken"
    ask(call, 8, 9, options=QueryOptions(k=1))
    await call.until_ended(8, 9)
    assert call[8].hits.bytes() == whole(index, 8)[:1].bytes()
    call.cancel(*range(8))
    await call.finish()


async def test_options_that_make_no_sense_refuse_the_batch_alone(bench: Bench, index: StoredIndex) -> None:
    call = bench.call(max_k=100)
    ask(call, 1, 2, options=QueryOptions(k=101))
    ask(call, 3, options=QueryOptions(k=100))
    accounts = await call.finish()
    for query_id in (1, 2):
        assert accounts[query_id].error.field == "options.k"
        assert "k = 101; it must be 1 to 100" in accounts[query_id].error.message
    assert accounts[3].hits.bytes() == whole(index, 3)[:100].bytes()


# -- ends of calls -----------------------------------------------------------------------------------------------------


async def test_a_draining_call_finishes_its_queries_and_takes_no_more(bench: Bench, index: StoredIndex) -> None:
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


async def test_an_idle_call_that_drains_fails_since_queries_may_be_on_their_way(bench: Bench) -> None:
    call = bench.call()
    call.search.drain()
    with pytest.raises(UnavailableError):
        await call.read_message()


async def test_a_call_without_further_requests_ends_well_when_it_drains(bench: Bench) -> None:
    call = bench.call()
    ask(call, 1, options=QueryOptions(k=1))
    call.search.close_requests()
    call.search.drain()
    await call.finish()
    assert call[1].reason == results.COMPLETE


async def test_a_stopped_call_ends_its_queries_and_takes_no_more(bench: Bench) -> None:
    call = bench.call()
    ask(call, *range(5), options=QueryOptions(credit=3))
    await call.until(lambda: all(len(account.ids) == 3 for account in call.accounts.values()))
    call.search.stop(results.SHUTDOWN)
    call.search.stop(results.CANCELLED)
    ask(call, 9, options=QueryOptions(k=1))
    accounts = await call.finish()
    assert {account.reason for account in accounts.values()} == {results.SHUTDOWN}
    assert all(accounts[query_id].end.resume for query_id in range(5))


async def test_a_client_that_goes_away_stops_its_queries(bench: Bench) -> None:
    """Its task is cancelled in the middle of a write."""
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
    ask(call, 99)  # a call that is over takes nothing
    other = bench.call()
    ask(other, 1, options=QueryOptions(k=1))
    await other.finish()
    while call.under_way:
        await asyncio.to_thread(lambda: None)
    assert call.waiting == 0
    assert call.search.flow.open == 0


async def test_an_error_of_a_request_comes_before_what_waits(bench: Bench) -> None:
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


async def test_an_index_that_is_dropped_during_a_search(database: Database, bench: Bench) -> None:
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


async def test_a_resume_token_is_good_after_writes(database: Database, bench: Bench) -> None:
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
    assert (await call.finish())[1].hits.bytes() == answer_of(index, table).after(*place).bytes()
    database.drop_index("rewritten")
