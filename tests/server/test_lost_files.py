"""Files that somebody deletes, replaces or cuts short under a running server: errors, and a failing health check."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import whamming
from tests.clients.commands import run
from tests.serving import ServerProcess, details_of, wait_until
from whamming.storage import CorruptStoreError
from whamming.v1.index_pb2 import GetIndexRequest
from whamming.v1.search_pb2 import QueryBatch, SearchRequest

CODES = np.random.default_rng(6).integers(0, 256, (3000, 8), dtype=np.uint8)


def health_of(stubs: Any) -> int:
    answer = health_pb2_grpc.HealthStub(stubs.channel).Check(health_pb2.HealthCheckRequest())
    return int(answer.status)


def delete_index(path: Path) -> None:
    shutil.rmtree(path / "docs")


def replace_file(path: Path) -> None:
    shutil.copyfile(path / "docs" / "data.mdb", path / "copy")
    (path / "copy").replace(path / "docs" / "data.mdb")


def cut_short(path: Path) -> None:
    os.truncate(path / "docs" / "data.mdb", 0)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("happens", [delete_index, replace_file, cut_short])
def test_lost_files_are_reported(happens: Callable[[Path], None], workers: int, tmp_path: Path) -> None:
    path = tmp_path / "db"
    with ServerProcess(path, workers=workers) as server:
        with whamming.connect(server.address) as database, server.stubs() as stubs:
            docs, more = (database.create_index(name, 64) for name in ("docs", "more"))
            docs.upsert(range(3000), CODES)
            docs.seal()
            assert len(list(docs.search(CODES[0], k=3))) == 3
            assert health_of(stubs) == health_pb2.HealthCheckResponse.SERVING
            happens(path)
            for durability in ("fsync", "async"):
                with pytest.raises(CorruptStoreError, match="while it was in use"):
                    docs.upsert([1], CODES[:1], durability=durability)
            with pytest.raises(CorruptStoreError):
                docs.delete([1])
            if happens is cut_short:
                with pytest.raises(CorruptStoreError, match="cut short"):
                    list(docs.search(CODES[0], k=3))
                with pytest.raises(grpc.RpcError) as caught:
                    stubs.indexes.GetIndex(GetIndexRequest(name="docs"))
                assert details_of(caught.value).reason == "CORRUPT"
            more.upsert([1], CODES[:1])
            assert len(more) == 1, "other indexes are not affected"
            wait_until(lambda: health_of(stubs) == health_pb2.HealthCheckResponse.NOT_SERVING, "a failed check")
        wait_until(lambda: "not healthy: index 'docs': " in server.log(), "an error in the log")
        assert server.process.poll() is None, "it is still running"
        assert server.log().count("not healthy") <= workers, "it is logged once"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("remedy", ["drop", "create"])
def test_a_lost_index_is_dropped_or_created_again_without_a_restart(remedy: str, workers: int, tmp_path: Path) -> None:
    path, ready = tmp_path / "db", health_pb2.HealthCheckResponse.SERVING
    with (
        ServerProcess(path, workers=workers) as server,
        whamming.connect(server.address) as database,
        server.stubs() as stubs,
    ):
        docs = database.create_index("docs", 64)
        docs.upsert(range(10), CODES[:10])
        delete_index(path)
        if workers == 1:
            assert database.list_indexes() == ["docs"]
            (info,) = database.describe_indexes()
            assert isinstance(info.error, CorruptStoreError)
            wait_until(lambda: health_of(stubs) != ready, "a failed check")
        if remedy == "drop":
            database.drop_index("docs")
            assert database.list_indexes() == []
        again = database.create_index("docs", 32)
        assert (again.settings.bits, again.count()) == (32, 0)
        again.upsert([7], CODES[:1, :4])
        wait_until(lambda: again.get([7]).found.all() and health_of(stubs) == ready, "a successful check")
        assert [(info.name, info.error) for info in database.describe_indexes()] == [("docs", None)]


def test_the_command_drops_a_lost_index(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with ServerProcess(path) as server, whamming.connect(server.address) as database:
        database.create_index("docs", 64)
        delete_index(path)
        listed, dropped, missing = (
            run(*command, "--server", server.address, "--timeout", "30")
            for command in (["list"], ["drop", "docs", "--yes"], ["drop", "docs", "--yes"])
        )
        assert listed.code == 1
        assert listed.out.split()[-2:] == ["docs", "broken"]
        assert "drop the index" in listed.err
        dropped.ok()
        missing.refused(1, "no index docs")


def health_of_all(server: ServerProcess) -> set[int]:
    """Return the answers to checks on 12 connections, which the kernel distributes over the processes."""
    answers = set()
    for _ in range(12):
        with server.stubs(**{"grpc.use_local_subchannel_pool": 1}) as stubs:  # a connection of its own
            answers.add(health_of(stubs))
    return answers


@pytest.mark.parametrize("opened_by", ["the writer", "a reader or the writer"])
def test_health_checks_of_all_processes_agree(opened_by: str, tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "db", tmp_path / "elsewhere"
    with whamming.open(path) as database:
        database.create_index("docs", 64).upsert(range(3000), CODES)
    with ServerProcess(path, workers=3) as server:
        with whamming.connect(server.address) as database:
            database.index("docs")  # opens it in the writer
        if opened_by != "the writer":
            server.stop()
            server.start()
            with server.stubs() as stubs:  # the process of this connection opens it
                query = QueryBatch(index="docs", query_ids=[1], codes=bytes(8), options={"k": 1})
                assert next(stubs.search.Search(iter([SearchRequest(queries=query)]))).counts == [1]
        assert health_of_all(server) == {health_pb2.HealthCheckResponse.SERVING}
        if opened_by == "the writer":
            (path / "docs").rename(elsewhere)
        else:  # a reader cannot tell a lost directory from an index that was dropped
            cut_short(path)
        wait_until(lambda: health_of_all(server) == {health_pb2.HealthCheckResponse.NOT_SERVING}, "failed checks")
        if opened_by == "the writer":
            elsewhere.rename(path / "docs")
            wait_until(lambda: health_of_all(server) == {health_pb2.HealthCheckResponse.SERVING}, "successful checks")


def test_a_directory_that_was_moved_is_reported_until_it_is_back(tmp_path: Path) -> None:
    """Nothing is written to files that the next start of the server would not find."""
    path, elsewhere = tmp_path / "db", tmp_path / "elsewhere"
    with ServerProcess(path) as server, whamming.connect(server.address) as database, server.stubs() as stubs:
        docs = database.create_index("docs", 64)
        path.rename(elsewhere)
        wait_until(lambda: health_of(stubs) == health_pb2.HealthCheckResponse.NOT_SERVING, "a failed check")
        with pytest.raises(CorruptStoreError, match="moved away"):
            docs.upsert([1], CODES[:1])
        elsewhere.rename(path)
        wait_until(lambda: health_of(stubs) == health_pb2.HealthCheckResponse.SERVING, "a successful check")
        docs.upsert([1], CODES[:1])
        assert len(docs) == 1


def test_a_lost_directory_is_a_loss_of_data_in_every_call(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with ServerProcess(path) as server, whamming.connect(server.address) as database:
        docs = database.create_index("docs", 64)
        shutil.rmtree(path)
        for call in (
            lambda: docs.upsert([1], CODES[:1]),
            lambda: database.create_index("more", 64),
            lambda: database.create_index("docs", 64, exist_ok=True),
            lambda: database.index("more"),
            lambda: database.drop_index("docs"),
            database.list_indexes,
            database.describe_indexes,
        ):
            with pytest.raises(CorruptStoreError, match="deleted or moved away"):
                call()
        assert "Traceback" not in server.log()
