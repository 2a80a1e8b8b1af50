"""SearchOnce: a query with plain fields, answered by one message."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import whamming
from tests.native.examples import make_codes
from tests.native.oracle import Truth
from tests.server.calls import Bench, answer_of, random_table
from whamming import Database, StoredIndex, WhammingError
from whamming.native import NoTablesError
from whamming.server.search import results
from whamming.server.search.once import HITS_TOGETHER, _answer, search_once
from whamming.server.search.turns import Turns
from whamming.storage import NoEncoderError, NotFoundError
from whamming.v1.search_pb2 import (
    COST_FORM_INNER,
    COST_FORM_SYMMETRIC,
    PLAN_PROBE,
    Budget,
    QueryOptions,
    ResumeToken,
    SearchOnceRequest,
    SearchOnceResponse,
)
from whamming.wire.fields import FieldError
from whamming.wire.service_errors import AnswerTooLargeError

BITS = 13
N = 300


@pytest.fixture
def database() -> Iterator[Database]:
    with whamming.open(":memory:") as database:
        yield database


@pytest.fixture
def index(database: Database) -> StoredIndex:
    index = database.create_index("docs", BITS)
    payloads = [b"payload %d" % id_ for id_ in range(N)]
    index.upsert(range(N), make_codes("uniform", N, BITS, np.random.default_rng(0)), payloads)
    return index


@pytest.fixture
def bench(database: Database) -> Iterator[Bench]:
    bench = Bench(database, 1)
    yield bench
    bench.close()


async def once(bench: Bench, request: SearchOnceRequest, max_bytes: int = 3 << 20) -> SearchOnceResponse:
    search = bench.call().search
    answer = await search_once(request, search, max_bytes)
    assert not search._queries
    return answer


def request(**fields: Any) -> SearchOnceRequest:
    fields.setdefault("options", QueryOptions(k=5))
    return SearchOnceRequest(index="docs", **fields)


def hits(answer: SearchOnceResponse) -> Truth:
    ids = np.array([hit.id for hit in answer.hits], dtype=np.uint64)
    return Truth(ids, np.array([hit.distance for hit in answer.hits], dtype=np.float64))


@pytest.mark.parametrize("quick", [False, True])
async def test_a_query_in_every_form_of_costs(bench: Bench, index: StoredIndex, quick: bool) -> None:
    if quick:
        await bench.learn("docs", BITS)
    table = random_table(BITS)
    assert not (await once(bench, request(table=table.ravel()))).HasField("statistics")
    answer = await once(bench, request(table=table.ravel(), options=QueryOptions(k=5, statistics=True)))
    whole = answer_of(index, table)
    assert hits(answer).bytes() == whole[:5].bytes()
    assert answer.reason == results.COMPLETE
    assert answer.exact
    assert answer.lower_bound <= whole.distances[5]
    assert answer.statistics.verified > 0
    assert answer.statistics.elapsed_seconds > 0
    assert not answer.HasField("resume")
    assert [hit.payload for hit in answer.hits] == [b""] * 5
    plain = np.stack([np.zeros(BITS), np.ones(BITS)], axis=1)
    assert hits(await once(bench, request(code=bytes(2)))).bytes() == answer_of(index, plain)[:5].bytes()
    weighted = plain * table[:, :1]
    found = await once(bench, request(code=bytes(2), weights=table[:, 0]))
    assert hits(found).bytes() == answer_of(index, weighted)[:5].bytes()


async def test_a_query_by_vector(database: Database, bench: Bench) -> None:
    rows = np.random.default_rng(0).standard_normal((N, 8)).astype(np.float32)
    index = database.create_index("vectors", 8, encoder="sign", dim=8, keep_vectors="float16")
    index.upsert(range(N), vectors=rows)
    for form, word in ((0, None), (COST_FORM_INNER, "inner"), (COST_FORM_SYMMETRIC, "symmetric")):
        message = SearchOnceRequest(index="vectors", vector=rows[3], form=form, options=QueryOptions(k=9))  # type: ignore[arg-type]
        expected: Any = index.search(vector=rows[3], k=9, costs=word)  # type: ignore[arg-type]
        assert hits(await once(bench, message)).bytes() == Truth(*expected.all()).bytes()
    message = SearchOnceRequest(index="vectors", vector=rows[3], options=QueryOptions(k=9, rerank=3))
    answer = await once(bench, message)
    assert hits(answer).bytes() == Truth(*index.search(vector=rows[3], k=9, rerank=3).all()).bytes()
    assert not answer.exact
    assert answer.lower_bound == -math.inf


async def test_payloads_are_sent_with_their_hits(bench: Bench, index: StoredIndex) -> None:
    answer = await once(bench, request(code=bytes(2), options=QueryOptions(k=200, payloads=True, chunk_size=7)))
    assert len(answer.hits) == 200
    assert all(hit.payload == b"payload %d" % hit.id for hit in answer.hits)


async def test_all_hits_within_a_radius(bench: Bench, index: StoredIndex) -> None:
    table = random_table(BITS)
    whole = answer_of(index, table)
    radius = float(whole.distances[40])
    answer = await once(bench, request(table=table.ravel(), options=QueryOptions(radius=radius)))
    assert hits(answer).bytes() == whole.within(radius).bytes()
    assert answer.reason == results.EXHAUSTED
    answer = await once(bench, request(table=table.ravel(), options=QueryOptions(radius=-1.0)))
    assert len(answer.hits) == 0
    assert answer.exact


async def test_budgets_and_resume_tokens_apply_and_credit_is_ignored(bench: Bench, index: StoredIndex) -> None:
    table = random_table(BITS)
    whole = answer_of(index, table)
    after = ResumeToken(distance=whole.distances[9], id=int(whole.ids[9]))
    options = QueryOptions(k=50, budget=Budget(candidates=1), chunk_size=1, credit=1)
    answer = await once(bench, request(table=table.ravel(), after=after, options=options))
    assert answer.reason == results.BUDGET
    assert hits(answer).bytes() == whole[10 : 10 + len(answer.hits)].bytes()
    assert 0 < len(answer.hits) + len(answer.guesses) <= 50
    distances = dict(zip(whole.ids.tolist(), whole.distances.tolist(), strict=True))
    assert all(distances[guess.id] == guess.distance for guess in answer.guesses)
    last = answer.hits[-1] if answer.hits else after
    assert (answer.resume.distance, answer.resume.id) == (last.distance, last.id)
    answer = await once(bench, request(table=table.ravel(), after=after, options=QueryOptions(k=50, credit=1)))
    assert hits(answer).bytes() == whole[10:60].bytes()


async def test_an_empty_index(database: Database, bench: Bench) -> None:
    database.create_index("docs", BITS)
    answer = await once(bench, request(code=bytes(2)))
    assert len(answer.hits) == 0
    assert answer.reason == results.EXHAUSTED
    assert answer.lower_bound == math.inf


ONES = [1.0] * BITS
REFUSED: dict[str, tuple[SearchOnceRequest, type[WhammingError], str]] = {
    # what: request, error, field
    "no limit": (request(code=bytes(2), options=QueryOptions()), FieldError, "options"),
    "no index": (SearchOnceRequest(code=bytes(2), options=QueryOptions(k=1)), FieldError, "index"),
    "odd index": (SearchOnceRequest(index="a b", code=bytes(2), options=QueryOptions(k=1)), FieldError, "index"),
    "absent": (SearchOnceRequest(index="absent", code=bytes(2), options=QueryOptions(k=1)), NotFoundError, ""),
    "no costs": (request(), FieldError, "code"),
    "weights alone": (request(weights=ONES), FieldError, "code"),
    "short code": (request(code=b"x"), FieldError, "code"),
    "few weights": (request(code=bytes(2), weights=ONES[1:]), FieldError, "weights"),
    "nan weight": (request(code=bytes(2), weights=[*ONES[1:], math.nan]), FieldError, "weights"),
    "few costs": (request(table=ONES), FieldError, "table"),
    "nan cost": (request(table=[math.nan] * 2 * BITS), FieldError, "table"),
    "two costs": (request(code=bytes(2), table=2 * ONES), FieldError, "table"),
    "vector": (request(vector=ONES), NoEncoderError, ""),
    "form": (request(code=bytes(2), form=1), FieldError, "form"),
    "place": (request(code=bytes(2), after=ResumeToken(distance=math.nan)), FieldError, "after.distance"),
    "k": (request(code=bytes(2), options=QueryOptions(k=0)), FieldError, "options.k"),
    "radius": (request(code=bytes(2), options=QueryOptions(radius=math.nan)), FieldError, "options.radius"),
    "rerank": (request(code=bytes(2), options=QueryOptions(radius=1, rerank=2)), FieldError, "options.rerank"),
}


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("what", REFUSED)
async def test_an_invalid_request_names_its_own_field(bench: Bench, what: str) -> None:
    message, kind, field = REFUSED[what]
    with pytest.raises(WhammingError) as caught:
        await once(bench, message)
    assert type(caught.value) is kind
    assert getattr(caught.value, "field", "") == field


async def test_vectors_that_do_not_fit_the_encoder(database: Database, bench: Bench) -> None:
    database.create_index("docs", 8, encoder="sign", dim=8)
    for vector in ([1.0] * 7, [math.nan] * 8):
        with pytest.raises(FieldError) as caught:
            await once(bench, request(vector=vector))
        assert caught.value.field == "vector"


async def test_probing_needs_tables(database: Database, bench: Bench) -> None:
    database.create_index("docs", BITS, tables="none")
    with pytest.raises(NoTablesError):
        await once(bench, request(code=bytes(2), options=QueryOptions(k=1, plan=PLAN_PROBE)))


async def test_an_answer_that_is_too_large(database: Database, bench: Bench) -> None:
    index = database.create_index("docs", BITS)
    index.upsert(range(200), make_codes("uniform", 200, BITS, np.random.default_rng(0)), [bytes(60_000)] * 200)
    search = bench.call().search
    with pytest.raises(AnswerTooLargeError, match="3145728 bytes"):
        await search_once(request(code=bytes(2), options=QueryOptions(k=200, payloads=True)), search, 3 << 20)
    answer = await once(bench, request(code=bytes(2), options=QueryOptions(k=20, payloads=True)))
    assert [len(hit.payload) for hit in answer.hits] == [60_000] * 20


@pytest.mark.usefixtures("index")
async def test_a_stopped_call_is_unavailable(bench: Bench) -> None:
    search = bench.call().search
    search.stop(results.SHUTDOWN)
    with pytest.raises(whamming.UnavailableError):
        await search_once(request(code=bytes(2)), search, 3 << 20)


async def test_a_large_answer_takes_several_turns_of_the_event_loop() -> None:
    """The event loop stopped until all hits had been converted."""
    count, turns = 3 * HITS_TOGETHER, 0
    ids = np.arange(count, dtype=np.uint64)
    halves = [results.chunk(0, half, half.astype(np.float64), 0.0) for half in np.split(ids, 2)]
    ending = results.ends([results.End(0, results.COMPLETE, exact=True)])
    converting = asyncio.ensure_future(_answer([*halves, ending], Turns()))
    while not converting.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > count // HITS_TOGETHER
    assert hits(converting.result()).bytes() == Truth(ids, ids.astype(np.float64)).bytes()
