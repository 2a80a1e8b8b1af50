"""Regression tests for bugs found by fuzzing. Most docstrings describe the bug."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import tracemalloc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2

from tests.server.columns import pack_ids, read_payloads
from tests.serving import PATIENCE
from whamming.native import InvalidArgumentError
from whamming.server import Config, Server
from whamming.server.failures import failure_of
from whamming.server.rpc.fit_queue import FitQueue
from whamming.server.rpc.index_service import IndexService
from whamming.server.rpc.item_service import ItemService
from whamming.server.rpc.storage_threads import StorageThreads
from whamming.server.search import results
from whamming.server.search.call import SearchCall
from whamming.server.search.options import Options, OptionsReader
from whamming.server.search.query import Query, State
from whamming.server.search.request import QueryRequest
from whamming.server.search.scheduler import Flow, Scheduler
from whamming.server.search.searcher import Searcher
from whamming.storage import ClosedError, Database, IndexSettings, open_database
from whamming.storage.files.environment import Environment
from whamming.storage.files.lmdb_backend import write_index
from whamming.storage.vectors.encoders import Encoder
from whamming.storage.vectors.fitting import fit
from whamming.v1 import index_pb2, index_pb2_grpc, item_pb2, search_pb2
from whamming.wire.service_errors import AnswerTooLargeError


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server in the event loop of the test."""
    async with Server(Config(listen="127.0.0.1:0", data=":memory:", grace_seconds=0.0)) as server:
        yield server


async def refused(call: Any) -> status_pb2.Status:
    """Return the status with details that a call fails with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    status = status_pb2.Status.FromString(caught.value.trailing_metadata()["grpc-status-details-bin"])
    assert status.code == caught.value.code().value[0]
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "whamming"
    assert isinstance(status, status_pb2.Status)
    return status


@pytest.mark.parametrize("name", ["x" * 100_000, "名前" * 5_000, "🦀" * 1_000, "\n" * 3_000])
async def test_a_status_that_quotes_a_long_value_reaches_the_client(server: Server, name: str) -> None:
    """The status exceeded the header size that clients accept, so they saw another status."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = index_pb2_grpc.IndexServiceStub(channel)  # type: ignore[no-untyped-call]
        status = await refused(stub.GetIndex(index_pb2.GetIndexRequest(name=name)))
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert status.message.startswith("index name '")
    assert status.message.endswith("starting with a letter or digit")


async def test_a_status_that_lists_many_indexes_reaches_the_client(server: Server) -> None:
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = index_pb2_grpc.IndexServiceStub(channel)  # type: ignore[no-untyped-call]
        for number in range(100):
            settings = index_pb2.IndexSettings(bits=8)
            await stub.CreateIndex(index_pb2.CreateIndexRequest(name=f"{number:a>127}", settings=settings))
        status = await refused(stub.GetIndex(index_pb2.GetIndexRequest(name="b")))
    assert status.code == grpc.StatusCode.NOT_FOUND.value[0]


class Dropping(Database):
    """A database that lists an index which has just been dropped."""

    def list_indexes(self) -> list[str]:
        return sorted([*super().list_indexes(), "gone"])


async def test_listing_indexes_while_one_is_dropped() -> None:
    """ListIndexes failed with NOT_FOUND."""
    with Dropping(None, "ram", read_only=False) as database:
        for name in ("a", "z"):
            database.create_index(name, 8)
        service = IndexService(StorageThreads(database), FitQueue())
        request = index_pb2.ListIndexesRequest(page_size=2)
        page = await service.ListIndexes(request, None)
        assert [index.name for index in page.indexes] == ["a"]
        request.page_token = page.next_page_token
        page = await service.ListIndexes(request, None)
        assert [index.name for index in page.indexes] == ["z"]
        assert not page.next_page_token


def test_statistics_of_an_index_dropped_by_another_process(tmp_path: Path) -> None:
    """GetIndex failed with INTERNAL if the index was dropped at the wrong moment, because its file was gone."""
    with open_database(tmp_path / "data") as writer:
        writer.create_index("docs", 8).upsert([1, 2], np.zeros((2, 1), dtype=np.uint8))
        with open_database(tmp_path / "data", mode="r") as reader:
            index = reader.index("docs")
            writer.drop_index("docs")
            stats = index.stats()
    assert (stats.items, stats.disk_bytes) == (2, 0)


