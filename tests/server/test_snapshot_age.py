"""Calls that hold a snapshot for a client that does not read, while others write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import whamming
from tests.serving import ServerProcess
from whamming import StoredIndex, connect
from whamming.server.search import snapshot_lease
from whamming.storage import open_indexes
from whamming.storage.store.protocol import Store
from whamming.v1.item_pb2 import ScanRequest, ScanResponse
from whamming.v1.item_pb2_grpc import ItemServiceStub
from whamming.wire.columns import ids_of

N, BITS = 50_000, 2048
CODES = np.random.default_rng(0).integers(0, 256, (N, BITS // 8), dtype=np.uint8)
SEGMENT = N * BITS // 8
"""The codes of a segment have this many bytes. gRPC buffers only some of them for a client that does not read."""


def write_everything(address: str, times: int) -> None:
    """Replace all items several times. Each time, a new segment replaces the old one."""
    with connect(address) as database:
        index = database.index("docs")
        for _ in range(times):
            index.upsert(np.arange(N), CODES)
            index.compact()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def file_size(data: Path) -> int:
    return (data / "docs" / "data.mdb").stat().st_size


@pytest.fixture
def server(data: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts a server with one index in LMDB."""
    running = []

    def start(**options: float) -> ServerProcess:
        process = ServerProcess(data, **options)
        process.start()
        running.append(process)
        with connect(process.address) as database:
            database.create_index("docs", BITS, tables="none", exist_ok=True)
        write_everything(process.address, 1)
        return process

    yield start
    for process in running:
        process.stop()
        process.check_log()


def stalled_scan(channel: grpc.Channel) -> Iterator[ScanResponse]:
    """Start a scan. The caller reads its first message only, and gRPC's buffers have no room for the rest."""
    stub: Any = ItemServiceStub(channel)  # type: ignore[no-untyped-call]
    messages: Iterator[ScanResponse] = stub.Scan(ScanRequest(index="docs", batch_size=5000))
    return messages


def check_scan(first: ScanResponse, rest: Iterator[ScanResponse]) -> ScanResponse:
    """Check that a scan returns each item once, in order of id. Returns its last message."""
    messages = [first, *rest]
    ids = np.concatenate([ids_of(message.items.ids, "ids") for message in messages])
    assert np.array_equal(ids, np.arange(N))
    assert b"".join(message.items.codes for message in messages) == CODES.tobytes()
    assert {message.total for message in messages} == {N}
    return messages[-1]


def test_a_scan_that_nobody_reads_lets_go_of_its_snapshot(server: Callable[..., ServerProcess], data: Path) -> None:
    process = server(snapshot_seconds=0.2)
    with grpc.insecure_channel(process.address) as channel:
        scan = stalled_scan(channel)
        first = next(scan)
        write_everything(process.address, 12)
        assert file_size(data) < 8 * SEGMENT
        assert check_scan(first, scan).renewals > 0


def test_a_quick_scan_reads_one_snapshot(server: Callable[..., ServerProcess]) -> None:
    process = server(snapshot_seconds=3600)
    with grpc.insecure_channel(process.address) as channel:
        scan = stalled_scan(channel)
        assert check_scan(next(scan), scan).renewals == 0


def test_a_snapshot_expires_early_if_the_file_grows(server: Callable[..., ServerProcess], data: Path) -> None:
    process = server(snapshot_seconds=3600)
    limit = snapshot_lease.MAX_OBSOLETE_BYTES
    with grpc.insecure_channel(process.address) as channel:
        scan = stalled_scan(channel)
        first = next(scan)
        with connect(process.address) as database:
            search = database.index("docs").search(CODES[0])
            assert next(search).id == 0  # the search now waits for credit
            while (size := file_size(data)) < limit:
                write_everything(process.address, 1)
            write_everything(process.address, 60)  # for some seconds; ages are checked once per second
            assert file_size(data) < size + 40 * SEGMENT
            assert next(search).distance > 0  # it resumes on a new snapshot
        assert check_scan(first, scan).renewals > 0


def test_an_idle_reader_process_does_not_keep_old_pages(server: Callable[..., ServerProcess], data: Path) -> None:
    process = server(workers=3, snapshot_seconds=0.4)  # readers look for news four times in that time
    for _ in range(8):  # connections are spread over the processes
        with connect(process.address) as database:
            assert database.index("docs").search_batch(CODES[:1], k=1).ids[0, 0] == 0
    write_everything(process.address, 12)
    assert file_size(data) < 20 * SEGMENT


def test_a_scan_resumes_after_a_restart(server: Callable[..., ServerProcess]) -> None:
    process = server()
    with connect(process.address) as database:
        pieces = database.index("docs").scan(1000)
        found = [next(pieces)]
        process.kill()
        process.start()
        found += pieces
        assert np.array_equal(np.concatenate([rows.ids for rows in found]), np.arange(N))
        assert np.array_equal(np.concatenate([rows.codes for rows in found]), CODES)


class IdleSoon(StoredIndex):
    """Once armed, it is closed for being idle as soon as somebody has looked whether it is open."""

    close_idle: Callable[[StoredIndex], bool] | None = None

    @property
    def open_store(self) -> Store | None:
        found, close = super().open_store, self.close_idle
        if close is not None:
            self.close_idle = None
            assert close(self)
        return found

    @property
    def is_open(self) -> bool:
        return self.open_store is not None


def test_checking_the_growth_opens_no_idle_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_indexes, "StoredIndex", IdleSoon)
    with whamming.open(tmp_path / "db") as database:
        index = database.create_index("docs", 8)
        assert isinstance(index, IdleSoon)
        lease = snapshot_lease.SnapshotLease(index, index.snapshot(), 3600)
        index.close_idle = database.indexes.close_if_idle
        lease.check_growth()
        assert index.close_idle is None
        assert not index.is_open
        assert not lease.is_stale
