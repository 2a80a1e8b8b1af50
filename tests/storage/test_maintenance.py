"""Sealing, compacting and verifying, and that disk space is bounded."""

from __future__ import annotations

import numpy as np
import pytest

from tests.storage.conftest import Place
from tests.storage.twin import Twin, change_everything, random_codes, wait_until
from whamming.storage.store import maintenance
from whamming.storage.store.segmented import SegmentedStore


def test_statistics_reflect_sealing_and_compacting(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database)
        twin.upsert(range(20), random_codes(20, 13))
        stats = twin.index.stats()
        assert (stats.items, stats.segments, stats.delta_rows, stats.seals) == (20, 0, 20, 0)
        twin.index.seal()
        twin.delete(range(5))
        stats = twin.index.stats()
        assert (stats.items, stats.segments, stats.sealed_rows, stats.dead_rows) == (15, 1, 20, 5)
        twin.upsert(range(20, 30), random_codes(10, 13))
        twin.index.seal()
        stats = twin.index.stats()
        assert (stats.items, stats.segments, stats.sealed_rows, stats.delta_rows) == (25, 2, 30, 0)
        assert stats.seals == 2
        assert stats.writes == 3
        twin.index.compact()
        stats = twin.index.stats()
        assert (stats.items, stats.segments, stats.sealed_rows, stats.dead_rows) == (25, 1, 25, 0)
        assert stats.compactions == 1
        assert stats.used_bytes > 0
        assert stats.disk_bytes >= stats.used_bytes or not place.persistent
        twin.delete(range(40))
        twin.index.compact()
        stats = twin.index.stats()
        assert (stats.items, stats.segments, stats.sealed_rows, stats.delta_rows) == (0, 0, 0, 0)
        twin.check()


def test_progress_increases_from_zero_to_one(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database, 64)
        for work in (twin.index.seal, twin.index.compact, twin.index.verify):
            twin.upsert(range(2000), random_codes(2000, 64))
            shares: list[float] = []
            work(shares.append)
            assert shares == sorted(shares)
            assert all(0.0 <= share <= 1.0 for share in shares)
        twin.check()


def test_verifying_an_undamaged_store_finds_no_problems(twin: Twin) -> None:
    report = twin.index.verify()
    assert report.ok
    assert report.problems == ()
    change_everything(twin)
    assert twin.index.verify().ok


def test_compacting_splits_what_exceeds_one_segment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "MAX_SEGMENT_PAYLOAD", 1000)
    with place.open() as database:
        twin = Twin.create(database)
        for first in range(0, 60, 6):
            twin.upsert(range(first, first + 6), random_codes(6, 13, first), [b"x" * 70] * 6)
            twin.index.seal()
        twin.delete(range(0, 60, 5))
        shares: list[float] = []
        twin.index.compact(shares.append)
        twin.check()
        assert shares == sorted(shares)
        stats = twin.index.stats()
        assert stats.dead_rows == 0
        assert 4 <= stats.segments < 10
        assert twin.index.verify().ok
    if place.persistent:
        with place.open() as database:
            twin.index = database.index("docs")
            twin.check()


@pytest.mark.parametrize("payload", [0, 70])
def test_sealing_splits_what_exceeds_one_segment(place: Place, payload: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seal that fails because one array is too large would fail forever."""
    monkeypatch.setattr(maintenance, "MAX_SEGMENT_PAYLOAD", 1000)
    with place.open() as database:
        twin = Twin.create(database)
        monkeypatch.setattr(SegmentedStore, "_max_rows", 50)
        twin.upsert(range(170), random_codes(170, 13), [b"x" * payload] * 170)
        twin.upsert([200], random_codes(1, 13), [b"y" * 2000])  # exceeds the limit, so it gets a segment of its own
        twin.delete(range(0, 60, 2))
        shares: list[float] = []
        twin.index.seal(shares.append)
        twin.check()
        assert shares == sorted(shares)
        stats = twin.index.stats()
        assert (stats.seals, stats.sealed_rows, stats.dead_rows, stats.delta_rows) == (1, 141, 0, 0)
        store = twin.index.store
        assert isinstance(store, SegmentedStore)
        sealed = [part.segment for part in store._contents.sealed]
        assert all(part.n == 1 or (part.n <= 50 and part.payload_bytes <= 1000) for part in sealed)
        assert len(sealed) <= (12 if payload else 5)
        twin.delete(range(50, 100))
        twin.index.compact()
        twin.check()
    if place.persistent:
        with place.open() as database:
            twin.index = database.index("docs")
            twin.check()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(8))
def test_space_is_bounded_after_maintenance(place: Place, seed: int) -> None:
    rng = np.random.default_rng(seed)
    share, most = rng.uniform(0, 0.9), int(rng.integers(2, 40))
    with place.open() as database:
        twin = Twin.create(database, durability="async")
        store = twin.index.store
        assert isinstance(store, SegmentedStore)
        for step in range(60):
            ids = rng.integers(0, 150, int(rng.integers(1, most)))
            if rng.random() < share:
                twin.delete(ids)
            else:
                twin.upsert(ids, random_codes(len(ids), 13, step))
            if step % 20 == 19:
                store.maintain()
                stats = twin.index.stats()
                assert stats.dead_rows <= maintenance.MAX_DEAD_FRACTION * stats.sealed_rows
                assert stats.delta_rows < maintenance.SEAL_ROWS
                tiers = [maintenance.tier_of(part.live) for part in store._contents.sealed]
                assert all(tiers.count(tier) < maintenance.FANOUT for tier in tiers)
        twin.check()


@pytest.mark.usefixtures("small")
def test_rewriting_the_same_items_needs_no_more_space(place: Place) -> None:
    with place.open() as database:
        once = Twin.create(database, name="once")
        once.upsert([1, 2], random_codes(2, 13, 100))
        once.index.seal()
        size = once.index.stats().used_bytes
        twin = Twin.create(database, durability="async")
        store = twin.index.store
        assert isinstance(store, SegmentedStore)
        maintained, at_rest = [], set()
        for step in range(401):
            if step % 3:
                twin.upsert([1, 2], random_codes(2, 13, step))
            else:
                twin.delete([1, 2, 5])
            stats = twin.index.stats()
            assert stats.delta_rows <= maintenance.MAX_DELTA_FACTOR * maintenance.SEAL_ROWS + 3
            if step % 10 == 9:
                store.maintain()
                maintained.append(twin.index.stats().used_bytes)
            if step in (100, 200, 400):  # the same two items each time
                twin.index.compact()
                at_rest.add(twin.index.stats().used_bytes)
        wait_until(lambda: twin.index.stats().delta_rows < maintenance.SEAL_ROWS)
        assert twin.index.stats().seals > 10
        if place.persistent:  # the size is in pages, at least 3, and some are not full
            assert max(at_rest) < 2 * size
            assert max(maintained) < 2 * size
        else:  # in between, it also has the run or two that have not been merged yet
            assert at_rest == {size}
        twin.check()


@pytest.mark.usefixtures("small")
def test_deleting_frees_space(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database, durability="async")
        twin.upsert(range(300), random_codes(300, 13))
        twin.index.seal()
        for i in range(280):
            twin.delete([i])
            assert len(twin.index) == 299 - i
        most = maintenance.MAX_DELTA_FACTOR * maintenance.SEAL_ROWS
        wait_until(lambda: twin.index.stats().sealed_rows <= 4 / 3 * 20 + most)
        twin.check()
