"""Encoding holds up no other calls, and clients share the storage threads fairly."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import grpc
import numpy as np
import pytest

import whamming
from tests.server.columns import pack_ids, pack_matrix
from tests.serving import PATIENCE, Stubs, wait_until
from whamming import Database, Encoder
from whamming.server import Config, Server
from whamming.server.rpc import storage_threads
from whamming.server.rpc.client_threads import ClientThreads
from whamming.server.rpc.storage_threads import BLOCKING_THREADS, CLIENT_THREADS
from whamming.storage.store.segmented import SegmentedStore
from whamming.v1.index_pb2 import ListIndexesRequest
from whamming.v1.item_pb2 import GetRequest, ItemBatch, UpsertRequest

SIZE = 1024
"""Components and bits. Vectors are encoded 256 at a time, or fewer."""


@dataclass(frozen=True, eq=False, repr=False)
class GatedEncoder(Encoder):
    """An encoder that waits for a gate before each piece of its work, and counts the pieces."""

    gate: threading.Event = field(default_factory=threading.Event)
    pieces: list[int] = field(default_factory=list)

    @property
    def _longest(self) -> float:  # used once for each piece
        self.pieces.append(len(self.pieces))
        assert self.gate.wait(PATIENCE)
        return 100.0


@pytest.fixture
def encoder() -> Iterator[GatedEncoder]:
    matrix = np.random.default_rng(0).standard_normal((SIZE, SIZE), dtype=np.float32)
    encoder = GatedEncoder("lsh", SIZE, SIZE, False, matrix, np.zeros(SIZE, dtype=np.float32), None)
    yield encoder
    encoder.gate.set()


@pytest.fixture
def database(encoder: GatedEncoder) -> Iterator[Database]:
    with whamming.open() as database:
        database.create_index("vectors", encoder=Encoder.from_bytes(encoder.to_bytes()))._encoder = encoder
        database.create_index("codes", bits=8).upsert([1], np.zeros((1, 1), dtype=np.uint8))
        yield database
        encoder.gate.set()


@pytest.fixture
async def server(database: Database) -> AsyncIterator[Server]:
    async with Server(Config(listen="127.0.0.1:0", grace_seconds=0.0), database=database) as server:
        yield server


@contextlib.asynccontextmanager
async def connection(server: Server) -> AsyncIterator[Stubs]:
    async with grpc.aio.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield Stubs(channel)


def upsert(count: int) -> UpsertRequest:
    vectors = np.random.default_rng(1).integers(-9, 9, (count, SIZE)).astype(np.int8)
    return UpsertRequest(index="vectors", items=ItemBatch(ids=pack_ids(range(count)), vectors=pack_matrix(vectors)))


async def test_encoding_holds_up_no_other_calls(server: Server, encoder: GatedEncoder) -> None:
    """16 messages with vectors blocked all reads and writes of all clients."""
    async with connection(server) as busy, connection(server) as other, asyncio.timeout(PATIENCE):
        calls = [busy.items.Upsert(iter([upsert(3)])) for _ in range(2 * BLOCKING_THREADS)]
        reads = [asyncio.ensure_future(call.read()) for call in calls]
        await asyncio.to_thread(wait_until, lambda: server._clients.count == len(calls) and encoder.pieces)
        for stubs in (other, busy):
            assert len((await stubs.indexes.ListIndexes(ListIndexesRequest())).indexes) == 2
            assert (await stubs.items.Get(GetRequest(index="codes", ids=pack_ids([1])))).found == b"\1"
            written = UpsertRequest(index="codes", items=ItemBatch(ids=pack_ids([2]), codes=b"x"))
            assert (await stubs.items.Upsert(iter([written])).read()).count == 1
        assert not any(read.done() for read in reads)
        encoder.gate.set()
        assert [done.count for done in await asyncio.gather(*reads)] == [3] * len(calls)


async def test_encoding_ends_soon_after_its_client_has_gone(
    server: Server, encoder: GatedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All vectors of a message were encoded, whatever happened to the call."""
    monkeypatch.setattr(storage_threads, "ENCODING_SECONDS", 0.0, raising=False)
    async with connection(server) as stubs, asyncio.timeout(PATIENCE):
        call = stubs.items.Upsert(iter([upsert(2_000)]))
        read = asyncio.ensure_future(call.read())
        await asyncio.to_thread(wait_until, lambda: encoder.pieces)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read
        await asyncio.to_thread(wait_until, lambda: server._clients.count == 0)
    encoder.gate.set()
    await asyncio.to_thread(server._storage.close)
    assert len(encoder.pieces) == 1
    assert server._database.index("vectors").count() == 0