def test_creating_an_index_waits_for_files_being_closed(tmp_path: Path) -> None:
    """CreateIndex failed with INTERNAL if the new file got the inode of a dropped file that was being closed."""
    making = threading.Thread(target=write_index, args=(tmp_path / "docs", IndexSettings(8)))
    with Environment._lock:
        making.start()
        making.join(0.2)
        assert not (tmp_path / "docs" / "lock.mdb").exists()
    making.join()
    assert (tmp_path / "docs" / "lock.mdb").exists()


async def test_get_stops_reading_when_the_answer_is_too_large(tmp_path: Path) -> None:
    """Repeated ids of a large payload were all copied before the answer was refused."""
    with open_database() as database:
        database.create_index("docs", 4096).upsert([1], np.zeros((1, 512), dtype=np.uint8), [bytes(65_536)])
        service = ItemService(StorageThreads(database), 60.0)
        tracemalloc.start()
        try:
            for count in (5_000, 2_000_000):
                with pytest.raises(AnswerTooLargeError, match="request fewer"):
                    await service.Get(item_pb2.GetRequest(index="docs", ids=pack_ids([1] * count)), None)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 64 << 20
        answer = await service.Get(item_pb2.GetRequest(index="docs", ids=pack_ids([1] * 30 + [2])), None)
        assert list(answer.found) == [1] * 30 + [0]
        assert read_payloads(answer.items.payloads) == [bytes(65_536)] * 30 + [b""]
        assert len(answer.items.codes) == 31 * 512


@pytest.mark.parametrize("sealed", [False, True])
def test_scan_splits_large_payloads(sealed: bool) -> None:
    """A part of a scan had 10,000 items regardless of their payloads, up to 640 MiB."""
    with open_database() as database:
        index = database.create_index("docs", 8)
        index.upsert(range(400), np.zeros((400, 1), dtype=np.uint8), [bytes([i % 256]) * 65_536 for i in range(400)])
        if sealed:
            index.seal()
        index.delete(range(0, 400, 7))
        pieces = list(index.scan())
    assert max(rows.nbytes for rows in pieces) < 9 << 20
    found = {int(row): rows.payloads[i] for rows in pieces if rows.payloads for i, row in enumerate(rows.ids)}
    assert found == {i: bytes([i % 256]) * 65_536 for i in range(400) if i % 7}


async def results_of(call: SearchCall) -> list[results.Results]:
    """Return all results that a call would send."""
    parts: list[results.Results] = []
    async with asyncio.timeout(PATIENCE):
        while some := await call.next_results():
            parts += some
    return parts


class GrantedAtOnce(Query):
    """A query that is granted credit at the moment when it blocks on credit."""

    def leave(self) -> State:
        state = super().leave()
        if state is State.BLOCKED_ON_CREDIT:
            self.call.grant(self.id, 1)
        return state


async def test_a_query_granted_credit_as_it_blocks_is_counted_once() -> None:
    """It counted as open forever. After 64 such queries the call began no more queries."""
    with open_database() as database:
        database.create_index("docs", 8).upsert(range(20), np.zeros((20, 1), dtype=np.uint8))
        searcher = Searcher(database, threads=1, slice_seconds=0.001, snapshot_seconds=60.0)
        try:
            call = SearchCall(searcher, OptionsReader(100), max_queries=100, buffer_bytes=1 << 16)
            message = search_pb2.QueryBatch(index="docs", query_ids=[1], codes=b"x")
            request = QueryRequest(message, Options(credit=1))
            call._queries[1] = GrantedAtOnce(call, request, 0, None)
            searcher.submit(call.flow, [call._queries[1]])
            call.close_requests()
            parts = await results_of(call)
        finally:
            searcher.close()
    assert sum(sum(part.counts) for part in parts) == 20
    assert call.flow.open == 0


async def test_a_refused_call_is_freed() -> None:
    """Its error and its messages, up to 16 MiB each, formed a cycle that only the garbage collector freed."""

    async def receive() -> search_pb2.SearchRequest:
        return search_pb2.SearchRequest(queries=search_pb2.QueryBatch(index="docs", query_ids=[1, 1], codes=b"xy"))

    async def send(response: search_pb2.SearchResponse) -> None:
        raise AssertionError("nothing should be sent")

    with open_database() as database:
        searcher = Searcher(database, threads=1, slice_seconds=0.001, snapshot_seconds=60.0)
        gc.collect()
        gc.disable()
        try:
            call = SearchCall(searcher, OptionsReader(100), max_queries=100, buffer_bytes=1 << 16)
            gone = weakref.ref(call)
            with pytest.raises(InvalidArgumentError, match="query id 1"):
                await call.run(receive, send)
            del call
            for _ in range(3):
                await asyncio.sleep(0)
            assert gone() is None
        finally:
            gc.enable()
            searcher.close()


