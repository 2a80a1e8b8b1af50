"""When writes are on disk, and that they are still there when the database is reopened."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.storage.conftest import Place
from tests.storage.twin import Twin, on_disk, random_codes, wait_until
from whamming.storage import Durability, IndexSettings
from whamming.storage.store.segmented import SegmentedStore


@pytest.mark.parametrize("default", ["fsync", "async"])
@pytest.mark.parametrize("asked", ["fsync", "async", None])
def test_a_write_may_override_the_durability_of_its_index(
    disk: Place, default: Durability, asked: Durability | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whamming.storage.store.segmented.ASYNC_SECONDS", 3600)
    with disk.open() as database:
        index = database.create_index("docs", 8, durability=default)
        expected = []
        for i in range(3):
            index.upsert([i], np.array([[i]], dtype=np.uint8), durability=asked)
            expected += [i] if (asked or default) == "fsync" else []
            assert len(index) == i + 1
            assert on_disk(disk) == expected
        index.delete([0, 1, 2], durability=asked)
        assert len(index) == 0
        assert on_disk(disk) == []


def test_async_writes_are_on_disk_shortly_afterwards(disk: Place) -> None:
    with disk.open() as database:
        index = database.create_index("docs", 8, durability="async")
        for i in range(5):
            index.upsert([i], np.array([[i]], dtype=np.uint8))
        assert len(index) == 5
        wait_until(lambda: on_disk(disk) == [0, 1, 2, 3, 4])


@pytest.mark.parametrize("how", ["flush", "fsync", "seal", "backup", "close"])
def test_async_writes_are_on_disk_after(how: str, disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whamming.storage.store.segmented.ASYNC_SECONDS", 3600)
    with disk.open() as database:
        index = database.create_index("docs", 8)
        index.upsert([1], np.array([[1]], dtype=np.uint8), durability="async")
        assert on_disk(disk) == []
        expected = [1]
        match how:
            case "flush":
                assert isinstance(index.store, SegmentedStore)
                index.store.flush()
            case "fsync":
                index.upsert([2], np.array([[2]], dtype=np.uint8), durability="fsync")
                expected = [1, 2]
            case "seal":
                index.seal()
            case "backup":
                database.backup(disk.directory / "backup")
            case _:
                database.close()
        assert on_disk(disk) == expected


def test_a_database_is_the_same_when_it_is_reopened(persistent: Place) -> None:
    with persistent.open() as database:
        twin = Twin.create(database, 100, bit_order="big", tables="multi", buckets="fast", durability="async")
        twin.layer()
    changes: list[Callable[[], None]] = [
        lambda: None,
        lambda: twin.index.seal(),
        lambda: change_more(twin),
        lambda: None,
    ]
    for change in changes:
        with persistent.open() as database:
            twin.index = database.index("docs")
            assert twin.index.settings == IndexSettings(100, "big", "multi", "fast", "async")
            twin.check()
            change()
            twin.check()
            assert twin.index.verify().ok


def change_more(twin: Twin) -> None:
    twin.delete(range(20))
    twin.upsert(range(10, 15), random_codes(5, 100, 8))
    twin.index.compact()
    twin.delete([12])
