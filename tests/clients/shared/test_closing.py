"""Indexes and databases that are dropped or closed, alike in every kind of database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.shared.places import ZERO, ZEROS, AnyDatabase, Place, Twin
from whamming import StorageError
from whamming.storage import ClosedError, NotFoundError


def test_an_index_that_was_dropped(database: AnyDatabase, twin: Twin) -> None:
    search = twin.index.search(ZERO)
    first = next(search)
    database.drop_index(twin.index.name)
    assert first.distance <= next(search).distance, "searches under way finish"
    uses: list[Callable[[], Any]] = [
        lambda: len(twin.index),
        lambda: twin.index.upsert([1, 2], ZEROS),
        lambda: twin.index.delete([1]),
        lambda: twin.index.get([1]),
        lambda: list(twin.index.scan()),
        lambda: list(twin.index.search(ZERO)),
        lambda: twin.index.search_batch(ZEROS),
        lambda: twin.index.seal(),
        lambda: twin.index.compact(),
        lambda: twin.index.stats(),
    ]
    for use in uses:
        with pytest.raises((ClosedError, NotFoundError)):
            use()


def test_a_database_that_was_closed(place: Place, name: str) -> None:
    with place.open() as database:
        twin = Twin(database, name)
        twin.fill(20)
        search = twin.index.search(ZERO)
        next(search)
    database.close()
    uses: list[Callable[[], Any]] = [
        lambda: database.create_index("x", 8),
        lambda: database.index(name),
        lambda: database.list_indexes(),
        lambda: database.drop_index(name),
        lambda: twin.index.upsert([1, 2], ZEROS),
        lambda: twin.index.delete([1]),
        lambda: twin.index.get([1]),
        lambda: list(twin.index.scan()),
        lambda: list(twin.index.search(ZERO)),
        lambda: twin.index.search_batch(ZEROS),
        lambda: twin.index.seal(),
        lambda: twin.index.stats(),
    ]
    for use in uses:
        with pytest.raises(ClosedError, match="closed"):
            use()
    assert issubclass(ClosedError, StorageError)
    search.close()
