"""What the fuzz has found, one by one."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2

from whamming.server import Config, Server
from whamming.server.scheduler import Flow, Outcome, Scheduler
from whamming.server.services import IndexService, Storage
from whamming.storage import Database, open_database
from whamming.v1 import index_pb2, index_pb2_grpc


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server in this process, in the loop of the test."""
    async with Server(Config(listen="127.0.0.1:0", data=":memory:", grace_seconds=0.0)) as server:
        yield server


async def refused(call: Any) -> status_pb2.Status:
    """Return the rich status that a call is refused with."""
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
async def test_a_status_that_quotes_a_long_value_arrives(server: Server, name: str) -> None:
    """It was larger than the headers that clients take, so that they saw another status."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = index_pb2_grpc.IndexServiceStub(channel)  # type: ignore[no-untyped-call]
        status = await refused(stub.GetIndex(index_pb2.GetIndexRequest(name=name)))
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert status.message.startswith("index name '")
    assert status.message.endswith("starting with a letter or digit")


async def test_a_status_that_lists_many_indexes_arrives(server: Server) -> None:
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = index_pb2_grpc.IndexServiceStub(channel)  # type: ignore[no-untyped-call]
        for number in range(100):
            settings = index_pb2.IndexSettings(bits=8)
            await stub.CreateIndex(index_pb2.CreateIndexRequest(name=f"{number:a>127}", settings=settings))
        status = await refused(stub.GetIndex(index_pb2.GetIndexRequest(name="b")))
    assert status.code == grpc.StatusCode.NOT_FOUND.value[0]


class Dropping(Database):
    """A database one of whose indexes is dropped after it was listed."""

    def list_indexes(self) -> list[str]:
        return sorted([*super().list_indexes(), "gone"])


async def test_lists_indexes_while_one_is_dropped() -> None:
    """The listing failed with NOT_FOUND."""
    with Dropping(None, "ram", read_only=False) as database:
        for name in ("a", "z"):
            database.create_index(name, 8)
        service = IndexService(Storage(database))
        request = index_pb2.ListIndexesRequest(page_size=2)
        page = await service.ListIndexes(request, None)
        assert [index.name for index in page.indexes] == ["a"]
        request.page_token = page.next_page_token
        page = await service.ListIndexes(request, None)
        assert [index.name for index in page.indexes] == ["z"]
        assert not page.next_page_token


def test_describes_an_index_that_has_been_dropped_meanwhile(tmp_path: Path) -> None:
    """GetIndex failed with INTERNAL where the index was dropped at the right moment: its file was gone."""
    with open_database(tmp_path / "data") as writer:
        writer.create_index("docs", 8).upsert([1, 2], np.zeros((2, 1), dtype=np.uint8))
        with open_database(tmp_path / "data", mode="r") as reader:
            index = reader.index("docs")
            writer.drop_index("docs")
            stats = index.stats()
    assert (stats.items, stats.disk_bytes) == (2, 0)


class DoneAtOnce:
    """A job."""

    def step(self, seconds: float) -> Outcome:
        return Outcome.DONE

    def pause(self) -> bool:
        raise AssertionError("it never pauses")


async def test_an_idle_worker_keeps_nothing_alive() -> None:
    """It kept the last query that it had worked on, and so its snapshot."""
    scheduler = Scheduler(1, 0.001)
    try:
        job = DoneAtOnce()
        gone = weakref.ref(job)
        scheduler.submit(Flow(), job)
        del job
        end = time.monotonic() + 10
        while gone() is not None:
            assert time.monotonic() < end, "the worker keeps its last job"
            await asyncio.sleep(0.001)
            gc.collect()
    finally:
        scheduler.close()
