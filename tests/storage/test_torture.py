"""Killed writers lose no acknowledged write: a short torture run, and special cases."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

import whamming
from tests.storage.item_checks import BITS, codes_of, payloads_of, versions_in
from tests.storage.torture import (
    COMMIT_POINTS,
    POINTS,
    SEGMENT_POINTS,
    SLOWEST_REOPEN,
    Kill,
    Torture,
    points_in_storage,
)
from whamming.storage import StoredIndex
from whamming.storage.files.lmdb_journal import LmdbJournal
from whamming.storage.store import faults, segmented

_processes = multiprocessing.get_context("forkserver")


def test_every_point_of_storage_is_covered() -> None:
    assert set(POINTS) == points_in_storage()


def test_writers_killed_at_every_point_lose_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kills = [Kill(point, passes=9 if point in COMMIT_POINTS else 1 + number % 2) for number, point in enumerate(POINTS)]
    kills += [Kill("in install", passes=3, compacts=True), Kill("built", passes=4, compacts=True)]
    kills += [Kill(None, seconds=float(rng.uniform(0.02, 0.2))) for _ in range(5)]
    summary = Torture(tmp_path / "database", rows=20_000, seed=1).run(kills, verify_every=8)
    assert summary.problems == []
    assert set(summary.kills) == {*POINTS, "at a random moment"}
    assert summary.acknowledged > 0
    assert (summary.lost, summary.corrupt_opens) == (0, 0)
    assert summary.slowest_reopen < SLOWEST_REOPEN
    assert summary.reader is not None
    assert summary.reader.snapshots > summary.reader.opens
    assert summary.reader.searches > 0


def write(index: StoredIndex, ids: list[int], version: int) -> None:
    own = np.array(ids, dtype=np.uint64)
    index.upsert(own, codes_of(own, version), payloads_of(len(own), version))


def interrupt_at(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Interrupt this process, as Ctrl-C does, when it first passes a point."""

    def hook(name: str) -> None:
        if name == point:
            monkeypatch.setattr(faults, "hook", None)
            raise KeyboardInterrupt

    monkeypatch.setattr(faults, "hook", hook)


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_an_interrupted_write_is_complete_or_absent_and_no_later_one_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    ids = np.arange(1, 6, dtype=np.uint64)
    with whamming.open(tmp_path) as database:
        index = database.create_index("docs", BITS)
        write(index, [1, 2], version=1)
        index.upsert(ids[:1], codes_of(ids[:1], 2), payloads_of(1, 2), durability="async")
        interrupt_at(monkeypatch, point)
        with pytest.raises(KeyboardInterrupt):
            write(index, [2, 3], version=3)  # the second write of its commit, after the async one
        with whamming.open(tmp_path, mode="r") as reading:
            early = versions_in(reading.index("docs").get(ids)).tolist()
            write(index, [4], version=4)
            write(index, [2], version=5)
            late = versions_in(index.get(ids)).tolist()
            assert versions_in(reading.index("docs").get(ids)).tolist() == late
        assert early in ([1, 1, 0, 0, 0], [2, 3, 3, 0, 0])
        assert late in ([2, 5, 0, 4, 0], [2, 5, 3, 4, 0])
        assert (late[2] == 3) == (early[2] == 3)
    with whamming.open(tmp_path) as database:
        assert versions_in(database.index("docs").get(ids)).tolist() == late
        assert database.verify()["docs"].ok


@pytest.mark.parametrize("point", SEGMENT_POINTS)
def test_an_interrupted_seal_or_merge_changes_no_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    ids = np.arange(1, 8, dtype=np.uint64)
    with whamming.open(tmp_path) as database:
        index = database.create_index("docs", BITS)
        for version, own in enumerate(([1, 2, 3], [3, 4], [5, 1]), 1):
            write(index, own, version)
            if version == 2:
                index.seal()
        for action in (index.seal, index.compact):
            interrupt_at(monkeypatch, point)
            with pytest.raises(KeyboardInterrupt):
                action()
            assert versions_in(index.get(ids)).tolist() == [3, 1, 2, 2, 3, 0, 0]
            write(index, [6], version=4)
            index.delete([6])
            action()
            assert versions_in(index.get(ids)).tolist() == [3, 1, 2, 2, 3, 0, 0]
            assert index.verify().ok
        assert index.stats().segments == 1
    with whamming.open(tmp_path) as database:
        assert versions_in(database.index("docs").get(ids)).tolist() == [3, 1, 2, 2, 3, 0, 0]
        assert database.verify()["docs"].ok


