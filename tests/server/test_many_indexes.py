"""A server with many indexes: lists them in pages without opening them, and drops them without holding up others."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import whamming
from tests.serving import ServerProcess, details_of, wait_until
from whamming import Database
from whamming.server.rpc import index_service
from whamming.server.rpc.fit_queue import FitQueue
from whamming.server.rpc.index_service import IndexService
from whamming.server.rpc.storage_threads import StorageThreads
from whamming.storage import ClosedError, Encoder
from whamming.storage.vectors.encoders import Training
from whamming.v1 import index_pb2
from whamming.v1.index_pb2 import ListIndexesRequest

COUNT = 250
NO_CALL: Any = None


def names_of(count: int) -> list[str]:
    return [f"index{number:05}" for number in range(count)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with whamming.open(tmp_path / "db") as database:
        for number, name in enumerate(names_of(COUNT)):
            database.create_index(name, bits=8).upsert([number], np.array([[number]], dtype=np.uint8))
    return tmp_path / "db"


def maps_of(server: ServerProcess) -> int:
    """Return how many index files the server has mapped."""
    return Path(f"/proc/{server.process.pid}/maps").read_text().count("data.mdb")


def pages(stubs: Any, **options: Any) -> Iterator[index_pb2.ListIndexesResponse]:
    token = ""
    while True:
        page = stubs.indexes.ListIndexes(ListIndexesRequest(page_token=token, **options))
        yield page
        token = page.next_page_token
        if not token:
            return


@pytest.mark.parametrize("workers", [1, 2])
def test_listing_opens_nothing(path: Path, workers: int) -> None:
    with ServerProcess(path, workers=workers) as server, server.stubs() as stubs:
        before = server.usage().files
        found = list(pages(stubs, names_only=True, page_size=100))
        assert [len(page.indexes) for page in found] == [100, 100, 50]
        assert [index.name for page in found for index in page.indexes] == names_of(COUNT)
        assert not any(index.HasField("settings") for page in found for index in page.indexes)
        with whamming.connect(server.address) as database:
            assert database.list_indexes() == names_of(COUNT)
            assert server.usage().files <= before + 4, "the connection"
            assert maps_of(server) == 0
            infos = database.describe_indexes()
            assert [(info.name, info.stats and info.stats.items) for info in infos] == [(n, 1) for n in names_of(COUNT)]
            assert maps_of(server) == 0, "they are closed again"
            assert database.index("index00007").search(np.array([0], dtype=np.uint8)).next(1)[0].tolist() == [7]
            assert maps_of(server) == 1


def test_a_server_with_few_files_serves_many_indexes(path: Path) -> None:
    """It used to fail, with all its calls, at the first index that it could not open."""
    with ServerProcess(path) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (200, 4096))
        with whamming.connect(server.address) as database:
            for number, name in enumerate(names_of(COUNT)):
                assert database.index(name).search(np.array([number], dtype=np.uint8), k=1).next(1)[0].tolist() == [
                    number
                ]
        assert server.usage().files < 200
        server.check_log()


async def test_pages_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    with whamming.open() as database:
        for name in names_of(10):
            database.create_index(name, bits=8)
        storage = StorageThreads(database)
        service = IndexService(storage, FitQueue())
        for limit, value in (("PAGE_SECONDS", 0.0), ("PAGE_BYTES", 1)):
            with monkeypatch.context() as patch:
                patch.setattr(index_service, limit, value)
                token, found = "", []
                for _ in range(10):
                    page = await service.ListIndexes(ListIndexesRequest(page_token=token), NO_CALL)
                    assert len(page.indexes) == 1
                    found.append(page.indexes[0].name)
                    token = page.next_page_token
                assert found == names_of(10)
                assert not token
        await asyncio.to_thread(storage.close)


def test_descriptions_are_small() -> None:
    """An encoder with a million errors of rounds made messages of 8 MB, which clients refused."""
    matrix = np.zeros((2, 2), dtype=np.float32)
    offsets = np.zeros(2, dtype=np.float32)
    large = Encoder("itq", 2, 2, True, matrix, offsets, None, Training(1, (1.0,) * 100_000))
    with ServerProcess() as server, server.stubs() as stubs:
        request = index_pb2.CreateIndexRequest(name="docs", fitted_encoder=large.to_bytes())
        with pytest.raises(grpc.RpcError) as caught:
            stubs.indexes.CreateIndex(request)
        assert details_of(caught.value).field == "fitted_encoder"
        server.check_log()


class HeldMerge:
    """A seal that goes on until the test releases it."""

    def __init__(self, database: Database, name: str) -> None:
        self._go_on, entered = threading.Event(), threading.Event()
        docs = database.create_index(name, bits=8)
        docs.upsert(range(1000), np.arange(1000, dtype=np.uint8)[:, None])
        self.error: BaseException | None = None

        def wait(_: float) -> None:
            entered.set()
            assert self._go_on.wait(20)

        def seal() -> None:
            try:
                docs.seal(wait)
            except ClosedError as error:
                self.error = error

        self._thread = threading.Thread(target=seal)
        self._thread.start()
        assert entered.wait(20)

    def finish(self) -> None:
        self._go_on.set()
        self._thread.join(20)


async def test_deleting_indexes_in_mid_merge_holds_up_nobody(tmp_path: Path) -> None:
    """Each delete kept a thread until the merge had ended, so 16 of them stopped all reads and writes."""
    with whamming.open(tmp_path / "db") as database:
        other = database.create_index("other", bits=8)
        merges = [HeldMerge(database, f"docs{number}") for number in range(20)]
        storage = StorageThreads(database)
        service = IndexService(storage, FitQueue())
        deletes = [
            asyncio.ensure_future(service.DeleteIndex(index_pb2.DeleteIndexRequest(name=f"docs{number}"), NO_CALL))
            for number in range(20)
        ]
        while database.list_indexes() != ["other"]:
            await asyncio.sleep(0)
        assert await storage.index("other") is other
        assert await storage.run(other.count) == 0
        assert not any(delete.done() for delete in deletes)
        deletes[0].cancel()
        for merge in merges:
            merge.finish()
        await asyncio.gather(*deletes, return_exceptions=True)
        assert all(isinstance(merge.error, ClosedError) for merge in merges)
        wait_until(lambda: not list((tmp_path / "db").glob(".*.dropped")))
        await asyncio.to_thread(storage.close)