@pytest.mark.parametrize("data", [bytes(4 << 20), b"\x0a" * (4 << 20)])
async def test_a_refused_message_is_freed(server: Server, data: bytes) -> None:
    """gRPC kept the error that ended the call, and its traceback kept the message until a garbage collection."""
    refused = search_pb2.SearchOnceRequest(code=data, options=search_pb2.QueryOptions(k=1)).SerializeToString()
    batch = search_pb2.QueryBatch(index="docs", codes=data)
    stream = search_pb2.SearchRequest(queries=batch).SerializeToString()
    async with grpc.aio.insecure_channel(server.address) as channel:
        once = channel.unary_unary("/whamming.v1.SearchService/SearchOnce")
        scan = channel.unary_stream("/whamming.v1.ItemService/Scan")
        search = channel.stream_stream("/whamming.v1.SearchService/Search")
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(8):
                with pytest.raises(grpc.aio.AioRpcError):
                    await once(refused if data[0] == 0 else data)
                with pytest.raises(grpc.aio.AioRpcError):
                    [response async for response in scan(refused if data[0] == 0 else data)]
                with pytest.raises(grpc.aio.AioRpcError):
                    [response async for response in search(iter([stream if data[0] == 0 else data]))]
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert kept < 3 * len(data)


def test_a_sample_whose_squares_overflow_is_refused() -> None:
    """CreateIndex failed with INTERNAL."""
    rng = np.random.default_rng(0)
    sample = rng.standard_normal((40, 8)).astype(np.float32)
    sample[0, 0] = 3e38
    with pytest.raises(InvalidArgumentError, match=r"3e\+38.*1e15"):
        fit("itq", sample, bits=5)


async def test_a_seal_that_fails_after_its_client_left_is_not_logged() -> None:
    """asyncio logged its exception as never retrieved."""
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
    gone = threading.Event()

    def work(report: Any) -> None:
        gone.wait()
        raise ClosedError("the index is closed")

    with open_database() as database:
        storage = StorageThreads(database)
        shares = IndexService(storage, FitQueue())._progress(work)
        assert await anext(shares) == 0.0
        await shares.aclose()  # type: ignore[attr-defined]
        gone.set()
        await asyncio.to_thread(storage.close)
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert not unhandled


def test_running_out_of_memory_is_an_expected_error(caplog: pytest.LogCaptureFixture) -> None:
    assert failure_of(MemoryError()).code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert not caplog.records


def test_encoders_that_are_too_large_are_refused() -> None:
    """A request of 50 bytes made the server generate 2 GiB of random numbers."""
    with pytest.raises(InvalidArgumentError, match="16777216"):
        fit("lsh", bits=4096, dim=65_536)


class DoneAtOnce:
    """A job for the scheduler."""

    def __init__(self) -> None:
        self.flow = Flow()
        self.group = None


async def test_an_idle_worker_frees_its_last_job() -> None:
    """It kept its last query alive, and with it the snapshot."""
    scheduler: Scheduler[DoneAtOnce] = Scheduler(1, 0.001, lambda jobs, seconds: ())
    try:
        job = DoneAtOnce()
        gone = weakref.ref(job)
        scheduler.submit(job.flow, [job])
        scheduler.dispatch()
        del job
        end = time.monotonic() + 10
        while gone() is not None:
            assert time.monotonic() < end, "the worker keeps its last job"
            await asyncio.sleep(0.001)
            gc.collect()
    finally:
        scheduler.close()


async def test_a_fitted_encoder_is_not_read_in_the_event_loop(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have 16 MiB."""
    read, threads = Encoder.from_bytes, []

    def spy(data: bytes) -> Encoder:
        threads.append(threading.current_thread())
        return read(data)

    monkeypatch.setattr(Encoder, "from_bytes", spy)
    request = index_pb2.CreateIndexRequest(name="docs", fitted_encoder=fit("lsh", dim=4, bits=8).to_bytes())
    async with grpc.aio.insecure_channel(server.address) as channel:
        await index_pb2_grpc.IndexServiceStub(channel).CreateIndex(request)  # type: ignore[no-untyped-call]
    assert threads
    assert threading.current_thread() not in threads