def hold_open(path: str, control: Connection) -> None:
    with whamming.open(path, mode="r") as database:
        control.send(len(database.index("docs")))
        control.recv()


def die_before_announcing(path: str) -> None:
    """Die as LMDB may: the last commit is in the file, but the lock file, which readers use, names the one before."""
    index = whamming.open(path).index("docs")
    write(index, [1, 2], version=1)

    def die(name: str) -> None:
        if name == "after commit":
            assert isinstance(index.store, segmented.SegmentedStore)
            assert isinstance(index.store._journal, LmdbJournal)
            env = index.store._journal._environment.env
            last = env.info()["last_txnid"]
            lock = Path(path) / "docs" / "lock.mdb"
            with env.begin(write=True), lock.open("r+b") as file:  # hold LMDB's write lock while dying
                (place,) = (8 * i for i, word in enumerate(struct.unpack("<16Q", file.read(128))) if word == last)
                file.seek(place)
                file.write(struct.pack("<Q", last - 1))
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)

    faults.hook = die
    write(index, [2, 3], version=2)


def die_when_a_write_overtakes_its_seal(path: str) -> None:
    """Replace items asynchronously while other items are being sealed, and die right after the seal."""
    vars(segmented).update(ASYNC_SECONDS=3600)
    index = whamming.open(path).index("docs")
    write(index, [1, 2], version=1)
    index.seal()
    write(index, [3], version=1)

    def hook(name: str) -> None:
        if name == "stored":
            ids = np.array([1, 3], dtype=np.uint64)
            index.upsert(ids, codes_of(ids, 2), payloads_of(2, 2), durability="async")
        if name == "installed":
            os.kill(os.getpid(), signal.SIGKILL)

    faults.hook = hook
    index.seal()


def test_a_replaced_item_survives_if_the_replacing_write_is_not_on_disk_yet(tmp_path: Path) -> None:
    with whamming.open(tmp_path) as database:
        database.create_index("docs", BITS)
    writer = _processes.Process(target=die_when_a_write_overtakes_its_seal, args=(str(tmp_path),), daemon=True)
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    with whamming.open(tmp_path) as database:
        versions = versions_in(database.index("docs").get([1, 2, 3])).tolist()
    assert versions in ([1, 1, 1], [2, 1, 2])


@pytest.mark.parametrize("held", [False, True], ids=["alone", "with a reader"])
def test_a_commit_that_its_writer_could_not_announce_is_not_lost(tmp_path: Path, held: bool) -> None:
    with whamming.open(tmp_path) as database:
        database.create_index("docs", BITS)
    control, far_end = _processes.Pipe()
    reader = _processes.Process(target=hold_open, args=(str(tmp_path), far_end), daemon=True)
    if held:  # LMDB does not reset the lock file while another process has it open
        reader.start()
        assert control.recv() == 0
    writer = _processes.Process(target=die_before_announcing, args=(str(tmp_path),), daemon=True)
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    ids = np.arange(1, 6, dtype=np.uint64)
    with whamming.open(tmp_path) as database:
        index = database.index("docs")
        assert versions_in(index.get(ids)).tolist() == [1, 2, 2, 0, 0]
        write(index, [4], version=3)
        index.seal()
    with whamming.open(tmp_path) as database:
        index = database.index("docs")
        assert versions_in(index.get(ids)).tolist() == [1, 2, 2, 3, 0]
        assert index.verify().ok
    if held:
        control.send("stop")
        reader.join()
