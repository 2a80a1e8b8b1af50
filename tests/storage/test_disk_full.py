"""A full disk: writes fail with a clear error and lose nothing, reading goes on, and with room again so does writing.

Full is a small file system where one can be mounted, and everywhere a limit to the length of this process's files,
which the system enforces in the same places.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

import whamming
from tests.storage.item_checks import BITS, Versions, all_versions, codes_of, payloads_of
from whamming import StoredIndex
from whamming.storage import StorageFullError
from whamming.storage.files import lmdb_journal
from whamming.storage.files.lmdb_journal import LmdbJournal
from whamming.storage.store import faults, maintenance, segmented

UNIVERSE = 200_000
FULL = "no room to write to .*; free some space, then write again"

_processes = multiprocessing.get_context("forkserver")


class Room(Protocol):
    """A place on disk whose room can be taken and given back."""

    path: Path

    def take(self, leave: int = 0) -> None:
        """Leave only so many bytes."""

    def give(self) -> None:
        """Give it back."""


class SmallFileSystem:
    """Room that a ballast takes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def take(self, leave: int = 0) -> None:
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        os.truncate(self._ballast, self._ballast.stat().st_size - leave)

    def give(self) -> None:
        self._ballast.unlink()


class ShortFiles:
    """Room as the longest file has; all others of the test are short."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _, self._most = resource.getrlimit(resource.RLIMIT_FSIZE)

    def take(self, leave: int = 0) -> None:
        longest = max((file.stat().st_size for file in self.path.rglob("data.mdb")), default=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (longest + leave, self._most))

    def give(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._most, self._most))


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[SmallFileSystem]:
    path = tmp_path / "small"
    path.mkdir()
    mounting = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", path], capture_output=True, text=True)
    if mounting.returncode:
        pytest.skip(f"no file system can be mounted here: {mounting.stderr.strip()}")
    try:
        yield SmallFileSystem(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture
def short_files(tmp_path: Path) -> Iterator[ShortFiles]:
    room = ShortFiles(tmp_path)
    try:
        yield room
    finally:
        room.give()


@pytest.fixture(params=["small_file_system", "short_files"])
def room(request: pytest.FixtureRequest) -> Room:
    found: Room = request.getfixturevalue(request.param)
    return found


class Filling:
    """An index and what it must contain."""

    def __init__(self, index: StoredIndex) -> None:
        self.index = index
        self.model = np.zeros(UNIVERSE, dtype=np.uint64)
        self._next = 1

    def write(self, ids: range, durability: whamming.storage.settings.Durability = "fsync") -> None:
        own, version = np.arange(ids.start, ids.stop, dtype=np.uint64), self._next
        self.index.upsert(own, codes_of(own, version), payloads_of(len(own), version), durability=durability)
        self.model[own] = version
        self._next += 1

    def write_until_refused(self, starts: range) -> None:
        for start in starts:
            self.write(range(start, start + starts.step))

    def check(self) -> None:
        """Compare all items with the model, by scan, by id and by search."""
        assert (self.found() == self.model).all()
        there = np.flatnonzero(self.model)[:: max(1, np.count_nonzero(self.model) // 50)].astype(np.uint64)
        items = self.index.get(there)
        assert items.found.all()
        assert (items.codes == codes_of(there, self.model[there])).all()
        ids, distances = self.index.search_batch(items.codes, k=1)
        assert (ids[:, 0] == there).all()
        assert (distances == 0).all()

    def found(self) -> Versions:
        return all_versions(self.index.snapshot(), UNIVERSE)

    def arrays(self) -> int:
        """Return how many arrays the file holds."""
        assert isinstance(self.index.store, segmented.SegmentedStore)
        assert isinstance(self.index.store._journal, LmdbJournal)
        with self.index.store._journal._environment.env.begin() as txn:
            return sum(key[:1] == b"s" for key in txn.cursor().iternext(values=False))


def test_writes_fail_and_go_on_when_there_is_room_again(room: Room) -> None:
    with whamming.open(room.path / "database") as database:
        filling = Filling(database.create_index("docs", BITS))
        filling.write(range(5_000))
        filling.index.seal()
        filling.write(range(4_000, 6_000))
        room.take()
        with pytest.raises(StorageFullError, match=FULL):
            filling.write_until_refused(range(10_000, 100_000, 500))
        for _ in range(3):
            with pytest.raises(StorageFullError, match=FULL):
                filling.write(range(100_000, 120_000))
        filling.check()
        with whamming.open(room.path / "database", mode="r") as reading:
            assert len(reading.index("docs")) == np.count_nonzero(filling.model)
        room.give()
        filling.write(range(100_000, 120_000))
        filling.check()
        assert filling.index.verify().ok
    with whamming.open(room.path / "database") as database:
        filling.index = database.index("docs")
        filling.check()
        filling.write(range(120_000, 121_000))
        filling.index.compact()
        filling.check()
        assert filling.index.verify().ok


def test_async_writes_wait_for_room(room: Room) -> None:
    with whamming.open(room.path / "database") as database:
        filling = Filling(database.create_index("docs", BITS))
        store = filling.index.store
        assert isinstance(store, segmented.SegmentedStore)
        room.take()
        filling.write(range(30_000), "async")
        with pytest.raises(StorageFullError, match=FULL):
            store.flush()
        with pytest.raises(StorageFullError, match=FULL):
            filling.index.seal()
        filling.check()
        room.give()
        store.flush()
        filling.check()
    with whamming.open(room.path / "database") as database:
        filling.index = database.index("docs")
        filling.check()


def test_closing_says_that_async_writes_are_lost_and_closes_all_the_same(room: Room) -> None:
    database = whamming.open(room.path / "database")
    filling = Filling(database.create_index("docs", BITS))
    other = Filling(database.create_index("other", BITS))
    filling.write(range(100))
    other.write(range(100))
    saved = filling.model.copy()
    room.take()
    filling.write(range(100, 30_000), "async")
    with pytest.raises(StorageFullError, match=FULL):
        database.close()
    with whamming.open(room.path / "database") as database:  # there is no writer any more, and reopening needs no room
        filling.index, filling.model = database.index("docs"), saved
        filling.check()
        other.index = database.index("other")
        other.check()


@pytest.mark.parametrize("leave", [0, 100_000, 200_000])
@pytest.mark.parametrize("action", ["seal", "compact"])
def test_a_seal_or_merge_that_finds_no_room_changes_nothing(room: Room, action: str, leave: int) -> None:
    with whamming.open(room.path / "database") as database:
        filling = Filling(database.create_index("docs", BITS))
        filling.write(range(10_000))
        filling.index.seal()
        filling.write(range(5_000, 20_000))
        if action == "compact":
            filling.index.seal()
            filling.index.delete(range(7_000))
            filling.model[:7_000] = 0
        before, arrays = filling.index.stats(), filling.arrays()
        room.take(leave)
        with pytest.raises(StorageFullError, match=FULL):
            getattr(filling.index, action)()
        filling.check()
        after = filling.index.stats()
        assert after.segments == before.segments + (0 if action == "seal" else after.seals - before.seals)
        assert filling.arrays() == arrays  # those that had found room were removed
        room.give()
        getattr(filling.index, action)()
        filling.check()
        assert filling.index.verify().ok
        assert filling.arrays() == arrays * 2 if action == "seal" else arrays // 2
    with whamming.open(room.path / "database") as database:
        filling.index = database.index("docs")
        filling.check()


def test_arrays_that_could_not_even_be_removed_are_gone_after_the_next_seal_or_opening(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    with whamming.open(room.path / "database") as database:
        filling = Filling(database.create_index("docs", BITS))
        filling.write(range(10_000))

        def stop(name: str) -> None:
            if name == "stored codes":
                raise KeyboardInterrupt

        monkeypatch.setattr(faults, "hook", stop)
        with pytest.raises(KeyboardInterrupt):
            filling.index.seal()
        monkeypatch.setattr(faults, "hook", None)
        left = filling.arrays()
        assert left
        filling.check()
        filling.index.seal()
        whole = filling.arrays()
        filling.write(range(10_000, 20_000))
        monkeypatch.setattr(faults, "hook", stop)
        with pytest.raises(KeyboardInterrupt):
            filling.index.seal()
        monkeypatch.setattr(faults, "hook", None)
        assert filling.arrays() == whole + left
    with whamming.open(room.path / "database") as database:
        filling.index = database.index("docs")
        assert filling.arrays() == whole
        filling.check()


def test_maintenance_in_the_background_tries_again(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SEAL_ROWS", 5_000)
    with whamming.open(room.path / "database") as database:
        filling = Filling(database.create_index("docs", BITS))
        filling.write(range(4_999))
        store = filling.index.store
        assert isinstance(store, segmented.SegmentedStore)
        room.take(leave=60_000)
        filling.write(range(4_999, 5_001))  # asks for a seal
        with pytest.raises(StorageFullError, match=FULL):
            store.maintain()
        filling.check()
        room.give()
        store.maintain()
        assert filling.index.stats().delta_rows == 0
        filling.check()


def make_index_and_backup(path: str) -> None:
    """On a full disk: refused, and nothing half made is to be seen. In a process of its own, as LMDB used to end it."""
    own = Path(path)
    with whamming.open(own / "database") as database:
        for _ in range(2):
            with pytest.raises(StorageFullError, match=FULL):
                database.create_index("more", BITS)
            assert database.list_indexes() == ["docs"]
            with pytest.raises(StorageFullError, match=FULL):
                database.backup(own / "backup")
            assert not (own / "backup").exists()
        assert not [file for file in own.rglob("*") if file.suffix == ".new"]
        with pytest.raises(StorageFullError, match=FULL):
            whamming.open(own / "another")


def test_no_half_made_index_database_or_backup_is_left(small_file_system: SmallFileSystem) -> None:
    room = small_file_system
    with whamming.open(room.path / "database") as database:
        filling = Filling(database.create_index("docs", BITS))
        filling.write(range(10_000))
        filling.index.seal()
    room.take()
    child = _processes.Process(target=make_index_and_backup, args=(str(room.path),))
    child.start()
    child.join()
    assert child.exitcode == 0
    room.give()
    with whamming.open(room.path / "another") as database:
        assert database.list_indexes() == []
    with whamming.open(room.path / "database") as database:
        filling.index = database.index("docs")
        filling.check()
        database.create_index("more", BITS)
        database.backup(room.path / "backup")
    with whamming.open(room.path / "backup", mode="r") as database:
        assert database.list_indexes() == ["docs", "more"]
        filling.index = database.index("docs")
        filling.check()


def test_a_backup_that_finds_room_for_a_part_only_leaves_nothing(room: Room) -> None:
    with whamming.open(room.path / "database") as database:
        filling = Filling(database.create_index("docs", BITS))
        filling.write(range(30_000))
        filling.index.seal()
        if isinstance(room, ShortFiles):
            resource.setrlimit(resource.RLIMIT_FSIZE, (50 * 4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        else:
            room.take(leave=200_000)
        with pytest.raises(StorageFullError, match=FULL):
            database.backup(room.path / "backup")
        assert [file.name for file in room.path.iterdir() if "backup" in file.name] == []
        room.give()
        database.backup(room.path / "backup")
    with whamming.open(room.path / "backup") as database:
        filling.index = database.index("docs")
        filling.check()
        assert filling.index.verify().ok


@pytest.mark.parametrize("beside_a_reader", [False, True])
def test_the_file_does_not_grow_with_every_commit(
    tmp_path: Path, beside_a_reader: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would if segments were read under the same transaction for ever: pages freed since cannot be used again."""
    monkeypatch.setattr(lmdb_journal, "_PIN_COMMITS", 16)
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(whamming.open(tmp_path / "database"))
        filling = Filling(database.create_index("docs", BITS))
        filling.write(range(1_000))
        filling.index.seal()
        reading = None
        if beside_a_reader:
            reading = stack.enter_context(whamming.open(tmp_path / "database", mode="r")).index("docs")
        sizes = []
        for number in range(192):
            filling.write(range(number, number + 1))
            if reading is not None:
                reading.snapshot()
            sizes.append(filling.index.stats().disk_bytes)
        assert sizes[-1] - sizes[64] < 64 * 4096  # else 4 pages with each of the last 128 commits
        filling.check()
        assert filling.index.verify().ok
