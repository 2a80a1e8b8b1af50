"""Searching through the wire, by raw stubs: every answer is the oracle's, every promise of the proto is kept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import code_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Cases
from tests.native.examples import LAYOUTS, WEIGHT_KINDS, WeightKind, datasets, generated, make_codes
from tests.native.oracle import Truth
from tests.server.collection import FORMS, Collection, Form, Question
from tests.server.conversation import (
    BUDGET,
    CANCELLED,
    COMPLETE,
    EXHAUSTED,
    Conversation,
    Options,
    Query,
    reason_of,
)
from tests.serving import ServerProcess, Stubs, details_of
from whamming.storage import IndexSettings
from whamming.v1 import index_pb2, search_pb2
from whamming.v1.search_pb2 import Budget, SearchOnceRequest

_names = itertools.count()


@st.composite
def wishes(draw: st.DrawFn, n: int, plans: tuple[int, ...]) -> tuple[Options, float | None]:
    """Options, and the share of all items that are to be within the radius."""
    options = Options(plan=draw(st.sampled_from(plans)), payloads=draw(st.booleans()))  # type: ignore[arg-type]
    options.chunk_size = draw(st.sampled_from([0, 0, 1, 3, 64, 2**32 - 1]))
    if draw(st.booleans()):
        options.k = draw(st.sampled_from([1, 2, 10, 100, max(n, 1), n + 1, 2**31 - 1]))
    if draw(st.integers(0, 2)) == 0:
        options.credit = draw(st.sampled_from([0, 1, 7, 100]))
    return options, draw(st.sampled_from([None, None, 0.0, 0.1, 0.7, 1.0]))


def expected(truth: Truth, options: Options) -> tuple[Truth, int]:
    """The hits that a query has to be sent, and why it ends."""
    wanted = truth.within(options.radius if options.HasField("radius") else None)
    if options.HasField("k") and len(wanted) >= options.k:
        return wanted[: options.k], COMPLETE
    return wanted, EXHAUSTED


def converse(talk: Conversation, rng: np.random.Generator) -> None:
    """Receive everything, granting credit to whoever has none left."""
    while any(account.end is None for account in talk.accounts.values()):
        for query_id, account in talk.accounts.items():
            if account.end is None and account.granted <= len(account.ids):
                talk.grant(query_id, int(rng.integers(1, 40)))
        next(talk.responses())


@given(data=st.data())
@generated(25)
def test_conversations(either: ServerProcess, cases: Cases, data: st.DataObject) -> None:
    """Batches of queries of all kinds, with options of their own or of the batch, all on one stream."""
    items = data.draw(datasets(most=300))
    tables, buckets = data.draw(st.sampled_from(LAYOUTS))
    settings = IndexSettings(items.bits, data.draw(st.sampled_from(["little", "big"])), tables, buckets)
    rng = np.random.default_rng(items.seed)
    plans = (0, 1, 3) if tables == "none" else (0, 1, 2, 3)
    with either.stubs() as stubs:
        docs = Collection(stubs, f"conversation-{next(_names)}", settings)
        ids = np.arange(items.n, dtype=np.uint64) if items.ids is None else items.ids
        half = items.n // 2
        payloads = [b"%d" % id_ * int(rng.integers(0, 4)) for id_ in ids]
        for part in (slice(0, half), slice(half, None)):
            docs.upsert(ids[part], items.codes[part], payloads[part])
            if data.draw(st.booleans()):
                docs.seal()
        docs.delete(ids[: items.n // 10].tolist())
        numbers = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=12, unique=True))
        asked: dict[int, tuple[Question, Options]] = {}
        with Conversation(stubs.search) as talk:
            while numbers:
                common, inside = data.draw(wishes(len(docs.model), plans))
                batch = []
                for query_id in [numbers.pop() for _ in range(min(len(numbers), 5))]:
                    form, kind = data.draw(st.sampled_from(FORMS)), data.draw(st.sampled_from(WEIGHT_KINDS))
                    question = docs.question(form, kind, items.seed, query_id)
                    options = common
                    if data.draw(st.booleans()):
                        options, inside = data.draw(wishes(len(docs.model), plans))
                        truth = docs.truth(question)
                        if inside is not None and len(truth):
                            options.radius = truth.distances[int(inside * (len(truth) - 1))]
                        question.query.options.CopyFrom(options)
                    asked[query_id] = question, options
                    batch.append(question.query)
                talk.ask(docs.name, batch, common)
            converse(talk, rng)
            talk.finish()
        for query_id, (question, options) in asked.items():
            account, truth = talk.accounts[query_id], docs.truth(question)
            wanted, reason = expected(truth, options)
            assert account.bytes == wanted.bytes()
            assert reason_of(account) == reason
            if options.payloads:
                assert account.payloads == docs.payloads(account.ids)
            if reason == EXHAUSTED and not options.HasField("radius"):
                assert account.last_bound == math.inf
            elif len(wanted) < len(truth):
                assert account.bound <= truth.distances[len(wanted)]
            if options.HasField("k") or options.HasField("radius"):
                once = SearchOnceRequest(index=docs.name, query=question.query)
                once.query.options.CopyFrom(options)
                result = stubs.search.SearchOnce(once).result
                assert (list(result.ids), list(result.distances)) == (account.ids, account.distances)
                assert list(result.payloads) == account.payloads
                assert (result.end.reason, result.end.exact, result.query_id) == (reason, True, query_id)
            cases.add()
        docs.drop()


def refused(call: Callable[[], Any], code: grpc.StatusCode) -> tuple[str, str]:
    """Make a call that is refused; returns the status's message, and the field that is at fault."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() == code
    details = details_of(caught.value)
    return details.message, details.field


