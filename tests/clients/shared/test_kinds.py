"""Arguments of the wrong type raise InvalidArgumentError, not TypeError, in every kind of database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.clients.shared.places import AnyDatabase, AnyIndex, Place, fresh_names
from whamming import Budget, InvalidArgumentError

CODE = np.zeros(1, dtype=np.uint8)
VECTOR = np.ones(8, dtype=np.float32)
OTHERS = ("3", [1], b"1", np.nan, object())
"""Values that are neither a number, nor a known word, nor a flag."""

Use = Callable[[AnyDatabase, AnyIndex, Any], Any]
USES: dict[str, tuple[Use, tuple[Any, ...]]] = {
    "k": (lambda _, i, x: list(i.search(CODE, k=x)), (1.5, *OTHERS)),
    "k of many": (lambda _, i, x: i.search_batch(CODE[None], k=x), (1.5, None, *OTHERS)),
    "k of a re-ranked search": (lambda _, i, x: list(i.search(vector=VECTOR, k=x, rerank=2)), (1.5, None, *OTHERS)),
    "k of re-ranked ones": (
        lambda _, i, x: i.search_batch(vectors=VECTOR[None], k=x, rerank=2),
        (1.5, None, *OTHERS),
    ),
    "k of an exact search": (lambda _, i, x: list(i.search(vector=VECTOR, k=x, rerank="exact")), (1.5, *OTHERS)),
    "rerank": (lambda _, i, x: list(i.search(vector=VECTOR, k=1, rerank=x)), (1.5, *OTHERS)),
    "rerank of many": (lambda _, i, x: i.search_batch(vectors=VECTOR[None], rerank=x), (1.5, *OTHERS)),
    "n": (lambda _, i, x: i.search(CODE).next(x), (1.5, None, *OTHERS)),
    "size": (lambda _, i, x: list(i.scan(x)), (1.5, None, *OTHERS)),
    "radius": (lambda _, i, x: list(i.search(CODE, radius=x)), OTHERS),
    "radius of many": (lambda _, i, x: i.search_batch(CODE[None], radius=x), OTHERS),
    "plan": (lambda _, i, x: list(i.search(CODE, plan=x)), (1, *OTHERS)),
    "plan of many": (lambda _, i, x: i.search_batch(CODE[None], plan=x), (1, *OTHERS)),
    "plan of a re-ranked search": (lambda _, i, x: list(i.search(vector=VECTOR, k=1, plan=x, rerank=2)), (1, *OTHERS)),
    "payloads": (lambda _, i, x: list(i.search(CODE, payloads=x)), (1, None, *OTHERS)),
    "payloads of a re-ranked search": (
        lambda _, i, x: list(i.search(vector=VECTOR, k=1, payloads=x, rerank=2)),
        (1, None, *OTHERS),
    ),
    "costs": (lambda _, i, x: list(i.search(vector=VECTOR, costs=x)), (1, *OTHERS)),
    "after": (lambda _, i, x: list(i.search(CODE, after=x)), (1.5, *OTHERS)),
    "budget": (lambda _, i, x: i.search_batch(CODE[None], budget=x), (1.5, *OTHERS)),
    "candidates": (lambda _, i, x: i.search_batch(CODE[None], budget=Budget(candidates=x)), (1.5, *OTHERS)),
    "seconds": (lambda _, i, x: i.search_batch(CODE[None], budget=Budget(seconds=x)), OTHERS),
    "threads": (lambda _, i, x: i.search_batch(CODE[None], threads=x), (1.5, *OTHERS)),
    "durability": (lambda _, i, x: i.delete([9], durability=x), (1, *OTHERS)),
    "payloads to keep": (lambda _, i, x: i.upsert([1], vectors=VECTOR[None], payloads=x), (1, 1.5, *OTHERS)),
    "a payload": (lambda _, i, x: i.upsert([1], vectors=VECTOR[None], payloads=[x]), (1, "3", [1], object())),
    "ids": (lambda _, i, x: i.get(x), (1, None, "3", object())),
    "a name": (lambda db, _, x: db.index(x), (1, None, b"1", [1])),
    "a name to create": (lambda db, _, x: db.create_index(x, 8), (1, None, b"1", [1])),
    "a name to drop": (lambda db, _, x: db.drop_index(x), (1, None, b"1", [1])),
    "bits": (lambda db, _, x: db.create_index("x", x), (1.5, *OTHERS)),
    "dim": (lambda db, _, x: db.create_index("x", encoder="sign", dim=x), (1.5, None, *OTHERS)),
    "seed": (lambda db, _, x: db.create_index("x", 8, encoder="lsh", dim=8, seed=x), (1.5, *OTHERS)),
    "tables": (lambda db, _, x: db.create_index("x", 8, tables=x), (1, *OTHERS)),
    "encoder": (lambda db, _, x: db.create_index("x", 8, encoder=x, dim=8), (1, *OTHERS)),
}


@pytest.fixture(scope="session")
def vector_index(place: Place) -> Iterator[tuple[AnyDatabase, AnyIndex]]:
    """A database, and an index with an encoder and kept vectors. Tests must not change them."""
    with place.open() as database:
        index = database.create_index(next(fresh_names), encoder="sign", dim=8, keep_vectors="int8")
        index.upsert([1, 2, 3], vectors=np.eye(8, dtype=np.float32)[:3])
        yield database, index


@pytest.mark.parametrize("what", USES)
def test_an_argument_of_the_wrong_type_is_refused(vector_index: tuple[AnyDatabase, AnyIndex], what: str) -> None:
    database, index = vector_index
    use, values = USES[what]
    for value in values:
        with pytest.raises(InvalidArgumentError):
            use(database, index, value)
    assert len(index) == 3
    assert "x" not in database.list_indexes()


@pytest.mark.parametrize("what", ["k", "k of many", "k of a re-ranked search", "rerank", "n", "size", "bits"])
def test_the_error_shows_a_fractional_number(vector_index: tuple[AnyDatabase, AnyIndex], what: str) -> None:
    database, index = vector_index
    with pytest.raises(InvalidArgumentError, match=rf"{what.split()[0]} = 1\.5"):
        USES[what][0](database, index, 1.5)
