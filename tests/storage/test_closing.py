"""Closing an index while other threads write, seal and verify; and commits that are interrupted."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pytest

from tests.storage.conftest import Place
from tests.storage.twin import Twin, frozen, in_threads, on_disk, random_codes, wait_until
from whamming import StoredIndex
from whamming.storage import ClosedError
from whamming.storage.store.segmented import SegmentedStore


def test_closing_twice_is_allowed_and_nothing_works_afterwards(place: Place) -> None:
    with place.open() as database:
        index = database.create_index("docs", 13)
        index.upsert([1], random_codes(1, 13))
        index.close()
        index.close()
        uses: list[Callable[[], object]] = [
            lambda: len(index),
            lambda: index.get([1]),
            lambda: index.upsert([1], random_codes(1, 13)),
            lambda: index.delete([1]),
            lambda: index.delete([1], durability="async"),
            lambda: index.search(random_codes(1, 13)[0]),
            lambda: index.search_batch(random_codes(1, 13)),
            index.snapshot,
            index.seal,
            index.compact,
            index.stats,
            index.verify,
            lambda: index.store.backup(place.directory / "backup"),
        ]
        for use in uses:
            with pytest.raises(ClosedError, match="index is closed"):
                use()
        assert index.settings.bits == 13
        assert repr(index) == "StoredIndex('docs', 13 bits, closed)"


def test_several_threads_may_close_at_once(place: Place) -> None:
    for _ in range(5):
        database = place.open()
        twin = Twin.create(database, name=f"docs{time.monotonic_ns()}")
        twin.layer()
        kept = frozen(twin)
        in_threads(database.close, twin.index.close, twin.index.close, database.close)
        kept.check()


def test_closing_keeps_every_acknowledged_write(persistent: Place, small: None) -> None:
    """Threads write until the database is closed. What was acknowledged is there when it is reopened."""
    acknowledged: list[int] = []
    with persistent.open() as database:
        index = database.create_index("docs", 13)

        def writer(number: int) -> Callable[[], None]:
            def run() -> None:
                for i in range(number, 10**6, 4):
                    try:
                        index.upsert([i], random_codes(1, 13), durability="async" if number % 2 else "fsync")
                    except ClosedError:
                        return
                    acknowledged.append(i)

            return run

        def closer() -> None:
            wait_until(lambda: len(acknowledged) > 100)
            database.close()

        in_threads(*(writer(number) for number in range(4)), closer)
    with persistent.open() as database:
        assert database.index("docs").get(acknowledged).found.all()


def test_an_index_may_be_closed_while_it_is_sealed(place: Place) -> None:
    for number in range(3):
        with place.open(f"db{number}") as database:
            index = database.create_index("docs", 64)
            index.upsert(range(500), random_codes(500, 64))

            def seal(index: StoredIndex = index) -> None:
                with contextlib.suppress(ClosedError):
                    index.seal()

            in_threads(seal, index.close)
            with pytest.raises(ClosedError):
                index.snapshot()
        if place.persistent:
            with place.open(f"db{number}") as database:
                assert len(database.index("docs")) == 500


def test_an_index_may_be_closed_while_it_is_verified(disk: Place) -> None:
    with disk.open() as database:
        index = database.create_index("docs", 64)
        index.upsert(range(500), random_codes(500, 64))
        index.seal()
        report = index.verify(lambda _: index.close())
        assert report.ok
        assert report.arrays_checked > 0
        with pytest.raises(ClosedError):
            index.verify()


def test_an_index_may_be_compacted_while_it_is_verified(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database)
        twin.layer()
        report = twin.index.verify(lambda _: twin.index.compact())
        assert report.ok, report.problems
        twin.check()
        assert (twin.index.stats().segments, twin.index.verify().ok) == (1 if place.persistent else 2, True)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_commit_acknowledges_nothing(
    disk: Place, interrupt: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = random_codes(1, 13)
    entered, go_on = threading.Event(), threading.Event()
    with disk.open() as database:
        index = database.create_index("docs", 13)
        index.upsert([0], codes)
        outcomes: dict[int, BaseException | None] = {}

        def hook(name: str) -> None:
            if name == "before commit" and not entered.is_set():
                entered.set()
                go_on.wait()
            elif name == "in commit" and len(outcomes) == 1:
                raise interrupt

        def write(i: int) -> None:
            try:
                index.upsert([i], codes)
                outcomes[i] = None
            except BaseException as error:
                outcomes[i] = error

        monkeypatch.setattr("whamming.storage.store.faults.hook", hook)
        threads = [threading.Thread(target=write, args=(i,)) for i in range(1, 5)]
        threads[0].start()
        entered.wait()
        for thread in threads[1:]:
            thread.start()
        store = index.store
        assert isinstance(store, SegmentedStore)
        wait_until(lambda: len(store._group_commit) == 3)
        go_on.set()
        for thread in threads:
            thread.join()
        monkeypatch.setattr("whamming.storage.store.faults.hook", None)
        assert outcomes[1] is None
        assert any(isinstance(outcomes[i], interrupt) for i in (2, 3, 4))
        acknowledged = [i for i in range(1, 5) if outcomes[i] is None]
        assert index.get(acknowledged).found.all()
        index.upsert([9], codes)
        assert set(on_disk(disk)) >= {0, 9, *acknowledged}
        assert on_disk(disk) == sorted(int(i) for rows in index.snapshot().scan() for i in rows.ids)
