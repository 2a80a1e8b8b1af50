"""Fixtures of the shared suite: databases of every kind, and indexes in them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.shared.places import KINDS, AnyDatabase, Place, Twin, fresh_names
from tests.serving import ServerProcess


@pytest.fixture(scope="session", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("data")
    if request.param in ("ram", "lmdb"):
        yield Place(request.param, directory, None)
        return
    with ServerProcess(directory / "db" if request.param == "remote-lmdb" else ":memory:") as server:
        yield Place(request.param, directory, server.address)
        server.check_log()


@pytest.fixture
def database(place: Place) -> Iterator[AnyDatabase]:
    with place.open() as database:
        yield database


@pytest.fixture
def name() -> str:
    """An unused index name."""
    return next(fresh_names)


@pytest.fixture
def twin(database: AnyDatabase, name: str) -> Twin:
    """An index of 13 bits with 90 items."""
    twin = Twin(database, name)
    twin.fill(90)
    return twin


@pytest.fixture(scope="session")
def untouched(place: Place) -> Iterator[tuple[AnyDatabase, Twin]]:
    """A database and an index that tests must not change."""
    with place.open() as database:
        twin = Twin(database, next(fresh_names))
        twin.fill(90)
        yield database, twin
