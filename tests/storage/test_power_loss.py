"""A loss of power loses nothing that has returned: a short run and special cases. First, tests of the model itself."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import whamming
from tests.storage.power_loss import (
    Death,
    Recording,
    Summary,
    build_recorder,
    lose_power,
    run_recorded,
    scratch,
    why_not,
)
from tests.storage.recorded_disk import EscapedWriteError, Ignored, Kept, RecordedDisk, read_log

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_recorder(tmp_path_factory.mktemp("recorder"))


class Recorded:
    """A directory, and a recording of what some Python programs have done to it."""

    def __init__(self, library: Path, directory: Path) -> None:
        self._library = library
        self._log = directory / "log"
        self._copies = 0
        self._directory = directory
        self.root = directory / "root"
        self.root.mkdir()

    def run(self, program: str, dies_after: tuple[int, str] | None = None) -> None:
        """Run a program, in which ``root`` is the directory. It may die after some records of a kind."""
        head = f"import os, pathlib; root = pathlib.Path({str(self.root)!r})\n"
        if dies_after is not None:
            count, kind = dies_after
            head += "import ctypes; u64 = ctypes.c_uint64\n"
            head += f"ctypes.CDLL(None).disk_recorder_die_after(u64({count}), u64({ord(kind)}))\n"
        exit_code = run_recorded(self._library, self.root, self._log, ["-c", head + program])
        assert exit_code == (0 if dies_after is None else -signal.SIGKILL)

    def disk(self, count: int | None = None) -> RecordedDisk:
        """Return the disk after the first ``count`` records, or after all of them."""
        disk = RecordedDisk(self.root)
        for record in read_log(self._log)[:count]:
            disk.apply(record)
        return disk

    def __len__(self) -> int:
        return len(read_log(self._log))

    def left(self, data: Kept, entries: Kept, count: int | None = None, seed: int = 0) -> Path:
        """Return a new directory with what is left if power is lost after ``count`` records."""
        self._copies += 1
        target = self._directory / f"left {self._copies}"
        self.disk(count).build(target, data, entries, np.random.default_rng(seed))
        return target


@pytest.fixture
def recorded(library: Path, tmp_path: Path) -> Recorded:
    return Recorded(library, tmp_path.resolve())


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


EVERY_CALL = """
import shutil, sys
(root / "a" / "b").mkdir(parents=True)
fd = os.open(root / "a" / "file", os.O_RDWR | os.O_CREAT)
os.write(fd, b"first")
os.pwrite(fd, b"x" * 5000, 4096)
os.writev(fd, [b"se", b"cond"])
os.pwritev(fd, [b"y" * 10, b"z" * 600], 9000)
os.ftruncate(fd, 9300)
os.posix_fallocate(fd, 0, 20000)
with open(root / "a" / "log", "ab") as file:
    file.write(b"one")
    file.flush()
    file.write(b"two")
