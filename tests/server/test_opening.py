"""Opening an index, and preparing a query on a large encoder, do not hold up the queries of other indexes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whamming
from tests.server.calls import Bench, batch
from tests.serving import PATIENCE
from whamming import Database, Encoder, StoredIndex
from whamming.server.rpc.storage_threads import BLOCKING_THREADS, StorageThreads
from whamming.server.search.opening import OPENING_THREADS, IndexOpener
from whamming.storage import NotFoundError
from whamming.storage.open_indexes import OpenIndexes
from whamming.storage.store.protocol import backend
from whamming.v1 import error_pb2
from whamming.v1.search_pb2 import END_REASON_CANCELLED, END_REASON_COMPLETE, END_REASON_FAILED, QueryOptions
from whamming.wire.service_errors import UnavailableError

ONE = QueryOptions(k=1)


class GatedIndexes(OpenIndexes):
    """Opens the index "slow" only after the gate was opened. So it takes as long as a test wants."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.gate = threading.Event()
        self.openings = 0

    def open(self, name: str) -> StoredIndex:
        if name == "slow":
            self.openings += 1
            assert self.gate.wait(PATIENCE)
        return super().open(name)


class GatedDatabase(Database):
    def __init__(self, path: Path) -> None:
        super().__init__(path, "lmdb", read_only=False)
        self.indexes = self.gated = GatedIndexes(path, backend("lmdb"), read_only=False)
        self.gate = self.gated.gate


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[GatedDatabase]:
    with whamming.open(tmp_path / "db") as database:
        for name in ("docs", "slow"):
            database.create_index(name, bits=8).upsert([1, 2], np.array([[0], [255]], dtype=np.uint8))
    with GatedDatabase(tmp_path / "db") as database:
        yield database
        database.gate.set()


@contextlib.contextmanager
def workers(database: Database, count: int) -> Iterator[Bench]:
    bench = Bench(database, threads=count)
    try:
        yield bench
    finally:
        bench.close()


async def test_workers_do_not_wait_for_an_index_to_be_opened(gated: GatedDatabase) -> None:
    """As many queries as there are workers, on an index that was being opened, held up all searches."""
    with workers(gated, 2) as bench:
        slow, other = bench.call(), bench.call()
        slow.ask(batch("slow", range(5), ONE, codes=bytes(5)))
        other.ask(batch("docs", range(3), ONE, codes=bytes(3)))
        await other.finish()
        assert [other[i].reason for i in range(3)] == [END_REASON_COMPLETE] * 3
        gated.gate.set()
        await slow.finish()
        assert [slow[i].ids for i in range(5)] == [[1]] * 5
        assert gated.gated.openings == 1


async def test_a_query_that_waits_for_its_index_can_be_cancelled(gated: GatedDatabase) -> None:
    with workers(gated, 1) as bench:
        call = bench.call()
        call.ask(batch("slow", [1, 2], ONE, codes=bytes(2)))
        call.cancel(1)
        await call.until_ended(1)
        assert call[1].reason == END_REASON_CANCELLED
        assert call.under_way == {2}
        gated.gate.set()
        await call.finish()
        assert call[2].ids == [1]


async def test_queries_fail_if_their_index_cannot_be_opened(gated: GatedDatabase) -> None:
    assert gated.path is not None
    (gated.path / "slow" / "data.mdb").write_bytes(b"damaged")
    gated.gate.set()
    with workers(gated, 1) as bench:
        call = bench.call()
        call.ask(batch("slow", [1, 2], ONE, codes=bytes(2)))
        call.ask(batch("nothing", [3], ONE, codes=bytes(1)))
        await call.finish()
        assert [call[i].reason for i in (1, 2, 3)] == [END_REASON_FAILED] * 3
        assert all(call[i].error.message for i in (1, 2, 3))
        assert call[3].error.reason == error_pb2.ERROR_REASON_INDEX_NOT_FOUND


async def test_groups_wait_for_an_index_that_is_closed_again(gated: GatedDatabase) -> None:
    gated.gate.set()
    with workers(gated, 1) as bench:
        await bench.learn("slow", 8)
        gated.index("slow").close()
        gated.gate.clear()
        call, other = bench.call(), bench.call()
        call.ask(batch("slow", range(4), ONE, codes=bytes(4)))
        other.ask(batch("docs", [0], ONE, codes=bytes(1)))
        await other.finish()
        assert call.under_way == {0, 1, 2, 3}
        gated.gate.set()
        await call.finish()
        assert [call[i].ids for i in range(4)] == [[1]] * 4


