"""Indexes that take vectors give the same answers in every kind of database as in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import whamming
from tests.clients.shared.places import AnyDatabase, AnyIndex, Place, fresh_names
from whamming import InvalidArgumentError
from whamming.storage import Encoder

DIM = 16
RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(300, DIM)).astype(np.float32)
QUERIES = RNG.normal(size=(5, DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return whamming.fit_encoder("itq", VECTORS, bits=12, seed=3)


@pytest.fixture(scope="session", params=["float16", "int8"])
def kept(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def pair(place: Place, encoder: Encoder, kept: Any) -> Iterator[tuple[AnyIndex, AnyIndex]]:
    """An index in memory and one of this place's kind, with the same writes."""
    with whamming.open() as here, place.open() as there:
        indexes = []
        for database in (here, there):
            index: AnyIndex = database.create_index(next(fresh_names), encoder=encoder, keep_vectors=kept)
            index.upsert(np.arange(200), vectors=VECTORS[:200])
            index.seal()
            index.upsert(np.arange(150, 300), vectors=VECTORS[150:].astype(np.float64), payloads=[b"x"] * 150)
            assert index.delete(np.arange(10)) == 10
            indexes.append(index)
        yield indexes[0], indexes[1]


@pytest.mark.parametrize(
    "options", [{}, {"costs": "symmetric"}, {"costs": "inner"}, {"rerank": 3}, {"rerank": "exact"}]
)
def test_searches_with_vectors(pair: tuple[AnyIndex, AnyIndex], options: dict[str, Any]) -> None:
    expected, found = (index.search_batch(vectors=QUERIES, k=7, **options) for index in pair)
    assert (found.ids.tobytes(), found.distances.tobytes()) == (expected.ids.tobytes(), expected.distances.tobytes())
    assert found.exact.tolist() == expected.exact.tolist()
    for row, query in enumerate(QUERIES[:2]):
        one, other = (list(index.search(vector=query, k=7, payloads=True, **options)) for index in pair)
        assert other == one
        for index in pair:
            assert index.search_batch(vectors=query, k=7, **options).ids.tolist() == expected.ids[row].tolist()


@pytest.mark.parametrize(("value", "message"), [(np.nan, "nan"), (70_000, "70000.*float16.* at most 65504")])
def test_an_invalid_vector_of_many_is_named_and_nothing_is_written(
    database: AnyDatabase, name: str, value: float, message: str
) -> None:
    """Over the network, the vectors take three messages, and the invalid one is in the last."""
    index = database.create_index(name, encoder="sign", dim=256, keep_vectors="float16")
    vectors = np.zeros((8_500, 256), dtype=np.float32)
    vectors[8_400, 3] = value
    with pytest.raises(InvalidArgumentError, match=rf"row 8400, column 3 is {message}"):
        index.upsert(np.arange(8_500), vectors=vectors)
    assert index.count() == 0


def test_upserts_are_checked_in_the_terms_of_the_caller(database: AnyDatabase, name: str) -> None:
    index = database.create_index(name, encoder="sign", dim=DIM, keep_vectors="int8")
    zeros = np.zeros((2, 2), dtype=np.uint8)
    for codes, vectors, message in (
        (None, VECTORS[:2, :5], r"vectors have 5 components, .* takes 16; .* shape \[n, 16\]"),
        (zeros, VECTORS[:2], "both codes and vectors; .*one of them"),
        (zeros, None, "codes for an index that keeps vectors .*give vectors"),
        (zeros[:, :1], None, r"codes have shape \(2, 1\); 16 bits need \[n, 2\]"),
        (None, None, "items without codes; give codes, or vectors"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            index.upsert([1, 2], codes, vectors=vectors)


def test_codes_are_the_same(pair: tuple[AnyIndex, AnyIndex]) -> None:
    one, other = pair
    assert np.array_equal(one.get(np.arange(300)).codes, other.get(np.arange(300)).codes)
    assert one.settings == other.settings
    assert one.encoder is not None
    assert other.encoder is not None
    assert one.encoder.to_bytes() == other.encoder.to_bytes()


def test_fitted_encoders_are_the_same(database: AnyDatabase, name: str) -> None:
    """A server fits the encoder on the sample that it receives."""
    with whamming.open() as here:
        options: dict[str, Any] = {"encoder": "itq", "train": VECTORS, "bits": 8, "seed": 5}
        expected = here.create_index("docs", **options)
        assert database.create_index(name, **options).settings.encoder == expected.settings.encoder


def test_scanned_items_can_be_written_to_another_index(database: AnyDatabase, name: str) -> None:
    """The rows of a scan can be upserted as they are, including payloads."""
    source = database.create_index(f"{name}-source", 16)
    codes = RNG.integers(0, 256, (100, 2), dtype=np.uint8)
    source.upsert(np.arange(100), codes, [b"%d" % row if row % 2 else None for row in range(100)])
    target = database.create_index(name, 16)
    for rows in source.scan(30):
        target.upsert(rows.ids, rows.codes, rows.payloads)
    one, other = source.get(np.arange(100)), target.get(np.arange(100))
    assert np.array_equal(one.codes, other.codes)
    assert one.payloads == other.payloads
