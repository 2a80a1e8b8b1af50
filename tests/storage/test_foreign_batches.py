"""Batches that an index must not write: they were made for another index, or are not batches at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.storage.conftest import Place
from whamming import Database, InvalidArgumentError, StoredIndex
from whamming.storage import IndexSettings, Rows, WriteBatch

CODES = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=np.uint8)
VECTORS = np.eye(8)[:2]

OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "fewer bits": ({"bits": 24}, "bits = 24, not 32"),
    "more bits": ({"bits": 33}, "bits = 33, not 32"),
    "another bit order": ({"bits": 32, "bit_order": "big"}, "bit_order = 'big', not 'little'"),
    "an encoder": ({"bits": 32, "encoder": "lsh", "dim": 8}, "encoder = '.*', not None"),
}


def batch_of(index: StoredIndex) -> WriteBatch:
    if index.settings.encoder is not None:
        return index.batch([5, 6], vectors=VECTORS)
    return index.batch([5, 6], np.ones((2, index.settings.code_bytes), dtype=np.uint8))


def check_refused(index: StoredIndex, batch: Any, message: str) -> None:
    before = index.stats()
    for durability in (None, "async"):
        with pytest.raises(InvalidArgumentError, match=rf"^batch .*{message}.*batch\(\)"):
            index.write(batch, durability)
    assert index.stats() == before, "nothing was logged"


def check_intact(database: Database, ids: list[int]) -> None:
    index = database.index("docs")
    assert [row for piece in index.scan() for row in piece.ids.tolist()] == ids
    assert (index.get(ids).codes == CODES[: len(ids)]).all()
    assert sorted(hit.id for hit in index.search(CODES[0])) == ids
    assert index.verify().ok


@pytest.mark.parametrize("other", OTHERS)
def test_a_batch_for_other_settings_is_refused(place: Place, other: str) -> None:
    options, message = OTHERS[other]
    with place.open() as database:
        docs, others = database.create_index("docs", bits=32), database.create_index("others", **options)
        docs.upsert([1, 2], CODES)
        check_refused(docs, batch_of(others), message)
        check_refused(docs, others.batch(deletes=[1]), message)
        check_intact(database, [1, 2])
    if place.persistent:
        with place.open() as database:
            check_intact(database, [1, 2])


def test_a_batch_of_codes_is_refused_by_an_index_that_keeps_vectors(place: Place) -> None:
    options: dict[str, Any] = {"encoder": "lsh", "dim": 8, "bits": 32}
    with place.open() as database:
        plain = database.create_index("plain", **options)
        kept = database.create_index("kept", **options, keep_vectors="int8")
        coarse = database.create_index("coarse", **options, keep_vectors="float16")
        kept.upsert([1, 2], vectors=VECTORS)
        check_refused(kept, plain.batch([5, 6], CODES), "keep_vectors = None, not 'int8'")
        check_refused(kept, coarse.batch([5, 6], vectors=VECTORS), "keep_vectors = 'float16', not 'int8'")
        check_refused(plain, kept.batch([5, 6], vectors=VECTORS), "keep_vectors = 'int8', not None")
        assert kept.search_batch(vectors=VECTORS, k=1, rerank=2).ids.tolist() == [[1], [2]]


@pytest.mark.parametrize("value", [None, [1], (1, 2), CODES, Rows.none(4), "batch"])
def test_what_is_not_a_batch_is_refused(place: Place, value: Any) -> None:
    with place.open() as database:
        check_refused(database.create_index("docs", bits=32), value, type(value).__name__)


def test_a_batch_that_no_index_made_is_refused(place: Place) -> None:
    with place.open() as database:
        docs = database.create_index("docs", bits=32)
        check_refused(docs, replace(docs.batch([1, 2], CODES), made_for=None), "not made for an index")


def test_a_batch_for_equal_settings_is_written(place: Place) -> None:
    """The other settings decide nothing about the columns."""
    with place.open() as database:
        docs = database.create_index("docs", bits=32)
        others = database.create_index("others", bits=32, tables="none", buckets="fast", durability="async")
        docs.write(others.batch([1, 2], CODES))
        check_intact(database, [1, 2])


@pytest.mark.parametrize("column", ["codes", "vectors", "no vectors"])
def test_a_store_checks_the_sizes_of_rows_before_it_logs_them(place: Place, column: str) -> None:
    """The last check before the log, whatever the batch says that it was made for."""
    with place.open() as database:
        docs = database.create_index("docs", encoder="lsh", dim=8, bits=32, keep_vectors="int8")
        sound = docs.batch([5, 6], vectors=VECTORS)
        wrong = {"codes": CODES[:, :3]} if column == "codes" else {"vectors": None}
        if column == "vectors":
            wrong = {"vectors": np.zeros((2, 16), dtype=np.uint8)}
        batch = replace(sound, upserts=replace(sound.upserts, **wrong))
        with pytest.raises(InvalidArgumentError, match=f"the {column.removeprefix('no ')} of the batch .* shape"):
            docs.write(batch)
        assert docs.stats().writes == 0
        docs.write(sound)
        assert len(docs) == 2
        assert docs.settings.differences(IndexSettings(32), ("bits", "bit_order")) == ""
