"""One writer and several readers, each in its own process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whamming
from tests.native.examples import make_codes
from tests.native.oracle import Codes
from tests.storage.conftest import Place
from tests.storage.model import Model, check_answers, check_items
from whamming import InvalidArgumentError
from whamming.storage import Snapshot, WriterBusyError
from whamming.storage.files.lmdb_journal import LmdbJournal

BITS = 64
NOBODY = 65534


def codes(n: int, seed: int = 0) -> Codes:
    return make_codes("clustered", n, BITS, np.random.default_rng(seed))


class Worker:
    """The database in a child process. Each method is a command of the parent."""

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        self.database = whamming.open(path, **options)
        self.kept: list[tuple[Snapshot, Model]] = []

    def check(self, model: Model, keep: bool = False) -> None:
        """Compare all items and some answers with a model. If ``keep``, compare the snapshot again later."""
        snapshot = self.database.index("docs").snapshot()
        if keep:
            self.kept.append((snapshot, model))
        for one, expected in [(snapshot, model), *self.kept]:
            check_items(one, expected)
            check_answers(one, expected, np.random.default_rng(1).normal(size=(BITS, 2)), 20)

    def follow(self, last: int) -> int:
        """Read until item ``last`` exists. Items appear in order of id. Returns how many states were seen."""
        index = self.database.index("docs")
        everything = np.arange(last + 1, dtype=np.uint64)
        seen = {0}
        while max(seen) <= last:
            snapshot = index.snapshot()
            found = snapshot.get(everything).found
            count = int(found.sum())
            assert found[:count].all(), "an item exists, but one that was written before it does not"
            assert count >= max(seen), "an item has disappeared"
            seen.add(count)
        return len(seen)

    def keep(self) -> int:
        self.kept.append((self.database.index("docs").snapshot(), Model(self.database.index("docs").settings)))
        return len(self.kept[-1][0])

    def create(self, name: str) -> list[str]:
        self.database.create_index(name, 8)
        return self.database.list_indexes()

    def write(self, count: int) -> None:
        """Commit ``count`` writes of one item each."""
        for i in range(count):
            self.database.index("docs").upsert([1000 + i], codes(1))

    def compact(self) -> None:
        self.database.index("docs").compact()

    def close(self) -> None:
        self.database.close()


def import_everything() -> None:
    """Import all modules that will be needed, as another user may not be able to read them."""
    with tempfile.TemporaryDirectory() as directory:
        worker = Worker(Path(directory) / "db", {})
        worker.check(Model(worker.database.create_index("docs", BITS).settings))
        worker.close()


def work(connection: Connection, path: Path, options: dict[str, Any], user: int | None) -> None:
    """Execute commands and send back their results."""
    worker = None
    if user is not None:
        import_everything()
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    while (command := connection.recv()) is not None:
        name, *arguments = command
        try:
            if name == "open":
                worker = Worker(path, options)
                connection.send((None, True))
            else:
                connection.send((getattr(worker, name)(*arguments), True))
        except BaseException as error:
            connection.send((error, False))


class Process:
    """A child process with a worker."""

    def __init__(self, path: Path, user: int | None = None, **options: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, path, options, user), daemon=True)
        self.process.start()
        theirs.close()

    def start(self, name: str, *arguments: Any) -> None:
        self._connection.send((name, *arguments))

    def result(self) -> Any:
        assert self._connection.poll(60), "no answer for a minute"
        result, succeeded = self._connection.recv()
        if not succeeded:
            raise result
        return result

    def do(self, name: str, *arguments: Any) -> Any:
        self.start(name, *arguments)
        return self.result()

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()

    def end(self) -> None:
        if self.process.is_alive():
            with contextlib.suppress(BrokenPipeError):
                self._connection.send(None)
            self.process.join(60)
        self._connection.close()


@pytest.fixture
def spawn() -> Iterator[Callable[..., Process]]:
    processes: list[Process] = []

    def start(path: Path, **options: Any) -> Process:
        processes.append(Process(path, **options))
        return processes[-1]

    yield start
    for process in processes:
        process.end()


def test_readers_see_committed_writes(persistent: Place, spawn: Callable[..., Process], small: None) -> None:
    path = persistent.directory / "db"
    with persistent.open() as database:
        index = database.create_index("docs", BITS)
        model = Model(index.settings)
        readers = [spawn(path, mode="r") for _ in range(2)]
        for reader in readers:
            reader.do("open")
        for step in range(12):
            index.upsert(range(5 * step, 5 * step + 20), codes(20, step), [b"%d" % step] * 20)
            model.upsert(range(5 * step, 5 * step + 20), codes(20, step), [b"%d" % step] * 20)
            index.delete([step, 3 * step])
            model.delete([step, 3 * step])
            if step % 4 == 1:
                index.seal()
            if step % 4 == 3:
                index.compact()
            for reader in readers:
                reader.start("check", model, step % 5 == 0)
            for reader in readers:
                reader.result()
        assert index.stats().seals >= 3
        assert index.verify().ok
    for reader in readers:
        reader.do("check", model)
        reader.do("close")


def test_readers_follow_a_writer_that_does_not_wait_for_them(
    persistent: Place, spawn: Callable[..., Process], small: None
) -> None:
    with persistent.open() as database:
        index = database.create_index("docs", BITS)
        readers = [spawn(persistent.directory / "db", mode="r") for _ in range(2)]
        for reader in readers:
            reader.do("open")
            reader.start("follow", 200)
        for i in range(201):
            index.upsert([i], codes(1, i), durability="fsync" if i % 3 else "async")
            if i % 50 == 25:
                index.compact()
        for reader in readers:
            assert reader.result() > 5


def test_a_writer_in_another_process_is_refused_or_waits(persistent: Place, spawn: Callable[..., Process]) -> None:
    path = persistent.directory / "db"
    with persistent.open() as database:
        impatient, patient = spawn(path), spawn(path, wait=60)
        with pytest.raises(WriterBusyError, match=r"another process .*\(wait=seconds\)"):
            impatient.do("open")
        patient.start("open")
        database.create_index("docs", 8)
    patient.result()
    with pytest.raises(WriterBusyError):
        persistent.open()
    assert patient.do("create", "more") == ["docs", "more"]
    patient.kill()
    with persistent.open() as database:
        assert database.list_indexes() == ["docs", "more"]


def test_processes_may_create_a_database_at_the_same_time(tmp_path: Path, spawn: Callable[..., Process]) -> None:
    processes = [spawn(tmp_path / "db", wait=60) for _ in range(4)]
    for process in processes:
        process.start("open")
    for number in range(4):
        ready = multiprocessing.connection.wait([process._connection for process in processes], timeout=60)
        process = next(process for process in processes if process._connection in ready)
        processes.remove(process)
        process.result()
        assert len(process.do("create", f"docs{number}")) == number + 1
        process.do("close")


def test_a_killed_reader_neither_blocks_the_writer_nor_makes_the_file_grow(
    disk: Place, spawn: Callable[..., Process]
) -> None:
    with disk.open() as database:
        index = database.create_index("docs", BITS)

        def rewrite(times: int) -> int:
            for seed in range(times):
                index.upsert(range(2000), codes(2000, seed))
                index.compact()
            return index.stats().disk_bytes

        rewrite(4)
        reader = spawn(disk.directory / "db", mode="r")
        reader.do("open")
        assert reader.do("keep") == 2000
        reader.kill()
        first = rewrite(4)
        assert rewrite(12) <= 1.2 * first
        assert index.verify().ok
    with disk.open() as database:
        assert len(database.index("docs")) == 2000


def test_a_reader_that_keeps_a_snapshot_pins_only_its_pages(
    disk: Place, spawn: Callable[..., Process], small: None
) -> None:
    """The file may grow meanwhile. When the reader releases the snapshot, the pages are reused."""
    with disk.open() as database:
        index = database.create_index("docs", BITS)
        model = Model(index.settings)
        index.upsert(range(500), codes(500))
        model.upsert(range(500), codes(500))
        index.seal()
        reader = spawn(disk.directory / "db", mode="r")
        reader.do("open")
        reader.do("check", model, True)
        for seed in range(5):
            index.upsert(range(500), codes(500, seed))
            model.upsert(range(500), codes(500, seed))
            index.compact()
            reader.do("check", model)
        reader.do("close")


# -- permissions -----------------------------------------------------------------------------------------------------


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A directory that every user may enter."""
    if os.geteuid() == 0:
        base = Path(tempfile.mkdtemp())
        base.chmod(0o755)
        yield base
        shutil.rmtree(base)
    else:
        yield tmp_path
        for path in (tmp_path, *tmp_path.rglob("*")):
            path.chmod(path.stat().st_mode | stat.S_IWUSR)