@pytest.fixture
def docs(stubs: Stubs, name: str) -> Collection:
    """Some items to search."""
    return Collection.uniform(stubs, name, 500, 40)


# -- the order of things ---------------------------------------------------------------------------------------------


def test_a_stream_without_queries_ends_when_its_client_is_done(stubs: Stubs) -> None:
    with Conversation(stubs.search) as talk:
        assert talk.finish() == {}
        assert talk.call.code() == grpc.StatusCode.OK


def test_an_empty_batch_is_nothing(docs: Collection) -> None:
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [])
        talk.ask(docs.name, [docs.question(query_id=1).query], Options(k=2))
        assert reason_of(talk.finish()[1]) == COMPLETE


def test_queries_of_a_stream_progress_side_by_side(docs: Collection) -> None:
    questions = [docs.question("weights", query_id=query_id) for query_id in range(8)]
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [question.query for question in questions], Options(chunk_size=5))
        accounts = talk.finish()
        for question in questions:
            assert accounts[question.query.id].bytes == docs.truth(question).bytes()
    turns = [query_id for query_id, _ in itertools.groupby(talk.order)]
    assert len(turns) > len(talk.order) / 10, "chunks of one query after the other"
    firsts = [talk.order.index(query_id) for query_id in range(8)]
    lasts = [len(talk.order) - talk.order[::-1].index(query_id) for query_id in range(8)]
    assert max(firsts) < min(lasts), "one had ended before another began"


def test_more_queries_than_are_worked_on_at_once(docs: Collection) -> None:
    """They wait for each other, and all are answered."""
    questions = [docs.question("code", query_id=query_id) for query_id in range(200)]
    with Conversation(docs.stubs.search) as talk:
        for first in range(0, 200, 50):
            talk.ask(docs.name, [one.query for one in questions[first : first + 50]], Options(chunk_size=100))
        accounts = talk.finish()
    for question in questions:
        assert accounts[question.query.id].bytes == docs.truth(question).bytes()


def test_queries_that_wait_for_credit_hold_up_no_others(docs: Collection) -> None:
    with Conversation(docs.stubs.search) as talk:
        stalled = [docs.question(query_id=query_id).query for query_id in range(300)]
        talk.ask(docs.name, stalled, Options(credit=1))
        talk.until(lambda: all(talk.accounts[query_id].ids for query_id in range(300)))
        last = docs.question(query_id=1000)
        talk.ask(docs.name, [last.query])
        talk.until_ended(1000)
        assert talk.accounts[1000].bytes == docs.truth(last).bytes()
        assert all(talk.accounts[query_id].end is None for query_id in range(300))


