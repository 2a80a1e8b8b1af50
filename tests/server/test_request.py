"""Parsing batches of queries and their options. Errors name the invalid field."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import whamming
from tests.server.calls import batch
from whamming import Database
from whamming.native import NoTablesError, Position
from whamming.server.search.options import DEFAULT_CHUNK, MAX_CACHED, MAX_CHUNK, Options, OptionsReader, options_of
from whamming.server.search.request import QueryRequest
from whamming.storage import NoEncoderError
from whamming.v1 import types_pb2
from whamming.v1.search_pb2 import (
    COST_FORM_INNER,
    PLAN_PROBE,
    PLAN_SWEEP,
    Budget,
    QueryBatch,
    QueryOptions,
)
from whamming.wire.fields import FieldError

BITS = 13
MAX_K = 2**31 - 1


# -- options -----------------------------------------------------------------------------------------------------------


def test_options_that_are_not_set() -> None:
    assert options_of(QueryOptions(), MAX_K) == Options()
    assert Options().chunk_size == DEFAULT_CHUNK
    assert options_of(QueryOptions(budget=Budget()), MAX_K) == Options(), "0 means no limit"


def test_all_options() -> None:
    budget = Budget(candidates=7, seconds=0.5)
    message = QueryOptions(k=3, radius=-0.0, plan=PLAN_SWEEP, payloads=True, chunk_size=5, credit=0, budget=budget)
    assert options_of(message, MAX_K) == Options(3, 0.0, "sweep", True, 5, 0, 7, 0.5, None)
    assert options_of(QueryOptions(k=2, rerank=9), MAX_K).rerank == 9
    assert options_of(QueryOptions(rerank_exactly=True), MAX_K).rerank == "exact"
    assert options_of(QueryOptions(chunk_size=2**32 - 1), MAX_K).chunk_size == MAX_CHUNK
    assert options_of(QueryOptions(k=MAX_K, radius=math.inf), MAX_K).radius == math.inf


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        (QueryOptions(k=0), "options.k", "k = 0; it must be 1 to 2147483647"),
        (QueryOptions(k=2**31), "options.k", "k = 2147483648; it must be 1 to 2147483647"),
        (QueryOptions(k=2**64 - 1), "options.k", "k = 18446744073709551615"),
        (QueryOptions(radius=math.nan), "options.radius", "radius = nan"),
        (QueryOptions(plan=9), "options.plan", "= 9"),  # type: ignore[arg-type]
        (QueryOptions(plan=-1), "options.plan", "= -1"),  # type: ignore[arg-type]
        (QueryOptions(budget=Budget(seconds=-0.5)), "options.budget.seconds", "seconds = -0.5"),
        (QueryOptions(budget=Budget(seconds=math.nan)), "options.budget.seconds", "seconds = nan"),
        (QueryOptions(budget=Budget(seconds=math.inf)), "options.budget.seconds", "seconds = inf"),
        (QueryOptions(rerank=3), "options.rerank", "needs k"),
        (QueryOptions(k=1, rerank=3, rerank_exactly=True), "options.rerank", "rerank = 3"),
        (QueryOptions(k=1, rerank=3, radius=1.0), "options.rerank", "radius"),
        (QueryOptions(rerank_exactly=True, budget=Budget(candidates=1)), "options.rerank", "budget"),
    ],
    ids=str,
)
def test_invalid_options_name_their_field(options: QueryOptions, field: str, words: str) -> None:
    with pytest.raises(FieldError) as caught:
        options_of(options, MAX_K)
    assert caught.value.field == field
    assert words in str(caught.value)


def test_the_cache_of_options_is_bounded() -> None:
    """Even if all options are different, or have large unknown fields."""
    reader = OptionsReader(100)
    first = reader(QueryOptions(k=7))
    assert reader(QueryOptions(k=7)) is first
    for k in range(1, 101):
        for chunk_size in range(30):
            assert reader(QueryOptions(k=k, chunk_size=chunk_size)).k == k
    assert len(reader._cache) <= MAX_CACHED
    large = QueryOptions.FromString(b"\x9a\x06\x80\x80\x04" + bytes(1 << 16))  # field 99, 65,536 bytes
    assert reader(large) == Options()
    assert max(map(len, reader._cache)) < 1000
    for _ in range(2):
        with pytest.raises(FieldError, match="k = 101"):
            reader(QueryOptions(k=101))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(k=10), True),
        (Options(k=256, radius=1.0, plan="probe"), True),
        (Options(k=10, credit=10, chunk_size=10), True),
        (Options(), False),
        (Options(radius=1.0), False),
        (Options(k=257), False),
        (Options(k=10, chunk_size=9), False),
        (Options(k=10, credit=9), False),
        (Options(k=10, payloads=True), False),
        (Options(k=10, candidates=5), False),
        (Options(k=10, seconds=5.0), False),
        (Options(k=10, rerank="exact"), False),
    ],
)
def test_which_options_can_be_grouped(options: Options, expected: bool) -> None:
    assert options.can_be_grouped is expected


# -- columns -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def database() -> Iterator[Database]:
    with whamming.open(":memory:") as database:
        database.create_index("docs", BITS)
        database.create_index("bare", BITS, tables="none")
        database.create_index("signs", BITS, encoder="sign", dim=BITS)
        yield database


def read(message: QueryBatch) -> QueryRequest:
    return QueryRequest(message, options_of(message.options, MAX_K))


def test_columns_are_views_of_the_message(database: Database) -> None:
    tables = np.random.default_rng(0).random((3, BITS, 2))
    request = read(batch("docs", [5, 6, 2**64 - 1], tables=tables))
    request.check(database.index("docs"))
    assert len(request) == 3
    assert request.query_ids == [5, 6, 2**64 - 1]
    given = request.columns(1, 3)
    assert given.tables is not None
    assert given.tables.tolist() == tables[1:].reshape(2, -1).tolist()
    assert given.codes is given.weights is given.vectors is None
    assert not given.tables.flags.owndata


def test_one_row_of_weights_applies_to_all_queries(database: Database) -> None:
    weights = np.arange(BITS, dtype=np.float32)[None]
    request = read(batch("docs", range(4), codes=bytes(8), weights=weights))
    request.check(database.index("docs"))
    given = request.columns(2, 4)
    assert given.weights is not None
    assert given.weights.tolist() == [weights[0].tolist()] * 2


def test_resume_tokens_are_read() -> None:
    request = read(batch("docs", [1, 2, 3], codes=bytes(6), after=[(1.5, 2**64 - 1), (-math.inf, 4), (-0.0, 0)]))
    assert [request.after(row) for row in range(3)] == [(1.5, 2**64 - 1, b""), None, (0.0, 0, b"")]
    assert not read(batch("docs", [1], codes=bytes(2))).after_distances
    assert request.group is None


@pytest.mark.parametrize(
    ("distances", "ids", "field"),
    [
        ([1.0], 16, "after_distances"),
        ([1.0, 2.0], 8, "after_ids"),
        ([1.0, 2.0], 7, "after_ids.uint64"),
        ([1.0], 8, "after_distances"),
        ([], 16, "after_distances"),
        ([1.0, math.nan], 16, "after_distances"),
    ],
)
def test_invalid_resume_tokens(distances: list[float], ids: int, field: str) -> None:
    message = batch("docs", [1, 2], codes=bytes(4))
    message.after_distances.extend(distances)
    message.after_ids.uint64 = bytes(ids)
    with pytest.raises(FieldError) as caught:
        read(message)
    assert caught.value.field == field


def test_some_resume_tokens_have_an_exact_distance() -> None:
    sums = [bytes(range(16)), b"", b"\xff" * 16]
    after: list[Position] = [(1.5, 7, sums[0]), (2.5, 8), (3.5, 9, sums[2])]
    request = read(batch("docs", [1, 2, 3], codes=bytes(6), after=after))
    assert [request.after(row) for row in range(3)] == [(1.5, 7, sums[0]), (2.5, 8, b""), (3.5, 9, sums[2])]


@pytest.mark.parametrize("size", [1, 16, 31, 33, 48])
def test_invalid_sums_of_resume_tokens(size: int) -> None:
    message = batch("docs", [1, 2], codes=bytes(4), after=[(1.0, 1), (2.0, 2)])
    message.after_sums = bytes(size)
    with pytest.raises(FieldError, match=f"after_sums has {size} bytes for 2 rows; it must have 16 per row") as caught:
        read(message)
    assert caught.value.field == "after_sums"


ONES = np.ones((2, BITS))
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    # what: columns of two queries, field, words of the message
    "nothing": ({}, "codes", "no codes, cost tables or vectors"),
    "weights alone": ({"weights": ONES}, "codes", "no codes"),
    "short codes": ({"codes": bytes(3)}, "codes", "3 bytes for 2 queries; codes of 13 bits have 2 each"),
    "long codes": ({"codes": bytes(5)}, "codes", "5 bytes for 2 queries"),
    "few weights": ({"codes": bytes(4), "weights": ONES[:, 1:]}, "weights", "12 columns; codes of 13 bits need 13"),
    "many rows": ({"codes": bytes(4), "weights": np.ones((3, BITS))}, "weights", "3 rows for 2 queries"),
    "whole weights": ({"codes": bytes(4), "weights": ONES.astype(np.int8)}, "weights.type", "int8"),
    "half weights": ({"codes": bytes(4), "weights": ONES.astype(np.float16)}, "weights.type", "float16"),
    "few costs": ({"tables": ONES}, "tables", "13 columns; codes of 13 bits need 26"),
    "few tables": ({"tables": np.ones((1, 26))}, "tables", "1 rows for 2 queries"),
    "codes and tables": ({"codes": bytes(4), "tables": np.ones((2, 26))}, "tables", "cost tables and codes"),
    "weights and tables": ({"weights": ONES, "tables": np.ones((2, 26))}, "tables", "cost tables and codes"),
    "form": ({"codes": bytes(4), "form": COST_FORM_INNER}, "form", "form = 2 without vectors"),
}


@pytest.mark.parametrize("what", WRONG)
def test_columns_that_do_not_fit_the_index(database: Database, what: str) -> None:
    columns, field, words = WRONG[what]
    with pytest.raises(FieldError) as caught:
        read(batch("docs", [1, 2], **columns)).check(database.index("docs"))
    assert caught.value.field == field
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "field", "words"),
    [
        ({"vectors": ONES[:, 1:]}, "vectors", "12 columns; the index's encoder takes 13"),
        ({"vectors": ONES[:1]}, "vectors", "1 rows for 2 queries"),
        ({"vectors": ONES, "codes": bytes(4)}, "vectors", "vectors and codes"),
        ({"vectors": ONES, "tables": np.ones((2, 26))}, "vectors", "vectors and codes or cost tables"),
        ({"vectors": ONES, "form": 9}, "form", "form = 9"),
    ],
    ids=str,
)
def test_vectors_that_do_not_fit_the_encoder(database: Database, columns: Any, field: str, words: str) -> None:
    with pytest.raises(FieldError) as caught:
        read(batch("signs", [1, 2], **columns)).check(database.index("signs"))
    assert caught.value.field == field
    assert words in str(caught.value)


def test_queries_that_the_index_does_not_support(database: Database) -> None:
    with pytest.raises(NoEncoderError, match="docs"):
        read(batch("docs", [1, 2], vectors=ONES)).check(database.index("docs"))
    with pytest.raises(NoEncoderError, match="signs"):
        read(batch("signs", [1, 2], QueryOptions(k=1, rerank=2), vectors=ONES)).check(database.index("signs"))
    with pytest.raises(NoTablesError):
        read(batch("bare", [1], QueryOptions(plan=PLAN_PROBE), codes=bytes(2))).check(database.index("bare"))


def odd_matrix(kind: Any, columns: int, data: bytes = b"") -> types_pb2.Matrix:
    return types_pb2.Matrix(type=kind, columns=columns, data=data)


@pytest.mark.parametrize(
    ("matrix", "field"),
    [
        (odd_matrix(0, BITS, bytes(8 * BITS)), "weights.type"),
        (odd_matrix(77, BITS, bytes(8 * BITS)), "weights.type"),
        (odd_matrix(4, BITS, bytes(8 * BITS - 1)), "weights.data"),
        (odd_matrix(4, 0), "weights.data"),
        (odd_matrix(4, BITS), "weights"),
        (types_pb2.Matrix(), "weights.type"),
    ],
    ids=str,
)
def test_invalid_matrices(database: Database, matrix: types_pb2.Matrix, field: str) -> None:
    message = batch("docs", [1], codes=bytes(2))
    message.weights.CopyFrom(matrix)
    with pytest.raises(FieldError) as caught:
        read(message).check(database.index("docs"))
    assert caught.value.field == field


def test_queries_of_a_group_have_everything_in_common() -> None:
    few = QueryOptions(k=3)
    tables = np.ones((1, BITS, 2))
    same = [read(batch("docs", [i], few, tables=i * tables)).group for i in range(2)]
    assert same[0] == same[1] is not None
    others = [
        read(batch("other", [1], few, tables=tables)),
        read(batch("docs", [1], QueryOptions(k=4), tables=tables)),
        read(batch("docs", [1], few, codes=bytes(2))),
        read(batch("docs", [1], few, codes=bytes(2), weights=np.ones((1, BITS)))),
        read(batch("docs", [1], few, vectors=np.ones((1, BITS)))),
        read(batch("docs", [1], few, vectors=np.ones((1, BITS)), form=1)),
    ]
    groups = [request.group for request in others]
    assert len({*groups, same[0]}) == len(others) + 1