def test_a_read_only_directory_can_be_read(public: Path, spawn: Callable[..., Process]) -> None:
    path = public / "db"
    with whamming.open(path) as database:
        index = database.create_index("docs", BITS)
        model = Model(index.settings)
        index.upsert(range(100), codes(100))
        model.upsert(range(100), codes(100))
        index.seal()
        index.delete([1])
        model.delete([1])
    for one in (path, *path.rglob("*")):
        one.chmod(0o555 if one.is_dir() else 0o444)
    user = NOBODY if os.geteuid() == 0 else None  # root may do everything
    reader = spawn(path, mode="r", user=user)
    try:
        reader.do("open")
    except InvalidArgumentError as error:
        pytest.skip(f"user {user} cannot read what is installed: {error}")
    reader.do("check", model, True)
    reader.do("close")
    writer = spawn(path, mode="w", user=user)
    with pytest.raises(whamming.StorageError, match=r"opened for writing: .*mode='r'"):
        writer.do("open")
    (path / "docs" / "data.mdb").chmod(0)
    reader = spawn(path, mode="r", user=user)
    reader.do("open")
    with pytest.raises(whamming.StorageError, match="Permission denied"):
        reader.do("check", model)


def test_a_reader_that_cannot_lock_does_not_read_next_to_a_writer(public: Path, spawn: Callable[..., Process]) -> None:
    """The writer could not know which pages this reader uses, and would overwrite them."""
    path = public / "db"
    user = NOBODY if os.geteuid() == 0 else None
    with whamming.open(path) as database:
        index = database.create_index("docs", BITS)
        model = Model(index.settings)
        index.upsert(range(100), codes(100))
        model.upsert(range(100), codes(100))
        index.seal()
        for one in (path, *path.rglob("*")):  # share the database with other users
            one.chmod(0o755 if one.is_dir() else 0o644)
        (path / "docs").chmod(0o555)
        (path / "docs" / "lock.mdb").chmod(0o444)
        reader = spawn(path, mode="r", user=user)
        try:
            reader.do("open")
        except InvalidArgumentError as error:
            pytest.skip(f"user {user} cannot read what is installed: {error}")
        with pytest.raises(whamming.StorageError, match=r"is being written.*lock\.mdb"):
            reader.do("check", model)
    reader.do("check", model, True)
    (path / "docs").chmod(0o755)
    (path / "docs" / "lock.mdb").chmod(0o644)
    with whamming.open(path) as database:
        with pytest.raises(WriterBusyError, match=r"cannot write to its lock\.mdb"):
            database.index("docs")
        reader.do("check", model)
        reader.kill()
        check_items(database.index("docs").snapshot(), model)


