"""Temporary files and directories of killed processes are removed by the next one, but not those that are in use."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import whamming
from whamming.storage import IndexSettings, export_items
from whamming.storage.files.temporary import temporary
from whamming.storage.store.protocol import Backend

HEX = "0123456789abcdef" * 2
KILLED = """
import os, sys
from pathlib import Path
import numpy as np
import whamming
from whamming.storage import export_items
from whamming.storage.store.segmented import SegmentedStore
what, path = sys.argv[1], Path(sys.argv[2])

def die(*_, **__):
    os.kill(os.getpid(), 9)

with whamming.open(path / "db") as database:
    index = database.index("docs")
    if what == "backup":
        SegmentedStore.backup = die
        database.backup(path / "monday")
    elif what == "encoder":
        encoder = index.encoder
        type(encoder).to_bytes = die
        encoder.save(path / "an.encoder")
    else:
        np.savez = np.lib.format.write_array_header_1_0 = die
        export_items(index, path / f"docs.{what}")
"""


def entries(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


@pytest.mark.parametrize("what", ["backup", "npz", "npy", "encoder"])
def test_what_a_killed_process_leaves_is_removed_by_the_next_one(what: str, tmp_path: Path) -> None:
    with whamming.open(tmp_path / "db") as database:
        database.create_index("docs", encoder="sign", dim=8).upsert([1], vectors=np.ones((1, 8)))
    for _ in range(3):
        command = [sys.executable, "-c", KILLED, what, str(tmp_path)]
        assert subprocess.run(command, check=False).returncode == -9
    left = [name for name in entries(tmp_path) if name.endswith(".new")]
    assert len(left) <= 2, "leftovers do not add up; an export to .npy has two files"
    with whamming.open(tmp_path / "db") as database:
        index = database.index("docs")
        if what == "backup":
            database.backup(tmp_path / "tuesday")
        elif what == "encoder":
            encoder = index.encoder
            assert encoder is not None
            encoder.save(tmp_path / "other.encoder")
        else:
            export_items(index, tmp_path / f"other.{what}")
    assert not [name for name in entries(tmp_path) if name.endswith(".new")]


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    with (
        temporary(tmp_path / "a") as one,
        temporary(tmp_path / "b", directory=True) as two,
        temporary(tmp_path / "a") as three,
    ):
        (two / "inside").touch()
        assert one != three
        assert entries(tmp_path) == sorted((one.name, two.name, three.name))
        assert (two / "inside").exists()
        one.rename(tmp_path / "a")
    assert entries(tmp_path) == ["a"]


def test_only_names_of_our_own_form_are_removed(tmp_path: Path) -> None:
    kept = (f"{HEX}.new", f"docs.{HEX}.new", f".docs.{HEX}", f".docs.{HEX[:-1]}.new", ".docs.new", f".docs.{HEX}.old")
    for name in kept:
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / f".pipe.{HEX}.new")
    (tmp_path / f".link.{HEX}.new").symlink_to(tmp_path / "docs")
    gone = (tmp_path / f".file.{HEX}.new", tmp_path / f".directory.{HEX}.new")
    gone[0].touch()
    gone[1].mkdir()
    (gone[1] / "inside").touch()
    with temporary(tmp_path / "a"):
        pass
    assert entries(tmp_path) == sorted((*kept, f".pipe.{HEX}.new", f".link.{HEX}.new"))


def test_files_of_other_users_stay(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    other = tmp_path / f".docs.{HEX}.new"
    other.touch()
    os.chown(other, 65534, 65534)
    with temporary(tmp_path / "a"):
        pass
    assert other.exists()


@pytest.mark.parametrize("directory", [False, True])
def test_file_systems_without_locks(directory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example NFS without a lock daemon. Nothing is locked, so nobody may remove a temporary file there."""
    tries = 0

    def refuse(handle: int, operation: int) -> None:
        nonlocal tries
        tries += 1
        assert tries < 10, "it tries again and again"
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with temporary(tmp_path / "a", directory=directory) as one, temporary(tmp_path / "b") as two:
        assert entries(tmp_path) == sorted((one.name, two.name))
        one.rename(tmp_path / "a")
    assert entries(tmp_path) == ["a"]


def test_file_systems_that_give_files_to_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example NFS, which gives the files of root to nobody, and CIFS."""
    own, tries = os.geteuid(), 0

    def other() -> int:
        nonlocal tries
        tries += 1
        assert tries < 10, "it tries again and again"
        return own + 1

    monkeypatch.setattr(os, "geteuid", other)
    with temporary(tmp_path / "a") as one, temporary(tmp_path / "b") as two:
        assert entries(tmp_path) == sorted((one.name, two.name))
    assert entries(tmp_path) == []


def test_opening_a_database_for_writing_leaves_a_running_export_alone(tmp_path: Path) -> None:
    with whamming.open(tmp_path / "db") as database:
        database.create_index("docs", bits=8)
    with temporary(tmp_path / "db" / "docs.npz") as running, whamming.open(tmp_path / "db"):
        assert running.exists()


def test_an_export_leaves_an_index_that_is_being_created_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with whamming.open(tmp_path / "db") as database:
        docs = database.create_index("docs", bits=8)
        backend = type(database._backend)
        create = backend.create

        def create_and_export(self: Backend, path: Path, settings: IndexSettings) -> None:
            create(self, path, settings)
            export_items(docs, tmp_path / "db" / "docs.npz")

        monkeypatch.setattr(backend, "create", create_and_export)
        assert database.create_index("more", bits=8).count() == 0
    assert entries(tmp_path / "db") == ["docs", "docs.npz", "more", "whamming.json", "writer.lock"]
