"""The configured limits of a server: requests above a limit are refused with a clear error."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import grpc
import numpy as np
import pytest
from google.rpc import code_pb2

import whamming
from tests.native.examples import make_codes
from tests.server.answers import CANCELLED, COMPLETE, EXHAUSTED, FAILED, SNAPSHOT_EXPIRED
from tests.server.collection import Collection
from tests.server.conversation import Conversation, end_of, reason_of
from tests.server.questions import Options, Question
from tests.serving import ServerProcess, Stubs, details_of
from whamming import InvalidArgumentError, OverloadedError, ServiceError
from whamming.storage import IndexSettings
from whamming.v1 import error_pb2
from whamming.v1.index_pb2 import GetIndexRequest

BITS, N = 16, 600
BATCH, STREAMS = 8, 5


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(max_k=10, max_batch=BATCH, max_streams=STREAMS, snapshot_seconds=0.3) as server:
        yield server
        server.check_log()


@pytest.fixture(scope="module")
def docs(server: ServerProcess) -> Iterator[Collection]:
    with server.stubs() as stubs:
        docs = Collection(stubs, "docs", IndexSettings(BITS))
        codes = make_codes("uniform", N, BITS, np.random.default_rng(0))
        docs.upsert(np.arange(N, dtype=np.uint64), codes, [b"payload of %d" % id_ for id_ in range(N)])
        yield docs


# -- queries -----------------------------------------------------------------------------------------------------------


def test_the_limit_of_k(server: ServerProcess, docs: Collection) -> None:
    with Conversation(docs.stubs.search) as talk:
        talk.ask("docs", [docs.question(query_id=1)], Options(k=10))
        talk.ask("docs", [docs.question(query_id=2)], Options(k=11))
        accounts = talk.finish()
    assert reason_of(accounts[1]) == COMPLETE
    error = end_of(accounts[2]).error
    assert error is not None
    assert (error.reason, error.field) == (error_pb2.ERROR_REASON_INVALID_ARGUMENT, "options.k")
    assert re.search("k = 11;.* 1 to 10", error.message)
    with whamming.connect(server.address) as database:
        index = database.index("docs")
        with pytest.raises(InvalidArgumentError, match=r"k = 11;.* 1 to 10"):
            index.search_batch(np.zeros((1, 2), dtype=np.uint8), k=11)
        with pytest.raises(InvalidArgumentError, match=r"k = 11;.* 1 to 10"):
            index.search(np.zeros(2, dtype=np.uint8), k=11).all()


def test_the_limit_of_queries_per_batch(docs: Collection) -> None:
    with Conversation(docs.stubs.search) as talk:
        talk.ask("docs", [docs.question(query_id=query_id) for query_id in range(BATCH + 1)], Options(k=1))
        with pytest.raises(grpc.RpcError) as caught:
            talk.finish()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    details = details_of(caught.value)
    assert details.field == "queries.query_ids"
    assert re.search("9 queries.* 8", details.message)


def test_the_limit_of_queries_per_stream(docs: Collection) -> None:
    """Queries beyond the limit are refused. Running queries continue. When one ends, another can start."""
    with Conversation(docs.stubs.search) as talk:
        talk.ask("docs", [docs.question(query_id=query_id) for query_id in range(BATCH)], Options(credit=1))
        talk.ask("docs", [docs.question(query_id=100)], Options(k=1))
        talk.until_ended(100)
        assert reason_of(talk.accounts[100]) == FAILED
        error = end_of(talk.accounts[100]).error
        assert error is not None
        assert (error.code, error.reason) == (code_pb2.RESOURCE_EXHAUSTED, error_pb2.ERROR_REASON_OVERLOADED)
        assert re.search("9 queries.* 8", error.message)
        talk.cancel(0)
        talk.until_ended(0)
        talk.ask("docs", [docs.question(query_id=101)], Options(k=1))
        talk.until_ended(101)
        assert reason_of(talk.accounts[101]) == COMPLETE


def test_the_limit_of_queries_to_cancel(docs: Collection) -> None:
    """Unknown ids are ignored, but a request with more ids than a batch may have is refused."""
    with Conversation(docs.stubs.search) as talk:
        talk.ask("docs", [docs.question(query_id=1)], Options(credit=1))
        talk.cancel(*range(BATCH))
        talk.until_ended(1)
        assert reason_of(talk.accounts[1]) == CANCELLED
        talk.cancel(*range(BATCH + 1))
        with pytest.raises(grpc.RpcError) as caught:
            talk.finish()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    details = details_of(caught.value)
    assert details.field == "cancel.query_ids"
    assert re.search("9 queries.* 8", details.message)


@pytest.mark.parametrize("count", [1, BATCH, BATCH + 1, 300])
def test_the_python_client_keeps_its_batches_within_the_limit(
    server: ServerProcess, docs: Collection, count: int
) -> None:
    """It sends 256 queries at a time, and fewer when the server refuses them. The batch still succeeds."""
    queries = make_codes("uniform", count, BITS, np.random.default_rng(1))
    with whamming.connect(server.address, retry_seconds=0) as database:
        answer = database.index("docs").search_batch(queries, k=3)
        assert answer.exact.all()
        for row in range(0, count, 50):
            assert answer.ids[row].tolist() == [hit.id for hit in database.index("docs").search(queries[row], k=3)]


# -- calls -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def occupied(docs: Collection, count: int) -> Iterator[list[Conversation]]:
    """Keep ``count`` Search calls open."""
    with contextlib.ExitStack() as stack:
        talks = []
        for _ in range(count):
            talk = stack.enter_context(Conversation(docs.stubs.search))
            talk.ask("docs", [docs.question(query_id=1)], Options(k=1))
            talk.until_ended(1)
            talks.append(talk)
        yield talks


def check_overload(call: Callable[[], object]) -> None:
    """Check that a call is refused as OVERLOADED."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    details = details_of(caught.value)
    assert details.reason == "OVERLOADED"
    assert re.search("5 calls.* 5", details.message)
    assert 0 < details.retry_seconds < 10