def test_a_forked_process_does_not_keep_the_writers_lock(persistent: Place) -> None:
    database = persistent.open()
    database.create_index("docs", 8)
    hold, release = os.pipe()
    child = os.fork()
    if child == 0:  # it only keeps our files open
        os.close(release)
        os.read(hold, 1)
        os._exit(0)
    try:
        database.close()
        with persistent.open() as again:
            again.index("docs").upsert([1], np.array([[1]], dtype=np.uint8))
    finally:
        os.close(release)
        os.close(hold)
        os.waitpid(child, 0)


def test_segments_that_are_replaced_while_a_reader_opens_them_are_not_reported_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader reads the new writes, then maps its segments again. In between, the writer merges the segments."""
    path = tmp_path / "db"
    with whamming.open(path) as database:
        index = database.create_index("docs", BITS)
        for first in (0, 10):
            index.upsert(range(first, first + 10), codes(10))
            index.seal()
    writer = Process(path)
    writer.do("open")
    with whamming.open(path, mode="r") as database:
        index = database.index("docs")
        assert len(index) == 20
        writer.do("write", 300)
        refresh = LmdbJournal.refresh

        def refresh_then_compact(journal: LmdbJournal) -> Any:
            found = refresh(journal)
            writer.do("compact")
            return found

        monkeypatch.setattr(LmdbJournal, "refresh", refresh_then_compact)
        assert len(index) == 320
        monkeypatch.undo()
        assert len(index) == 320
        assert len(list(index.search(np.zeros(8, dtype=np.uint8)))) == 320
    writer.do("close")
