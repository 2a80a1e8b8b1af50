"""Hits are streamed: on a slow search, the client gets the first hit long before the search ends.

The tests do not measure time, which depends on the load of the machine. The send buffer is small, so the server cannot
finish the search before the client reads on. Whatever the client does after the first hit happens before the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

import whamming
from tests.native.examples import make_codes
from tests.server.answers import COMPLETE, EXHAUSTED
from tests.server.collection import Collection
from tests.server.conversation import Conversation, end_of, reason_of
from tests.server.questions import Options, Question
from tests.serving import ServerProcess
from whamming.storage import IndexSettings
from whamming.v1.search_pb2 import PLAN_PROBE

N, BITS = 30_000, 128
SLOW = Options(plan=PLAN_PROBE, chunk_size=64, statistics=True)
"""The first hit needs a few buckets, the whole answer thousands."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(slice_ms=0.05, buffer_kb=16) as server:
        yield server
        server.check_log()


@pytest.fixture(scope="module")
def docs(server: ServerProcess) -> Iterator[Collection]:
    with server.stubs() as stubs:
        docs = Collection(stubs, "docs", IndexSettings(BITS))
        docs.upsert(np.arange(N, dtype=np.uint64), make_codes("uniform", N, BITS, np.random.default_rng(0)))
        docs.seal()
        yield docs


def slow_question(docs: Collection) -> Question:
    """Return a query equal to one item. This hit is proven quickly; all other items are far away."""
    _, codes = docs.packed()
    rng = np.random.default_rng(1)
    weights = rng.random(BITS) + 0.5
    differs = np.unpackbits(codes[7], count=BITS, bitorder="little").astype(bool)
    table = np.stack([np.where(differs, weights, 0.0), np.where(differs, 0.0, weights)], axis=1)
    return Question(1, codes[7].tobytes(), weights, costs=table)


def test_the_first_hit_arrives_before_the_search_ends(docs: Collection) -> None:
    question = slow_question(docs)
    with Conversation(docs.stubs.search) as talk:
        start = time.perf_counter()
        talk.ask(docs.name, [question], SLOW)
        slow = talk.accounts[1]
        talk.until(lambda: slow.ids)
        first = time.perf_counter() - start
        assert slow.end is None
        assert len(slow.ids) < N / 2
        # A query that is sent after the first hit is answered before the slow search ends.
        talk.ask(docs.name, [docs.question("code", query_id=2)], Options(k=1))
        talk.until_ended(2)
        assert slow.end is None
        assert reason_of(talk.accounts[2]) == COMPLETE
        talk.finish()
    assert reason_of(slow) == EXHAUSTED
    assert slow.bytes == docs.truth(question).bytes()
    statistics = end_of(slow).statistics
    assert 0 < statistics["engine_seconds"] < statistics["elapsed_seconds"]
    print(f"first of {N} hits after {1e3 * first:.1f} ms, the last after {1e3 * statistics['elapsed_seconds']:.1f} ms")


def test_the_python_client_returns_the_first_hit_at_once(server: ServerProcess, docs: Collection) -> None:
    question = slow_question(docs)
    code, weights = np.frombuffer(question.code, dtype=np.uint8), question.weights
    with whamming.connect(server.address) as database:
        index = database.index(docs.name)
        # With payloads, the server sends 256 hits ahead. A client that waited for all hits would hang.
        search = index.search(code, weights=weights, plan="probe", payloads=True)
        hit = next(search)
        assert (hit.id, hit.distance) == (7, 0.0)
        assert search.lower_bound < np.inf
        ids, distances = search.all()
        assert len(ids) == N - 1
        assert np.concatenate([[hit.distance], distances]).tobytes() == docs.truth(question).distances.tobytes()
        assert search.lower_bound == np.inf
