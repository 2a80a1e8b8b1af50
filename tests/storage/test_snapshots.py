"""A snapshot stays as it was, whatever is written, sealed, closed or dropped meanwhile."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import whamming
from tests.storage.conftest import Place
from tests.storage.twin import Twin, change_everything, frozen, random_codes
from whamming.storage import IndexSettings, Rows, Segment, SegmentedStore
from whamming.storage.items.live_part import LivePart


def test_a_snapshot_stays_as_it_was(twin: Twin) -> None:
    kept = [frozen(twin)]
    for seed in range(3):
        twin.upsert(range(200, 205), random_codes(5, 13, seed))
        kept.append(frozen(twin))
        twin.index.seal()
        kept.append(frozen(twin))
    change_everything(twin)
    kept.append(frozen(twin))
    twin.check()
    for old in kept:
        old.check()


def test_a_snapshot_outlives_its_index(place: Place) -> None:
    database = place.open()
    twin = Twin.create(database)
    twin.layer()
    kept = frozen(twin)
    search = twin.index.search(random_codes(1, 13)[0])
    first = next(search)
    change_everything(twin)
    later = frozen(twin)
    database.close()
    kept.check()
    later.check()
    assert [first.id, *(hit.id for hit in search)] == [
        hit.id for hit in kept.index.snapshot().view.cursor(whamming.native.Costs.hamming(random_codes(1, 13)[0], 13))
    ]


def test_a_snapshot_outlives_a_dropped_index(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database)
        twin.layer()
        kept = frozen(twin)
        database.drop_index("docs")
        kept.check()
        again = Twin.create(database)
        again.check()
        again.upsert([1], random_codes(1, 13))
        again.index.seal()
        again.check()
        kept.check()


def test_a_database_opens_again_while_an_old_snapshot_is_in_use(lasting: Place) -> None:
    with lasting.open() as database:
        twin = Twin.create(database)
        twin.layer()
        kept = frozen(twin)
    for _ in range(3):
        with lasting.open() as database:
            twin.index = database.index("docs")
            twin.check()
            twin.upsert([1, 2], random_codes(2, 13, seed=7))
            twin.index.compact()
            twin.check()
            kept.check()


def test_a_write_shows_in_the_next_snapshot_and_in_no_earlier_one(twin: Twin) -> None:
    versions = []
    for i in range(20):
        before = twin.index.snapshot()
        twin.index.upsert([1000 + i], random_codes(1, 13))
        after = twin.index.snapshot()
        wanted = np.array([1000 + i], dtype=np.uint64)
        assert (before.get(wanted).found[0], after.get(wanted).found[0]) == (False, True)
        versions += [before.version, after.version]
    assert versions == sorted(versions)
    assert len(set(versions)) == 21


def test_a_reader_makes_a_snapshot_only_when_something_was_written(lasting: Place) -> None:
    with lasting.open() as database:
        twin = Twin.create(database)
        twin.layer()
        with lasting.open(mode="r") as other:
            reader = other.index("docs")
            before = reader.snapshot()
            assert reader.snapshot() is before
            twin.delete([10])
            after = reader.snapshot()
            assert after is not before
            assert reader.snapshot() is after
            Twin(reader, twin.model).check()


def test_an_index_is_opened_with_its_runs_built(lasting: Place) -> None:
    """Or the first search would build them, while others wait."""
    with lasting.open() as database:
        twin = Twin.create(database)
        twin.layer()
    for mode in ("w", "r"):
        with lasting.open(mode=mode) as database:
            index = database.index("docs")
            store = index.store
            assert isinstance(store, SegmentedStore)
            assert (len(store._contents.pending), len(store._contents.runs)) == (0, 1)
            Twin(index, twin.model).check()


@pytest.mark.parametrize("n", [1, 7, 8, 9, 1000])
def test_removing_marks_the_items_that_are_alive_as_dead(n: int) -> None:
    rng = np.random.default_rng(n)
    ids = np.sort(rng.choice(4 * n, n, replace=False)).astype(np.uint64)
    part = LivePart(Segment.build_run(IndexSettings(8), Rows(ids, np.zeros((n, 1), dtype=np.uint8))))
    alive = set(ids.tolist())
    for _ in range(5):
        wanted = np.sort(rng.choice(4 * n, 1 + n // 2, replace=False)).astype(np.uint64)
        part, left = part.removing(wanted)
        assert left.tolist() == [item for item in wanted.tolist() if item not in alive]
        alive -= set(wanted.tolist())
        assert set(part.rows().ids.tolist()) == alive
        assert (part.dead_count, part.live) == (n - len(alive), len(alive))


def test_removing_ids_that_a_part_does_not_have_copies_no_bitmap() -> None:
    n = 1 << 20
    ids = np.arange(n, dtype=np.uint64) * 2
    rows = Rows(ids, np.zeros((n, 1), dtype=np.uint8))
    part = LivePart(Segment.build_run(IndexSettings(8), rows)).without_ids(np.array([8], dtype=np.uint64))
    absent = np.array([7, 8, 9], dtype=np.uint64)
    tracemalloc.start()
    try:
        after, left = part.removing(absent)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after is part
    assert left.tolist() == [7, 8, 9]
    assert peak < n // 8 // 2
    after, left = part.removing(np.array([7, 8, 10], dtype=np.uint64))
    assert (after.dead_count, left.tolist()) == (2, [7, 8])
