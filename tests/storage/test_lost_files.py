"""Files that somebody else deletes, replaces or cuts short while an index is open: errors, but no lost writes.

A damaged index does not affect the others. Files that the database itself drops or replaces are not mistaken for lost.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import whamming
from tests.storage.conftest import Place
from whamming.storage import (
    AlreadyExistsError,
    ClosedError,
    CorruptStoreError,
    FormatError,
    NotFoundError,
    StorageError,
)
from whamming.storage.health import file_problems

BITS = 64
ITEMS = 3000
CODES = np.random.default_rng(5).integers(0, 256, (ITEMS, BITS // 8), dtype=np.uint8)


def fill(path: Path) -> None:
    """Create a database with two indexes, one of which has a segment."""
    with whamming.open(path) as database:
        docs = database.create_index("docs", BITS)
        docs.upsert(range(ITEMS), CODES)
        docs.seal()
        database.create_index("more", BITS).upsert([1], CODES[:1])


def delete(file: Path) -> None:
    file.unlink()


def replace(file: Path) -> None:
    """Put a copy in its place."""
    copy = file.with_name("copy")
    shutil.copyfile(file, copy)
    copy.replace(file)


def move_directory(file: Path) -> None:
    file.parent.rename(file.parent.with_name("elsewhere"))


def move_database(file: Path) -> None:
    file.parent.parent.rename(file.parent.parent.with_name("elsewhere"))


@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb"])
@pytest.mark.parametrize("happens", [delete, replace, move_directory, move_database])
def test_no_write_into_a_file_that_is_gone_is_acknowledged(
    happens: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    fill(tmp_path / "db")
    database = whamming.open(tmp_path / "db")
    docs, more = database.index("docs"), database.index("more")
    docs.upsert([1], CODES[1:2])
    happens(tmp_path / "db" / "docs" / name)
    for write in (
        lambda: docs.upsert([2], CODES[:1]),
        lambda: docs.upsert([2], CODES[:1], durability="async"),
        lambda: docs.delete([3]),
        docs.seal,
        docs.compact,
    ):
        with pytest.raises(CorruptStoreError, match=r"mdb was (deleted|replaced).*restore a backup"):
            write()
    assert len(docs) == ITEMS, "what was read before is still there"
    assert docs.search_batch(CODES[:5], k=1).ids[:, 0].tolist() == [0, 1, 2, 3, 4]
    if happens is not move_database:
        more.upsert([2], CODES[:1])
        assert len(more) == 2
        database.drop_index("docs")
        if happens is move_directory:
            database.drop_index("elsewhere")
        assert database.list_indexes() == ["more"]
    database.close()


@pytest.mark.parametrize("happens", [move_directory, move_database])
def test_what_was_moved_is_moved_back(happens: Callable[[Path], None], tmp_path: Path) -> None:
    """The errors say so first, and then everything works again."""
    fill(tmp_path / "db")
    with whamming.open(tmp_path / "db") as database:
        docs = database.index("docs")
        happens(tmp_path / "db" / "docs" / "data.mdb")
        texts = file_problems(database)
        uses: list[Callable[[], object]] = [lambda: docs.upsert([2], CODES[:1])]
        if happens is move_database:
            uses += [lambda: database.drop_index("more"), lambda: database.create_index("new", BITS)]
        for use in uses:
            with pytest.raises(CorruptStoreError) as caught:
                use()
            texts.append(str(caught.value))
        for text in texts:
            assert re.search(r"moved away[^;]*; if it was moved, move it back; otherwise, .*restore a backup", text)
        if happens is move_directory:
            (tmp_path / "db" / "elsewhere").rename(tmp_path / "db" / "docs")
        else:
            (tmp_path / "elsewhere").rename(tmp_path / "db")
        assert file_problems(database) == []
        docs.upsert([2], CODES[:1])
        assert all(info.error is None for info in database.describe_indexes())
        database.drop_index("more")


def delete_directory(file: Path) -> None:
    shutil.rmtree(file.parent)


@pytest.mark.parametrize("happens", [delete, replace, move_directory, delete_directory])
def test_an_open_index_is_listed_as_broken_until_it_is_dropped(happens: Callable[[Path], None], tmp_path: Path) -> None:
    fill(tmp_path / "db")
    with whamming.open(tmp_path / "db") as database:
        docs = database.index("docs")
        happens(tmp_path / "db" / "docs" / "data.mdb")
        assert [name for name in database.list_indexes() if name != "elsewhere"] == ["docs", "more"]
        infos = {info.name: info for info in database.describe_indexes()}
        assert (infos["docs"].settings, infos["docs"].stats) == (None, None)
        assert isinstance(infos["docs"].error, CorruptStoreError)
        assert infos["more"].error is None
        assert not database.verify()["docs"].ok
        assert file_problems(database) == [f"index 'docs': {infos['docs'].error}"]
        kept = docs.search(CODES[0])
        database.drop_index("docs")
        assert (next(kept).id, len(list(kept))) == (0, ITEMS - 1), "a search that runs is finished"
        assert [name for name in database.list_indexes() if name != "elsewhere"] == ["more"]
        assert file_problems(database) == []
        with pytest.raises(ClosedError):
            docs.upsert([2], CODES[:1])
        with pytest.raises(NotFoundError):
            database.drop_index("docs")
        assert len(database.create_index("docs", 8)) == 0


@pytest.mark.parametrize("exist_ok", [True, False])
@pytest.mark.parametrize("bits", [BITS, 32])
@pytest.mark.parametrize("happens", [move_directory, delete_directory])
def test_an_index_whose_directory_is_gone_can_be_created_again(
    happens: Callable[[Path], None], bits: int, exist_ok: bool, tmp_path: Path
) -> None:
    """The open index must not be mistaken for the new one."""
    fill(tmp_path / "db")
    with whamming.open(tmp_path / "db") as database:
        lost = database.index("docs")
        lost.upsert([1], CODES[:1], durability="async")
        happens(tmp_path / "db" / "docs" / "data.mdb")
        made = database.create_index("docs", bits, exist_ok=exist_ok)
        assert (made.settings.bits, len(made)) == (bits, 0)
        assert database.index("docs") is made
        made.upsert([7], CODES[:1, : bits // 8])
        assert file_problems(database) == []
        for use in (lambda: lost.upsert([2], CODES[:1]), lambda: len(lost)):
            with pytest.raises(ClosedError):
                use()
    with whamming.open(tmp_path / "db") as database:
        assert database.index("docs").get([7]).codes.tolist() == CODES[:1, : bits // 8].tolist()


def test_an_idle_index_whose_directory_is_gone_can_be_created_again(tmp_path: Path) -> None:
    fill(tmp_path / "db")
    with whamming.open(tmp_path / "db") as database:
        lost = database.index("docs")
        assert database.indexes.close_if_idle(lost)
        shutil.rmtree(tmp_path / "db" / "docs")
        assert database.list_indexes() == ["more"]
        assert len(database.create_index("docs", 32)) == 0
        with pytest.raises(ClosedError):
            len(lost)


@pytest.mark.parametrize("happens", [delete, replace])
@pytest.mark.parametrize("exist_ok", [True, False])
def test_an_index_with_a_lost_file_has_to_be_dropped_first(
    happens: Callable[[Path], None], exist_ok: bool, tmp_path: Path
) -> None:
    fill(tmp_path / "db")
    with whamming.open(tmp_path / "db") as database:
        docs = database.index("docs")
        happens(tmp_path / "db" / "docs" / "data.mdb")
        with pytest.raises(AlreadyExistsError, match=r"'docs'.*data\.mdb was .*drop it"):
            database.create_index("docs", BITS, exist_ok=exist_ok)
        assert len(docs) == ITEMS, "it is still open"


def test_a_directory_that_was_moved_is_open_under_its_old_name(tmp_path: Path) -> None:
    fill(tmp_path / "db")
    with whamming.open(tmp_path / "db") as database:
        docs = database.index("docs")
        move_directory(tmp_path / "db" / "docs" / "data.mdb")
        for _ in range(2):
            with pytest.raises(CorruptStoreError, match=r"elsewhere .* open index docs: .*move it back, or drop docs"):
                database.index("elsewhere")
        (tmp_path / "db" / "elsewhere").rename(tmp_path / "db" / "docs")
        docs.upsert([1], CODES[1:2])
        move_directory(tmp_path / "db" / "docs" / "data.mdb")
        database.drop_index("docs")
        assert len(database.index("elsewhere")) == ITEMS
        database.index("elsewhere").upsert([1], CODES[:1])
    with whamming.open(tmp_path / "db") as database:
        assert database.index("elsewhere").get([1]).codes.tolist() == CODES[:1].tolist()


def test_a_backup_rescues_an_open_index_whose_files_were_deleted(tmp_path: Path) -> None:
    """The files exist as long as they are open."""
    fill(tmp_path / "db")
    with whamming.open(tmp_path / "db") as database:
        database.index("docs")
        shutil.rmtree(tmp_path / "db" / "docs")
        database.backup(tmp_path / "copy")
    with whamming.open(tmp_path / "copy", mode="r") as copy:
        assert len(copy.index("docs")) == ITEMS
        assert copy.verify()["docs"].ok


def test_a_reader_lists_no_index_that_the_writer_has_dropped(tmp_path: Path) -> None:
    fill(tmp_path / "db")
    with whamming.open(tmp_path / "db") as database, whamming.open(tmp_path / "db", mode="r") as reader:
        assert len(reader.index("docs")) == ITEMS
        database.drop_index("docs")
        assert reader.list_indexes() == ["more"]
        assert [info.name for info in reader.describe_indexes()] == ["more"]
        (tmp_path / "db" / "more" / "data.mdb").rename(tmp_path / "data.mdb")
        assert [type(info.error) for info in reader.describe_indexes()] == [FormatError]
        (tmp_path / "data.mdb").rename(tmp_path / "db" / "more" / "data.mdb")
        assert len(reader.index("more")) == 1
        delete(tmp_path / "db" / "more" / "data.mdb")
        assert [type(info.error) for info in reader.describe_indexes()] == [CorruptStoreError]


TRUNCATE = """
import os, sys
import whamming
from tests.storage.test_lost_files import BITS, CODES
from whamming.storage import CorruptStoreError
path, size, mode = sys.argv[1:]
database = whamming.open(path, mode=mode)
docs, more = database.index("docs"), database.index("more")
assert len(docs.search_batch(CODES[:1], k=3).ids) == 1
os.truncate(f"{path}/docs/data.mdb", int(size))
tries = [lambda: len(docs), lambda: docs.search_batch(CODES[:1], k=3), lambda: next(docs.search(CODES[0])), docs.stats,
         lambda: list(docs.scan()), lambda: docs.get([1]), docs.verify, lambda: docs.backup(path + "-copy")]
