"""A broken index is listed with the reason, can be dropped, and does not affect the other indexes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whamming
from tests.storage.broken import NAME, SOUND, STRAY, WAYS, make_indexes
from tests.storage.conftest import Place
from whamming import StorageError, WhammingError
from whamming.storage import (
    AlreadyExistsError,
    CorruptStoreError,
    FormatError,
    IncompleteBackupError,
    NotFoundError,
)
from whamming.storage.directory import MAX_MISSING, missing_from
from whamming.storage.files.lmdb_backend import LmdbBackend

TYPES: dict[str, type[WhammingError]] = {"CORRUPT": CorruptStoreError, "FORMAT": FormatError}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with whamming.open(tmp_path / "db") as database:
        make_indexes(database)
    return tmp_path / "db"


@pytest.mark.parametrize("mode", ["w", "r"])
@pytest.mark.parametrize("way", WAYS)
def test_a_broken_index_is_listed_with_its_error(path: Path, way: str, mode: Any) -> None:
    break_index, reason = WAYS[way]
    break_index(path / NAME)
    with whamming.open(path, mode=mode) as database:
        for _ in range(2):
            assert database.list_indexes() == [SOUND[0], NAME, SOUND[1]]
            first, broken, last = database.describe_indexes()
            assert [first.name, broken.name, last.name] == database.list_indexes()
            assert (broken.settings, broken.stats, type(broken.error)) == (None, None, TYPES[reason])
            for info in (first, last):
                assert info.error is None
                assert info.stats is not None
                assert info.stats.items == 2
                assert info.settings == database.index(info.name).settings
        with pytest.raises(TYPES[reason]) as caught:
            database.index(NAME)
        assert str(caught.value) == str(broken.error)
        assert str(caught.value).count(str(path / NAME)) == 1, "it names the index"


@pytest.mark.parametrize("way", [way for way in WAYS if way not in STRAY])
def test_a_broken_index_can_be_dropped_and_created_again(path: Path, way: str) -> None:
    WAYS[way][0](path / NAME)
    with whamming.open(path) as database:
        with pytest.raises(AlreadyExistsError, match=rf"{NAME}.* cannot be used: .*drop it"):
            database.create_index(NAME, 8)
        database.drop_index(NAME)
        assert database.list_indexes() == list(SOUND)
        with pytest.raises(NotFoundError):
            database.drop_index(NAME)
        assert not [entry.name for entry in path.iterdir() if entry.name.startswith(".")]
        database.create_index(NAME, 8)
        assert [info.error for info in database.describe_indexes()] == [None] * 3


def tree(path: Path) -> list[str]:
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*"))


def make_nested(path: Path) -> None:
    (path / "inner").mkdir(parents=True)
    (path / "inner" / "thesis.doc").write_text("precious")


def make_false_names(path: Path) -> None:
    """Directories with the names of files of an index."""
    for name in ("data.mdb", "lock.mdb", "encoder"):
        make_nested(path / name)


def make_many(path: Path) -> None:
    path.mkdir()
    for number in range(10):
        (path / f"{number}.txt").write_text("precious")


STRAYS: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_text("precious"),
    "an empty file": Path.touch,
    "nested directories": make_nested,
    "directories with names of ours": make_false_names,
    "many files": make_many,
}


@pytest.mark.parametrize("stray", STRAYS)
def test_the_files_of_others_are_never_dropped(path: Path, stray: str) -> None:
    STRAYS[stray](path / "mine")
    before = tree(path)
    with whamming.open(path) as database:
        for act in (lambda: database.drop_index("mine"), lambda: database.create_index("mine", 8)):
            with pytest.raises(StorageError, match=r"mine.*move it away") as caught:
                act()
            assert "drop it" not in str(caught.value)
        assert tree(path) == before
        assert [info.name for info in database.describe_indexes() if info.error is not None] == ["mine"]
    with whamming.open(path):
        assert tree(path) == before


@pytest.mark.parametrize("opened", [True, False])
def test_an_index_with_files_of_others_is_not_dropped(persistent: Place, opened: bool) -> None:
    directory = persistent.directory / "db"
    with persistent.open() as database:
        docs = database.create_index("docs", encoder="sign", dim=8)
        docs.upsert([1, 2], vectors=np.eye(8)[:2])
        if not opened:
            assert database.indexes.close_if_idle(docs)
        (directory / "docs" / "notes.txt").write_text("precious")
        with pytest.raises(FormatError, match=r"docs .*notes\.txt; move it away"):
            database.drop_index("docs")
        docs.upsert([3], vectors=np.ones((1, 8)))
        assert len(database.index("docs")) == 3, "the index is as it was"
        (directory / "docs" / "notes.txt").rename(persistent.directory / "notes.txt")
        docs.seal()
        docs.delete([1])
        docs.compact()
        database.drop_index("docs")
        assert database.list_indexes() == []
    assert tree(directory) == ["whamming.json", "writer.lock"]


def test_files_that_arrive_while_an_index_is_dropped_are_kept(path: Path) -> None:
    with whamming.open(path) as database:
        finish = database.begin_drop(NAME)
        (gone,) = path.glob(f".{NAME}.*.dropped")
        (gone / "notes.txt").write_text("precious")
        finish()
    with whamming.open(path):
        assert (gone / "notes.txt").read_text() == "precious"
        assert [entry.name for entry in gone.iterdir()] == ["notes.txt"]


def test_only_what_a_drop_has_left_is_cleaned_up(path: Path) -> None:
    """When the database is opened."""
    make_nested(path / ".mine.dropped")
    (path / f".other.{'0' * 32}.dropped").mkdir()
    (path / f".other.{'0' * 32}.dropped" / "data.mdb").touch()
    with whamming.open(path) as database:
        assert not database.list_indexes()[3:]
    assert [entry.name for entry in path.glob(".*")] == [".mine.dropped"]
    assert (path / ".mine.dropped" / "inner" / "thesis.doc").exists()


def test_a_dropped_link_leaves_its_target_alone(path: Path, tmp_path: Path) -> None:
    shutil.move(path / NAME, tmp_path / "elsewhere")
    (path / NAME).symlink_to(tmp_path / "elsewhere")
    with whamming.open(path) as database:
        assert len(database.index(NAME)) == 2
        database.drop_index(NAME)
    assert (tmp_path / "elsewhere" / "data.mdb").exists()
    assert not [entry.name for entry in path.iterdir() if entry.name.startswith(".")]


def test_stray_files_are_neither_verified_nor_copied(path: Path, tmp_path: Path) -> None:
    (path / "notes.txt").write_text("mine")
    with whamming.open(path, mode="r") as database:
        assert "notes.txt" in database.list_indexes()
        assert all(report.ok for report in database.verify().values())
    whamming.restore(path, tmp_path / "copy")
    with whamming.open(tmp_path / "copy", mode="r") as copy:
        assert copy.list_indexes() == sorted((*SOUND, NAME))


@pytest.mark.parametrize("name", ["whamming.json", "writer.lock"])
def test_files_of_the_database_are_not_indexes(path: Path, name: str) -> None:
    with whamming.open(path) as database:
        assert name not in database.list_indexes()
        with pytest.raises(NotFoundError):
            database.index(name)
        with pytest.raises(NotFoundError):
            database.drop_index(name)
        with pytest.raises(AlreadyExistsError):
            database.create_index(name, 8)


def test_an_unexpected_error_of_a_store_is_listed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = LmdbBackend.open

    def fail(self: LmdbBackend, place: Path, settings: Any, *, read_only: bool) -> Any:
        if place.name == NAME:
            raise ZeroDivisionError("a mistake")
        return opened(self, place, settings, read_only=read_only)

    monkeypatch.setattr(LmdbBackend, "open", fail)
    with whamming.open(path) as database:
        errors = {info.name: info.error for info in database.describe_indexes()}
        assert (errors[SOUND[0]], errors[SOUND[1]]) == (None, None)
        assert isinstance(errors[NAME], StorageError)
        assert "a mistake" in str(errors[NAME])
        database.drop_index(NAME)


def test_every_store_describes_its_indexes(place: Place) -> None:
    with place.open() as database:
        database.create_index("b", 8)
        database.create_index("a", 16)
        infos = database.describe_indexes()
        assert [(info.name, info.settings, info.error) for info in infos] == [
            (name, database.index(name).settings, None) for name in ("a", "b")
        ]
    with pytest.raises(whamming.storage.ClosedError):
        database.describe_indexes()


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("a stray file", "a dangling link")])
def test_a_backup_has_the_other_indexes(path: Path, way: str, tmp_path: Path) -> None:
    WAYS[way][0](path / NAME)
    with whamming.open(path) as database, pytest.raises(IncompleteBackupError, match=f"index '{NAME}' is not in it: "):
        database.backup(tmp_path / "copy")
    with whamming.open(tmp_path / "copy", mode="r") as copy:
        assert [(info.name, info.error, info.stats and info.stats.items) for info in copy.describe_indexes()] == [
            (name, None, 2) for name in SOUND
        ]
    with whamming.open(path) as database, pytest.raises(StorageError):
        whamming.restore(path, tmp_path / "restored")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["copy", path.name]


def missing_in(error: pytest.ExceptionInfo[IncompleteBackupError]) -> str:
    return str(error.value).partition("when it was made: ")[2].partition(";")[0]


def test_an_incomplete_backup_says_so_when_it_is_restored(path: Path, tmp_path: Path) -> None:
    WAYS["the file is cut short"][0](path / NAME)
    with whamming.open(path) as database, pytest.raises(IncompleteBackupError):
        database.backup(tmp_path / "copy")
    for source, target in (("copy", "restored"), ("restored", "again")):
        with pytest.raises(IncompleteBackupError) as caught:
            whamming.restore(tmp_path / source, tmp_path / target)
        assert missing_in(caught) == NAME
        with whamming.open(tmp_path / target, mode="r") as copy:
            assert copy.list_indexes() == list(SOUND)
            assert all(report.ok for report in copy.verify().values())
    with whamming.open(tmp_path / "again") as database:
        database.backup(tmp_path / "complete")  # the database is what it is now
        database.create_index(NAME, 8)
    for name in ("again", "complete"):
        whamming.restore(tmp_path / name, tmp_path / f"{name}-restored")


def test_a_backup_names_only_so_many_missing_indexes(path: Path, tmp_path: Path) -> None:
    """The marker file must not outgrow its limit."""
    names = [f"{number:0128}" for number in range(MAX_MISSING + 4)]
    for name in names:
        shutil.copytree(path / NAME, path / name)
        WAYS["the file is empty"][0](path / name)
    with whamming.open(path, mode="r") as database, pytest.raises(IncompleteBackupError):
        database.backup(tmp_path / "copy")
    assert missing_from(tmp_path / "copy") == names[:MAX_MISSING]
    with pytest.raises(IncompleteBackupError, match=f"{names[9]}, and at least {MAX_MISSING - 10} more; "):
        whamming.restore(tmp_path / "copy", tmp_path / "restored")


@pytest.mark.parametrize("missing", ["docs", [7], ["../x"], [["docs"]], {"docs": 1}])
def test_a_damaged_list_of_missing_indexes_is_refused(path: Path, missing: Any, tmp_path: Path) -> None:
    (path / "whamming.json").write_text(json.dumps({"format": 3, "store": "lmdb", "missing": missing}))
    with pytest.raises(FormatError, match="not names"):
        whamming.restore(path, tmp_path / "restored")
    with whamming.open(path) as database:
        assert len(database.list_indexes()) == 3