def test_a_query_sees_the_index_as_it_was_when_it_began(docs: Collection) -> None:
    question = docs.question("code", query_id=1)
    before = docs.truth(question)
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [question.query], Options(credit=3))
        talk.until(lambda: len(talk.accounts[1].ids) == 3)
        code = np.frombuffer(question.query.code, dtype=np.uint8)
        docs.upsert(np.array([1000], dtype=np.uint64), code[None])
        docs.delete(before.ids[10:20].tolist())
        talk.grant(1, 10_000)
        assert talk.finish()[1].bytes == before.bytes()
        assert reason_of(talk.accounts[1]) == EXHAUSTED
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [question.query])
        assert talk.finish()[1].bytes == docs.truth(question).bytes() != before.bytes()


def test_a_search_on_an_index_that_is_dropped_goes_on(either: ServerProcess) -> None:
    with either.stubs() as stubs:
        docs = Collection.uniform(stubs, f"dropped-{next(_names)}", 500, 40, sealed=True)
        question = docs.question(query_id=1)
        with Conversation(stubs.search) as talk:
            talk.ask(docs.name, [question.query], Options(credit=3))
            talk.until(lambda: len(talk.accounts[1].ids) == 3)
            docs.drop()
            talk.ask(docs.name, [docs.question(query_id=2).query])
            talk.until_ended(2)
            error = talk.accounts[2].end.error  # type: ignore[union-attr]
            assert (error.code, error.reason) == (code_pb2.NOT_FOUND, "INDEX_NOT_FOUND")
            assert docs.name in error.message
            talk.grant(1, 10_000)
            assert talk.finish()[1].bytes == docs.truth(question).bytes()


# -- ids -------------------------------------------------------------------------------------------------------------


def test_an_id_in_use_ends_the_stream(docs: Collection) -> None:
    query = docs.question(query_id=7).query
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [query], Options(credit=0))
        talk.ask(docs.name, [docs.question(query_id=6).query, query], Options(k=1))
        message, field = refused(lambda: [None for _ in talk.responses()], grpc.StatusCode.INVALID_ARGUMENT)
        assert (message, field) == ("id = 7 is in use by a query under way; choose another", "batch.queries[1].id")
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [query, query])
        assert refused(lambda: [None for _ in talk.responses()], grpc.StatusCode.INVALID_ARGUMENT)[1].endswith("[1].id")


def test_an_id_is_free_as_soon_as_its_end_is_read(docs: Collection) -> None:
    """Whether it was answered, refused or cancelled, together with others or alone."""
    query = docs.question(query_id=7).query
    wrong = Query(id=7, code=b"x")
    with Conversation(docs.stubs.search) as talk:
        for turn in range(400):
            talk.accounts.pop(7, None)
            kinds = [Options(k=1), Options(k=1, payloads=True), Options(credit=1)]
            talk.ask(docs.name, [wrong if turn % 4 == 3 else query], kinds[turn % 4 % 3])
            if turn % 4 == 2:
                talk.cancel(7)
            talk.until_ended(7)


# -- cancelling ------------------------------------------------------------------------------------------------------


def test_one_query_is_cancelled_and_the_others_go_on(docs: Collection) -> None:
    questions = [docs.question(query_id=query_id) for query_id in range(5)]
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [question.query for question in questions], Options(credit=10))
        talk.until(lambda: all(len(account.ids) == 10 for account in talk.accounts.values()))
        talk.cancel(3, 12345, 3)
        talk.until_ended(3)
        for query_id in (0, 1, 2, 4):
            talk.grant(query_id, 10_000)
        talk.cancel(3)
        talk.grant(3, 5)
        accounts = talk.finish()
    assert reason_of(accounts[3]) == CANCELLED
    accounts[3].check_prefix(docs.truth(questions[3]))
    for query_id in (0, 1, 2, 4):
        assert reason_of(accounts[query_id]) == EXHAUSTED
        assert accounts[query_id].bytes == docs.truth(questions[query_id]).bytes()


