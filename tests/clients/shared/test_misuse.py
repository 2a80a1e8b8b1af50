"""Invalid arguments raise the same errors in every kind of database."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from tests.clients.shared.places import ZERO, ZEROS, AnyDatabase, AnyIndex, Twin
from tests.storage.model import check_items
from whamming import Budget, InvalidArgumentError
from whamming.native import NoTablesError
from whamming.storage import NoEncoderError, NotFoundError

Misuse = Callable[[AnyDatabase, AnyIndex], Any]
MISUSES: dict[str, tuple[Misuse, type[Exception], str]] = {
    "no bits": (lambda db, _: db.create_index("x", 0), InvalidArgumentError, "bits = 0.* 1 to 4096"),
    "many bits": (lambda db, _: db.create_index("x", 4097), InvalidArgumentError, "bits = 4097.* 1 to 4096"),
    "half a bit": (lambda db, _: db.create_index("x", 1.5), InvalidArgumentError, "bits = 1.5.*whole"),  # type: ignore[arg-type]
    "name": (lambda db, _: db.create_index("a/b", 8), InvalidArgumentError, "'a/b'.* 1 to 128"),
    "empty name": (lambda db, _: db.create_index("", 8), InvalidArgumentError, "''.* 1 to 128"),
    "long name": (lambda db, _: db.create_index("n" * 129, 8), InvalidArgumentError, "1 to 128"),
    "bit order": (
        lambda db, _: db.create_index("x", 8, bit_order="middle"),  # type: ignore[arg-type]
        InvalidArgumentError,
        "bit_order = 'middle'.*little.*big",
    ),
    "tables": (lambda db, _: db.create_index("x", 8, tables="two"), InvalidArgumentError, "tables = 'two'"),  # type: ignore[arg-type]
    "buckets": (lambda db, _: db.create_index("x", 8, buckets="big"), InvalidArgumentError, "buckets = 'big'"),  # type: ignore[arg-type]
    "durable": (lambda db, _: db.create_index("x", 8, durability="no"), InvalidArgumentError, "durability = 'no'"),  # type: ignore[arg-type]
    "no such index": (lambda db, _: db.index("absent"), NotFoundError, "no index 'absent'"),
    "no such name": (lambda db, _: db.index("a b"), InvalidArgumentError, "'a b'"),
    "no index to drop": (lambda db, _: db.drop_index("absent"), NotFoundError, "no index 'absent'"),
    "narrow codes": (lambda _, i: i.upsert([1], [[1]]), InvalidArgumentError, "int64.*uint8"),
    "few codes": (lambda _, i: i.upsert([1, 2, 3], ZEROS), InvalidArgumentError, "3 ids"),
    "wide codes": (
        lambda _, i: i.upsert([1], np.zeros((1, 3), dtype=np.uint8)),
        InvalidArgumentError,
        "13 bits",
    ),
    "negative id": (lambda _, i: i.upsert([1, -2], ZEROS), InvalidArgumentError, "id -2 .*row 1"),
    "large id": (lambda _, i: i.upsert([1, 2**64], ZEROS), InvalidArgumentError, "id 18446744073709551616 .*row 1"),
    "few payloads": (lambda _, i: i.upsert([1, 2], ZEROS, [b""]), InvalidArgumentError, "1 payloads? .*2 items"),
    "long payload": (
        lambda _, i: i.upsert([1, 2], ZEROS, [b"", bytes(65_537)]),
        InvalidArgumentError,
        "row 1 .*65537 bytes.*65536",
    ),
    "when": (lambda _, i: i.upsert([1, 2], ZEROS, durability="later"), InvalidArgumentError, "durability = 'later'"),  # type: ignore[arg-type]
    "when to delete": (lambda _, i: i.delete([1], durability="x"), InvalidArgumentError, "durability = 'x'"),  # type: ignore[arg-type]
    "ids to delete": (lambda _, i: i.delete([1, -1]), InvalidArgumentError, "id -1 .*row 1"),
    "ids to get": (lambda _, i: i.get([0.5]), InvalidArgumentError, "float64"),
    "no size": (lambda _, i: list(i.scan(0)), InvalidArgumentError, "size = 0.* 1 or more"),
    "negative size": (lambda _, i: list(i.scan(-1)), InvalidArgumentError, "size = -1.* 1 or more"),
    "half a size": (lambda _, i: list(i.scan(1.5)), InvalidArgumentError, "size = 1.5.*whole"),  # type: ignore[arg-type]
    "no query": (lambda _, i: list(i.search()), InvalidArgumentError, "code.* cost table"),
    "two costs": (
        lambda _, i: list(i.search(ZERO, table=np.ones((13, 2)))),
        InvalidArgumentError,
        "cost table.* code|code.* cost table",
    ),
    "short code": (lambda _, i: list(i.search(ZERO[:1])), InvalidArgumentError, "13 bits"),
    "code of booleans": (lambda _, i: list(i.search(np.zeros(13, bool))), InvalidArgumentError, "bool"),
    "two codes": (lambda _, i: list(i.search(ZEROS)), InvalidArgumentError, "one query.* 2.*search_batch"),
    "no queries": (lambda _, i: i.search_batch(weights=np.ones(13)), InvalidArgumentError, "no query; give a code"),
    "short codes": (
        lambda _, i: i.search_batch(ZEROS[:, :1]),
        InvalidArgumentError,
        r"query codes have shape \(2, 1\); 13 bits need \[n, 2\] bytes",
    ),
    "few weights of many": (
        lambda _, i: i.search_batch(ZEROS, np.ones((2, 12))),
        InvalidArgumentError,
        r"weights have shape \(2, 12\); codes of 13 bits need one weight per bit",
    ),
    "a batch of one code": (
        lambda _, i: list(i.search(ZEROS[:1])),
        InvalidArgumentError,
        "one query.* batch of 1.*search_batch",
    ),
    "a batch of one row of weights": (
        lambda _, i: list(i.search(ZERO, weights=np.ones((1, 13)))),
        InvalidArgumentError,
        "one query.* batch of 1.*search_batch",
    ),
    "a batch of one table": (
        lambda _, i: list(i.search(table=np.ones((1, 13, 2)))),
        InvalidArgumentError,
        "one query.* batch of 1.*search_batch",
    ),
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
        "weights .*numbers.*'heavy'",
    ),
    "rows of two lengths": (
        lambda _, i: list(i.search(table=[[0.0, 1.0], [0.0]])),
        InvalidArgumentError,
        "costs .*numbers",
    ),
    "many rows of two lengths": (
        lambda _, i: i.search_batch(table=[[[0.0, 1.0], [0.0]]]),
        InvalidArgumentError,
        "costs .*numbers",
    ),
    "codes of two lengths": (
        lambda _, i: i.upsert([1, 2], [[1, 2], [3]]),
        InvalidArgumentError,
        "codes .*numbers",
    ),
    "endless cost": (lambda _, i: list(i.search(table=np.full((13, 2), math.inf))), InvalidArgumentError, "inf"),
    "table": (lambda _, i: list(i.search(table=np.ones((12, 2)))), InvalidArgumentError, "13"),
    "negative k": (lambda _, i: list(i.search(ZERO, k=-1)), InvalidArgumentError, "k = -1.* 0 or more"),
    "half a k": (lambda _, i: list(i.search(ZERO, k=1.5)), InvalidArgumentError, "k = 1.5.*whole"),  # type: ignore[arg-type]
    "no radius": (lambda _, i: list(i.search(ZERO, radius=math.nan)), InvalidArgumentError, "radius = nan"),
    "text radius": (lambda _, i: list(i.search(ZERO, radius="far")), InvalidArgumentError, "radius = 'far'"),  # type: ignore[arg-type]
    "plan": (lambda _, i: list(i.search(ZERO, plan="fly")), InvalidArgumentError, "plan = 'fly'.*auto"),  # type: ignore[arg-type]
    "no place": (lambda _, i: list(i.search(ZERO, after=(math.nan, 1))), InvalidArgumentError, r"after = \(nan, 1\)"),
    "half a place": (lambda _, i: list(i.search(ZERO, after=(1.0,))), InvalidArgumentError, r"after = \(1.0,\)"),  # type: ignore[arg-type]
    "negative n": (lambda _, i: i.search(ZERO).next(-1), InvalidArgumentError, "n = -1.* 0 or more"),
    "large k": (
        lambda _, i: i.search_batch(ZEROS, k=2**31),
        InvalidArgumentError,
        "k = 2147483648.* 0 to 2147483647",
    ),
    "negative k of many": (lambda _, i: i.search_batch(ZEROS, k=-1), InvalidArgumentError, "k = -1.* 0 to"),
    "too wide": (
        lambda _, i: i.search_batch(ZEROS, k=2**31 - 1),
        InvalidArgumentError,
        "k = 2147483647.* 2 queries",
    ),
    "radius of many": (lambda _, i: i.search_batch(ZEROS, radius=math.nan), InvalidArgumentError, "radius = nan"),
    "plan of many": (lambda _, i: i.search_batch(ZEROS, plan="fly"), InvalidArgumentError, "plan = 'fly'"),  # type: ignore[arg-type]
    "no candidates": (
        lambda _, i: i.search_batch(ZEROS, budget=Budget(candidates=0)),
        InvalidArgumentError,
        "candidates=0.*positive",
    ),
    "negative time": (
        lambda _, i: i.search_batch(ZEROS, budget=Budget(seconds=-1)),
        InvalidArgumentError,
        "seconds=-1.*positive",
    ),
    "k beyond 63 bits": (
        lambda _, i: list(i.search(ZERO, k=2**63)),
        InvalidArgumentError,
        "k = 9223372036854775808; .* at most 9223372036854775807",
    ),
    "no plan": (lambda _, i: list(i.search(ZERO, plan=None)), InvalidArgumentError, "plan = None; .*auto"),  # type: ignore[arg-type]
    "costs without a vector": (
        lambda _, i: list(i.search(ZERO, costs="inner")),
        InvalidArgumentError,
        "costs = 'inner' without a vector",
    ),
    "a code that is no row": (lambda _, i: i.upsert([1], ZERO), InvalidArgumentError, r"codes have shape \(2,\)"),
    "code of integers": (
        lambda _, i: list(i.search([1, 2])),
        InvalidArgumentError,
        r"int64, not uint8; .*np.uint8\(x\)",
    ),
    "codes of integers": (
        lambda _, i: i.upsert([1], [[1, 2]]),
        InvalidArgumentError,
        r"int64, not uint8; .*np.uint8\(x\)",
    ),
    "sums beyond a double": (
        lambda _, i: list(i.search(ZERO, weights=np.full(13, 1.7e308))),
        InvalidArgumentError,
        "1.7e\\+308.*largest double, 1.79769e\\+308",
    ),
    "negative seed": (
        lambda db, _: db.create_index("x", 8, encoder="lsh", dim=8, seed=-1),
        InvalidArgumentError,
        "seed = -1; .* 0 to 18446744073709551615",
    ),
    "large seed": (
        lambda db, _: db.create_index("x", 8, encoder="lsh", dim=8, seed=2**64),
        InvalidArgumentError,
        "seed = 18446744073709551616; .* 0 to",
    ),
    "negative dim": (
        lambda db, _: db.create_index("x", 8, encoder="lsh", dim=-1),
        InvalidArgumentError,
        "dim = -1; .* 1 to 65536",
    ),
    "bits of truth": (lambda db, _: db.create_index("x", True), InvalidArgumentError, "bits = True; .*whole"),
    "true k": (lambda _, i: list(i.search(ZERO, k=True)), InvalidArgumentError, "k = True; .*whole"),
    "true k of many": (lambda _, i: i.search_batch(ZEROS, k=np.True_), InvalidArgumentError, "k = .*True.*; .*whole"),  # type: ignore[arg-type]
    "true radius": (lambda _, i: list(i.search(ZERO, radius=True)), InvalidArgumentError, "radius = True; .*number"),
    "weights as text": (
        lambda _, i: list(i.search(ZERO, weights=["1"] * 13)),
        InvalidArgumentError,
        "weights .*real numbers.*'1'",
    ),
    "complex weights": (
        lambda _, i: list(i.search(ZERO, weights=np.full(13, 1 + 2j))),
        InvalidArgumentError,
        "weights .*real numbers.*2j",
    ),
    "huge weights": (
        lambda _, i: list(i.search(ZERO, weights=[10**400] * 13)),
        InvalidArgumentError,
        "weights have an integer of 1329 bits at .0.*no double.*scale",
    ),
    "weights that a double rounds": (
        lambda _, i: i.search_batch(ZEROS, weights=np.array([1] * 12 + [2**53 + 1])),
        InvalidArgumentError,
        r"weights have 9007199254740993 at \[12\].*no double.*nearest is 9007199254740992",
    ),
    "costs that a double rounds": (
        lambda _, i: list(i.search(table=[[0.5, 2**53 + 1]] * 13)),
        InvalidArgumentError,
        r"costs have 9007199254740993 at \[0, 1\]",
    ),
    "weights of others": (
        lambda _, i: i.search_batch(ZEROS, np.ones((3, 13))),
        InvalidArgumentError,
        "3 rows",
    ),
}


def shown(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that its traceback shows above it."""
    while error is not None:
        yield error
        error = error.__cause__ if error.__suppress_context__ else error.__context__


