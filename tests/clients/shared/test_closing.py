"""Dropped and closed indexes, databases and searches behave the same in every kind of database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.shared.places import ZERO, ZEROS, AnyDatabase, Place, Twin
from whamming import StorageError
from whamming.storage import AlreadyExistsError, ClosedError, NotFoundError


def test_using_a_dropped_index(database: AnyDatabase, twin: Twin) -> None:
    search = twin.index.search(ZERO)
    first = next(search)
    database.drop_index(twin.index.name)
    assert first.distance <= next(search).distance, "a running search finishes"
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


def test_using_a_closed_database(place: Place, name: str) -> None:
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


def test_a_closed_index_can_be_opened_again(place: Place, database: AnyDatabase, twin: Twin) -> None:
    name = twin.index.name
    for _ in range(2):
        twin.index.close()
        twin.index.close()
        if place.kind == "ram":  # closing the index discards its items
            check_gone(database, name)
            return
        fresh = database.index(name)
        assert fresh is not twin.index
        with pytest.raises(ClosedError, match=r"closed"):
            twin.index.get([1])
        twin.index = fresh
        twin.check()


def check_gone(database: AnyDatabase, name: str) -> None:
    assert name not in database.list_indexes()
    with pytest.raises(NotFoundError, match=name):
        database.index(name)
    with pytest.raises(NotFoundError, match=name):
        database.drop_index(name)
    with database.create_index(name, 13) as again:
        assert len(again) == 0


def test_closing_one_of_two_index_objects(place: Place, database: AnyDatabase, twin: Twin) -> None:
    """In this process they are the same object. In a client they are independent."""
    other = database.index(twin.index.name)
    other.close()
    if place.is_remote:
        twin.check()
        return
    assert other is twin.index
    if place.kind == "lmdb":
        database.index(other.name).delete([1])
        twin.model.delete([1])
        twin.index = database.index(other.name)
        twin.check()


def test_a_closed_index_can_be_dropped_and_created_again(place: Place, database: AnyDatabase, twin: Twin) -> None:
    name = twin.index.name
    twin.index.close()
    if place.kind != "ram":
        with pytest.raises(AlreadyExistsError, match=name):
            database.create_index(name, 13)
        database.drop_index(name)
    again = Twin(database, name)
    again.fill(10)
    again.check()
    with pytest.raises(ClosedError):
        twin.index.get([1])


def test_an_index_in_a_with_block(place: Place, database: AnyDatabase, name: str) -> None:
    with database.create_index(name, 13) as index:
        index.upsert([1, 2], ZEROS)
        assert index.count() == len(index) == 2
    for use in (
        lambda: index.upsert([1, 2], ZEROS),
        lambda: index.delete([1]),
        lambda: index.get([1]),
        lambda: list(index.scan()),
        lambda: list(index.search(ZERO)),
        lambda: index.search_batch(ZEROS),
        lambda: index.seal(),
        lambda: index.compact(),
        lambda: index.stats(),
        lambda: index.count(),
    ):
        with pytest.raises(ClosedError, match="closed"):
            use()
    if place.kind != "ram":
        assert len(database.index(name)) == 2


def test_a_closed_search_returns_no_more_hits(twin: Twin) -> None:
    """Not even hits that have already arrived."""
    left = twin.index.search(ZERO)
    next(left)
    left.close()
    with twin.index.search(ZERO) as unread:
        pass
    for search in (left, unread):
        assert "closed" in repr(search)
        for use in (lambda: next(search), lambda: search.next(1), search.all, lambda: list(search)):  # noqa: B023
            with pytest.raises(ClosedError, match=r"search .*closed"):
                use()


def test_a_closed_search_has_no_bound_and_no_statistics(twin: Twin) -> None:
    search = twin.index.search(ZERO)
    next(search)
    search.close()
    for use in (lambda: search.lower_bound, lambda: search.stats):
        with pytest.raises(ClosedError, match=r"search .*closed"):
            use()
