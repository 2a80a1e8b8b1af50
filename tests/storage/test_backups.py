"""Backups: consistent copies of a database, complete or not there at all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whamming
from tests.native.examples import make_codes
from tests.storage.conftest import Place
from tests.storage.filled import BITS, codes, fill
from tests.storage.model import Model, check_items
from whamming import Database, InvalidArgumentError, StorageError
from whamming.storage import (
    AlreadyExistsError,
    CorruptStoreError,
    FormatError,
    IndexSettings,
    NotFoundError,
)


def reopened(place: Place, name: str, **options: Any) -> Database:
    """Open a backup. The backup of a database in memory is an LMDB database."""
    return whamming.open(place.directory / name, store=place.store if place.persistent else "lmdb", **options)


def test_a_backup_is_a_database(place: Place) -> None:
    with place.open() as database:
        models = {name: fill(database, name, n) for name, n in (("a", 10), ("b", 700))}
        (place.directory / "new").mkdir()
        database.create_index("empty", 64, bit_order="big", durability="async")
        database.backup(place.directory / "new" / "backup")
        with pytest.raises(AlreadyExistsError, match="backup already exists"):
            database.backup(place.directory / "new" / "backup")
        assert [path.name for path in (place.directory / "new").iterdir()] == ["backup"]
        database.index("a").delete(range(100))
    with reopened(place, "new/backup") as copy:
        assert copy.list_indexes() == ["a", "b", "empty"]
        assert copy.index("empty").settings == IndexSettings(64, "big", durability="async")
        for name, model in models.items():
            assert copy.index(name).settings == model.settings
            check_items(copy.index(name).snapshot(), model)
        assert all(report.ok for report in copy.verify().values())
        copy.index("a").upsert([1], codes(1))


def test_a_backup_during_writes_is_consistent(place: Place, small: None) -> None:
    with place.open() as database:
        index = database.create_index("docs", BITS)
        count, stop = 0, threading.Event()

        def write() -> None:
            nonlocal count
            while not stop.is_set() and count < 2000:  # in memory, checking takes longer than writing
                index.upsert([count], codes(1, count), [b"%d" % count])
                count += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            bounds = []
            for number in range(4):
                least = count
                database.backup(place.directory / f"backup{number}")
                bounds.append((least, count + 1))
        finally:
            stop.set()
            writer.join()
        assert len(index) == count
    for number, (least, most) in enumerate(bounds):
        with reopened(place, f"backup{number}", mode="r") as copy:
            snapshot = copy.index("docs").snapshot()
            assert least <= len(snapshot) <= most
            model = Model(snapshot.settings)
            for i in range(len(snapshot)):
                model.upsert([i], codes(1, i), [b"%d" % i])
            check_items(snapshot, model)


def test_a_backup_into_its_own_database_is_refused(persistent: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with persistent.open() as database:
        fill(database)
        own = persistent.directory / "db"
        before = sorted(path.name for path in own.iterdir())
        (persistent.directory / "link").symlink_to(own)
        monkeypatch.chdir(own)
        inside = (own, own / "copy", own / "docs" / "copy", persistent.directory / "link" / "a" / "b", Path("copy"))
        for path in inside:
            with pytest.raises(InvalidArgumentError, match="inside the database at"):
                database.backup(path)
        assert sorted(path.name for path in own.iterdir()) == before
        database.backup(persistent.directory / "db2")
    with persistent.open("db2", mode="r") as database:
        assert len(database.index("docs")) == 49
    shares: list[float] = []
    with pytest.raises(InvalidArgumentError, match="inside the database"):
        whamming.restore(own, own / "restored", shares.append)
    assert shares == [], "it is refused before anything is verified"


def test_a_backup_is_restored_to_a_new_directory(disk: Place) -> None:
    with disk.open() as database:
        models = {name: fill(database, name, n) for name, n in (("a", 10), ("b", 700))}
        database.backup(disk.directory / "backup")
    shares: list[float] = []
    whamming.restore(disk.directory / "backup", disk.directory / "restored", shares.append)
    assert shares == sorted(shares)
    assert shares[-1] <= 1.0
    with disk.open("restored") as database:
        assert database.list_indexes() == ["a", "b"]
        for name, model in models.items():
            check_items(database.index(name).snapshot(), model)
    with pytest.raises(AlreadyExistsError, match="restored already exists"):
        whamming.restore(disk.directory / "backup", disk.directory / "restored")
    with pytest.raises(NotFoundError, match=r"no backup at .*nowhere; give"):
        whamming.restore(disk.directory / "nowhere", disk.directory / "again")
    with pytest.raises(FormatError):
        whamming.restore(disk.directory, disk.directory / "again")


def test_a_backup_contains_no_deleted_data(persistent: Place) -> None:
    with persistent.open() as database:
        index = database.create_index("docs", BITS)
        for first in range(0, 500, 100):
            index.upsert(range(first, first + 100), codes(100), [b"a secret"] * 100)
        index.seal()
        index.upsert(range(500, 1000), codes(500), [b"no matter"] * 500)
        index.delete(range(500))
        index.compact()
        database.backup(persistent.directory / "backup")
    bytes_of_backup = b"".join(path.read_bytes() for path in (persistent.directory / "backup" / "docs").iterdir())
    assert b"no matter" in bytes_of_backup
    assert b"a secret" not in bytes_of_backup


def test_a_file_contains_no_data_of_another_index(persistent: Place) -> None:
    """Nor anything else from memory: the unused ends of pages are written too."""
    with persistent.open() as database:
        ours, theirs = database.create_index("ours", 64), database.create_index("theirs", 64)
        items = make_codes("uniform", 500, 64, np.random.default_rng(0))
        for _ in range(5):
            theirs.upsert(range(500), items, [b"payload, a secret!"] * 500)
            theirs.seal()
            ours.upsert(range(500), items, [b"payload, no matter"] * 500)
            ours.seal()
    bytes_of_ours = b"".join(path.read_bytes() for path in (persistent.directory / "db" / "ours").iterdir())
    assert b"no matter" in bytes_of_ours
    assert b"a secret" not in bytes_of_ours


def test_a_damaged_backup_is_not_restored(disk: Place) -> None:
    with disk.open() as database:
        fill(database, "good")
        index = database.create_index("bad", 64)
        items = make_codes("uniform", 500, 64, np.random.default_rng(0))
        index.upsert(range(500), items, [b"payload of an item"] * 500)
        index.seal()
        database.backup(disk.directory / "backup")
    file = disk.directory / "backup" / "bad" / "data.mdb"
    raw = bytearray(file.read_bytes())
    raw[raw.index(b"payload of an item")] ^= 1
    file.write_bytes(raw)
    with pytest.raises(StorageError, match=r"'bad' .*damaged: .*nothing was restored; use another backup$") as caught:
        whamming.restore(disk.directory / "backup", disk.directory / "restored")
    assert "restore a backup" not in str(caught.value)
    assert not (disk.directory / "restored").exists()
    with disk.open("backup", mode="r") as database:
        reports = database.verify()
        assert (reports["good"].ok, reports["bad"].ok) == (True, False)
        assert "payload_data" in reports["bad"].problems[0]
    file.write_bytes(raw[: len(raw) // 2])
    with disk.open("backup", mode="r") as database:
        with pytest.raises(CorruptStoreError, match="restore a backup"):
            database.index("bad")
        assert not database.verify()["bad"].ok
    with pytest.raises(StorageError, match=r"'bad'.*nothing was restored; use another backup$") as caught:
        whamming.restore(disk.directory / "backup", disk.directory / "restored")
    assert "restore a backup" not in str(caught.value)
    (disk.directory / "backup" / "whamming.json").write_text("{")
    with pytest.raises(FormatError, match=r"whamming\.json is damaged: [^;]*; use another backup$"):
        whamming.restore(disk.directory / "backup", disk.directory / "restored")