def test_the_limit_of_concurrent_calls(docs: Collection) -> None:
    with occupied(docs, STREAMS) as talks:
        check_overload(lambda: docs.stubs.indexes.GetIndex(GetIndexRequest(name="docs")))
        check_overload(Conversation(docs.stubs.search).finish)
        talks[0].finish()
        assert docs.stubs.indexes.GetIndex(GetIndexRequest(name="docs")).index.statistics.items == N


def test_the_python_client_retries_when_the_server_is_overloaded(server: ServerProcess, docs: Collection) -> None:
    with whamming.connect(server.address) as patient, whamming.connect(server.address, retry_seconds=0) as hasty:
        index, hurried = patient.index("docs"), hasty.index("docs")
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(len(index)))
        with occupied(docs, STREAMS) as talks:
            with pytest.raises(OverloadedError, match="5 calls"):
                len(hurried)
            with pytest.raises(OverloadedError):
                next(hurried.search(np.zeros(2, dtype=np.uint8)))
            with pytest.raises(OverloadedError):
                hurried.upsert([1], np.zeros((1, 2), dtype=np.uint8))
            asking.start()
            talks[0].finish()
            asking.join(30)
        assert answers == [N]


# -- the age of snapshots ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [0, 7])
def test_a_search_continues_on_a_new_snapshot_when_the_old_one_expires(stubs: Stubs, name: str, sent: int) -> None:
    docs = Collection.uniform(stubs, name, 200, BITS)
    question = docs.question(kind="fractions", query_id=1)  # the oracle needs exact distances to continue
    before = docs.truth(question)
    with Conversation(stubs.search) as talk:
        talk.ask(name, [question], Options(credit=sent))
        talk.until_ended(1)
        first = talk.accounts[1]
        assert reason_of(first) == SNAPSHOT_EXPIRED
        first.check_prefix(before)
        assert len(first.ids) == sent
        _, codes = docs.packed()
        docs.upsert(np.arange(150, 300, dtype=np.uint64), codes[:150])
        talk.ask(name, [replace(question, after=end_of(first).resume)])
        talk.until_ended(1)
    after = docs.truth(question)
    expected = after.after(float(before.distances[sent - 1]), int(before.ids[sent - 1])) if sent else after
    assert talk.accounts[1].bytes == expected.bytes()
    assert reason_of(talk.accounts[1]) == EXHAUSTED


def wait_for_expiry(docs: Collection) -> None:
    """Wait until a query that starts now has expired, and so all queries before it."""
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [docs.question(query_id=1)], Options(credit=0))
        talk.until_ended(1)
        assert reason_of(talk.accounts[1]) == SNAPSHOT_EXPIRED


def test_later_queries_get_a_fresh_snapshot(docs: Collection) -> None:
    """A query that expired while waiting for credit does not affect the queries after it."""
    with Conversation(docs.stubs.search) as talk:
        talk.ask("docs", [docs.question(query_id=1)], Options(credit=1))
        talk.until_ended(1)
        question = docs.question(query_id=2)
        talk.ask("docs", [question])
        assert talk.finish()[2].bytes == docs.truth(question).bytes()


def test_the_python_client_resumes_expired_searches(server: ServerProcess, docs: Collection) -> None:
    """With payloads, the server sends 256 hits ahead. The rest is searched later, on a newer snapshot."""
    question = docs.question("code", query_id=1)
    whole = docs.truth(question)
    with whamming.connect(server.address) as database:
        search = database.index("docs").search(np.frombuffer(question.code, dtype=np.uint8), payloads=True)
        hits = [next(search)]
        wait_for_expiry(docs)
        hits += list(search)
    assert [hit.id for hit in hits] == whole.ids.tolist()
    assert [hit.payload for hit in hits] == docs.payloads([hit.id for hit in hits])


def test_reranked_searches_are_not_resumed(server: ServerProcess, docs: Collection) -> None:
    """Re-ranked hits have no resume position, so the client reports an error instead of repeating hits."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((N, 12)).astype(np.float32)
    with whamming.connect(server.address) as database:
        index = database.create_index("ranked", encoder="lsh", bits=BITS, dim=12, keep_vectors="float16")
        index.upsert(range(N), vectors=vectors, payloads=[b"x"] * N)
        search = index.search(vector=vectors[0], rerank="exact", payloads=True)
        first = next(search)
        wait_for_expiry(docs)
        seen = [first.id]
        with pytest.raises(ServiceError, match="SNAPSHOT_EXPIRED"):
            seen.extend(hit.id for hit in search)
        assert len(set(seen)) == len(seen) < N


def test_expired_queries_end_even_if_nobody_reads(server: ServerProcess, docs: Collection) -> None:
    with Conversation(docs.stubs.search) as talk:
        for query_id in range(BATCH):
            talk.ask("docs", [Question(query_id, bytes(2))], Options(credit=3))
        talk.until_ended(*range(BATCH))
        assert {reason_of(account) for account in talk.accounts.values()} == {SNAPSHOT_EXPIRED}
        assert len({end_of(account).resume for account in talk.accounts.values()}) == 1