@pytest.mark.parametrize("what", MISUSES)
def test_invalid_arguments_are_refused(untouched: tuple[AnyDatabase, Twin], what: str) -> None:
    database, twin = untouched
    misuse, kind, message = MISUSES[what]
    with pytest.raises(kind, match=message) as caught:
        misuse(database, twin.index)
    assert type(caught.value) is kind
    assert not any(isinstance(error, grpc.RpcError) for error in shown(caught.value))
    check_items(twin.index, twin.model)


@pytest.mark.parametrize("what", ["weight", "cost", "span", "overflow", "vector", "reranked vector"])
def test_an_invalid_query_of_a_batch_is_numbered_once(database: AnyDatabase, name: str, what: str) -> None:
    """Over the network, the queries take two messages, and the server searches them together or one by one."""
    index = database.create_index(name, encoder="sign", dim=13, keep_vectors="float16")
    index.upsert([1, 2], vectors=np.ones((2, 13)))
    count, wrong = 300, 280
    weights, tables, vectors = np.ones((count, 13)), np.ones((count, 13, 2)), np.ones((count, 13))
    codes = np.zeros((count, 2), dtype=np.uint8)
    if what == "overflow":
        weights[wrong] = 1.7e308
    weights[wrong, 5] = {"weight": math.nan, "span": 1e-200}.get(what, weights[wrong, 5])
    tables[wrong, 5, 0] = vectors[wrong, 5] = math.inf
    ask: Callable[[], Any] = lambda: index.search_batch(codes, weights)  # noqa: E731
    if what == "cost":
        ask = lambda: index.search_batch(table=tables)  # noqa: E731
    elif what.endswith("vector"):
        ask = lambda: index.search_batch(vectors=vectors, rerank=2 if what.startswith("re") else None)  # noqa: E731
    for _ in range(2):
        with pytest.raises(InvalidArgumentError) as caught:
            ask()
        assert re.findall(r"(?:query|row) (\d+)", str(caught.value)) == [str(wrong)]
        index.search_batch(codes)


