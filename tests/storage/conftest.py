"""The stores that every contract test runs on: the two of this package, and a third-party one."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import whamming
from tests.storage.twin import Twin
from whamming import Database

STORES = ("ram", "lmdb", "journal")


@dataclass(frozen=True)
class Place:
    """A kind of store and a directory for its databases."""

    store: str
    directory: Path

    @property
    def persistent(self) -> bool:
        return self.store != "ram"

    def open(self, name: str = "db", **options: Any) -> Database:
        """Open the database of that name, or a new one in memory."""
        path = self.directory / name if self.persistent else ":memory:"
        return whamming.open(path, store=self.store, **options)


@pytest.fixture(scope="session")
def thirdparty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install ``thirdparty`` once for all processes of pytest-xdist, and return the directory to import it from."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    target = base / "installed"
    with (base / "installing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            # Copied first, because building leaves files next to the sources.
            source = shutil.copytree(Path(__file__).parent / "thirdparty", base / "thirdparty", dirs_exist_ok=True)
            options = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "-q")
            command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
    sys.path.append(str(target))
    importlib.invalidate_caches()
    return target


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place(request, tmp_path)


@pytest.fixture(params=[store for store in STORES if store != "ram"])
def persistent(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place whose databases can be reopened."""
    return make_place(request, tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> Place:
    return Place("lmdb", tmp_path)


def make_place(request: pytest.FixtureRequest, directory: Path) -> Place:
    if request.param == "journal":
        request.getfixturevalue("thirdparty")
    return Place(request.param, directory)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make segments so small that sealing and merging happen all the time."""
    monkeypatch.setattr("whamming.storage.store.maintenance.SEAL_ROWS", 16)
    monkeypatch.setattr("whamming.storage.store.maintenance.SMALL_RUN_ROWS", 3)
    monkeypatch.setattr("whamming.storage.store.contents.PENDING_ROWS", 2)


@pytest.fixture
def twin(place: Place) -> Iterator[Twin]:
    """An index of 13 bits with segments, dead items and recent writes."""
    with place.open() as database:
        made = Twin.create(database)
        made.layer()
        yield made
