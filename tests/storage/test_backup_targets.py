"""Targets of backups: not inside a database, however the path is written, and never over an existing file."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import whamming
from whamming import InvalidArgumentError
from whamming.storage import AlreadyExistsError, Database, WriterBusyError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture(params=["absolute", "relative", "linked"])
def database(request: pytest.FixtureRequest, home: Path) -> Iterator[Database]:
    path = home / "data"
    if request.param == "linked":
        path.mkdir()
        path = home / "link"
        path.symlink_to(home / "data")
    with whamming.open(path if request.param != "relative" else "data") as database:
        index = database.create_index("docs", 8)
        index.upsert([1, 2], np.zeros((2, 1), dtype=np.uint8))
        yield database


INSIDE = [
    "data",
    "data/",
    "./data/copy",
    "data/docs",
    "data/docs/copy",
    "data/../data/copy",
    "data/.hidden",
    "aside/copy",
    "aside",
    "aside/deep/er/copy",
]


def copies(database: Database) -> list[Callable[[str | Path], None]]:
    return [database.backup, lambda target: whamming.restore("data", target)]


@pytest.mark.parametrize("target", INSIDE)
def test_a_target_inside_the_database_is_refused(database: Database, home: Path, target: str) -> None:
    (home / "aside").symlink_to(home / "data")
    before = sorted(home.rglob("*"))
    for copy in copies(database):
        for path in (target, home / target):
            with pytest.raises(InvalidArgumentError, match="inside the database"):
                copy(path)
    assert sorted(home.rglob("*")) == before
    assert database.list_indexes() == ["docs"]


def test_the_working_directory_may_change_after_opening(
    database: Database, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "elsewhere").mkdir()
    monkeypatch.chdir(home / "elsewhere")
    for target in ("../data/copy", "../data/docs/copy"):
        with pytest.raises(InvalidArgumentError, match="inside the database"):
            database.backup(target)
        assert not Path(target).exists()
    database.create_index("more", 8)
    assert database.list_indexes() == ["docs", "more"]
    database.backup("copy")
    assert (home / "elsewhere" / "copy").is_dir()


def test_a_target_that_exists_is_refused(database: Database, home: Path) -> None:
    (home / "file").write_text("something")
    (home / "empty").mkdir()
    (home / "dangling").symlink_to(home / "nowhere")
    for copy in copies(database):
        for target in (home, home.parent, "file", "empty", "dangling", "."):
            with pytest.raises(AlreadyExistsError, match="exists"):
                copy(target)
    assert (home / "file").read_text() == "something"
    assert not (home / "nowhere").exists()


def test_a_target_inside_another_database_is_refused(database: Database, home: Path) -> None:
    whamming.open(home / "other").close()
    for copy in copies(database):
        with pytest.raises(InvalidArgumentError, match="inside the database"):
            copy("other/copy")
    with whamming.open(home / "other", mode="r") as other:
        assert other.list_indexes() == []


def test_a_target_without_a_parent_directory_is_refused(database: Database, home: Path) -> None:
    """The path may be misspelt, or a disk may not be mounted."""
    (home / "file").write_text("something")
    for copy in copies(database):
        for target in ("backups/monday", home / "a" / "b" / "c", "file/monday"):
            with pytest.raises(InvalidArgumentError, match=r"there is no directory .*create it first"):
                copy(target)
    assert not (home / "backups").exists()
    assert not (home / "a").exists()


def test_a_backup_to_memory_is_refused(database: Database, home: Path) -> None:
    for copy in copies(database):
        with pytest.raises(InvalidArgumentError, match=":memory:"):
            copy(":memory:")
    assert not (home / ":memory:").exists()


def test_a_target_next_to_the_database_is_allowed(database: Database, home: Path) -> None:
    """Its name may begin with the name of the database."""
    for number, copy in enumerate(copies(database)):
        copy(home / f"data-{number}")
        with whamming.open(home / f"data-{number}", mode="r") as found:
            assert len(found.index("docs")) == 2
    with whamming.open() as memory:
        memory.create_index("notes", 8).upsert([5], np.zeros((1, 1), dtype=np.uint8))
        with pytest.raises(InvalidArgumentError, match="inside the database"):
            memory.backup(home / "data" / "copy")
        memory.backup(home / "notes")


# -- who has it open for writing -------------------------------------------------------------------------------------


def test_the_error_says_that_this_process_is_the_writer(database: Database, home: Path) -> None:
    (home / "aside").symlink_to(home / "data")
    for path in ("data", home / "data", "aside"):
        with pytest.raises(WriterBusyError, match="this process") as caught:
            whamming.open(path)
        assert str(path) in str(caught.value)
    database.close()
    with whamming.open("data") as again:
        assert len(again.index("docs")) == 2


FORKED = """
    import os, whamming
    with whamming.open("forked"):
        child = os.fork()
        if child == 0:
            try:
                whamming.open("forked")
            except whamming.StorageError as error:
                print(type(error).__name__, error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
"""


def test_for_a_forked_process_the_parent_is_another_process(home: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(FORKED)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=home)
    assert done.stdout.startswith("WriterBusyError another process"), done