(root / "a" / "log").open("ab").write(b"three")
(root / "short").write_bytes(b"long")
(root / "short").write_bytes(b"s")
directory = os.open(root / "a", os.O_RDONLY)
os.rename("log", "renamed", src_dir_fd=directory, dst_dir_fd=directory)
os.mkdir("c", dir_fd=directory)
os.close(os.open("inside", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
os.replace(root / "short", root / "new")
(root / "gone").write_bytes(b"gone")
(root / "gone").unlink()
(root / "tree" / "deep").mkdir(parents=True)
(root / "tree" / "deep" / "file").write_bytes(b"1")
shutil.rmtree(root / "tree")
os.write(fd, b"after all")
"""


def test_every_call_that_changes_files_is_recorded(recorded: Recorded) -> None:
    recorded.run(EVERY_CALL)
    recorded.disk().compare(recorded.root)
    assert files_in(recorded.left(Kept.EVERYTHING, Kept.EVERYTHING)) == files_in(recorded.root)
    assert list(recorded.left(Kept.NOTHING, Kept.NOTHING).iterdir()) == []


def test_a_write_that_is_not_recorded_is_noticed(recorded: Recorded) -> None:
    recorded.run("(root / 'file').write_bytes(b'recorded')")
    recorded.disk().compare(recorded.root)
    (recorded.root / "file").write_bytes(b"recordeD")
    with pytest.raises(EscapedWriteError, match="other bytes"):
        recorded.disk().compare(recorded.root)
    (recorded.root / "file").rename(recorded.root / "other")
    with pytest.raises(EscapedWriteError, match="other"):
        recorded.disk().compare(recorded.root)


SYNCED = """
def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
fd = os.open(root / "file", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"a" * 8192, 0)
os.fdatasync(fd)
sync(root)
os.pwrite(fd, b"b" * 4096, 0)
direct = os.open(root / "file", os.O_WRONLY | os.O_DSYNC)
os.pwrite(direct, b"c" * 100, 50)
os.rename(root / "file", root / "renamed")
"""


def test_what_is_synced_survives_and_anything_else_may_be_lost(recorded: Recorded) -> None:
    recorded.run(SYNCED)
    synced = b"a" * 50 + b"c" * 100 + b"a" * (8192 - 150)
    assert files_in(recorded.left(Kept.NOTHING, Kept.NOTHING)) == {"file": synced}
    everything = b"b" * 50 + b"c" * 100 + b"b" * (4096 - 150) + b"a" * 4096
    assert files_in(recorded.left(Kept.EVERYTHING, Kept.NOTHING)) == {"file": everything}
    assert files_in(recorded.left(Kept.NOTHING, Kept.EVERYTHING)) == {"renamed": synced}
    torn = {recorded.left(Kept.SECTORS, Kept.NOTHING, seed=seed).joinpath("file").read_bytes() for seed in range(20)}
    assert len(torn) > 5
    for content in torn:
        assert content[50:150] == b"c" * 100
        assert content[4096:] == b"a" * 4096
        sectors = [set(content[start : start + 512]) for start in range(512, 4096, 512)]
        assert all(sector in ({ord("a")}, {ord("b")}) for sector in sectors)


# -- what was found --------------------------------------------------------------------------------------------------

OPEN = """
import numpy
import whamming
path = root / "parents" / "of" / "database"
"""
WRITE = f"""{OPEN}
whamming.open(path).create_index("docs", 8, exist_ok=True).upsert([7], numpy.uint8([[1]]))
"""


def ids_in(path: Path) -> list[int]:
    with whamming.open(path) as database:
        return [id_ for rows in database.index("docs").scan() for id_ in rows.ids.tolist()]


def test_a_new_database_survives_together_with_its_new_parents(recorded: Recorded) -> None:
    recorded.run(WRITE)
    left = recorded.left(Kept.NOTHING, Kept.NOTHING)
    assert ids_in(left / "parents" / "of" / "database") == [7]


@pytest.mark.parametrize("renames", [1, 2], ids=["the database", "the index"])
def test_what_a_killed_writer_could_not_sync_is_synced_by_the_next_one(recorded: Recorded, renames: int) -> None:
    recorded.run(WRITE, dies_after=(renames, "r"))
    recorded.run(WRITE)
    left = recorded.left(Kept.NOTHING, Kept.NOTHING)
    assert ids_in(left / "parents" / "of" / "database") == [7]


EXPORT = f"""{OPEN}
from whamming.storage import export_items
with whamming.open(path) as database:
    index = database.create_index("docs", 8)
    for ids in ([1, 2], [3, 4, 5]):
        index.delete([1, 2])
        index.upsert(ids, numpy.uint8(ids)[:, None])
        export_items(index, root / "items.npy", progress=False)
"""


def test_exported_codes_never_get_the_ids_of_another_export(recorded: Recorded) -> None:
    recorded.run(EXPORT)
    found = set()
    for count in range(len(recorded) + 1):
        for seed in range(4):
            left = recorded.left(Kept.EVERYTHING, Kept.SOME, count, seed)
            if (left / "items.npy").exists():
                codes, ids = np.load(left / "items.npy"), np.load(left / "items.ids.npy")
                assert codes[:, 0].tolist() == ids.tolist()
                found.add(tuple(ids.tolist()))
    assert found == {(1, 2), (3, 4, 5)}


# -- the short run ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_ram(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=scratch()) as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def recording(library: Path, in_ram: Path) -> Recording:
    return Recording(in_ram / "recording", library, 1, [Death(12, "r"), Death(400), None])


def test_nothing_that_has_returned_is_lost(recording: Recording, in_ram: Path) -> None:
    summary = Summary()
    lose_power(recording, in_ram, 20, 1, summary)
    assert summary.problems == []
    assert summary.points.total() == 20
    assert summary.acknowledged > 0


@pytest.mark.parametrize("ignored", list(Ignored), ids=str)
def test_a_disk_that_ignores_syncs_is_found_out(recording: Recording, in_ram: Path, ignored: Ignored) -> None:
    summary = Summary()
    lose_power(recording, in_ram, 6, 1, summary, kept=Kept.NOTHING, ignored=ignored)
    assert summary.problems
