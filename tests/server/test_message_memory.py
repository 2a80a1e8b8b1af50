"""The memory for messages is bounded: half-sent ones, ones that wait, and calls that send nothing."""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import whamming
from tests.server.collection import Collection
from tests.server.columns import pack_matrix
from tests.server.conversation import Conversation
from tests.server.questions import Options
from tests.server.raw_http2 import RawConnection
from tests.serving import PATIENCE, ServerProcess, details_of, wait_until
from whamming.server import Config, Server
from whamming.server.rpc.message_memory import QUIET_SECONDS, STREAM_WINDOW
from whamming.storage import open_database
from whamming.v1 import search_pb2
from whamming.v1.index_pb2 import CreateIndexRequest, IndexSettings
from whamming.v1.item_pb2 import ItemBatch, UpsertRequest
from whamming.wire.columns import id_column

MB = 1 << 20
MESSAGE, TOTAL = 4 * MB, 64 * MB
"""The largest message, and the memory for messages of all clients. A client may use a quarter."""
SPARE = 24 * MB
"""Bytes that the server uses for calls and connections, and that its allocator may keep."""
SEARCH = "/whamming.v1.SearchService/Search"
METHODS = (
    SEARCH,
    "/whamming.v1.ItemService/Upsert",
    "/whamming.v1.ItemService/Get",
    "/whamming.v1.ItemService/Scan",
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
OWN_CONNECTION = {"grpc.use_local_subchannel_pool": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    options: dict[str, Any] = {
        "max_message_mb": MESSAGE // MB,
        "receive_mb": TOTAL // MB,
        "first_message_seconds": 20.0,
    }
    with ServerProcess(**options) as server:
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


def send_halves(server: ServerProcess, calls: Sequence[tuple[RawConnection, int]]) -> int:
    """Send most of a large message on each call, as far as the server lets us. Returns by how much its memory grew.

    Stops before the server ends calls because they are silent.
    """
    before = peak = server.usage().rss
    rest = {call: b"\0" + struct.pack(">I", MESSAGE - 1) + bytes(MESSAGE - 100) for call in calls}
    until = time.monotonic() + 0.8 * QUIET_SECONDS
    while time.monotonic() < until and any(rest.values()):
        for (raw, stream), data in rest.items():
            rest[raw, stream] = data[raw.write(stream, data[: MB // 4]) :]
        for raw in {raw for raw, _ in calls}:
            raw.receive(0.001)
        peak = max(peak, server.usage().rss)
    return peak - before


@pytest.mark.parametrize("method", METHODS)
def test_half_sent_messages_of_one_client(server: ServerProcess, docs: Collection, method: str) -> None:
    """gRPC buffers them before the server sees them."""
    with RawConnection(server.address) as raw:
        calls = [(raw, raw.call(method)) for _ in range(40)]
        grown = send_halves(server, calls)
        assert grown <= TOTAL // 4 + len(calls) * STREAM_WINDOW + SPARE, f"{grown / MB:.0f} MiB"
        check_served(server, docs)


def test_half_sent_messages_of_many_clients(server: ServerProcess, docs: Collection) -> None:
    """Other clients are served when silent calls have made room."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawConnection(server.address)) for _ in range(12)]
        calls = [(raw, raw.call(SEARCH)) for raw in clients for _ in range(4)]
        grown = send_halves(server, calls)
        assert grown <= TOTAL + len(calls) * STREAM_WINDOW + SPARE, f"{grown / MB:.0f} MiB"
        check_served(server, docs)


def test_silent_calls_make_room_for_others(server: ServerProcess, docs: Collection) -> None:
    """A server with memory for 16 messages serves more clients, each with an open call. They notice nothing."""
    question = docs.question("code", query_id=1)
    code, whole = np.frombuffer(question.code, dtype=np.uint8), docs.truth(question)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(whamming.connect(server.address)) for _ in range(18)]
        for _ in range(2):
            for client in clients:
                ids, distances = client.index(docs.name).search(code).all()
                assert (ids.tobytes(), distances.tobytes()) == whole.bytes()


def test_calls_that_waited_for_long_have_time_to_send(server: ServerProcess, docs: Collection) -> None:
    """Many silent calls of many clients end one after the other. A call that waits among them is answered."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawConnection(server.address)) for _ in range(8)]
        for raw in clients:
            for _ in range(8):
                raw.call(SEARCH)
        for _ in range(3):
            check_served(server, docs)


async def test_a_call_that_made_room_uses_no_memory() -> None:
    """It held requests when another call of its client needed room. Its reader ended later, and noted them again."""
    config = Config(listen="127.0.0.1:0", max_message_mb=8, receive_mb=64)  # a client may receive two such messages
    with open_database() as database:
        database.create_index("docs", 8).upsert([1, 2], np.zeros((2, 1), dtype=np.uint8))
        async with Server(config, database) as server, grpc.aio.insecure_channel(server.address) as channel:
            search = channel.stream_stream(SEARCH, search_pb2.SearchRequest.SerializeToString)
            batch = search_pb2.QueryBatch(index="docs", query_ids=range(1000), codes=bytes(1000))
            batch.options.CopyFrom(search_pb2.QueryOptions(k=2, credit=1))
            holding, other = search(), search()
            await holding.write(search_pb2.SearchRequest(queries=batch))
            results = aiter(holding)
            await anext(results)
            await other.write(search_pb2.SearchRequest(cancel=search_pb2.CancelQueries(query_ids=[1])))
            with pytest.raises(grpc.aio.AioRpcError, match="other calls need the memory"):
                [_ async for _ in results]
            await other.done_writing()
            assert await other.code() == grpc.StatusCode.OK
            assert server._clients._memory.used == 0


def test_the_first_message_has_a_deadline() -> None:
    with ServerProcess(first_message_seconds=0.2) as server, server.stubs() as stubs:
        with Conversation(stubs.search) as talk, pytest.raises(grpc.RpcError) as caught:
            next(talk.responses())
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        details = details_of(caught.value)
        assert details.reason == "OVERLOADED"
        assert "0.2 seconds" in details.message
        with RawConnection(server.address) as raw:
            calls = {raw.call(method) for method in METHODS}
            wait_until(lambda: raw.ended() == calls, "the end of calls without a message")


def test_the_first_message_has_a_deadline_on_all_processes(tmp_path: Path) -> None:
    """Of 20 connections, some belong to the reader process, which forwards the call. It ended without a status."""
    with (
        ServerProcess(tmp_path / "db", first_message_seconds=0.2, workers=2) as server,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(server.stubs(**OWN_CONNECTION)) for _ in range(20)]
        never = threading.Event()
        stack.callback(never.set)
        calls = [stubs.items.Upsert(iter(never.wait, True), timeout=PATIENCE) for stubs in clients]
        for call in calls:
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert details_of(caught.value).reason == "OVERLOADED"
        server.check_log()


def test_calls_that_wait_for_upserts_hold_none() -> None:
    """Each call has sent a message of 4 MiB, and stays open."""
    options: dict[str, Any] = {"max_message_mb": MESSAGE // MB, "receive_mb": 1024}
    with ServerProcess(**options) as server, server.stubs() as stubs, contextlib.ExitStack() as stack:
        stubs.indexes.CreateIndex(CreateIndexRequest(name="docs", settings=IndexSettings(bits=4096)))
        items = ItemBatch(ids=id_column(np.arange(8000, dtype=np.uint64)), codes=bytes(8000 * 512))
        never = threading.Event()
        stack.callback(never.set)
        calls: list[Any] = []

        def requests() -> Iterator[UpsertRequest]:
            yield UpsertRequest(index="docs", items=items)
            never.wait()

        def open_calls(count: int) -> None:
            for _ in range(count):
                calls.append(stubs.items.Upsert(requests(), timeout=4 * PATIENCE))
                assert next(calls[-1]).count == 8000

        open_calls(10)
        before = server.usage().rss
        open_calls(40)
        grown = server.usage().rss - before
        assert grown < 20 * MESSAGE, f"{grown / MB:.0f} MiB"


def test_requests_that_wait_are_not_read(tmp_path: Path) -> None:
    """One stream sends 240 MiB of queries at once. The server keeps 64 to 80 MiB of them, and answers all."""
    bits, count, batches = 4096, 240, 16
    with ServerProcess(max_batch=count * batches) as server, server.stubs() as stubs:
        docs = Collection.uniform(stubs, "docs", 2000, bits)
        question = docs.question()
        before = server.usage().rss
        assert question.table is not None
        tables = np.broadcast_to(question.table.ravel(), (count, 2 * bits))
        with Conversation(stubs.search, timeout=4 * PATIENCE) as talk:
            for number in range(batches):
                batch = search_pb2.QueryBatch(index=docs.name, query_ids=range(number * count, (number + 1) * count))
                batch.tables.CopyFrom(pack_matrix(tables))
                talk.send(search_pb2.SearchRequest(queries=batch))
            ends, peak = 0, 0
            for response in talk.call:
                assert not response.ends.errors
                ends += len(response.ends.query_ids)
                peak = max(peak, server.usage().rss)
                if ends == count * batches:
                    break
        assert peak - before <= 208 * MB, f"{(peak - before) / MB:.0f} MiB"
