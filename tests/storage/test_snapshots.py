"""A snapshot stays as it was, whatever is written, sealed, closed or dropped meanwhile."""

from __future__ import annotations

import numpy as np

import whamming
from tests.storage.conftest import Place
from tests.storage.twin import Twin, change_everything, frozen, random_codes


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
