"""With several processes, a client sees its own writes, also those that are not on disk yet."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whamming
from tests.serving import ServerProcess
from whamming.remote import channel
from whamming.server.rpc.own_writes import ForwardedCall
from whamming.storage import Durability
from whamming.v1 import index_pb2, item_pb2

CODE = np.zeros(1, dtype=np.uint8)
HOW: tuple[tuple[Durability, Durability | None], ...] = (("async", None), ("fsync", "async"), ("async", "fsync"))


@pytest.fixture(autouse=True)
def own_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each client a connection of its own. Clients in one process share one by default."""
    options = [*channel.OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    monkeypatch.setattr(channel, "OPTIONS", options)


def connections(server: ServerProcess) -> Iterator[int]:
    """Count connections: at least six, and as many as it takes until one of them belongs to a reader process."""
    for number in range(60):
        if number >= 6 and readers_used(server):
            return
        yield number
    pytest.fail("none of 60 connections belonged to a reader process")


def readers_used(server: ServerProcess) -> int:
    """Return how many reader processes have forwarded calls. Each has one connection to the writer's socket."""
    proc = Path(f"/proc/{server.process.pid}")
    files = set[str]()
    for file in (proc / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            files.add(os.readlink(file))
    sockets = [line.split() for line in (proc / "net/unix").read_text().splitlines() if line.endswith("/writer")]
    listening, connected = 0x10000, 0x00000
    flags = [int(fields[3], 16) for fields in sockets if f"socket:[{fields[6]}]" in files]
    assert flags.count(listening) == 1
    return flags.count(connected)


@pytest.mark.parametrize(("setting", "durability"), HOW)
def test_a_client_sees_its_own_writes(setting: Durability, durability: Durability | None, tmp_path: Path) -> None:
    """Whichever process its connection belongs to."""
    with ServerProcess(tmp_path / "db", workers=3) as server, whamming.connect(server.address) as first:
        first.create_index("docs", 8, durability=setting)
        for connection in connections(server):
            with whamming.connect(server.address) as database:
                docs = database.index("docs")
                for step in range(5):
                    id_ = 100 * connection + step
                    docs.upsert([id_], CODE[None], durability=durability)
                    assert docs.get([id_]).found[0]
                    docs.upsert([id_ + 50], CODE[None], durability=durability)
                    ids = {hit.id for hit in docs.search(CODE, k=1000)}
                    assert {id_, id_ + 50} <= ids
                    assert docs.delete([id_], durability=durability) == 1
                    assert id_ not in docs.search_batch(CODE[None], k=1000).ids
                    docs.upsert([id_], CODE[None], durability=durability)
                    assert id_ in np.concatenate([rows.ids for rows in docs.scan()])
        server.check_log()


def test_an_index_that_was_dropped_meanwhile(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "db", workers=2) as server:
        for _ in connections(server):
            with whamming.connect(server.address) as database:
                docs = database.create_index("docs", 8, durability="async")
                docs.upsert([1], CODE[None])
                database.drop_index("docs")
                with pytest.raises(whamming.StorageError):
                    docs.get([1])
        server.check_log()


ASYNC, FSYNC = index_pb2.DURABILITY_ASYNC, index_pb2.DURABILITY_FSYNC
SETTING = index_pb2.DURABILITY_UNSPECIFIED
"""The durability that the index is configured with."""


@pytest.mark.parametrize("later", [SETTING, FSYNC])
@pytest.mark.parametrize("streams", [1, 2])
def test_an_async_write_stays_unsaved_after_later_writes(streams: int, later: Any) -> None:
    """In the same stream, where the later write is sent before the first response arrives, or in another one."""
    unsaved: dict[str, bool] = {}
    calls = [ForwardedCall("/whamming.v1.ItemService/Upsert", unsaved) for _ in range(streams)]
    for call, durability in ((calls[0], ASYNC), (calls[-1], later)):
        call.sends(item_pb2.UpsertRequest(index="docs", durability=durability).SerializeToString())
    for call in calls:
        call.receives()
    assert unsaved == {"docs": True}