async def test_other_calls_do_not_wait_for_an_index_to_be_opened(gated: GatedDatabase) -> None:
    """16 calls for an index that was being opened held up all reads and writes."""
    storage = StorageThreads(gated)
    try:
        waiting = [asyncio.ensure_future(storage.index("slow")) for _ in range(2 * BLOCKING_THREADS)]
        assert (await storage.index("docs")).count() == 2
        with pytest.raises(NotFoundError):
            await storage.index("nothing")
        waiting[0].cancel()
        gated.gate.set()
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert {id(index) for index in done[1:]} == {id(gated.index("slow"))}
        assert gated.gated.openings == 1
        assert OPENING_THREADS < BLOCKING_THREADS
    finally:
        await asyncio.to_thread(storage.close)


# -- large encoders --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    matrix = np.random.default_rng(0).standard_normal((16_384, 256), dtype=np.float32)
    return Encoder("lsh", 16_384, 256, False, matrix, np.zeros(256, dtype=np.float32), None)


@pytest.fixture
def large(encoder: Encoder) -> Iterator[Database]:
    with whamming.open() as database:
        docs = database.create_index("docs", encoder=encoder, keep_vectors="int8")
        docs.upsert(range(300), vectors=np.random.default_rng(1).standard_normal((300, encoder.dim), dtype=np.float32))
        yield database


QUERIES = {
    "codes": QueryOptions(k=3),
    "rerank": QueryOptions(k=3, rerank=10),
    "rerank exactly": QueryOptions(k=3, rerank_exactly=True),
}


@pytest.mark.parametrize("kind", QUERIES)
async def test_vectors_are_projected_in_slices(large: Database, encoder: Encoder, kind: str) -> None:
    """A slice was as long as the projection, and re-ranking ended only when all items were ranked."""
    bench = Bench(large, slice_seconds=1e-6)
    vector = large.index("docs").get([7]).vectors
    call = bench.call()
    call.ask(batch("docs", [1], QUERIES[kind], vectors=vector))
    for _ in range(20):
        assert bench.step()
    assert not call.query(1).has_begun
    assert call.query(1).lease is None, "a snapshot is not needed yet"
    slices = 20 + bench.run()
    assert slices > 16_384 * 256 / (1 << 16)
    await call.finish()
    assert call[1].ids[0] == 7


@pytest.mark.parametrize("kind", QUERIES)
async def test_a_query_is_cancelled_while_its_vector_is_projected(large: Database, encoder: Encoder, kind: str) -> None:
    bench = Bench(large, slice_seconds=1e-6)
    call = bench.call()
    call.ask(batch("docs", [1], QUERIES[kind], vectors=np.ones((1, encoder.dim), dtype=np.float32)))
    for _ in range(5):
        bench.step()
    call.cancel(1)
    assert bench.run() <= 1
    await call.finish()
    assert call[1].reason == END_REASON_CANCELLED


async def test_exact_reranking_is_cancelled_while_it_computes_its_bound(large: Database, encoder: Encoder) -> None:
    docs = large.create_index("more", encoder=Encoder.from_bytes(encoder.to_bytes()), keep_vectors="int8")
    docs.upsert(range(300), vectors=np.random.default_rng(1).standard_normal((300, encoder.dim), dtype=np.float32))
    bench = Bench(large, slice_seconds=1e-6)
    call = bench.call()
    call.ask(batch("more", [1], QUERIES["rerank exactly"], vectors=np.ones((1, encoder.dim), dtype=np.float32)))
    while not call.query(1).has_begun:
        assert bench.step()
    for _ in range(10):
        assert bench.step()
    call.cancel(1)
    assert bench.run() <= 1
    await call.finish()
    assert call[1].reason == END_REASON_CANCELLED
    assert docs.encoder is not None
    assert "_known_stretch" not in vars(docs.encoder)


async def test_vectors_of_a_large_encoder_form_no_groups(large: Database, encoder: Encoder) -> None:
    """A group of 64 took seconds, and could not be interrupted."""
    bench = Bench(large)
    call = bench.call()
    vectors = np.ones((2, encoder.dim), dtype=np.float32)
    call.ask(batch("docs", [1], ONE, vectors=vectors[:1]))
    await call.run()
    assert bench.searcher.is_quick("docs")
    assert not bench.searcher.is_quick("docs", vectors=True)
    call.ask(batch("docs", [2, 3], ONE, vectors=vectors))
    assert call.query(2).group is None
    await call.finish()


async def test_what_arrives_after_the_server_began_to_close_is_unavailable(gated: GatedDatabase) -> None:
    opener = IndexOpener(gated)
    storage = StorageThreads(gated, opener)
    opener.close()
    with pytest.raises(UnavailableError):
        await storage.index("docs")
    storage.close()
