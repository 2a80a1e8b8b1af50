"""Refusals over gRPC: each has a status code, a reason and, if one field is at fault, its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import code_pb2

from tests.native.examples import make_codes
from tests.server.calls import batch
from tests.serving import ServerProcess, Stubs, details_of
from whamming.v1 import error_pb2
from whamming.v1.index_pb2 import (
    CompactIndexRequest,
    CreateIndexRequest,
    DeleteIndexRequest,
    EncoderSettings,
    GetEncoderRequest,
    GetIndexRequest,
    ListIndexesRequest,
    SealIndexRequest,
)
from whamming.v1.index_pb2 import IndexSettings as Settings
from whamming.v1.item_pb2 import DeleteRequest, GetRequest, ItemBatch, ScanRequest, UpsertRequest
from whamming.v1.search_pb2 import Budget, QueryBatch, QueryOptions, SearchOnceRequest, SearchRequest, SearchResponse
from whamming.v1.types_pb2 import IdColumn, Matrix
from whamming.wire.columns import id_column, payload_list_column

BITS = 13


@pytest.fixture(scope="module")
def docs(server: ServerProcess) -> Iterator[Stubs]:
    """A server with an index ``docs`` of 50 items and an index ``bare`` without tables."""
    with server.stubs() as stubs:
        for name, tables in (("docs", 0), ("bare", 3)):
            settings = Settings(bits=BITS, tables=tables)  # type: ignore[arg-type]
            stubs.indexes.CreateIndex(CreateIndexRequest(name=name, settings=settings))
        codes = make_codes("uniform", 50, BITS, np.random.default_rng(0))
        items = ItemBatch(ids=ids(*range(50)), codes=codes.tobytes())
        assert [done.count for done in stubs.items.Upsert(iter([UpsertRequest(index="docs", items=items)]))] == [50]
        yield stubs


def ids(*numbers: int) -> IdColumn:
    return id_column(np.array(numbers, dtype=np.uint64))


Call = Callable[[Stubs], Any]
INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
UNMET = grpc.StatusCode.FAILED_PRECONDITION


def upsert(*requests: UpsertRequest) -> Call:
    return lambda stubs: list(stubs.items.Upsert(iter(requests)))


def create(name: str = "new", bits: int = BITS, **options: Any) -> Call:
    settings = Settings(bits=bits, **options)
    return lambda stubs: stubs.indexes.CreateIndex(CreateIndexRequest(name=name, settings=settings))


def fitted(**options: Any) -> Call:
    request = CreateIndexRequest(name="new", settings=Settings(bits=8), encoder=EncoderSettings(**options))
    return lambda stubs: stubs.indexes.CreateIndex(request)


CODES = bytes(4)
FEW = payload_list_column([b"x"])
LONG = payload_list_column([b"", bytes(65_537)])
REFUSALS: dict[str, tuple[Call, grpc.StatusCode, str, str, str]] = {
    # name: call, code, reason, field, part of the message
    "no bits": (create(bits=0), INVALID, "INVALID_ARGUMENT", "settings.bits", "0; a code has 1 to 4096 bits"),
    "many bits": (create(bits=4097), INVALID, "INVALID_ARGUMENT", "settings.bits", "4097; a code has 1 to 4096 bits"),
    "no settings": (
        lambda stubs: stubs.indexes.CreateIndex(CreateIndexRequest(name="x")),
        INVALID,
        "INVALID_ARGUMENT",
        "settings.bits",
        "0; a code has 1 to 4096 bits",
    ),
    "bit order": (create(bit_order=3), INVALID, "INVALID_ARGUMENT", "settings.bit_order", "= 3; choose one of"),
    "tables": (create(tables=99), INVALID, "INVALID_ARGUMENT", "settings.tables", "= 99; choose one of"),
    "buckets": (create(buckets=-1), INVALID, "INVALID_ARGUMENT", "settings.buckets", "= -1; choose one of"),
    "durability": (create(durability=7), INVALID, "INVALID_ARGUMENT", "settings.durability", "= 7; choose one of"),
    "empty name": (create(""), INVALID, "INVALID_ARGUMENT", "name", "index name ''; use 1 to 128 letters"),
    "odd name": (create("../x"), INVALID, "INVALID_ARGUMENT", "name", "index name '../x'; use 1 to 128 letters"),
    "endless name": (create("x" * 500_000), INVALID, "INVALID_ARGUMENT", "name", "use 1 to 128 letters"),
    "name in use": (create("docs", 99), grpc.StatusCode.ALREADY_EXISTS, "INDEX_EXISTS", "", "index 'docs' already"),
    "no encoder": (fitted(), INVALID, "INVALID_ARGUMENT", "encoder.kind", "choose one of"),
    "no dimension": (fitted(kind=1), INVALID, "INVALID_ARGUMENT", "encoder", "dim"),
    "get none": (
        lambda stubs: stubs.indexes.GetIndex(GetIndexRequest()),
        INVALID,
        "INVALID_ARGUMENT",
        "name",
        "name is empty",
    ),
    "get odd": (
        lambda stubs: stubs.indexes.GetIndex(GetIndexRequest(name="a b")),
        INVALID,
        "INVALID_ARGUMENT",
        "name",
        "index name 'a b'",
    ),
    "get absent": (
        lambda stubs: stubs.indexes.GetIndex(GetIndexRequest(name="absent")),
        NOT_FOUND,
        "INDEX_NOT_FOUND",
        "",
        "no index 'absent'; there are: ",
    ),
    "encoder of none": (
        lambda stubs: stubs.indexes.GetEncoder(GetEncoderRequest(name="docs")),
        UNMET,
        "NO_ENCODER",
        "",
        "docs' has no encoder",
    ),
    "page": (
        lambda stubs: stubs.indexes.ListIndexes(ListIndexesRequest(page_size=1001)),
        INVALID,
        "INVALID_ARGUMENT",
        "page_size",
        "page_size = 1001; at most 1000",
    ),
    "drop none": (
        lambda stubs: stubs.indexes.DeleteIndex(DeleteIndexRequest()),
        INVALID,
        "INVALID_ARGUMENT",
        "name",
        "name is empty",
    ),
    "drop absent": (
        lambda stubs: stubs.indexes.DeleteIndex(DeleteIndexRequest(name="absent")),
        NOT_FOUND,
        "INDEX_NOT_FOUND",
        "",
        "no index 'absent'",
    ),
    "seal absent": (
        lambda stubs: list(stubs.indexes.SealIndex(SealIndexRequest(name="absent"))),
        NOT_FOUND,
        "INDEX_NOT_FOUND",
        "",
        "no index 'absent'",
    ),
    "compact none": (
        lambda stubs: list(stubs.indexes.CompactIndex(CompactIndexRequest())),
        INVALID,
        "INVALID_ARGUMENT",
        "name",
        "name is empty",
    ),
    "write to none": (upsert(UpsertRequest()), INVALID, "INVALID_ARGUMENT", "index", "index is empty"),
    "write to absent": (upsert(UpsertRequest(index="absent")), NOT_FOUND, "INDEX_NOT_FOUND", "", "no index 'absent'"),
    "few codes": (
        upsert(UpsertRequest(index="docs", items=ItemBatch(ids=ids(1, 2), codes=bytes(3)))),
        INVALID,
        "INVALID_ARGUMENT",
        "items.codes",
        "3 bytes for 2 ids; codes of 13 bits have 2 each, 4 in",
    ),
    "few payloads": (
        upsert(UpsertRequest(index="docs", items=ItemBatch(ids=ids(1, 2), codes=CODES, payloads=FEW))),
        INVALID,
        "INVALID_ARGUMENT",
        "items.payloads.lengths",
        "1 numbers for 2 rows",
    ),
    "long payload": (
        upsert(UpsertRequest(index="docs", items=ItemBatch(ids=ids(1, 2), codes=CODES, payloads=LONG))),
        INVALID,
        "INVALID_ARGUMENT",
        "items.payloads",
        "row 1 has 65537 bytes",
    ),
    "when": (
        upsert(UpsertRequest(index="docs", items=ItemBatch(ids=ids(1, 2), codes=CODES), durability=5)),  # type: ignore[arg-type]
        INVALID,
        "INVALID_ARGUMENT",
        "durability",
        "durability = 5; choose one of",
    ),
    "vectors": (
        upsert(UpsertRequest(index="docs", items=ItemBatch(ids=ids(1), vectors=Matrix()))),
        UNMET,
        "NO_ENCODER",
        "",
        "docs' has no encoder",
    ),
    "half an id": (
        upsert(UpsertRequest(index="docs", items=ItemBatch(ids=IdColumn(uint64=bytes(9)), codes=CODES))),
        INVALID,
        "INVALID_ARGUMENT",
        "items.ids.uint64",
        "9 bytes; it must be a multiple of 8",
    ),
    "get half an id": (
        lambda stubs: stubs.items.Get(GetRequest(index="docs", ids=IdColumn(uint64=bytes(7)))),
        INVALID,
        "INVALID_ARGUMENT",
        "ids.uint64",
        "7 bytes",
    ),
    "delete half an id": (
        lambda stubs: stubs.items.Delete(DeleteRequest(index="docs", ids=IdColumn(uint64=bytes(7)))),
        INVALID,
        "INVALID_ARGUMENT",
        "ids.uint64",
        "7 bytes",
    ),
    "no queries": (
        lambda stubs: list(stubs.search.Search(iter([SearchRequest(queries=QueryBatch(index="docs"))]))),
        INVALID,
        "INVALID_ARGUMENT",
        "queries.query_ids",
        "0 queries in a batch",
    ),
    "delete from none": (
        lambda stubs: stubs.items.Delete(DeleteRequest(ids=ids(1))),
        INVALID,
        "INVALID_ARGUMENT",
        "index",
        "index is empty",
    ),
    "delete when": (
        lambda stubs: stubs.items.Delete(DeleteRequest(index="docs", durability=-4)),  # type: ignore[arg-type]
        INVALID,
        "INVALID_ARGUMENT",
        "durability",
        "durability = -4; choose one of",
    ),
    "get from absent": (
        lambda stubs: stubs.items.Get(GetRequest(index="absent")),
        NOT_FOUND,
        "INDEX_NOT_FOUND",
        "",
        "no index 'absent'",
    ),
    "get too many": (
        lambda stubs: stubs.items.Get(GetRequest(index="docs", ids=ids(*range(400_000)))),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "ANSWER_TOO_LARGE",
        "",
        "400000 items have more than 3145728 bytes",
    ),
    "scan": (
        lambda stubs: list(stubs.items.Scan(ScanRequest(index="docs", batch_size=100_001))),
        INVALID,
        "INVALID_ARGUMENT",
        "batch_size",
        "batch_size = 100001; at most 100000",
    ),
    "empty request": (
        lambda stubs: list(stubs.search.Search(iter([SearchRequest()]))),
        INVALID,
        "INVALID_ARGUMENT",
        "request",
        "is empty",
    ),
    "once without an index": (
        lambda stubs: stubs.search.SearchOnce(SearchOnceRequest(code=bytes(2), options=QueryOptions(k=1))),
        INVALID,
        "INVALID_ARGUMENT",
        "index",
        "index is empty",
    ),
    "once without a query": (
        lambda stubs: stubs.search.SearchOnce(SearchOnceRequest(index="docs")),
        INVALID,
        "INVALID_ARGUMENT",
        "options",
        "neither k nor radius",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_refusals_have_a_reason_a_field_and_a_message(docs: Stubs, what: str) -> None:
    call, code, reason, field, words = REFUSALS[what]
    with pytest.raises(grpc.RpcError) as caught:
        call(docs)
    assert caught.value.code() == code
    details = details_of(caught.value)
    assert (details.reason, details.field) == (reason, field)
    assert words in details.message
    assert details.message == caught.value.details()
    assert len(details.message.encode()) <= 1000


def search(stubs: Stubs, *batches: QueryBatch) -> dict[int, tuple[int, Any]]:
    """Return the number of hits and the error of each query."""
    answers: dict[int, tuple[int, Any]] = {}
    counts: dict[int, int] = {}
    response: SearchResponse
    for response in stubs.search.Search(iter([SearchRequest(queries=one) for one in batches])):
        for query_id, count in zip(response.query_ids, response.counts, strict=True):
            counts[query_id] = counts.get(query_id, 0) + count
        errors = {error.query_id: error for error in response.ends.errors}
        for query_id in response.ends.query_ids:
            assert query_id not in answers
            answers[query_id] = counts[query_id], errors.get(query_id)
    return answers


def code(**options: Any) -> dict[str, Any]:
    return {"codes": bytes(2), "options": QueryOptions(**options)}


ONES = np.ones((1, BITS))
QUERIES: dict[str, tuple[dict[str, Any], str, str]] = {
    # name: columns and options of one query, field, part of the message
    "no k": (code(k=0), "options.k", "k = 0; it must be 1 to 2147483647"),
    "large k": (code(k=2**31), "options.k", "k = 2147483648; it must be 1 to 2147483647"),
    "radius": (code(radius=math.nan), "options.radius", "radius = nan"),
    "plan": (code(plan=9), "options.plan", "options.plan = 9"),
    "time": (code(k=1, budget=Budget(seconds=-0.5)), "options.budget.seconds", "seconds = -0.5"),
    "place": ({"codes": bytes(2), "after": [(math.nan, 1)]}, "after_distances", "nan"),
    "no costs": ({}, "codes", "no codes"),
    "short code": ({"codes": b"x"}, "codes", "1 bytes for 1 queries; codes of 13 bits have 2 each"),
    "few weights": ({"codes": bytes(2), "weights": ONES[:, 1:]}, "weights", "12 columns; codes of 13 bits need 13"),
    "nan weight": ({"codes": bytes(2), "weights": ONES * math.nan}, "weights", "nan"),
    "endless weight": ({"codes": bytes(2), "weights": -math.inf * ONES}, "weights", "inf"),
    "few costs": ({"tables": ONES}, "tables", "13 columns; codes of 13 bits need 26"),
    "nan cost": ({"tables": np.full((1, 26), math.nan)}, "tables", "nan"),
    "two costs": ({"codes": bytes(2), "tables": np.ones((1, 26))}, "tables", "cost tables and codes"),
    "form": ({"codes": bytes(2), "form": 1}, "form", "form = 1 without vectors"),
}


@pytest.mark.parametrize("what", QUERIES)
def test_an_invalid_batch_is_refused_alone(docs: Stubs, what: str) -> None:
    """The batches before and after it on the same stream are answered."""
    columns, field, words = QUERIES[what]
    wanted = QueryOptions(k=5)
    good = [batch("docs", [query_id], wanted, codes=bytes(2)) for query_id in (1, 3)]
    wrong = batch("docs", [2], **{"options": wanted, **columns})
    answers = search(docs, good[0], wrong, good[1])
    assert answers[1] == answers[3] == (5, None)
    count, error = answers[2]
    assert count == 0
    assert (error.code, error.reason) == (code_pb2.INVALID_ARGUMENT, error_pb2.ERROR_REASON_INVALID_ARGUMENT)
    assert error.field == field
    assert words in error.message


@pytest.mark.parametrize(
    ("index", "code", "reason", "field"),
    [
        ("", code_pb2.INVALID_ARGUMENT, error_pb2.ERROR_REASON_INVALID_ARGUMENT, "index"),
        ("a b", code_pb2.INVALID_ARGUMENT, error_pb2.ERROR_REASON_INVALID_ARGUMENT, "index"),
        ("absent", code_pb2.NOT_FOUND, error_pb2.ERROR_REASON_INDEX_NOT_FOUND, ""),
    ],
)
def test_queries_to_an_invalid_or_missing_index_are_refused(
    docs: Stubs, index: str, code: int, reason: int, field: str
) -> None:
    """All 4,095 queries of the batch are refused, and the next batch is answered."""
    wanted = QueryOptions(k=1)
    wrong = batch(index, range(4095), wanted, codes=bytes(2 * 4095))
    answers = search(docs, wrong, batch("docs", [5000], wanted, codes=bytes(2)))
    for query_id in range(4095):
        _, error = answers[query_id]
        assert (error.code, error.reason, error.field) == (code, reason, field)
    assert answers[5000] == (1, None)


def test_probing_needs_tables(docs: Stubs) -> None:
    ((_, error),) = search(docs, batch("bare", [1], QueryOptions(k=1, plan=2), codes=bytes(2))).values()  # type: ignore[arg-type]
    assert (error.code, error.reason) == (code_pb2.FAILED_PRECONDITION, error_pb2.ERROR_REASON_NO_TABLES)
    request = SearchOnceRequest(index="bare", code=bytes(2), options=QueryOptions(k=1, plan=2))  # type: ignore[arg-type]
    with pytest.raises(grpc.RpcError) as caught:
        docs.search.SearchOnce(request)
    assert caught.value.code() == UNMET
    assert details_of(caught.value).reason == "NO_TABLES"


def test_batches_before_a_refused_one_stay_written(stubs: Stubs, name: str) -> None:
    stubs.indexes.CreateIndex(CreateIndexRequest(name=name, settings=Settings(bits=BITS)))
    good = UpsertRequest(index=name, sequence=7, items=ItemBatch(ids=ids(1, 2), codes=CODES))
    wrong = UpsertRequest(sequence=8, items=ItemBatch(ids=ids(3), codes=CODES))
    later = UpsertRequest(sequence=9, items=ItemBatch(ids=ids(4, 5), codes=CODES))
    call = stubs.items.Upsert(iter([good, wrong, later]))
    assert next(call).sequence == 7
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert details_of(caught.value).field == "items.codes"
    assert stubs.items.Get(GetRequest(index=name, ids=ids(1, 2, 3, 4, 5))).found == b"\1\1\0\0\0"


def test_a_refusal_with_many_index_names_is_delivered(stubs: Stubs) -> None:
    names = [f"{'long' * 30}-{number}" for number in range(120)]
    for one in names:
        stubs.indexes.CreateIndex(CreateIndexRequest(name=one, settings=Settings(bits=8)))
    with pytest.raises(grpc.RpcError) as caught:
        stubs.indexes.GetIndex(GetIndexRequest(name="absent"))
    assert caught.value.code() == NOT_FOUND
    assert "no index 'absent'" in details_of(caught.value).message
    for one in names:
        stubs.indexes.DeleteIndex(DeleteIndexRequest(name=one))
