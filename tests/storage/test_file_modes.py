"""New files and directories are private to their owner; the modes of existing ones are kept."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import whamming
from tests.storage.conftest import Place
from whamming.storage import export_items, fit


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """Do not let the umask of the test run restrict anything."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def check_private(path: Path) -> None:
    """Check the modes of a directory and of everything in it."""
    found = {str(entry.relative_to(path)): mode_of(entry) for entry in (path, *path.rglob("*"))}
    wanted = {name: 0o700 if (path / name).is_dir() else 0o600 for name in found}
    assert found == wanted


def test_a_database_and_its_backup_are_private(disk: Place, tmp_path: Path) -> None:
    with disk.open() as database:
        docs = database.create_index("docs", encoder="sign", dim=8)
        docs.upsert([1, 2], vectors=np.eye(8)[:2])
        docs.seal()
        database.backup(tmp_path / "copy")
        docs.backup(tmp_path / "one")
    with disk.open(mode="r") as database:
        assert len(database.index("docs")) == 2
    whamming.restore(tmp_path / "copy", tmp_path / "restored")
    for name in ("db", "copy", "one", "restored"):
        check_private(tmp_path / name)
    assert {entry.name for entry in (tmp_path / "db" / "docs").iterdir()} == {"data.mdb", "encoder", "lock.mdb"}


def test_a_copy_of_a_database_in_memory_is_private(tmp_path: Path) -> None:
    with whamming.open() as database:
        database.create_index("docs", 8).upsert([1], np.zeros((1, 1), dtype=np.uint8))
        database.backup(tmp_path / "copy")
    check_private(tmp_path / "copy")


def test_the_directory_of_an_index_is_private_on_every_store(persistent: Place) -> None:
    with persistent.open() as database:
        database.create_index("docs", 8)
    assert mode_of(persistent.directory / "db") == 0o700
    assert mode_of(persistent.directory / "db" / "docs") == 0o700


@pytest.mark.parametrize("name", ["items.npz", "items.npy"])
def test_exports_are_private(tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir(mode=0o700)
    with whamming.open() as database:
        docs = database.create_index("docs", 8)
        docs.upsert([1], np.zeros((1, 1), dtype=np.uint8))
        export_items(docs, tmp_path / "out" / name)
    check_private(tmp_path / "out")


def test_an_encoder_file_is_private(tmp_path: Path) -> None:
    fit("sign", dim=4).save(tmp_path / "encoder")
    assert mode_of(tmp_path / "encoder") == 0o600


def test_wider_modes_are_kept(disk: Place, tmp_path: Path) -> None:
    path = tmp_path / "db"
    path.mkdir(mode=0o755)
    with disk.open() as database:
        database.create_index("docs", 8)
    assert mode_of(path) == 0o755
    (path / "docs").chmod(0o750)
    (path / "docs" / "data.mdb").chmod(0o640)
    (path / "whamming.json").chmod(0o644)
    with disk.open() as database:
        database.index("docs").upsert([1], np.zeros((1, 1), dtype=np.uint8))
    modes = [mode_of(path / name) for name in (".", "docs", "docs/data.mdb", "whamming.json")]
    assert modes == [0o755, 0o750, 0o640, 0o644]


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "encoder"
    target.touch(mode=0o664)
    fit("sign", dim=4).save(target)
    assert mode_of(target) == 0o664