def test_plan_probe_needs_tables(database: AnyDatabase, name: str) -> None:
    index = database.create_index(name, 13, tables="none")
    index.upsert([1, 2], ZEROS)
    for search in (lambda: list(index.search(ZERO, plan="probe")), lambda: index.search_batch(ZEROS, plan="probe")):
        with pytest.raises(NoTablesError, match=r"(?i)probe.*tables"):
            search()


def test_vectors_need_an_encoder(database: AnyDatabase, name: str) -> None:
    index = database.create_index(name, 13)
    for use in (
        lambda: index.upsert([1], vectors=np.ones((1, 13))),
        lambda: list(index.search(vector=np.ones(13), k=1)),
        lambda: index.search_batch(vectors=np.ones((2, 13)), k=1),
    ):
        with pytest.raises(NoEncoderError, match="no encoder"):
            use()


def test_vectors_of_another_length_are_refused(database: AnyDatabase, name: str) -> None:
    index = database.create_index(name, encoder="sign", dim=13)
    for search in (
        lambda: list(index.search(vector=np.ones(12), k=1)),
        lambda: index.search_batch(vectors=np.ones((2, 12)), k=1),
    ):
        with pytest.raises(InvalidArgumentError, match=r"vectors have 12 components, .* takes 13; .* shape \[n, 13\]"):
            search()


