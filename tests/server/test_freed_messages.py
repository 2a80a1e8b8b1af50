"""A call that fails or is cancelled frees its messages at once, without the garbage collector.

A server collects garbage rarely. If an error refers to a message through its traceback, and the message leads back to
the error, then calls of one client could take any amount of memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.server.columns import pack_matrix
from tests.serving import ServerProcess, wait_until
from whamming.v1.index_pb2 import CreateIndexRequest, DeleteIndexRequest, IndexSettings
from whamming.v1.item_pb2 import DeleteRequest, GetRequest, ItemBatch, ScanRequest, UpsertRequest
from whamming.v1.search_pb2 import QueryBatch, QueryOptions, SearchOnceRequest, SearchRequest
from whamming.wire.columns import id_column

BITS, ITEMS = 256, 1000
LARGE = 15 << 20
CALLS = 10
OWN_CONNECTION = {"grpc.use_local_subchannel_pool": 1}
ROOM = 4 * LARGE
"""Bytes by which the server may grow during CALLS calls: those of the running one, and what the allocator keeps."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        with server.stubs() as stubs:
            stubs.indexes.CreateIndex(CreateIndexRequest(name="docs", settings=IndexSettings(bits=BITS)))
            items = ItemBatch(ids=id_column(np.arange(ITEMS, dtype=np.uint64)), codes=bytes(ITEMS * BITS // 8))
            list(stubs.items.Upsert(iter([UpsertRequest(index="docs", items=items)])))
        yield server
        server.check_log()


def queries(**columns: Any) -> SearchRequest:
    options = QueryOptions(k=1)
    return SearchRequest(queries=QueryBatch(index="docs", options=options, **columns))


def many_queries() -> SearchRequest:
    """Valid queries of 15 MiB."""
    count = LARGE // (8 * 2 * BITS)
    return queries(query_ids=range(count), tables=pack_matrix(np.ones((count, 2 * BITS))))


IDS = id_column(np.arange(LARGE // 8, dtype=np.uint64))
REFUSED: dict[str, Callable[[Any], object]] = {
    "CreateIndex": lambda stubs: stubs.indexes.CreateIndex(
        CreateIndexRequest(name="x", settings=IndexSettings(bits=BITS), fitted_encoder=bytes(LARGE))
    ),
    "DeleteIndex": lambda stubs: stubs.indexes.DeleteIndex(DeleteIndexRequest(name="x" * LARGE)),
    "Upsert": lambda stubs: list(
        stubs.items.Upsert(iter([UpsertRequest(index="docs", items=ItemBatch(codes=bytes(LARGE)))]))
    ),
    "Delete": lambda stubs: stubs.items.Delete(DeleteRequest(index="missing", ids=IDS)),
    "Get": lambda stubs: stubs.items.Get(GetRequest(index="docs", ids=IDS)),
    "Scan": lambda stubs: list(stubs.items.Scan(ScanRequest(index="x" * LARGE))),
    "SearchOnce": lambda stubs: stubs.search.SearchOnce(
        SearchOnceRequest(index="docs", code=bytes(LARGE), options=QueryOptions(k=1))
    ),
    "Search": lambda stubs: list(stubs.search.Search(iter([queries(query_ids=[1, 1], codes=bytes(LARGE))]))),
}


def descendants(pid: int) -> list[int]:
    """Return a process and all that it has started, directly or not."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(found for child in children for found in descendants(int(child)))]


def memory(server: ServerProcess) -> int:
    """Return the resident memory of all processes of a server."""
    total = 0
    for pid in descendants(server.process.pid):
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        total += int(fields["VmRSS"].split()[0]) << 10
    return total


def grown(server: ServerProcess, call: Callable[[], object]) -> int:
    """Return by how many bytes a server grows if a call is repeated. The first one may fill caches."""
    call()
    before = memory(server)
    for _ in range(CALLS):
        call()
    return memory(server) - before


@pytest.mark.parametrize("method", REFUSED)
def test_calls_that_are_refused_free_their_messages(server: ServerProcess, method: str) -> None:
    with server.stubs() as stubs:

        def call() -> None:
            with pytest.raises(grpc.RpcError):
                REFUSED[method](stubs)

        size = grown(server, call)
    assert size <= ROOM, f"{size / 2**20:.0f} MiB"


def test_forwarded_calls_that_are_refused_free_their_messages(tmp_path: Path) -> None:
    """Of several connections, some belong to a reader process, which forwards writes to the writer."""
    with ServerProcess(tmp_path / "db", workers=2) as server:
        for method in ("Upsert", "Delete"):
            for connection in range(6):
                with server.stubs(**OWN_CONNECTION) as stubs:

                    def call(stubs: Any = stubs, method: str = method) -> None:
                        with pytest.raises(grpc.RpcError):
                            REFUSED[method](stubs)

                    size = grown(server, call)
                assert size <= ROOM, f"{method} on connection {connection}: {size / 2**20:.0f} MiB"
        server.check_log()


def test_queries_that_fail_free_their_messages(server: ServerProcess) -> None:
    """The query fails, but its call does not."""
    with server.stubs() as stubs:
        size = grown(server, lambda: list(stubs.search.Search(iter([queries(query_ids=[1], codes=bytes(LARGE))]))))
    assert size <= ROOM, f"{size / 2**20:.0f} MiB"


@pytest.mark.parametrize("begun", [True, False], ids=["after a result", "at once"])
@pytest.mark.parametrize("method", ["Upsert", "Search"])
def test_calls_that_are_cancelled_free_their_messages(server: ServerProcess, method: str, begun: bool) -> None:
    count = LARGE // (8 + BITS // 8)
    items = ItemBatch(ids=id_column(np.arange(count, dtype=np.uint64)), codes=bytes(count * BITS // 8))
    message = UpsertRequest(index="docs", items=items) if method == "Upsert" else many_queries()

    with server.stubs() as stubs:
        start = stubs.items.Upsert if method == "Upsert" else stubs.search.Search
        sent, cancelled = threading.Event(), threading.Event()

        def messages() -> Iterator[Any]:
            yield message
            sent.set()
            cancelled.wait()

        def call() -> None:
            sent.clear()
            cancelled.clear()
            running = start(messages())
            if begun:
                next(running)
            sent.wait()
            running.cancel()
            cancelled.set()
            with contextlib.suppress(grpc.RpcError):
                for _ in running:
                    pass

        before = server.usage().rss
        for _ in range(CALLS):
            call()
        wait_until(lambda: server.usage().rss <= before + ROOM)
