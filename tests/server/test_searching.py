"""Searching through the wire, by raw stubs: every answer is the oracle's, every promise of the proto is kept."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Cases
from tests.native.examples import LAYOUTS, WEIGHT_KINDS, datasets, generated
from tests.native.oracle import Truth
from tests.server.collection import FORMS, Collection, Question
from tests.server.conversation import (
    COMPLETE,
    EXHAUSTED,
    Conversation,
    Options,
    reason_of,
)
from tests.serving import ServerProcess
from whamming.storage import IndexSettings
from whamming.v1.search_pb2 import SearchOnceRequest

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
