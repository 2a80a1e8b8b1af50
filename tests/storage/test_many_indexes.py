"""A database has many indexes: idle ones are closed, and nothing is done that grows with their number."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import whamming
from tests.serving import wait_until
from tests.storage.conftest import Place
from whamming import Database
from whamming.storage import ClosedError, NotFoundError
from whamming.storage.files.environment import Environment

COUNT = 60


def fill(database: Database, count: int = COUNT) -> list[str]:
    names = [f"index{number:04}" for number in range(count)]
    for number, name in enumerate(names):
        database.create_index(name, bits=8).upsert(
            [number], np.array([[number % 256]], dtype=np.uint8), durability="async"
        )
    return names


def nearest(database: Database, name: str) -> int:
    return next(database.index(name).search(np.array([0], dtype=np.uint8))).id


@pytest.fixture
def database(persistent: Place) -> Iterator[Database]:
    with persistent.open() as database:
        database.indexes.max_open = 7
        yield database


def test_idle_indexes_are_closed_and_opened_again(database: Database) -> None:
    names = fill(database)
    assert len(database.indexes) <= 7
    for turn in range(2):
        for number, name in enumerate(names):
            assert nearest(database, name) == number
            assert len(database.indexes) <= 7, turn
    assert database.list_indexes() == names


def test_the_least_recently_used_are_closed_first(database: Database) -> None:
    names = fill(database, 20)
    for name in names[:7]:
        nearest(database, name)
    nearest(database, names[0])
    nearest(database, names[9])
    opened = set(database.indexes.all())
    assert opened == {names[0], *names[2:7], names[9]}


def test_an_index_that_was_closed_for_being_idle_still_works(database: Database) -> None:
    docs = database.create_index("docs", encoder="sign", dim=8, keep_vectors="int8")
    vectors = np.eye(8, dtype=np.float32)
    docs.upsert(range(8), vectors=vectors)
    search = docs.search(vector=vectors[0], k=8)
    snapshot = docs.snapshot()
    fill(database, 20)
    assert not docs.is_open
    assert len(list(search)) == len(snapshot) == 8, "searches and snapshots go on"
    assert docs.settings.bits == 8
    assert docs.encoder is not None
    assert database.index("docs") is docs
    for use in (
        lambda: len(docs) == 8,
        lambda: docs.upsert([8], vectors=vectors[:1]) is None,
        lambda: docs.stats().items == 9,
        lambda: docs.delete([8]) == 1,
        lambda: docs.verify().ok,
        lambda: docs.get([3]).found.all(),
        lambda: docs.seal() is None,
        lambda: len(docs) == 8,
    ):
        fill_again = [name for name in database.list_indexes() if name != "docs"]
        for name in fill_again:
            nearest(database, name)
        assert not docs.is_open
        assert use()
        assert docs.is_open


def test_an_index_in_use_is_not_closed(database: Database) -> None:
    names = fill(database, 20)
    docs = database.create_index("docs", bits=8)
    docs.upsert(range(1000), np.arange(1000, dtype=np.uint8)[:, None])
    entered, go_on = threading.Event(), threading.Event()

    def wait(_: float) -> None:
        entered.set()
        assert go_on.wait(20)

    with ThreadPoolExecutor(1) as thread:
        sealing = thread.submit(docs.seal, wait)
        assert entered.wait(20)
        for name in names:
            nearest(database, name)
        assert docs.is_open
        go_on.set()
        sealing.result(20)
    for name in names:
        nearest(database, name)
    assert not docs.is_open


def test_closed_and_dropped_indexes_stay_closed(database: Database) -> None:
    closed, dropped = (database.create_index(name, bits=8) for name in ("closed", "dropped"))
    fill(database, 20)
    assert not closed.is_open
    assert not dropped.is_open
    closed.close()
    database.drop_index("dropped")
    database.create_index("dropped", bits=8).upsert([1], np.array([[1]], dtype=np.uint8))
    for index in (closed, dropped):
        with pytest.raises(ClosedError):
            index.count()
    assert database.index("closed").count() == 0
    assert database.index("dropped").count() == 1


def test_a_closed_database_has_no_open_indexes(database: Database) -> None:
    names = fill(database, 20)
    idle = database.index(names[0])
    for name in names[1:]:
        nearest(database, name)
    database.close()
    with pytest.raises(ClosedError):
        idle.count()


def test_threads_use_more_indexes_than_may_be_open(database: Database) -> None:
    names = fill(database, 24)
    handles = [database.index(name) for name in names]

    def work(seed: int) -> int:
        rng = np.random.default_rng(seed)
        for number in rng.integers(0, len(names), 60).tolist():
            if seed % 2:
                handles[number].upsert([1000 + seed], np.array([[255]], dtype=np.uint8), durability="async")
            assert nearest(database, names[number]) == number
        return seed

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(work, range(6))) == list(range(6))
    database.index(names[0])
    assert len(database.indexes) <= 7


def test_reading_processes_close_idle_indexes_too(persistent: Place) -> None:
    with persistent.open() as writer:
        names = fill(writer, 20)
        for name in names:
            writer.index(name).flush()
        with persistent.open(mode="r") as reader:
            reader.indexes.max_open = 5
            kept = reader.index(names[0])
            for name in names:
                nearest(reader, name)
            assert len(reader.indexes) <= 5
            writer.index(names[0]).upsert([100], np.array([[0]], dtype=np.uint8))
            assert kept.count() == 2, "it is opened again, with the newest items"


def test_describing_leaves_nothing_open(database: Database) -> None:
    names = fill(database, 20)
    nearest(database, names[3])
    before = set(database.indexes.all())
    infos = database.describe_indexes()
    assert [(info.name, info.stats and info.stats.items) for info in infos] == [(name, 1) for name in names]
    assert set(database.indexes.all()) == before
    assert len(database.list_indexes()) == 20


def test_an_error_names_only_some_indexes(database: Database) -> None:
    fill(database, 20)
    with pytest.raises(NotFoundError, match=r"index0009, and 10 more$"):
        database.index("nothing")


def test_dropped_indexes_in_mid_merge_hold_up_nobody(persistent: Place) -> None:
    """The name was taken until the merge had ended."""
    with persistent.open() as database, ThreadPoolExecutor(2) as threads:
        docs = database.create_index("docs", bits=8)
        docs.upsert(range(1000), np.arange(1000, dtype=np.uint8)[:, None])
        entered, go_on = threading.Event(), threading.Event()

        def wait(_: float) -> None:
            entered.set()
            assert go_on.wait(20)

        sealing = threads.submit(docs.seal, wait)
        assert entered.wait(20)
        dropping = threads.submit(database.drop_index, "docs")
        wait_until(lambda: database.list_indexes() == [])
        again = database.create_index("docs", bits=8)
        again.upsert([1], np.array([[1]], dtype=np.uint8))
        assert database.index("docs").count() == 1
        assert not dropping.done()
        go_on.set()
        dropping.result(20)
        with pytest.raises(ClosedError):
            sealing.result(20)
        assert database.index("docs") is again
        assert persistent.directory is not None
        assert not list((persistent.directory / "db").glob(".*.dropped"))


def test_small_maps_are_used_when_many_files_are_open(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """127 maps of 1 TiB fill the address space of a process."""
    monkeypatch.setattr("whamming.storage.files.environment.LARGE_MAPS", 3)
    with disk.open() as database:
        names = fill(database, 10)
        sizes = [found.env.info()["map_size"] for found in Environment._opened.values()]
        assert sorted(sizes)[:7] == [256 << 30] * 7
        assert max(sizes) == 1 << 40
        assert [nearest(database, name) for name in names] == list(range(10))
    gc.collect()


LIMITED = """
import resource, sys
import numpy as np
import whamming
from whamming.storage import StorageError
kind, limit, count = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with whamming.open(sys.argv[1]) as database:
    for number in range(count):
        database.create_index(f"index{number:03}", bits=8)