def test_a_cancelled_query_can_be_gone_on_with(docs: Collection) -> None:
    question = docs.question(query_id=1)
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [question.query], Options(credit=37))
        talk.until(lambda: len(talk.accounts[1].ids) == 37)
        talk.cancel(1)
        first = talk.finish()[1]
    assert first.end is not None
    rest = Query()
    rest.CopyFrom(question.query)
    rest.after.CopyFrom(first.end.resume)
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [rest])
        second = talk.finish()[1]
    assert first.ids + second.ids == docs.truth(question).ids.tolist()


def test_queries_that_wait_for_their_turn_are_cancelled_at_once(docs: Collection) -> None:
    """Some queries are worked on; those behind them wait for them to end, but not when they are cancelled."""
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [docs.question(query_id=query_id).query for query_id in range(1000)], Options(chunk_size=1))
        talk.cancel(*range(100, 1000))
        waiting = range(100, 1000)
        talk.until_ended(*waiting)
        cancelled = [query_id for query_id in waiting if reason_of(talk.accounts[query_id]) == CANCELLED]
        assert len(cancelled) > 800, "all but the few that had begun by then"
        unanswered = sum(talk.accounts[query_id].end is None for query_id in range(100))
        assert unanswered > 20, "they did not wait for the others"


def test_the_reason_of_a_batched_query_is_its_own(docs: Collection) -> None:
    """Cancels sent right behind a batch: each query is answered or cancelled, and only those cancelled are."""
    for turn in range(15):
        with Conversation(docs.stubs.search) as talk:
            questions = [docs.question(query_id=query_id, seed=turn) for query_id in range(64)]
            talk.ask(docs.name, [question.query for question in questions], Options(k=3))
            for query_id in range(0, 64, 2):
                talk.cancel(query_id)
            accounts = talk.finish()
        for question in questions:
            account = accounts[question.query.id]
            if question.query.id % 2 or reason_of(account) != CANCELLED:
                assert reason_of(account) == COMPLETE
                assert account.bytes == docs.truth(question)[:3].bytes()


# -- credit and chunks -----------------------------------------------------------------------------------------------


def test_credit_is_added_up(docs: Collection) -> None:
    question = docs.question(query_id=1)
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [question.query], Options(credit=2))
        account = talk.accounts[1]
        for _ in range(20):
            talk.grant(1, 1)
        talk.until(lambda: len(account.ids) == 22)
        talk.grant(1, 0)
        talk.grant(99, 5)
        talk.grant(1, 3)
        talk.until(lambda: len(account.ids) == 25)
        talk.grant(1, 2**63)
        assert talk.finish()[1].bytes == docs.truth(question).bytes()


def test_without_credit_nothing_is_sent(docs: Collection) -> None:
    """A query behind it on the same stream is answered; the one without credit has sent nothing by then."""
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [docs.question(query_id=1).query], Options(credit=0))
        for query_id in range(2, 12):
            talk.ask(docs.name, [docs.question(query_id=query_id).query], Options(radius=-1))
            talk.until_ended(query_id)
        assert talk.accounts[1].chunks == 0
        talk.cancel(1)
        assert talk.finish()[1].ids == []


@pytest.mark.parametrize("size", [1, 7, 499, 500, 501])
def test_chunks_are_as_large_as_asked_for(docs: Collection, size: int) -> None:
    question = docs.question(query_id=1)
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [question.query], Options(chunk_size=size))
        account = talk.finish()[1]
    assert account.bytes == docs.truth(question).bytes()
    assert account.chunks >= 500 / size


