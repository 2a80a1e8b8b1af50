"""A broken index does not affect the others: ListIndexes says what is wrong with it, and DeleteIndex removes it."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

import whamming
from tests.serving import ServerProcess, details_of
from tests.storage.broken import NAME, SOUND, STRAY, WAYS, make_indexes
from whamming.storage import CorruptStoreError, FormatError
from whamming.v1 import index_pb2
from whamming.v1.error_pb2 import ErrorReason


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with whamming.open(tmp_path / "db") as database:
        make_indexes(database)
    return tmp_path / "db"


@pytest.mark.parametrize("way", WAYS)
def test_listing_goes_on_after_a_broken_index(path: Path, way: str) -> None:
    break_index, reason = WAYS[way]
    break_index(path / NAME)
    with ServerProcess(path) as server:
        with server.stubs() as stubs:
            first, broken, last = stubs.indexes.ListIndexes(index_pb2.ListIndexesRequest()).indexes
            assert [first.name, broken.name, last.name] == [SOUND[0], NAME, SOUND[1]]
            assert [first.statistics.items, last.statistics.items] == [2, 2]
            assert not first.HasField("problem")
            assert not last.HasField("problem")
            assert ErrorReason.Name(broken.problem.reason) == f"ERROR_REASON_{reason}"
            assert not broken.HasField("settings")
            assert not broken.HasField("statistics")
            with pytest.raises(grpc.RpcError) as caught:
                stubs.indexes.GetIndex(index_pb2.GetIndexRequest(name=NAME))
            details = details_of(caught.value)
            assert (details.reason, details.message) == (reason, broken.problem.message)
            if way in STRAY:
                before = sorted(path.rglob("*"))
                with pytest.raises(grpc.RpcError) as caught:
                    stubs.indexes.DeleteIndex(index_pb2.DeleteIndexRequest(name=NAME))
                assert details_of(caught.value).reason == "FORMAT"
                assert sorted(path.rglob("*")) == before, "a client cannot delete files that are not an index"
                return
            stubs.indexes.DeleteIndex(index_pb2.DeleteIndexRequest(name=NAME))
            names = [index.name for index in stubs.indexes.ListIndexes(index_pb2.ListIndexesRequest()).indexes]
            assert names == list(SOUND)
        server.check_log()


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_see_the_error_also_after_a_restart(path: Path, workers: int) -> None:
    WAYS["a bit is flipped"][0](path / NAME)
    (path / "notes.txt").write_text("mine")
    with ServerProcess(path, workers=workers) as server, whamming.connect(server.address) as database:
        for _ in range(2):
            errors = {info.name: info.error for info in database.describe_indexes()}
            assert list(errors) == database.list_indexes() == sorted((*SOUND, NAME, "notes.txt"))
            assert {name: type(error) for name, error in errors.items() if error is not None} == {
                NAME: CorruptStoreError,
                "notes.txt": FormatError,
            }
            assert len(database.index(SOUND[0])) == 2
            server.stop()
            server.start()
        database.drop_index(NAME)
        with pytest.raises(FormatError, match="stray file; move it away"):
            database.drop_index("notes.txt")
        (path / "notes.txt").unlink()
        assert database.list_indexes() == list(SOUND)