async def test_writes_that_wait_hold_up_no_reads(server: Server, database: Database) -> None:
    """Four connections took all threads with writes that waited 10 seconds for a seal. Reads had to wait, too."""
    store = database.create_index("full", bits=8).open_store
    assert isinstance(store, SegmentedStore)
    clients = BLOCKING_THREADS // CLIENT_THREADS
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        busy = [await stack.enter_async_context(connection(server)) for _ in range(clients)]
        other = await stack.enter_async_context(connection(server))
        waiting = UpsertRequest(index="full", items=ItemBatch(ids=pack_ids([2]), codes=b"x"))
        with store._writing:  # as in a commit to a slow disk
            writes = [
                asyncio.ensure_future(stubs.items.Upsert(iter([waiting])).read())
                for stubs in busy
                for _ in range(2 * CLIENT_THREADS)
            ]
            await asyncio.to_thread(wait_until, lambda: len(store._group_commit) == clients * CLIENT_THREADS)
            for stubs in (other, busy[0]):
                assert (await stubs.items.Get(GetRequest(index="codes", ids=pack_ids([1])))).found == b"\1"
                assert len((await stubs.indexes.ListIndexes(ListIndexesRequest())).indexes) == 3
            assert not any(write.done() for write in writes)
        assert [done.count for done in await asyncio.gather(*writes)] == [1] * len(writes)


# -- threads -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def pool(count: int, share: int) -> Iterator[ClientThreads]:
    threads = ClientThreads(count, share, "test")
    try:
        yield threads
    finally:
        threads.close()


def test_clients_take_turns() -> None:
    done: list[str] = []
    gate = threading.Event()
    with pool(1, 1) as threads:
        threads.submit("a", gate.wait, PATIENCE)
        for name in ("a1", "a2", "a3", "b1", "c1", "c2"):
            threads.submit(name[0], done.append, name)
        gate.set()
    assert done == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_a_client_uses_its_share_of_the_threads() -> None:
    assert BLOCKING_THREADS > CLIENT_THREADS
    begun: list[int] = []
    gate = threading.Event()

    def work(number: int) -> bool:
        begun.append(number)
        return gate.wait(PATIENCE)

    with pool(3, 2) as threads:
        waiting = [threads.submit("a", work, number) for number in range(4)]
        wait_until(lambda: len(begun) == 2)
        assert threads.submit("b", str, 5).result(PATIENCE) == "5"
        with pytest.raises(ValueError, match="invalid literal"):
            threads.submit("b", int, "x").result(PATIENCE)
        assert sorted(begun) == [0, 1]
        gate.set()
        assert all(done.result(PATIENCE) for done in waiting)
    assert sorted(begun) == [0, 1, 2, 3]


def test_a_cancelled_call_is_dropped_with_its_arguments() -> None:
    class Request:
        """Something large."""

    gate, request = threading.Event(), Request()
    gone = weakref.ref(request)
    with pool(1, 1) as threads:
        threads.submit("a", gate.wait, PATIENCE)
        done = threads.submit("a", functools.partial(pytest.fail, "called"), request)
        del request
        assert done.cancel()
        assert gone() is None
        gate.set()
