"""A full disk: writes fail with a clear error and lose nothing, reads continue, and writes resume when there is space.

The disk is full either because a small file system is mounted and filled, if that is possible here, or because the
length of files of this process is limited, which the system enforces in the same places.
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
FULL = "no space to write to "

_processes = multiprocessing.get_context("forkserver")


class LimitedSpace(Protocol):
    """A directory whose free space can be filled and freed."""

    path: Path

    def fill(self, leave: int = 0) -> None:
        """Leave only ``leave`` bytes free."""

    def free(self) -> None:
        """Make the space available again."""


class SmallFileSystem:
    """A file system that is filled by one large file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, leave: int = 0) -> None:
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        os.truncate(self._ballast, self._ballast.stat().st_size - leave)

    def free(self) -> None:
        self._ballast.unlink()


class ShortFiles:
    """A limit to the length of files, set by the longest one. All other files of the test are short."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _, self._most = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self, leave: int = 0) -> None:
        longest = max((file.stat().st_size for file in self.path.rglob("data.mdb")), default=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (longest + leave, self._most))

    def free(self) -> None:
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
    space = ShortFiles(tmp_path)
    try:
        yield space
    finally:
        space.free()


@pytest.fixture(params=["small_file_system", "short_files"])
def space(request: pytest.FixtureRequest) -> LimitedSpace:
    found: LimitedSpace = request.getfixturevalue(request.param)
    return found


class TrackedIndex:
    """An index and the items that it must contain."""

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
        """Compare all items with the expected ones, by scan, by id and by search."""
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
        """Return how many arrays the file has."""
        assert isinstance(self.index.store, segmented.SegmentedStore)
        assert isinstance(self.index.store._journal, LmdbJournal)
        with self.index.store._journal._environment.env.begin() as txn:
            return sum(key[:1] == b"s" for key in txn.cursor().iternext(values=False))


def test_writes_fail_on_a_full_disk_and_resume_when_there_is_space(space: LimitedSpace) -> None:
    with whamming.open(space.path / "database") as database:
        tracked = TrackedIndex(database.create_index("docs", BITS))
        tracked.write(range(5_000))
        tracked.index.seal()
        tracked.write(range(4_000, 6_000))
        space.fill()
        with pytest.raises(StorageFullError, match=FULL):
            tracked.write_until_refused(range(10_000, 100_000, 500))
        for _ in range(3):
            with pytest.raises(StorageFullError, match=FULL):
                tracked.write(range(100_000, 120_000))
        tracked.check()
        with whamming.open(space.path / "database", mode="r") as reading:
            assert len(reading.index("docs")) == np.count_nonzero(tracked.model)
        space.free()
        tracked.write(range(100_000, 120_000))
        tracked.check()
        assert tracked.index.verify().ok
    with whamming.open(space.path / "database") as database:
        tracked.index = database.index("docs")
        tracked.check()
        tracked.write(range(120_000, 121_000))
        tracked.index.compact()
        tracked.check()
        assert tracked.index.verify().ok


def test_async_writes_wait_for_space(space: LimitedSpace) -> None:
    with whamming.open(space.path / "database") as database:
        tracked = TrackedIndex(database.create_index("docs", BITS))
        store = tracked.index.store
        assert isinstance(store, segmented.SegmentedStore)
        space.fill()
        tracked.write(range(30_000), "async")
        with pytest.raises(StorageFullError, match=FULL):
            store.flush()
        with pytest.raises(StorageFullError, match=FULL):
            tracked.index.seal()
        tracked.check()
        space.free()
        store.flush()
        tracked.check()
    with whamming.open(space.path / "database") as database:
        tracked.index = database.index("docs")
        tracked.check()


def test_closing_reports_that_async_writes_are_lost_and_still_closes(space: LimitedSpace) -> None:
    database = whamming.open(space.path / "database")
    tracked = TrackedIndex(database.create_index("docs", BITS))
    other = TrackedIndex(database.create_index("other", BITS))
    tracked.write(range(100))
    other.write(range(100))
    saved = tracked.model.copy()
    space.fill()
    tracked.write(range(100, 30_000), "async")
    with pytest.raises(StorageFullError, match=FULL):
        database.close()
    with whamming.open(space.path / "database") as database:  # the writer lock is free, and reopening needs no space
        tracked.index, tracked.model = database.index("docs"), saved
        tracked.check()
        other.index = database.index("other")
        other.check()


@pytest.mark.parametrize("leave", [0, 100_000, 200_000])
@pytest.mark.parametrize("action", ["seal", "compact"])
def test_a_seal_or_merge_without_space_changes_nothing(space: LimitedSpace, action: str, leave: int) -> None:
    with whamming.open(space.path / "database") as database:
        tracked = TrackedIndex(database.create_index("docs", BITS))
        tracked.write(range(10_000))
        tracked.index.seal()
        tracked.write(range(5_000, 40_000))
        if action == "compact":
            tracked.index.seal()
            tracked.index.delete(range(7_000))
            tracked.model[:7_000] = 0
        before, arrays = tracked.index.stats(), tracked.arrays()
        space.fill(leave)
        with pytest.raises(StorageFullError, match=FULL):
            getattr(tracked.index, action)()
        tracked.check()
        after = tracked.index.stats()
        assert after.segments == before.segments + (0 if action == "seal" else after.seals - before.seals)
        assert tracked.arrays() == arrays  # the arrays that had been written were removed
        space.free()
        getattr(tracked.index, action)()
        tracked.check()
        assert tracked.index.verify().ok
        assert tracked.arrays() == arrays * 2 if action == "seal" else arrays // 2
    with whamming.open(space.path / "database") as database:
        tracked.index = database.index("docs")
        tracked.check()


def test_arrays_that_could_not_be_removed_are_gone_after_the_next_seal_or_opening(
    space: LimitedSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with whamming.open(space.path / "database") as database:
        tracked = TrackedIndex(database.create_index("docs", BITS))
        tracked.write(range(10_000))

        def stop(name: str) -> None:
            if name == "stored codes":
                raise KeyboardInterrupt

        monkeypatch.setattr(faults, "hook", stop)
        with pytest.raises(KeyboardInterrupt):
            tracked.index.seal()
        monkeypatch.setattr(faults, "hook", None)
        left = tracked.arrays()
        assert left
        tracked.check()
        tracked.index.seal()
        whole = tracked.arrays()
        tracked.write(range(10_000, 20_000))
        monkeypatch.setattr(faults, "hook", stop)
        with pytest.raises(KeyboardInterrupt):
            tracked.index.seal()
        monkeypatch.setattr(faults, "hook", None)
        assert tracked.arrays() == whole + left
    with whamming.open(space.path / "database") as database:
        tracked.index = database.index("docs")
        assert tracked.arrays() == whole
        tracked.check()


def test_background_maintenance_is_retried(space: LimitedSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SEAL_ROWS", 5_000)
    with whamming.open(space.path / "database") as database:
        tracked = TrackedIndex(database.create_index("docs", BITS))
        tracked.write(range(4_999))
        store = tracked.index.store
        assert isinstance(store, segmented.SegmentedStore)
        space.fill(leave=60_000)
        tracked.write(range(4_999, 5_001))  # requests a seal
        with pytest.raises(StorageFullError, match=FULL):
            store.maintain()
        tracked.check()
        space.free()
        store.maintain()
        assert tracked.index.stats().delta_rows == 0
        tracked.check()


def make_index_and_backup(path: str) -> None:
    """Check that a full disk leaves nothing incomplete. This runs in a child process, as LMDB might kill it."""
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


def test_no_incomplete_index_database_or_backup_is_left(small_file_system: SmallFileSystem) -> None:
    space = small_file_system
    with whamming.open(space.path / "database") as database:
        tracked = TrackedIndex(database.create_index("docs", BITS))
        tracked.write(range(10_000))
        tracked.index.seal()
    space.fill()
    child = _processes.Process(target=make_index_and_backup, args=(str(space.path),))
    child.start()
    child.join()
    assert child.exitcode == 0
    space.free()
    with whamming.open(space.path / "another") as database:
        assert database.list_indexes() == []
    with whamming.open(space.path / "database") as database:
        tracked.index = database.index("docs")
        tracked.check()
        database.create_index("more", BITS)
        database.backup(space.path / "backup")
    with whamming.open(space.path / "backup", mode="r") as database:
        assert database.list_indexes() == ["docs", "more"]
        tracked.index = database.index("docs")
        tracked.check()


def test_a_backup_with_too_little_space_leaves_nothing(space: LimitedSpace) -> None:
    with whamming.open(space.path / "database") as database:
        tracked = TrackedIndex(database.create_index("docs", BITS))
        tracked.write(range(30_000))
        tracked.index.seal()
        if isinstance(space, ShortFiles):
            resource.setrlimit(resource.RLIMIT_FSIZE, (50 * 4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        else:
            space.fill(leave=200_000)
        with pytest.raises(StorageFullError, match=FULL):
            database.backup(space.path / "backup")
        assert [file.name for file in space.path.iterdir() if "backup" in file.name] == []
        space.free()
        database.backup(space.path / "backup")
    with whamming.open(space.path / "backup") as database:
        tracked.index = database.index("docs")
        tracked.check()
        assert tracked.index.verify().ok


@pytest.mark.parametrize("with_reader", [False, True])
def test_the_file_does_not_grow_with_every_commit(
    tmp_path: Path, with_reader: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would grow if segments were read under the same transaction forever, as freed pages could not be reused."""
    monkeypatch.setattr(lmdb_journal, "_PIN_COMMITS", 16)
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(whamming.open(tmp_path / "database"))
        tracked = TrackedIndex(database.create_index("docs", BITS))
        tracked.write(range(1_000))
        tracked.index.seal()
        reading = None
        if with_reader:
            reading = stack.enter_context(whamming.open(tmp_path / "database", mode="r")).index("docs")
        sizes = []
        for number in range(192):
            tracked.write(range(number, number + 1))
            if reading is not None:
                reading.snapshot()
            sizes.append(tracked.index.stats().disk_bytes)
        assert sizes[-1] - sizes[64] < 64 * 4096  # otherwise each of the last 128 commits would add 4 pages
        tracked.check()
        assert tracked.index.verify().ok
