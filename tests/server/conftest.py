"""Server processes that the tests of a module share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import ServerProcess, Stubs

_names = itertools.count()


@pytest.fixture(scope="module", params=["ram", "lmdb"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with an in-memory store, then one with an LMDB store."""
    place: Path | str = ":memory:" if request.param == "ram" else tmp_path_factory.mktemp("data") / "db"
    with ServerProcess(place) as server:
        yield server
        server.check_log()


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server with an in-memory store."""
    with ServerProcess() as server:
        yield server
        server.check_log()


@pytest.fixture
def stubs(server: ServerProcess) -> Iterator[Stubs]:
    with server.stubs() as stubs:
        yield stubs


@pytest.fixture
def name() -> str:
    """An index name that no other test uses."""
    return f"index-{next(_names)}"
