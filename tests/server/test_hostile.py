"""Hostile messages: very large ones, and ones whose columns contradict each other.

The server refuses or answers each of them. Its memory stays within a few times the size of the message, and other
clients get right answers meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.server.answers import COMPLETE, chunks_of
from tests.server.collection import Collection
from tests.server.conversation import Conversation, reason_of
from tests.server.fuzz_values import varint
from tests.server.questions import Options
from tests.serving import ServerProcess, details_of
from whamming.v1 import error_pb2, index_pb2, item_pb2, search_pb2, types_pb2

BITS, N = 64, 2000
LARGE = (16 << 20) - 4096
"""Approximately the maximum size of a message in bytes."""
PEAK = 32 * LARGE
"""Bytes by which the server may grow, including memory that its allocator keeps."""
TIMES = 3
"""Number of clients that send a message at the same time."""

INVALID, EXHAUSTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED
FLOAT64: types_pb2.ElementType = types_pb2.ELEMENT_TYPE_FLOAT64
K1 = Options(k=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("hostile") / "db") as server:
        yield server
        server.check_log()


class Served(Collection):
    """An index that other clients search meanwhile."""

    at_first = 0
    """Bytes that the server used before the first large message."""


@pytest.fixture(scope="module")
def docs(server: ServerProcess) -> Iterator[Served]:
    with server.stubs() as stubs:
        docs = Served.uniform(stubs, "docs", N, BITS)
        assert isinstance(docs, Served)
        docs.at_first = server.usage().rss
        yield docs


def check_served(docs: Served, times: int) -> None:
    """Check that another client gets the right answer."""
    question = docs.question()
    wanted = docs.truth(question)[:50].bytes()
    for _ in range(times):
        with Conversation(docs.stubs.search) as talk:
            talk.ask(docs.name, [question], Options(k=50))
            account = talk.finish()[0]
        assert reason_of(account) == COMPLETE
        assert account.bytes == wanted


@contextlib.contextmanager
def bounded(server: ServerProcess, docs: Served) -> Iterator[None]:
    """Check that the server's memory stays bounded in the block, and that other clients are served."""
    process = Path(f"/proc/{server.process.pid}")
    stop = threading.Event()
    errors: list[BaseException] = []

    def serve_others() -> None:
        try:
            while not stop.is_set():
                check_served(docs, 1)
        except BaseException as error:
            errors.append(error)

    others = threading.Thread(target=serve_others)
    others.start()
    try:
        yield
    finally:
        stop.set()
        others.join()
    assert not errors
    [peak] = [line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM")]
    used = int(peak.split()[1]) << 10
    assert used <= docs.at_first + PEAK, f"{used / 2**20:.0f} MiB"


def at_once(call: Callable[[], None]) -> None:
    """Call a function in several threads at once."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(TIMES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# -- batches of queries ------------------------------------------------------------------------------------------------


def batch(**columns: Any) -> search_pb2.QueryBatch:
    """Return a batch of one plain Hamming query, with some columns replaced."""
    message = {"index": "docs", "query_ids": [1], "codes": bytes(8), "options": K1, **columns}
    return search_pb2.QueryBatch(**message)


def matrix(columns: int, data: bytes, kind: Any = FLOAT64) -> types_pb2.Matrix:
    return types_pb2.Matrix(type=kind, columns=columns, data=data)


def numbers(count: int) -> bytes:
    return struct.pack("<d", 1.0) * count


AFTER_ONE: dict[str, Any] = {"after_distances": [1.0], "after_ids": types_pb2.IdColumn(uint64=bytes(8))}
"""The distance and the id of a resume token."""

REFUSED_QUERIES: dict[str, tuple[Callable[[], search_pb2.QueryBatch], str]] = {
    "codes of the wrong width": (lambda: batch(codes=bytes(7)), "codes"),
    "codes of another number of queries": (lambda: batch(codes=bytes(16)), "codes"),
    "16 MiB of codes": (lambda: batch(codes=bytes(LARGE)), "codes"),
    "16 MiB of weights": (lambda: batch(weights=matrix(BITS, bytes(LARGE // 512 * 512))), "weights"),
    "16 MiB in one row": (lambda: batch(weights=matrix(LARGE // 8, bytes(LARGE // 8 * 8))), "weights"),
    "an incomplete row": (lambda: batch(weights=matrix(BITS, bytes(511))), "weights.data"),
    "2^32 - 1 columns, no data": (lambda: batch(weights=matrix(2**32 - 1, b"")), "weights"),
    "2^32 - 1 columns": (lambda: batch(weights=matrix(2**32 - 1, numbers(BITS))), "weights.data"),
    "no columns": (lambda: batch(weights=matrix(0, numbers(BITS))), "weights.data"),
    "no columns, no data": (lambda: batch(weights=matrix(0, b"")), "weights.data"),
    "no weights": (lambda: batch(weights=matrix(BITS, b"")), "weights"),
    "weights of no type": (lambda: batch(weights=matrix(BITS, numbers(BITS), 0)), "weights.type"),
    "weights of an unknown type": (lambda: batch(weights=matrix(BITS, numbers(BITS), 77)), "weights.type"),
    "weights of bytes": (
        lambda: batch(weights=matrix(BITS, bytes(BITS), types_pb2.ELEMENT_TYPE_UINT8)),
        "weights.type",
    ),
    "a NaN weight": (lambda: batch(weights=matrix(BITS, struct.pack("<d", math.nan) * BITS)), "weights"),
    "weights without codes": (lambda: batch(codes=b"", weights=matrix(BITS, numbers(BITS))), "codes"),
    "tables and codes": (lambda: batch(tables=matrix(2 * BITS, numbers(2 * BITS))), "tables"),
    "16 MiB of tables": (lambda: batch(codes=b"", tables=matrix(1, bytes(LARGE // 8 * 8))), "tables"),
    "tables of another number of queries": (
        lambda: batch(codes=b"", tables=matrix(2 * BITS, numbers(4 * BITS))),
        "tables",
    ),
    "nothing": (lambda: batch(codes=b""), "codes"),
    "a form without vectors": (lambda: batch(form=77), "form"),
    "an unknown plan": (lambda: batch(options=Options(k=1, plan=77)), "options.plan"),  # type: ignore[arg-type]
    "too many distances to resume after": (lambda: batch(after_distances=[1.0] * (LARGE // 8)), "after_distances"),
    "too many ids to resume after": (
        lambda: batch(after_distances=[1.0], after_ids=types_pb2.IdColumn(uint64=bytes(LARGE // 8 * 8))),
        "after_ids",
    ),
    "an incomplete id to resume after": (
        lambda: batch(after_distances=[1.0], after_ids=types_pb2.IdColumn(uint64=bytes(7))),
        "after_ids.uint64",
    ),
    "distances without ids": (lambda: batch(after_distances=[1.0]), "after_ids"),
    "ids without distances": (lambda: batch(after_ids=types_pb2.IdColumn(uint64=bytes(8))), "after_distances"),
    "a NaN distance": (
        lambda: batch(after_distances=[math.nan], after_ids=types_pb2.IdColumn(uint64=bytes(8))),
        "after_distances",
    ),
    "16 MiB of exact distances": (lambda: batch(**AFTER_ONE, after_sums=bytes(LARGE)), "after_sums"),
    "an incomplete exact distance": (lambda: batch(**AFTER_ONE, after_sums=bytes(15)), "after_sums"),
    "exact distances without distances": (lambda: batch(after_sums=bytes(16)), "after_distances"),
    "a name of 16 MiB": (lambda: batch(index="x" * LARGE), "index"),
}
"""The query ends with an error that names the field. Other queries on the stream continue."""


@pytest.mark.parametrize("what", REFUSED_QUERIES)
def test_an_invalid_query_is_refused(server: ServerProcess, docs: Served, what: str) -> None:
    make, field = REFUSED_QUERIES[what]
    message = search_pb2.SearchRequest(queries=make())

    def ask() -> None:
        plain = search_pb2.SearchRequest(queries=batch(query_ids=[2]))
        chunks = [chunk for some in docs.stubs.search.Search(iter([message, plain])) for chunk in chunks_of(some)]
        ends = {chunk.query_id: chunk.end for chunk in chunks}
        assert ends[2] is not None
        assert ends[2].reason == COMPLETE
        assert ends[1] is not None
        error = ends[1].error
        assert error is not None
        assert (error.reason, error.field) == (error_pb2.ERROR_REASON_INVALID_ARGUMENT, field)
        assert len(error.message) < 2000

    with bounded(server, docs):
        at_once(ask)


def cancel(count: int) -> search_pb2.SearchRequest:
    return search_pb2.SearchRequest(cancel=search_pb2.CancelQueries(query_ids=range(count)))


REFUSED_CALLS: dict[str, tuple[Callable[[], bytes], str]] = {
    "an empty message": (lambda: b"", "request"),
    "an unknown request": (lambda: varint(50 << 3) + b"\x01", "request"),
    "no queries": (lambda: _sent(batch(query_ids=[])), "queries.query_ids"),
    "two million queries": (lambda: _sent(batch(query_ids=range(LARGE // 8))), "queries.query_ids"),
    "two million queries, one by one": (
        lambda: _field(1, b"\x11".join([b"", *[struct.pack("<Q", 1)] * (LARGE // 9 - 8)])),
        "queries.query_ids",
    ),
    "an id twice in a batch": (lambda: _sent(batch(query_ids=[1, 2, 1], codes=bytes(24))), "queries.query_ids"),
    "an id twice in a batch that is refused": (lambda: _sent(batch(query_ids=[1, 1], codes=b"x")), "queries.query_ids"),
    "incomplete query ids": (lambda: _field(1, b"\x12\x07" + bytes(7)), "request"),
    "two million cancels": (lambda: cancel(LARGE // 8).SerializeToString(), "cancel.query_ids"),
    "a length that overflows": (lambda: b"\x0a" + varint(2**63) + b"x", "request"),
    "groups in groups": (lambda: b"\x0b" * 100_000, "request"),
    "four million switches of the oneof": (lambda: (_field(2, b"") + _field(1, b"")) * (LARGE // 4), "request"),
    "switches of the oneof with options": (
        lambda: (_field(2, b"") + _field(1, _field(10, b""))) * (LARGE // 6),
        "request",
    ),
}
"""The call ends with INVALID_ARGUMENT."""


def _sent(queries: search_pb2.QueryBatch) -> bytes:
    return search_pb2.SearchRequest(queries=queries).SerializeToString()


def _field(number: int, data: bytes) -> bytes:
    """Return an encoded field that contains a message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def raw_search(docs: Served) -> Any:
    """Return the Search method for requests given as raw bytes."""
    return docs.stubs.channel.stream_stream(
        "/whamming.v1.SearchService/Search", None, search_pb2.SearchResponse.FromString
    )


@pytest.mark.parametrize("what", REFUSED_CALLS)
def test_an_invalid_request_ends_the_call(server: ServerProcess, docs: Served, what: str) -> None:
    make, field = REFUSED_CALLS[what]
    data = make()

    def ask() -> None:
        with pytest.raises(grpc.RpcError) as caught:
            list(raw_search(docs)(iter([data])))
        assert caught.value.code() == INVALID
        assert details_of(caught.value).field == field

    with bounded(server, docs):
        at_once(ask)


def test_unknown_fields_are_ignored(server: ServerProcess, docs: Served) -> None:
    """A newer client may send fields that this server does not know: one of 16 MiB, a few, or millions in a batch."""
    plain = _sent(batch())
    empty_in_a_batch = _field(1, _field(12, b"") * (LARGE // 2 - 100))
    for unknown in (_field(99, bytes(LARGE - 100)), (varint(98 << 3) + b"\x01") * 99, empty_in_a_batch):

        def ask(data: bytes = plain + unknown) -> None:
            chunks = [chunk for some in raw_search(docs)(iter([data])) for chunk in chunks_of(some)]
            assert [chunk.end.reason for chunk in chunks if chunk.end is not None] == [COMPLETE]

        with bounded(server, docs):
            at_once(ask)


def test_a_message_that_is_too_large(server: ServerProcess, docs: Served) -> None:
    with bounded(server, docs), pytest.raises(grpc.RpcError) as caught:
        list(raw_search(docs)(iter([_sent(batch(codes=bytes(17 << 20)))])))
    assert caught.value.code() == EXHAUSTED


# -- single messages ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refused:
    """A call that is refused."""

    call: Callable[[Any], object]
    field: str
    reason: str = "INVALID_ARGUMENT"
    code: Any = INVALID


def once(**fields: Any) -> Refused:
    return Refused(
        lambda stubs: stubs.search.SearchOnce(
            search_pb2.SearchOnceRequest(**{"index": "docs", "code": bytes(8), "options": K1, **fields})
        ),
        next(iter(fields)),
    )


def upsert(field: str, make: Callable[[], item_pb2.ItemBatch]) -> Refused:
    def call(stubs: Any) -> object:
        return list(stubs.items.Upsert(iter([item_pb2.UpsertRequest(index="docs", items=make())])))

    return Refused(call, field)


def ids(count: int) -> types_pb2.IdColumn:
    return types_pb2.IdColumn(
        uint64=b"".join(struct.pack("<Q", 10**6 + i) for i in range(min(count, 1000)))[: 8 * count]
    )


def payloads(lengths: bytes, data: bytes = b"") -> types_pb2.PayloadColumn:
    return types_pb2.PayloadColumn(lengths=lengths, data=data)


def create(field: str, **fields: Any) -> Refused:
    return Refused(
        lambda stubs: stubs.indexes.CreateIndex(index_pb2.CreateIndexRequest(**{"name": "hostile", **fields})), field
    )


REFUSED: dict[str, Refused] = {
    "two million weights": once(weights=[1.0] * (LARGE // 8)),
    "two million costs": once(table=[1.0] * (LARGE // 8), code=b""),
    "16 MiB of a code": once(code=bytes(LARGE)),
    "no code": once(code=b""),
    "16 MiB of ids, no codes": upsert(
        "items.codes", lambda: item_pb2.ItemBatch(ids=types_pb2.IdColumn(uint64=bytes(LARGE // 8 * 8)))
    ),
    "incomplete ids": upsert("items.ids.uint64", lambda: item_pb2.ItemBatch(ids=types_pb2.IdColumn(uint64=bytes(9)))),
    "16 MiB of codes, no ids": upsert("items.codes", lambda: item_pb2.ItemBatch(codes=bytes(LARGE))),
    "codes of the wrong width": upsert("items.codes", lambda: item_pb2.ItemBatch(ids=ids(2), codes=bytes(15))),
    "lengths whose sum exceeds memory": upsert(
        "items.payloads.data",
        lambda: item_pb2.ItemBatch(
            ids=types_pb2.IdColumn(uint64=bytes(LARGE // 24 * 8)),
            codes=bytes(LARGE // 24 * 8),
            payloads=payloads(b"\xff" * (LARGE // 24 * 4)),
        ),
    ),
    "lengths whose sum overflows to the right size": upsert(
        "items.payloads.data",
        lambda: item_pb2.ItemBatch(
            ids=ids(3), codes=bytes(24), payloads=payloads(struct.pack("<3I", 2**31, 2**31, 5), b"five.")
        ),
    ),
    "lengths of fewer items": upsert(
        "items.payloads.lengths",
        lambda: item_pb2.ItemBatch(ids=ids(2), codes=bytes(16), payloads=payloads(bytes(4))),
    ),
    "incomplete lengths": upsert(
        "items.payloads.lengths",
        lambda: item_pb2.ItemBatch(ids=ids(2), codes=bytes(16), payloads=payloads(bytes(7))),
    ),
    "a payload of 16 MiB": upsert(
        "items.payloads",
        lambda: item_pb2.ItemBatch(
            ids=ids(1), codes=bytes(8), payloads=payloads(struct.pack("<I", LARGE - 99), bytes(LARGE - 99))
        ),
    ),
    "incomplete ids to delete": Refused(
        lambda stubs: stubs.items.Delete(item_pb2.DeleteRequest(index="docs", ids=types_pb2.IdColumn(uint64=bytes(9)))),
        "ids.uint64",
    ),
    "two million ids to get": Refused(
        lambda stubs: stubs.items.Get(
            item_pb2.GetRequest(index="docs", ids=types_pb2.IdColumn(uint64=bytes(LARGE // 8 * 8)))
        ),
        "",
        "ANSWER_TOO_LARGE",
        EXHAUSTED,
    ),
    "a sample of 2^32 - 1 columns, no data": create(
        "encoder",
        settings=index_pb2.IndexSettings(bits=8),
        encoder=index_pb2.EncoderSettings(kind=index_pb2.ENCODER_KIND_ITQ, sample=matrix(2**32 - 1, b"")),
    ),
    "a sample of bytes, one column": create(
        "encoder",
        settings=index_pb2.IndexSettings(bits=8),
        encoder=index_pb2.EncoderSettings(
            kind=index_pb2.ENCODER_KIND_ITQ, sample=matrix(1, bytes(LARGE), types_pb2.ELEMENT_TYPE_UINT8)
        ),
    ),
    "an encoder of 16 MiB of zeros": create("fitted_encoder", fitted_encoder=bytes(LARGE)),
    "an unknown kind of encoder": create(
        "encoder.kind",
        settings=index_pb2.IndexSettings(bits=8),
        encoder=index_pb2.EncoderSettings(kind=77),  # type: ignore[arg-type]
    ),
    "unknown tables": create("settings.tables", settings=index_pb2.IndexSettings(bits=8, tables=77)),  # type: ignore[arg-type]
    "a name of 16 MiB": create("name", name="x" * LARGE, settings=index_pb2.IndexSettings(bits=8)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_invalid_unary_message_is_refused(server: ServerProcess, docs: Served, what: str) -> None:
    refused = REFUSED[what]

    def ask() -> None:
        with pytest.raises(grpc.RpcError) as caught:
            refused.call(docs.stubs)
        details = details_of(caught.value)
        assert (caught.value.code(), details.reason, details.field) == (refused.code, refused.reason, refused.field)
        assert len(details.message) < 2000

    with bounded(server, docs):
        at_once(ask)


def test_deleting_two_million_absent_ids(server: ServerProcess, docs: Served) -> None:
    """Ids that do not exist are ignored."""
    absent = types_pb2.IdColumn(uint64=struct.pack("<Q", 10**9) * (LARGE // 8))
    with bounded(server, docs):
        assert docs.stubs.items.Delete(item_pb2.DeleteRequest(index="docs", ids=absent)).count == 0
