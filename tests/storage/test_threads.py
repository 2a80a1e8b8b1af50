"""Threads that write, replace, delete and read at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import whamming
from tests.storage.conftest import Place
from tests.storage.twin import Twin, in_threads, random_codes, wait_until
from whamming import StoredIndex
from whamming.storage.store import maintenance
from whamming.storage.store.segmented import SegmentedStore

THREADS = 8


def write_and_watch(index: StoredIndex, count: int) -> None:
    """Threads write their own ids one by one. Readers see a prefix of each, which includes all acknowledged writes."""
    acknowledged = [0] * THREADS
    codes = random_codes(count, index.settings.bits)

    def writer(number: int) -> Callable[[], None]:
        def run() -> None:
            for i in range(count):
                index.upsert([number * count + i], codes[i : i + 1])
                acknowledged[number] = i + 1

        return run

    def reader() -> None:
        everything = np.arange(THREADS * count, dtype=np.uint64)
        done = 0
        while done < THREADS * count:
            least = list(acknowledged)
            snapshot = index.snapshot()
            found = snapshot.get(everything).found.reshape(THREADS, count)
            seen = found.sum(axis=1)
            assert all(found[i, : seen[i]].all() for i in range(THREADS))
            assert all(seen[i] >= least[i] for i in range(THREADS))
            ids, _ = snapshot.view.search(whamming.native.Costs.hamming(codes[0], index.settings.bits), THREADS * count)
            done = int(seen.sum())
            assert sorted(ids.tolist()) == np.flatnonzero(found).tolist()

    in_threads(*(writer(number) for number in range(THREADS)), reader)


def test_readers_see_a_prefix_of_each_threads_writes(place: Place, small: None) -> None:
    with place.open() as database:
        twin = Twin.create(database)
        count = 40
        write_and_watch(twin.index, count)
        for _ in range(THREADS):
            twin.model.upsert(range(len(twin.model), len(twin.model) + count), random_codes(count, 13))
        twin.check()
        assert twin.index.stats().writes == THREADS * count


def test_concurrent_writes_share_commits(disk: Place) -> None:
    count = 500
    with disk.open() as database:
        twin = Twin.create(database)
        codes = random_codes(count, 13)

        def writer(number: int) -> Callable[[], None]:
            def run() -> None:
                for i in range(count):
                    twin.index.upsert([number * count + i], codes[i : i + 1])

            return run

        in_threads(*(writer(number) for number in range(THREADS)))
        stats = twin.index.stats()
        assert stats.writes == THREADS * count
        assert stats.writes >= 4 * stats.commits
        for number in range(THREADS):
            twin.model.upsert(range(number * count, (number + 1) * count), codes)
        twin.check()
    with disk.open() as database:
        twin.index = database.index("docs")
        twin.check()


def test_threads_replace_and_delete_the_same_items(place: Place, small: None) -> None:
    """Whatever the order, each id has the complete item that one of the threads wrote last."""
    with place.open() as database:
        index = database.create_index("docs", 64)

        def writer(number: int) -> Callable[[], None]:
            def run() -> None:
                rng = np.random.default_rng(number)
                for step in range(40):
                    ids = np.unique(rng.integers(0, 30, 8))
                    mark = number * 100 + step
                    index.upsert(ids, np.full((len(ids), 8), mark % 256, dtype=np.uint8), [b"%d" % mark] * len(ids))
                    if step % 4 == 0:
                        index.delete(ids[:2])

            return run

        def sealer() -> None:
            for step in range(10):
                (index.compact if step % 3 == 0 else index.seal)()

        in_threads(*(writer(number) for number in range(4)), sealer)
        snapshot = index.snapshot()
        items = snapshot.get(np.arange(30, dtype=np.uint64))
        assert items.found.sum() == len(snapshot)
        for found, code, payload in zip(items.found, items.codes, items.payloads, strict=True):
            assert code.tolist() == [int(payload or b"0") % 256] * 8
            assert found == bool(payload)
        assert index.verify().ok


def test_any_number_of_writers_waits_for_a_seal(place: Place, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """During a seal, the delta does not grow beyond a few times what is sealed at once."""
    most = maintenance.MAX_DELTA_FACTOR * maintenance.SEAL_ROWS + THREADS
    count = most + 1  # so that no thread finishes before all of them wait
    with place.open() as database:
        twin = Twin.create(database, durability="async")
        store = twin.index.store
        assert isinstance(store, SegmentedStore)
        seen: list[int] = []

        def hook(name: str) -> None:
            if name == "built" and not seen:
                wait_until(lambda: store._maintainer.waiting == THREADS or store._contents.delta_rows > most)
                seen.append(store._contents.delta_rows)

        def writer(number: int) -> Callable[[], None]:
            def run() -> None:
                for i in range(count):
                    twin.index.upsert([number * count + i], random_codes(1, 13, i))

            return run

        monkeypatch.setattr("whamming.storage.store.faults.hook", hook)
        in_threads(*(writer(number) for number in range(THREADS)))
        assert seen
        assert maintenance.SEAL_ROWS <= seen[0] <= most
        assert len(twin.index) == THREADS * count


def test_an_item_that_several_threads_delete_is_counted_once(place: Place) -> None:
    with place.open() as database:
        index = database.create_index("docs", 8)
        for size, durability in [(1, "fsync"), (1, "async"), (2000, "fsync")]:
            for _ in range(10):
                index.upsert(range(size), np.zeros((size, 1), dtype=np.uint8))
                counts: list[int] = []

                def delete(size: int = size, durability: Any = durability, counts: list[int] = counts) -> None:
                    counts.append(index.delete(range(size), durability=durability))

                in_threads(*[delete] * 4)
                assert sum(counts) == size