def test_a_single_vector_is_one_item(database: AnyDatabase, name: str) -> None:
    index = database.create_index(name, encoder="sign", dim=13)
    index.upsert([7], vectors=np.ones(13))
    assert [hit.id for hit in index.search(vector=np.ones(13))] == [7]


def test_reranking_is_checked_in_the_terms_of_the_caller(database: AnyDatabase, name: str) -> None:
    index = database.create_index(name, encoder="sign", dim=13, keep_vectors="float16")
    index.upsert([1], vectors=np.ones((1, 13)))
    for given, message in (
        ({"rerank": 3}, "rerank = 3 without k"),
        ({"rerank": 2, "k": 2**31}, "k = 2147483648; .* 0 to 2147483647"),
        ({"rerank": "Exact", "k": 1}, "rerank = 'Exact'; .*or 'exact'"),
        ({"rerank": True, "k": 1}, "rerank = True; .*whole"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            list(index.search(vector=np.ones(13), **given))


@pytest.mark.parametrize("rerank", [None, 2, "exact"])
def test_a_search_takes_one_vector(database: AnyDatabase, name: str, rerank: Any) -> None:
    index = database.create_index(name, encoder="sign", dim=13, keep_vectors="float16")
    index.upsert([1], vectors=np.ones((1, 13)))
    for count in (1, 2):
        with pytest.raises(InvalidArgumentError, match=rf"one query.* batch of {count}.*search_batch"):
            list(index.search(vector=np.ones((count, 13)), k=1, rerank=rerank))
    assert [hit.id for hit in index.search(vector=[1.0] * 13, k=1, rerank=rerank)] == [1]


@pytest.mark.parametrize("rerank", [2, "exact"])
def test_reranking_needs_kept_vectors(database: AnyDatabase, name: str, rerank: Any) -> None:
    index = database.create_index(name, encoder="sign", dim=13)
    index.upsert([1], vectors=np.ones((1, 13)))
    for use in (
        lambda: list(index.search(vector=np.ones(13), k=1, rerank=rerank)),
        lambda: index.search_batch(vectors=np.ones((2, 13)), k=1, rerank=rerank),
    ):
        with pytest.raises(NoEncoderError, match="keeps no vectors"):
            use()