# -- budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [None, 300])
def test_a_budget_ends_a_query_with_what_is_known(stubs: Stubs, name: str, k: int | None) -> None:
    docs = Collection.uniform(stubs, name, 5000, 64, sealed=True)
    question = docs.question("weights", query_id=1)
    options = Options(k=k, budget=Budget(candidates=200), plan=search_pb2.PLAN_PROBE, chunk_size=10)
    with Conversation(stubs.search) as talk:
        talk.ask(docs.name, [question.query], options)
        account = talk.finish()[1]
    assert reason_of(account) == BUDGET
    assert account.end is not None
    whole = docs.truth(question)
    account.check_prefix(whole)
    assert account.end.statistics.candidates >= 200
    distances = dict(zip(whole.ids.tolist(), whole.distances.tolist(), strict=True))
    guesses = list(zip(account.end.guess_distances, account.end.guess_ids, strict=True))
    assert guesses == sorted(guesses)
    assert all(distances[id_] == distance for distance, id_ in guesses)
    assert not set(account.end.guess_ids) & set(account.ids)
    assert bool(guesses) == (k is not None)
    if account.ids:
        resumed = Query()
        resumed.CopyFrom(question.query)
        resumed.after.CopyFrom(account.end.resume)
        with Conversation(stubs.search) as talk:
            talk.ask(docs.name, [resumed])
            assert account.ids + talk.finish()[1].ids == whole.ids.tolist()


def test_a_budget_that_suffices_changes_nothing(docs: Collection) -> None:
    question = docs.question(query_id=1)
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [question.query], Options(budget=Budget(candidates=10**9, seconds=3600)))
        account = talk.finish()[1]
    assert reason_of(account) == EXHAUSTED
    assert account.bytes == docs.truth(question).bytes()


def test_a_budget_of_time(stubs: Stubs, name: str) -> None:
    docs = Collection.uniform(stubs, name, 5000, 64, sealed=True)
    with Conversation(stubs.search) as talk:
        talk.ask(docs.name, [docs.question(query_id=1).query], Options(budget=Budget(seconds=1e-9), chunk_size=1))
        assert reason_of(talk.finish()[1]) == BUDGET


# -- statistics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [Options(k=5), Options(chunk_size=100)], ids=["batched", "streamed"])
def test_statistics_tell_what_a_query_cost(stubs: Stubs, name: str, options: Options) -> None:
    docs = Collection.uniform(stubs, name, 3000, 64, sealed=True)
    ends: dict[int, search_pb2.QueryStatistics] = {}
    with Conversation(stubs.search) as talk:
        for plan in (search_pb2.PLAN_PROBE, search_pb2.PLAN_SWEEP):
            chosen = Options(plan=plan)
            chosen.MergeFrom(options)
            talk.ask(docs.name, [docs.question(query_id=plan).query], chosen)
        for query_id, account in talk.finish().items():
            assert account.end is not None
            ends[query_id] = account.end.statistics
    probe, sweep = ends[search_pb2.PLAN_PROBE], ends[search_pb2.PLAN_SWEEP]
    assert (probe.plan, sweep.plan) == (search_pb2.PLAN_PROBE, search_pb2.PLAN_SWEEP)
    assert probe.buckets >= probe.buckets_nonempty > 0
    assert sweep.buckets == 0
    assert sweep.blocks >= 3000 // 128
    for one in (probe, sweep):
        assert one.candidates > 0
        assert one.verified > 0
        assert 0 < one.engine_seconds < one.elapsed_seconds


# -- resuming --------------------------------------------------------------------------------------------------------


@given(cuts=st.lists(st.integers(1, 60), max_size=8), form=st.sampled_from(FORMS), kind=st.sampled_from(WEIGHT_KINDS))
@generated(15)
def test_an_answer_in_pieces_is_the_whole_answer(
    either: ServerProcess, cases: Cases, cuts: list[int], form: Form, kind: WeightKind
) -> None:
    """However often a search is broken off and resumed, by k, by cancelling, on new streams, after a compaction."""
    with either.stubs() as stubs:
        docs = Collection.uniform(stubs, f"pieces-{next(_names)}", 150, 12, seed=len(cuts))
        question = docs.question(form, kind, query_id=1)
        whole = docs.truth(question)
        ids: list[int] = []
        distances: list[float] = []
        for turn, cut in enumerate([*cuts, 200]):
            with Conversation(stubs.search) as talk:
                talk.ask(docs.name, [question.query], Options(k=cut) if turn % 2 else Options(credit=cut))
                account = talk.accounts[1]
                talk.until(lambda account=account, cut=cut: account.end is not None or len(account.ids) == cut)
                talk.cancel(1)
                talk.finish()
            ids += account.ids
            distances += account.distances
            if ids:
                question.query.after.distance, question.query.after.id = distances[-1], ids[-1]
            if turn == 1:
                list(stubs.indexes.CompactIndex(index_pb2.CompactIndexRequest(name=docs.name)))
        assert ids == whole.ids.tolist()
        assert distances == whole.distances.tolist()
        cases.add()
        docs.drop()


