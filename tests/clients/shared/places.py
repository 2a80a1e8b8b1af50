"""The databases that the shared suite runs on: in this process, and on servers through each client."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

import whamming
from tests.clients.shared import asyncio_database
from tests.native.examples import make_codes
from tests.native.oracle import Codes, Truth
from tests.storage.model import Model, check_items
from whamming.storage.verbs import DatabaseVerbs, IndexVerbs, SearchVerbs

AnyDatabase = DatabaseVerbs
AnyIndex = IndexVerbs
AnySearch = SearchVerbs

KINDS = ("ram", "lmdb", "remote-ram", "remote-lmdb", "aio")
NONE = np.iinfo(np.uint64).max
ZEROS = np.zeros((2, 2), dtype=np.uint8)
ZERO = ZEROS[0]
fresh_names = (f"shared-{number}" for number in itertools.count())
"""Unused index names."""


class Place:
    """Opens databases of one kind: a new one in this process each time, or the database of a server."""

    def __init__(self, kind: str, directory: Path, address: str | None) -> None:
        self.kind = kind
        self._paths = (directory / f"db-{number}" for number in itertools.count())
        self._address = address

    def open(self) -> AnyDatabase:
        if self._address is None:
            return whamming.open(":memory:" if self.kind == "ram" else next(self._paths))
        if self.kind == "aio":
            database: AnyDatabase = asyncio_database.connect(self._address)
            return database
        return whamming.connect(self._address)

    @property
    def is_remote(self) -> bool:
        return self._address is not None

    @property
    def address(self) -> str:
        assert self._address is not None
        return self._address


class Twin:
    """An index and its model, which get the same writes."""

    def __init__(self, database: AnyDatabase, name: str, bits: int = 13, **options: Any) -> None:
        self.index: AnyIndex = database.create_index(name, bits, **options)
        self.model = Model(self.index.settings)

    def upsert(self, ids: Any, codes: Codes, payloads: list[bytes | None] | None = None, **options: Any) -> None:
        self.index.upsert(ids, codes, payloads, **options)
        self.model.upsert(ids, codes, payloads)

    def delete(self, ids: Any, **options: Any) -> None:
        existed = len({int(id_) for id_ in ids} & set(self.model.items))
        assert self.index.delete(ids, **options) == existed
        self.model.delete(ids)

    def fill(self, n: int, seed: int = 0) -> None:
        payloads: list[bytes | None] = [b"p%d" % i if i % 3 else None for i in range(n)]
        codes = make_codes("uniform", n, self.index.settings.bits, np.random.default_rng(seed))
        self.upsert(np.arange(n), codes, payloads)

    def check(self) -> None:
        """Check that the index has the model's items and finds them."""
        check_items(self.index, self.model)
        for seed in range(2):
            table = np.random.default_rng(seed).normal(size=(self.index.settings.bits, 2))
            check_hits(self.index.search(table=table, k=20).all(), self.model.answer(table)[:20])


def check_hits(found: Any, expected: Truth) -> None:
    ids, distances = found
    assert ids.dtype == np.uint64
    assert distances.dtype == np.float64
    assert (ids.tobytes(), distances.tobytes()) == expected.bytes()
