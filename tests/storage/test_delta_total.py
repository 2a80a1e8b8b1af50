"""The recent writes of all open indexes together have a limit."""

from __future__ import annotations

import pytest

import whamming
from tests.storage.conftest import Place
from tests.storage.twin import Twin, random_codes, wait_until
from whamming import Database
from whamming.storage.store import delta_total
from whamming.storage.store.segmented import SegmentedStore

PAYLOAD = 4096
KIB = 1 << 10
INDEXES = 12


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit to 512 KiB."""
    monkeypatch.setattr(delta_total, "MAX_TOTAL_BYTES", 512 * KIB)
    monkeypatch.setattr(delta_total, "STEP_BYTES", 16 * KIB)


def twins(database: Database) -> list[Twin]:
    return [Twin.create(database, name=f"docs{number}") for number in range(INDEXES)]


def upsert(twin: Twin, first: int, kib: int) -> None:
    n = kib * KIB // PAYLOAD
    twin.upsert(range(first, first + n), random_codes(n, 13, first), [b"x" * PAYLOAD] * n)


def delta_bytes(*some: Twin) -> int:
    total = 0
    for twin in some:
        assert isinstance(twin.index.store, SegmentedStore)
        total += twin.index.store._contents.delta_bytes
    return total


@pytest.mark.usefixtures("small")
def test_the_largest_deltas_are_sealed_if_all_are_too_large_together(persistent: Place) -> None:
    with persistent.open() as database:
        quiet, *busy = twins(database)
        upsert(quiet, 0, 16)
        for step in range(20):
            for twin in busy:
                upsert(twin, 100 * step, 32)
                assert delta_bytes(quiet, *busy) <= 2 * 512 * KIB + 100 * KIB
        wait_until(lambda: delta_bytes(quiet, *busy) <= 512 * KIB + 11 * 32 * KIB)
        assert all(twin.index.stats().seals for twin in busy)
        assert quiet.index.stats().seals == 0
        for twin in (quiet, *busy):
            twin.check()


@pytest.mark.usefixtures("small")
def test_an_index_that_cannot_be_sealed_does_not_keep_others_from_it(persistent: Place) -> None:
    with persistent.open() as database:
        stuck, *others = twins(database)
        upsert(stuck, 0, 480)
        assert isinstance(stuck.index.store, SegmentedStore)
        with stuck.index.store._maintaining:  # as in a long compaction
            for step in range(8):
                for twin in others:
                    upsert(twin, 100 * step, 32)
            wait_until(lambda: delta_bytes(*others) <= 512 * KIB)
            assert stuck.index.stats().seals == 0
        wait_until(lambda: stuck.index.stats().seals == 1)


def test_the_memory_of_small_items_is_counted() -> None:
    with whamming.open(":memory:") as database:
        twin = Twin.create(database, bits=8)
        twin.upsert(range(50_000), random_codes(50_000, 8), [b"x"] * 50_000)
        store = twin.index.store
        assert isinstance(store, SegmentedStore)
        (run,) = store._contents.runs
        assert run.segment.nbytes < store._contents.delta_memory < 4 * run.segment.nbytes


def test_opening_many_indexes_with_recent_writes_seals_some(persistent: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with persistent.open() as database:
        for twin in twins(database):
            upsert(twin, 0, 128)
            assert twin.index.stats().seals == 0
    monkeypatch.setattr(delta_total, "MAX_TOTAL_BYTES", 512 * KIB)
    monkeypatch.setattr(delta_total, "STEP_BYTES", 16 * KIB)
    with persistent.open() as database:
        indexes = [database.index(f"docs{number}") for number in range(INDEXES)]
        wait_until(lambda: sum(index.stats().seals for index in indexes) >= 9)  # four deltas would exceed the limit
        assert [len(index) for index in indexes] == [32] * INDEXES


@pytest.mark.usefixtures("small")
def test_indexes_in_memory_are_not_sealed_for_it() -> None:
    with whamming.open(":memory:") as database:
        several = twins(database)
        for twin in several:
            upsert(twin, 0, 128)
        assert [twin.index.stats().seals for twin in several] == [0] * INDEXES


@pytest.mark.usefixtures("small")
def test_a_dropped_or_closed_index_does_not_count(persistent: Place) -> None:
    with persistent.open() as database:
        dropped, closed, other = twins(database)[:3]
        upsert(dropped, 0, 400)
        upsert(closed, 0, 400)
        database.drop_index(dropped.index.name)
        closed.index.close()
        upsert(other, 0, 96)
        assert other.index.stats().seals == 0
