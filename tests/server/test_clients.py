"""No client can hold up the others: whatever calls it opens, others are served soon."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.collection import Collection
from tests.server.conversation import Conversation
from tests.server.questions import Options
from tests.server.raw_http2 import RawConnection
from tests.serving import ServerProcess, wait_until
from whamming.v1.index_pb2 import CreateIndexRequest, GetIndexRequest, IndexSettings
from whamming.v1.item_pb2 import UpsertRequest

CALLS = 8
"""Calls that a client may have."""
OWN_CONNECTION = {"grpc.use_local_subchannel_pool": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(max_client_streams=CALLS, max_streams=4 * CALLS) as server:
        yield server
        server.check_log()


@pytest.fixture(scope="module")
def docs(server: ServerProcess) -> Iterator[Collection]:
    with server.stubs() as stubs:
        yield Collection.uniform(stubs, "docs", 300, 24)


def check_served(server: ServerProcess, docs: Collection) -> None:
    """Check that another client gets the right answer."""
    question = docs.question(query_id=1)
    with server.stubs(**OWN_CONNECTION) as stubs, Conversation(stubs.search) as talk:
        talk.ask(docs.name, [question], Options(k=5))
        assert talk.finish()[1].bytes == docs.truth(question)[:5].bytes()


def test_idle_calls_of_one_client_lock_nobody_out(server: ServerProcess, docs: Collection) -> None:
    """Further calls of the same client wait until one of its calls ends."""
    with server.stubs(**OWN_CONNECTION) as stubs, contextlib.ExitStack() as stack:
        stubs.indexes.GetIndex(GetIndexRequest(name=docs.name))  # now the client knows the limit
        talks = []
        for _ in range(CALLS):
            talk = stack.enter_context(Conversation(stubs.search))
            talk.ask(docs.name, [docs.question(query_id=1)], Options(k=1))
            talk.until_ended(1)
            talks.append(talk)
        waiting = stubs.indexes.GetIndex.future(GetIndexRequest(name=docs.name))
        more = [stack.enter_context(Conversation(stubs.search)) for _ in range(30 * CALLS)]
        check_served(server, docs)
        assert not waiting.done()
        talks[0].finish()
        assert waiting.result().index.statistics.items == 300
        assert not any(talk.call.done() for talk in more)


def test_a_client_that_ignores_the_limit_of_calls_is_refused(server: ServerProcess, docs: Collection) -> None:
    """Calls that are sent before the server's settings arrive do not count for other clients."""
    with RawConnection(server.address) as raw:
        streams = [raw.call("/whamming.v1.SearchService/Search") for _ in range(8 * CALLS)]
        wait_until(lambda: len(raw.ended()) == 7 * CALLS, "the refusal of calls above the limit")
        assert set(raw.ended()) < set(streams)
        check_served(server, docs)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_limit_of_calls_counts_per_client_on_all_processes(tmp_path: Path, workers: int) -> None:
    """Calls that a process forwards count for the client that made them."""
    limits = {"max_client_streams": CALLS, "max_streams": 8 * CALLS, "grace_seconds": 0.2, "workers": workers}
    with ServerProcess(tmp_path / "db", **limits) as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.stubs(**OWN_CONNECTION)) for _ in range(4)]
        clients[0].indexes.CreateIndex(CreateIndexRequest(name="docs", settings=IndexSettings(bits=8)))
        for stubs in clients:
            requests = [stack.enter_context(contextlib.closing(Requests())) for _ in range(CALLS)]
            calls = [stubs.items.Upsert(iter(one)) for one in requests]
            for one, call in zip(requests, calls, strict=True):
                one.put(UpsertRequest(index="docs"))
                assert next(call).count == 0
        with server.stubs(**OWN_CONNECTION) as stubs:
            assert stubs.indexes.GetIndex(GetIndexRequest(name="docs")).index.name == "docs"


class Requests:
    """The requests of a stream, which stays open until this is closed."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[UpsertRequest | None] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[UpsertRequest]:
        return iter(self._queue.get, None)

    def put(self, request: UpsertRequest) -> None:
        self._queue.put(request)

    def close(self) -> None:
        self._queue.put(None)
