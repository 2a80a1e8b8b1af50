"""Refusals: one table of errors, a status that programs can read for each, and every field named that is at fault."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import code_pb2, error_details_pb2

import whamming
from tests.native.examples import make_codes
from tests.server.collection import Collection
from tests.server.conversation import FAILED, Conversation, Options, Query, reason_of
from tests.serving import ServerProcess, Stubs, details_of
from whamming import InvalidArgumentError, WhammingError, storage
from whamming.native import CorruptIndexError
from whamming.remote.messages import error_of
from whamming.server.rpc import status as errors
from whamming.service_errors import OverloadedError, ServiceError, UnavailableError
from whamming.storage import IndexSettings
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
from whamming.v1.search_pb2 import Budget, ResumeToken, SearchOnceRequest, SearchRequest
from whamming.wire.values import FieldError

BITS = 13


# -- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "code", "reason"), errors._TABLE)
def test_an_error_becomes_a_status(kind: type[BaseException], code: int, reason: str) -> None:
    error = kind("the value, the limit and the remedy")
    refusal = errors.refusal(error)
    assert (refusal.code, refusal.reason, refusal.message) == (code, reason, "the value, the limit and the remedy")
    status = refusal.status()
    assert (status.code, status.message) == (code, refusal.message)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, info.reason) == ("whamming", reason)
    retry = error_details_pb2.RetryInfo()
    again = [detail for detail in status.details if detail.Unpack(retry)]
    assert bool(again) == (reason in ("OVERLOADED", "WRITER_BUSY", "SHUTTING_DOWN"))
    assert not again or 0 < retry.retry_delay.ToMilliseconds() <= 1000


def test_a_field_is_named() -> None:
    status = errors.refusal(FieldError("options.k", "k = 0; it must be 1 or more")).status()
    fault = error_details_pb2.BadRequest()
    assert any(detail.Unpack(fault) for detail in status.details)
    assert [(one.field, one.description) for one in fault.field_violations] == [
        ("options.k", "k = 0; it must be 1 or more")
    ]


def test_what_nobody_foresaw_says_nothing_of_the_inside(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ArithmeticError("secret")
    except ArithmeticError as error:
        refusal = errors.refusal(error)
    assert (refusal.code, refusal.reason) == (code_pb2.INTERNAL, "INTERNAL")
    assert "secret" not in refusal.message
    assert "secret" in caplog.text
    assert "Traceback" in caplog.text


async def test_a_client_that_cannot_be_written_to_is_no_surprise(caplog: pytest.LogCaptureFixture) -> None:
    """gRPC says so before, or after, it cancels the call: a matter of luck on a real connection."""
    with pytest.raises(asyncio.CancelledError):
        async with errors.reporting(None):  # there is nobody to tell
            raise grpc.aio.InternalError("Failed execute_batch")
    assert not caplog.text


class Gone:
    """The context of a call whose client has gone."""

    status: Any = None

    async def abort_with_status(self, status: Any) -> None:
        self.status = status
        raise grpc.aio.InternalError("Failed execute_batch")


async def test_a_client_that_cannot_be_refused_is_no_surprise(caplog: pytest.LogCaptureFixture) -> None:
    """It has gone just before it is told what was wrong."""
    context = Gone()
    with pytest.raises(asyncio.CancelledError):
        async with errors.reporting(context):
            raise FieldError("k", "k = 0")
    assert context.status.code == grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.text


def test_grpc_is_silent_of_clients_that_have_gone_only(caplog: pytest.LogCaptureFixture) -> None:
    """It tells of what it could not write after a handler has ended: a matter of luck on a real connection."""
    errors.overlook_gone_clients()
    for error in (grpc.aio.InternalError("Failed execute_batch"), KeyError("of ours")):
        try:
            raise error
        except Exception:
            logging.getLogger("grpc._cython.cygrpc").exception("raised in core by servicer method")
    assert "of ours" in caplog.text
    assert "execute_batch" not in caplog.text


def every_error(kind: type[WhammingError] = WhammingError) -> Iterator[type[WhammingError]]:
    for one in kind.__subclasses__():
        if (
            not issubclass(one, ServiceError)
            and one.__module__.startswith("whamming")
            and ".cli." not in one.__module__
        ):
            yield one
            yield from every_error(one)


@pytest.mark.parametrize("kind", sorted(set(every_error()), key=str))
def test_every_error_of_ours_is_foreseen(kind: type[WhammingError], caplog: pytest.LogCaptureFixture) -> None:
    error = kind("x", "y") if kind is FieldError else kind("x")
    assert errors.refusal(error).reason != "INTERNAL"
    assert not caplog.records


OTHERWISE: dict[type[BaseException], type[WhammingError]] = {
    storage.WriterBusyError: UnavailableError,
    CorruptIndexError: storage.CorruptStoreError,
    MemoryError: whamming.native.OutOfMemoryError,
    errors.NoTablesError: InvalidArgumentError,
    errors.NoEncoderError: InvalidArgumentError,
    errors.OverloadedError: OverloadedError,
    errors.AnswerTooLargeError: whamming.service_errors.AnswerTooLargeError,
    errors.ShuttingDownError: UnavailableError,
}
"""What our client raises where it does not raise the same error."""


@pytest.mark.parametrize(("kind", "reason"), [(kind, reason) for kind, _, reason in errors._TABLE])
def test_our_client_raises_what_a_database_in_its_process_would(kind: type[BaseException], reason: str) -> None:
    error = error_of(reason, "the message")
    assert type(error) is OTHERWISE.get(kind, kind)
    assert str(error) == "the message"


# -- every refusal through the wire ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def docs(server: ServerProcess) -> Iterator[Collection]:
    with server.stubs() as stubs:
        yield Collection.uniform(stubs, "docs", 50, BITS)


@pytest.fixture(scope="module")
def bare(server: ServerProcess) -> Iterator[Collection]:
    """An index without tables."""
    with server.stubs() as stubs:
        docs = Collection(stubs, "bare", IndexSettings(BITS, tables="none"))
        docs.upsert(np.arange(3, dtype=np.uint64), make_codes("uniform", 3, BITS, np.random.default_rng(0)))
        yield docs


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
REFUSALS: dict[str, tuple[Call, grpc.StatusCode, str, str, str]] = {
    # what: call, code, reason, field, words of the message
    "no bits": (create(bits=0), INVALID, "INVALID_ARGUMENT", "settings.bits", "0; a code has 1 to 4096 bits"),
    "many bits": (create(bits=4097), INVALID, "INVALID_ARGUMENT", "settings.bits", "4097; a code has 1 to 4096 bits"),
    "no settings": (
        lambda stubs: stubs.indexes.CreateIndex(CreateIndexRequest(name="x")),
        INVALID,
        "INVALID_ARGUMENT",
        "settings.bits",
        "0; a code has 1 to 4096 bits",
    ),
    "bit order": (create(bit_order=3), INVALID, "INVALID_ARGUMENT", "settings.bit_order", "= 3; it must be 0 to 2"),
    "tables": (create(tables=99), INVALID, "INVALID_ARGUMENT", "settings.tables", "= 99; it must be 0 to 3"),
    "buckets": (create(buckets=-1), INVALID, "INVALID_ARGUMENT", "settings.buckets", "= -1; it must be 0 to 2"),
    "durability": (create(durability=7), INVALID, "INVALID_ARGUMENT", "settings.durability", "= 7; it must be 0 to 2"),
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
        "without an encoder",
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
        upsert(UpsertRequest(index="docs", items=ItemBatch(ids=[1, 2], codes=bytes(3)))),
        INVALID,
        "INVALID_ARGUMENT",
        "items.codes",
        "3 bytes for 2 ids; 13 bits need 2 bytes each, 4 in all",
    ),
    "few payloads": (
        upsert(UpsertRequest(index="docs", items=ItemBatch(ids=[1, 2], codes=CODES, payloads=[b"x"]))),
        INVALID,
        "INVALID_ARGUMENT",
        "items.payloads",
        "1 payloads for 2 ids",
    ),
    "long payload": (
        upsert(UpsertRequest(index="docs", items=ItemBatch(ids=[1, 2], codes=CODES, payloads=[b"", bytes(65_537)]))),
        INVALID,
        "INVALID_ARGUMENT",
        "items.payloads",
        "row 1 has 65537 bytes; at most 65536",
    ),
    "when": (
        upsert(UpsertRequest(index="docs", items=ItemBatch(ids=[1, 2], codes=CODES), durability=5)),  # type: ignore[arg-type]
        INVALID,
        "INVALID_ARGUMENT",
        "durability",
        "durability = 5; it must be 0 to 2",
    ),
    "vectors": (
        upsert(UpsertRequest(index="docs", items=ItemBatch(ids=[1], vectors={}))),
        UNMET,
        "NO_ENCODER",
        "",
        "without an encoder",
    ),
    "delete from none": (
        lambda stubs: stubs.items.Delete(DeleteRequest(ids=[1])),
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
        "durability = -4; it must be 0 to 2",
    ),
    "get from absent": (
        lambda stubs: stubs.items.Get(GetRequest(index="absent")),
        NOT_FOUND,
        "INDEX_NOT_FOUND",
        "",
        "no index 'absent'",
    ),
    "get too many": (
        lambda stubs: stubs.items.Get(GetRequest(index="docs", ids=range(400_000))),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "ANSWER_TOO_LARGE",
        "",
        "400000 items have over 3145728 bytes",
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
        "a request is empty",
    ),
    "once without an index": (
        lambda stubs: stubs.search.SearchOnce(SearchOnceRequest(query=Query(code=bytes(2), options=Options(k=1)))),
        INVALID,
        "INVALID_ARGUMENT",
        "index",
        "index is empty",
    ),
    "once without a query": (
        lambda stubs: stubs.search.SearchOnce(SearchOnceRequest(index="docs")),
        INVALID,
        "INVALID_ARGUMENT",
        "query.options",
        "neither k nor radius",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_refusal_tells_why(docs: Collection, what: str) -> None:
    call, code, reason, field, words = REFUSALS[what]
    with pytest.raises(grpc.RpcError) as caught:
        call(docs.stubs)
    assert caught.value.code() == code
    details = details_of(caught.value)
    assert (details.reason, details.field) == (reason, field)
    assert words in details.message
    assert details.message == caught.value.details()
    assert len(details.message.encode()) <= 1000


def number(**options: Any) -> Query:
    return Query(code=bytes(2), options=Options(**options))


QUERIES: dict[str, tuple[Query, str, str]] = {
    # what: query, field, words of the message
    "no k": (number(k=0), "options.k", "k = 0; it must be 1 to 2147483647"),
    "large k": (number(k=2**31), "options.k", "k = 2147483648; it must be 1 to 2147483647"),
    "largest k": (number(k=2**64 - 1), "options.k", "k = 18446744073709551615; it must be 1 to 2147483647"),
    "radius": (number(radius=math.nan), "options.radius", "radius = nan"),
    "plan": (Query(code=bytes(2), options=Options(k=1, plan=9)), "options.plan", "options.plan = 9; it must be 0 to 3"),  # type: ignore[arg-type]
    "time": (number(k=1, budget=Budget(seconds=-0.5)), "options.budget.seconds", "seconds = -0.5; it must be 0"),
    "no time": (number(k=1, budget=Budget(seconds=math.nan)), "options.budget.seconds", "seconds = nan"),
    "all time": (number(k=1, budget=Budget(seconds=math.inf)), "options.budget.seconds", "seconds = inf"),
    "place": (
        Query(code=bytes(2), after=ResumeToken(distance=math.nan), options=Options(k=1)),
        "after.distance",
        "after.distance = nan",
    ),
    "no costs": (Query(options=Options(k=1)), "code", "no code, no cost table"),
    "weights alone": (Query(weights=[1.0] * BITS, options=Options(k=1)), "code", "no code, no cost table"),
    "short code": (Query(code=b"x", options=Options(k=1)), "code", "1 bytes; 13 bits need 2"),
    "long code": (Query(code=bytes(3), options=Options(k=1)), "code", "3 bytes; 13 bits need 2"),
    "few weights": (
        Query(code=bytes(2), weights=[1.0] * 12, options=Options(k=1)),
        "weights",
        "12 numbers; it must have 13: one per bit",
    ),
    "no weight": (
        Query(code=bytes(2), weights=[1.0] * 12 + [math.nan], options=Options(k=1)),
        "weights",
        "nan",
    ),
    "endless weight": (Query(code=bytes(2), weights=[-math.inf] * BITS, options=Options(k=1)), "weights", "inf"),
    "few costs": (
        Query(table=[1.0] * BITS, options=Options(k=1)),
        "table",
        "13 numbers; it must have 26: two per bit, 13 bits",
    ),
    "no cost": (Query(table=[math.nan] * 26, options=Options(k=1)), "table", "nan"),
    "two costs": (
        Query(code=bytes(2), table=[1.0] * 26, options=Options(k=1)),
        "table",
        "a cost table and a code or weights",
    ),
    "form": (Query(code=bytes(2), form=1, options=Options(k=1)), "form", "form = 1 without a vector"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", QUERIES)
def test_a_query_that_makes_no_sense_is_refused_alone(docs: Collection, what: str) -> None:
    """Between others of the same batch that do, and as the only one of SearchOnce."""
    query, field, words = QUERIES[what]
    wrong = Query(id=2)
    wrong.MergeFrom(query)
    good = [docs.question("code", query_id=1), docs.question("code", query_id=3)]
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [good[0].query, wrong, good[1].query], Options(k=5))
        accounts = talk.finish()
    for question in good:
        assert accounts[question.query.id].bytes == docs.truth(question)[:5].bytes()
    refused = accounts[2]
    assert reason_of(refused) == FAILED
    assert refused.end is not None
    error = refused.end.error
    assert (error.code, error.reason, error.field) == (code_pb2.INVALID_ARGUMENT, "INVALID_ARGUMENT", field)
    assert words in error.message
    with pytest.raises(grpc.RpcError) as caught:
        docs.stubs.search.SearchOnce(SearchOnceRequest(index=docs.name, query=query))
    assert caught.value.code() == INVALID
    details = details_of(caught.value)
    assert (details.reason, details.field, details.message) == ("INVALID_ARGUMENT", f"query.{field}", error.message)


@pytest.mark.parametrize(
    ("index", "code", "reason", "field"),
    [
        ("", code_pb2.INVALID_ARGUMENT, "INVALID_ARGUMENT", "index"),
        ("a b", code_pb2.INVALID_ARGUMENT, "INVALID_ARGUMENT", "index"),
        ("absent", code_pb2.NOT_FOUND, "INDEX_NOT_FOUND", ""),
    ],
)
def test_queries_to_a_wrong_index_are_refused(docs: Collection, index: str, code: int, reason: str, field: str) -> None:
    """All 4,095 of a batch, in messages of a moderate size, and the next batch is answered."""
    question = docs.question(query_id=5000)
    with Conversation(docs.stubs.search) as talk:
        talk.ask(index, [Query(id=query_id, code=b"xx") for query_id in range(4095)], Options(k=1))
        talk.ask(docs.name, [question.query], Options(k=1))
        accounts = talk.finish()
    for query_id in range(4095):
        end = accounts[query_id].end
        assert end is not None
        assert (end.error.code, end.error.reason, end.error.field) == (code, reason, field)
    assert accounts[5000].bytes == docs.truth(question)[:1].bytes()


def test_probing_needs_tables(bare: Collection) -> None:
    query = bare.question("code", query_id=1).query
    query.options.CopyFrom(Options(k=1, plan=2))  # type: ignore[arg-type]
    with Conversation(bare.stubs.search) as talk:
        talk.ask(bare.name, [query])
        end = talk.finish()[1].end
    assert end is not None
    assert (end.error.code, end.error.reason) == (code_pb2.FAILED_PRECONDITION, "NO_TABLES")
    with pytest.raises(grpc.RpcError) as caught:
        bare.stubs.search.SearchOnce(SearchOnceRequest(index=bare.name, query=query))
    assert caught.value.code() == UNMET
    assert details_of(caught.value).reason == "NO_TABLES"


def test_a_batch_that_is_refused_leaves_those_before_it(stubs: Stubs, name: str) -> None:
    docs = Collection(stubs, name, IndexSettings(BITS))
    good = UpsertRequest(index=name, sequence=7, items=ItemBatch(ids=[1, 2], codes=CODES))
    wrong = UpsertRequest(sequence=8, items=ItemBatch(ids=[3], codes=CODES))
    later = UpsertRequest(sequence=9, items=ItemBatch(ids=[4, 5], codes=CODES))
    call = stubs.items.Upsert(iter([good, wrong, later]))
    assert next(call).sequence == 7
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert details_of(caught.value).field == "items.codes"
    assert list(stubs.items.Get(GetRequest(index=docs.name, ids=[1, 2, 3, 4, 5])).found) == [True] * 2 + [False] * 3


def test_names_of_many_indexes_do_not_get_in_the_way_of_a_refusal(stubs: Stubs) -> None:
    names = [f"{'long' * 30}-{number}" for number in range(120)]
    for one in names:
        stubs.indexes.CreateIndex(CreateIndexRequest(name=one, settings=Settings(bits=8)))
    with pytest.raises(grpc.RpcError) as caught:
        stubs.indexes.GetIndex(GetIndexRequest(name="absent"))
    assert caught.value.code() == NOT_FOUND
    assert "no index 'absent'" in details_of(caught.value).message
    for one in names:
        stubs.indexes.DeleteIndex(DeleteIndexRequest(name=one))