resource.setrlimit(getattr(resource, kind), (limit, limit))
held = []
try:
    with whamming.open(sys.argv[1]) as database:
        if len(sys.argv) > 5:
            try:
                while True:
                    held.append(open("/dev/null"))
            except OSError:
                held.pop()
        for number in range(count):
            held.append(database.index(f"index{number:03}"))
        print("all", len(database.indexes) < count)
except StorageError as error:
    print(type(error).__name__, error)
"""


def limited(directory: Path, *arguments: str) -> str:
    command = [sys.executable, "-c", LIMITED, str(directory / "db"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    return done.stdout.strip()


def test_indexes_are_closed_before_the_process_has_too_many_files(tmp_path: Path) -> None:
    assert limited(tmp_path, "RLIMIT_NOFILE", "200", "120") == "all True"


def test_too_many_files_are_a_clear_error(tmp_path: Path) -> None:
    text = limited(tmp_path, "RLIMIT_NOFILE", "60", "100", "and files of others")
    assert text.startswith("ProcessLimitError")
    assert "60 files open (RLIMIT_NOFILE)" in text
    assert "ulimit -n" in text


def test_too_little_address_space_is_a_clear_error(tmp_path: Path) -> None:
    text = limited(tmp_path, "RLIMIT_AS", str(8 << 30), "3")
    assert text.startswith("ProcessLimitError")
    assert f"{8 << 30} bytes of address space (RLIMIT_AS)" in text
    assert "ulimit -v" in text


def test_indexes_are_closed_before_the_address_space_is_used_up(tmp_path: Path) -> None:
    assert limited(tmp_path, "RLIMIT_AS", str(100 << 30), "8") == "all True"


def test_many_indexes_in_memory() -> None:
    with whamming.open() as database:
        names = fill(database, 1000)
        assert database.list_indexes() == names
        assert [nearest(database, name) for name in names[::100]] == list(range(0, 1000, 100))