writes = [lambda: docs.upsert([2], CODES[:1]), lambda: docs.upsert([2], CODES[:1], durability="async")]
for use in tries + (writes if mode == "w" else []):
    try:
        use()
    except CorruptStoreError as error:
        assert "data.mdb was cut short" in str(error), error
    else:
        raise AssertionError(use)
assert more.search_batch(CODES[:1], k=1).ids[0] == 1
print("survived")
database.close()
"""


@pytest.mark.parametrize("mode", ["w", "r"])
@pytest.mark.parametrize("size", [0, 8192, 50_000])
def test_a_file_that_was_cut_short_does_not_kill_the_process(size: int, mode: str, tmp_path: Path) -> None:
    """A process that reads a memory map beyond the end of its file is killed by SIGBUS."""
    fill(tmp_path / "db")
    command = [sys.executable, "-c", TRUNCATE, str(tmp_path / "db"), str(size), mode]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


def test_a_store_of_another_kind_notices_it_too(persistent: Place) -> None:
    with persistent.open() as database:
        docs = database.create_index("docs", BITS)
        docs.upsert(range(100), CODES[:100])
        shutil.rmtree(persistent.directory / "db" / "docs")
        with pytest.raises(CorruptStoreError, match="was deleted"):
            docs.upsert([1000], CODES[:1])
        with pytest.raises(CorruptStoreError, match="was deleted"):
            docs.upsert([1000], CODES[:1], durability="async")
        assert len(docs) == 100


def test_a_directory_that_this_user_may_no_longer_enter(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may enter all directories")
    fill(tmp_path / "db")
    with whamming.open(tmp_path / "db") as database:
        docs = database.index("docs")
        (tmp_path / "db").chmod(0)
        try:
            with pytest.raises(StorageError, match="Permission denied"):
                docs.upsert([2], CODES[:1])
        finally:
            (tmp_path / "db").chmod(0o700)
        docs.upsert([2], CODES[:1])


def test_what_the_database_drops_or_replaces_itself_is_not_lost(persistent: Place, small: None) -> None:
    """Threads write, read and check the files all the time, while indexes are sealed, merged and dropped."""
    errors: list[BaseException] = []
    rounds = 6

    def use(act: Callable[[], object], stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                act()
            except (ClosedError, NotFoundError):
                return
            except BaseException as error:
                errors.append(error)
                return

    with persistent.open() as database:
        for _ in range(rounds):
            docs, stop = database.create_index("docs", BITS), threading.Event()
            acts: list[Callable[[], object]] = [
                lambda docs=docs: docs.upsert(range(20), CODES[:20]),  # type: ignore[misc]
                lambda docs=docs: docs.upsert(range(20, 40), CODES[:20], durability="async"),  # type: ignore[misc]
                lambda docs=docs: docs.snapshot(),  # type: ignore[misc]
                lambda docs=docs: docs.store.check_files(writing=True),  # type: ignore[misc]
            ]
            threads = [threading.Thread(target=use, args=(act, stop)) for act in acts]
            for thread in threads:
                thread.start()
            for _ in range(3):
                docs.seal()
            docs.compact()
            database.drop_index("docs")
            stop.set()
            for thread in threads:
                thread.join()
    assert errors == []
