"""What makes no sense is refused alike in every kind of database."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.clients.shared.places import ZERO, ZEROS, AnyDatabase, AnyIndex, Twin
from tests.storage.model import check_items
from whamming import Budget, InvalidArgumentError
from whamming.storage import NotFoundError

Misuse = Callable[[AnyDatabase, AnyIndex], Any]
MISUSES: dict[str, tuple[Misuse, type[Exception], str]] = {
    "no bits": (lambda db, _: db.create_index("x", 0), InvalidArgumentError, "bits = 0; a code has 1 to 4096 bits"),
    "many bits": (lambda db, _: db.create_index("x", 4097), InvalidArgumentError, "bits = 4097.* 1 to 4096"),
    "half a bit": (lambda db, _: db.create_index("x", 1.5), InvalidArgumentError, "bits = 1.5; .*whole"),  # type: ignore[arg-type]
    "name": (lambda db, _: db.create_index("a/b", 8), InvalidArgumentError, "index name 'a/b'; use 1 to 128"),
    "empty name": (lambda db, _: db.create_index("", 8), InvalidArgumentError, "index name ''; use 1 to 128"),
    "long name": (lambda db, _: db.create_index("n" * 129, 8), InvalidArgumentError, "1 to 128 letters"),
    "bit order": (
        lambda db, _: db.create_index("x", 8, bit_order="middle"),  # type: ignore[arg-type]
        InvalidArgumentError,
        "bit_order = 'middle'; choose one of .*little.*big",
    ),
    "tables": (lambda db, _: db.create_index("x", 8, tables="two"), InvalidArgumentError, "tables = 'two'"),  # type: ignore[arg-type]
    "buckets": (lambda db, _: db.create_index("x", 8, buckets="big"), InvalidArgumentError, "buckets = 'big'"),  # type: ignore[arg-type]
    "durable": (lambda db, _: db.create_index("x", 8, durability="no"), InvalidArgumentError, "durability = 'no'"),  # type: ignore[arg-type]
    "no such index": (lambda db, _: db.index("absent"), NotFoundError, "no index 'absent'"),
    "no such name": (lambda db, _: db.index("a b"), InvalidArgumentError, "index name 'a b'"),
    "no index to drop": (lambda db, _: db.drop_index("absent"), NotFoundError, "no index 'absent'"),
    "narrow codes": (lambda _, i: i.upsert([1], [[1]]), InvalidArgumentError, "codes have dtype int64, not uint8"),
    "few codes": (lambda _, i: i.upsert([1, 2, 3], ZEROS), InvalidArgumentError, "3 ids"),
    "wide codes": (
        lambda _, i: i.upsert([1], np.zeros((1, 3), dtype=np.uint8)),
        InvalidArgumentError,
        "13 bits",
    ),
    "negative id": (lambda _, i: i.upsert([1, -2], ZEROS), InvalidArgumentError, "id -2 .*0 to 18446744073709551615"),
    "large id": (lambda _, i: i.upsert([1, 2**64], ZEROS), InvalidArgumentError, "id 18446744073709551616 "),
    "few payloads": (lambda _, i: i.upsert([1, 2], ZEROS, [b""]), InvalidArgumentError, "1 payloads for 2 items"),
    "long payload": (
        lambda _, i: i.upsert([1, 2], ZEROS, [b"", bytes(65_537)]),
        InvalidArgumentError,
        "row 1 has 65537 bytes; .*65536",
    ),
    "when": (lambda _, i: i.upsert([1, 2], ZEROS, durability="later"), InvalidArgumentError, "durability = 'later'"),  # type: ignore[arg-type]
    "when to delete": (lambda _, i: i.delete([1], durability="x"), InvalidArgumentError, "durability = 'x'"),  # type: ignore[arg-type]
    "ids to delete": (lambda _, i: i.delete([1, -1]), InvalidArgumentError, "id -1 "),
    "ids to get": (lambda _, i: i.get([0.5]), InvalidArgumentError, "dtype float64"),
    "no size": (lambda _, i: list(i.scan(0)), InvalidArgumentError, "size = 0;"),
    "negative size": (lambda _, i: list(i.scan(-1)), InvalidArgumentError, "size = -1;"),
    "half a size": (lambda _, i: list(i.scan(1.5)), InvalidArgumentError, "size = 1.5; .*whole"),  # type: ignore[arg-type]
    "no query": (lambda _, i: list(i.search()), InvalidArgumentError, "code.* cost table"),
    "two costs": (
        lambda _, i: list(i.search(ZERO, table=np.ones((13, 2)))),
        InvalidArgumentError,
        "cost table.* code|code.* cost table",
    ),
    "short code": (lambda _, i: list(i.search(ZERO[:1])), InvalidArgumentError, "13 bits"),
    "code of booleans": (lambda _, i: list(i.search(np.zeros(13, bool))), InvalidArgumentError, "dtype bool"),
    "two codes": (lambda _, i: list(i.search(ZEROS)), InvalidArgumentError, "one query, .*2; use search_batch"),
    "few weights": (
        lambda _, i: list(i.search(ZERO, weights=[1.0])),
        InvalidArgumentError,
        "13 bits",
    ),
    "bad weight": (
        lambda _, i: list(i.search(ZERO, weights=[math.nan] * 13)),
        InvalidArgumentError,
        "nan",
    ),
    "words": (
        lambda _, i: list(i.search(ZERO, weights=["heavy"] * 13)),
        InvalidArgumentError,
        "weights are no array of numbers: .*'heavy'",
    ),
    "rows of two lengths": (
        lambda _, i: list(i.search(table=[[0.0, 1.0], [0.0]])),
        InvalidArgumentError,
        "costs are no array of numbers",
    ),
    "many rows of two lengths": (
        lambda _, i: i.search_batch(table=[[[0.0, 1.0], [0.0]]]),
        InvalidArgumentError,
        "costs are no array of numbers",
    ),
    "codes of two lengths": (
        lambda _, i: i.upsert([1, 2], [[1, 2], [3]]),
        InvalidArgumentError,
        "codes are no array of numbers",
    ),
    "endless cost": (lambda _, i: list(i.search(table=np.full((13, 2), math.inf))), InvalidArgumentError, "inf"),
    "table": (lambda _, i: list(i.search(table=np.ones((12, 2)))), InvalidArgumentError, "13"),
    "negative k": (lambda _, i: list(i.search(ZERO, k=-1)), InvalidArgumentError, "k = -1; it must be 0 or more"),
    "half a k": (lambda _, i: list(i.search(ZERO, k=1.5)), InvalidArgumentError, "k = 1.5; .*whole"),  # type: ignore[arg-type]
    "no radius": (lambda _, i: list(i.search(ZERO, radius=math.nan)), InvalidArgumentError, "radius = nan"),
    "text radius": (lambda _, i: list(i.search(ZERO, radius="far")), InvalidArgumentError, "radius = 'far'"),  # type: ignore[arg-type]
    "plan": (lambda _, i: list(i.search(ZERO, plan="fly")), InvalidArgumentError, "plan = 'fly'; choose one of"),  # type: ignore[arg-type]
    "no place": (lambda _, i: list(i.search(ZERO, after=(math.nan, 1))), InvalidArgumentError, r"after = \(nan, 1\)"),
    "half a place": (lambda _, i: list(i.search(ZERO, after=(1.0,))), InvalidArgumentError, r"after = \(1.0,\)"),  # type: ignore[arg-type]
    "negative n": (lambda _, i: i.search(ZERO).next(-1), InvalidArgumentError, "n = -1; it must be 0 or more"),
    "large k": (
        lambda _, i: i.search_batch(ZEROS, k=2**31),
        InvalidArgumentError,
        "k = 2147483648; it must be 0 to 2147483647",
    ),
    "negative k of many": (lambda _, i: i.search_batch(ZEROS, k=-1), InvalidArgumentError, "k = -1; it must be 0 to"),
    "too wide": (
        lambda _, i: i.search_batch(ZEROS, k=2**31 - 1),
        InvalidArgumentError,
        "k = 2147483647 for 2 queries",
    ),
    "radius of many": (lambda _, i: i.search_batch(ZEROS, radius=math.nan), InvalidArgumentError, "radius = nan"),
    "plan of many": (lambda _, i: i.search_batch(ZEROS, plan="fly"), InvalidArgumentError, "plan = 'fly'"),  # type: ignore[arg-type]
    "no candidates": (
        lambda _, i: i.search_batch(ZEROS, budget=Budget(candidates=0)),
        InvalidArgumentError,
        "candidates=0.* must be positive",
    ),
    "negative time": (
        lambda _, i: i.search_batch(ZEROS, budget=Budget(seconds=-1)),
        InvalidArgumentError,
        "seconds=-1.* must be positive",
    ),
    "weights of others": (
        lambda _, i: i.search_batch(ZEROS, np.ones((3, 13))),
        InvalidArgumentError,
        "3 rows",
    ),
}


@pytest.mark.parametrize("what", MISUSES)
def test_what_makes_no_sense_is_refused_alike(untouched: tuple[AnyDatabase, Twin], what: str) -> None:
    database, twin = untouched
    misuse, kind, message = MISUSES[what]
    with pytest.raises(kind, match=message) as caught:
        misuse(database, twin.index)
    assert type(caught.value).__name__ in (kind.__name__, "FieldError")
    check_items(twin.index, twin.model)


def test_probing_needs_tables(database: AnyDatabase, name: str) -> None:
    index = database.create_index(name, 13, tables="none")
    index.upsert([1, 2], ZEROS)
    for search in (lambda: list(index.search(ZERO, plan="probe")), lambda: index.search_batch(ZEROS, plan="probe")):
        with pytest.raises(InvalidArgumentError, match=r"(?i)plan = '?probe'? needs tables"):
            search()
