"""With several processes, a client sees its own writes, also those that are not on disk yet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import whamming
from tests.serving import ServerProcess
from whamming.storage import Durability

CODE = np.zeros(1, dtype=np.uint8)
HOW: tuple[tuple[Durability, Durability | None], ...] = (("async", None), ("fsync", "async"), ("async", "fsync"))


@pytest.mark.parametrize(("setting", "durability"), HOW)
def test_a_client_sees_its_own_writes(setting: Durability, durability: Durability | None, tmp_path: Path) -> None:
    """Whichever process its connection belongs to: of six connections, some belong to readers."""
    with ServerProcess(tmp_path / "db", workers=3) as server, whamming.connect(server.address) as first:
        first.create_index("docs", 8, durability=setting)
        for connection in range(6):
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
        for _ in range(6):
            with whamming.connect(server.address) as database:
                docs = database.create_index("docs", 8, durability="async")
                docs.upsert([1], CODE[None])
                database.drop_index("docs")
                with pytest.raises(whamming.StorageError):
                    docs.get([1])
        server.check_log()