def test_a_token_is_good_after_writes(docs: Collection) -> None:
    question = docs.question(query_id=1)
    whole = docs.truth(question)
    place = float(whole.distances[100]), int(whole.ids[100])
    question.query.after.distance, question.query.after.id = place
    _, codes = docs.packed()
    docs.upsert(np.arange(450, 550, dtype=np.uint64), codes[:100])
    docs.delete([place[1], *range(20)])
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [question.query])
        assert talk.finish()[1].bytes == docs.truth(question).after(*place).bytes()


@pytest.mark.parametrize("place", [(-math.inf, 0), (math.inf, 0), (0.0, 2**64 - 1), (1e300, 5), (-1e300, 5)])
def test_tokens_that_no_search_has_sent(docs: Collection, place: tuple[float, int]) -> None:
    question = docs.question("code", query_id=1)
    question.query.after.distance, question.query.after.id = place
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [question.query])
        assert talk.finish()[1].bytes == docs.truth(question).after(*place).bytes()


# -- SearchOnce ------------------------------------------------------------------------------------------------------


def test_once_asks_for_a_limit(docs: Collection) -> None:
    request = SearchOnceRequest(index=docs.name, query=docs.question().query)
    message, field = refused(lambda: docs.stubs.search.SearchOnce(request), grpc.StatusCode.INVALID_ARGUMENT)
    assert "neither k nor radius" in message
    assert field == "query.options"


def test_once_with_a_budget_and_a_token(docs: Collection) -> None:
    question = docs.question("weights")
    whole = docs.truth(question)
    question.query.after.distance, question.query.after.id = whole.distances[9], whole.ids[9]
    question.query.options.CopyFrom(Options(k=50, budget=Budget(candidates=1), chunk_size=1, credit=1))
    result = docs.stubs.search.SearchOnce(SearchOnceRequest(index=docs.name, query=question.query)).result
    assert result.end.reason == BUDGET
    assert result.ids == whole.ids[10 : 10 + len(result.ids)].tolist()
    assert len(result.ids) + len(result.end.guess_ids) <= 50
    question.query.options.CopyFrom(Options(k=50, credit=1))
    result = docs.stubs.search.SearchOnce(SearchOnceRequest(index=docs.name, query=question.query)).result
    assert result.ids == whole.ids[10:60].tolist()


def test_an_answer_too_large_for_one_message(stubs: Stubs, name: str) -> None:
    docs = Collection(stubs, name, IndexSettings(16))
    codes = make_codes("uniform", 200, 16, np.random.default_rng(0))
    docs.upsert(np.arange(200, dtype=np.uint64), codes, [bytes(60_000)] * 200)
    query = docs.question("code").query
    query.options.CopyFrom(Options(k=200, payloads=True))
    request = SearchOnceRequest(index=name, query=query)
    message, _ = refused(lambda: stubs.search.SearchOnce(request), grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert "3145728 bytes" in message
    assert "streaming Search" in message
    request.query.options.k = 20
    assert len(stubs.search.SearchOnce(request).result.payloads) == 20
    with Conversation(stubs.search) as talk:
        talk.ask(name, [docs.question("code", query_id=1).query], Options(payloads=True))
        account = talk.finish()[1]
    assert [len(payload) for payload in account.payloads] == [60_000] * 200
