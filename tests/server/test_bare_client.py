"""Clients that rely on the protos only: columns packed with ``struct``, and JSON through reflection.

They stand for clients in other languages, so they use neither numpy nor ``whamming.wire``.
"""

from __future__ import annotations

import base64
import math
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.serving import ServerProcess, Stubs
from whamming.v1 import index_pb2, item_pb2, search_pb2, types_pb2

BITS, WIDTH, COUNT = 20, 3, 500
FLOAT32, FLOAT64 = types_pb2.ELEMENT_TYPE_FLOAT32, types_pb2.ELEMENT_TYPE_FLOAT64

Hit = tuple[float, int]


@dataclass(frozen=True)
class Docs:
    """An index on a server, and its contents."""

    name: str
    stubs: Stubs
    codes: dict[int, int]
    """Codes by id. Bit i of the number is bit i of the code."""

    def nearest(self, table: Sequence[tuple[float, float]]) -> list[Hit]:
        """Return all items by (distance, id). The costs are small integers, so the sums are exact."""
        return sorted((sum(table[i][code >> i & 1] for i in range(BITS)), id_) for id_, code in self.codes.items())


@pytest.fixture(scope="module")
def docs(either: ServerProcess) -> Iterator[Docs]:
    rng = random.Random(0)
    codes = {rng.getrandbits(64): rng.getrandbits(BITS) for _ in range(COUNT)}
    payloads = [b"item %d" % id_ for id_ in codes]
    with either.stubs() as stubs:
        settings = index_pb2.IndexSettings(bits=BITS, bit_order=index_pb2.BIT_ORDER_LITTLE)
        stubs.indexes.CreateIndex(index_pb2.CreateIndexRequest(name="bare", settings=settings))
        items = item_pb2.ItemBatch(
            ids=types_pb2.IdColumn(uint64=struct.pack(f"<{COUNT}Q", *codes)),
            codes=b"".join(code.to_bytes(WIDTH, "little") for code in codes.values()),
            payloads=types_pb2.PayloadColumn(
                lengths=struct.pack(f"<{COUNT}I", *map(len, payloads)), data=b"".join(payloads)
            ),
        )
        [done] = stubs.items.Upsert(iter([item_pb2.UpsertRequest(index="bare", sequence=7, items=items)]))
        assert (done.sequence, done.count) == (7, COUNT)
        yield Docs("bare", stubs, codes)


@dataclass
class Received:
    """Everything that a query has received."""

    hits: list[Hit]
    payloads: list[bytes]
    bound: float = -math.inf
    reason: int = 0


def search(docs: Docs, *batches: search_pb2.QueryBatch) -> dict[int, Received]:
    """Send batches and collect the hits of each query."""
    received: dict[int, Received] = {}
    requests = [search_pb2.SearchRequest(queries=batch) for batch in batches]
    for message in docs.stubs.search.Search(iter(requests)):
        count = sum(message.counts)
        ids = struct.unpack(f"<{count}Q", message.ids.uint64)
        distances = struct.unpack(f"<{count}d", message.distances)
        lengths: Sequence[int] = [0] * count
        if message.HasField("payloads"):
            lengths = struct.unpack(f"<{count}I", message.payloads.lengths)
        hit = place = 0
        for query_id, hits, bound in zip(message.query_ids, message.counts, message.lower_bounds, strict=True):
            query = received.setdefault(query_id, Received([], []))
            query.bound = bound
            for row in range(hit, hit + hits):
                query.hits.append((distances[row], ids[row]))
                query.payloads.append(message.payloads.data[place : place + lengths[row]])
                place += lengths[row]
            hit += hits
        for query_id, reason in zip(message.ends.query_ids, message.ends.reasons, strict=True):
            received[query_id].reason = reason
    return received


def tables_of(codes: Sequence[int], weights: Sequence[Sequence[float]]) -> list[list[tuple[float, float]]]:
    """Return the cost table of each query."""
    return [
        [(row[i], 0.0) if code >> i & 1 else (0.0, row[i]) for i in range(BITS)]
        for code, row in zip(codes, weights, strict=True)
    ]


@pytest.mark.parametrize(("kind", "letter"), [(FLOAT64, "d"), (FLOAT32, "f")])
def test_columns_packed_with_struct(docs: Docs, kind: types_pb2.ElementType, letter: str) -> None:
    rng = random.Random(1)
    codes = [rng.getrandbits(BITS) for _ in range(4)]
    weights = [[float(rng.randint(-2, 9)) for _ in range(BITS)] for _ in codes]
    packed = b"".join(code.to_bytes(WIDTH, "little") for code in codes)
    options = search_pb2.QueryOptions(k=12)
    rows = b"".join(struct.pack(f"<{BITS}{letter}", *row) for row in weights)
    each = types_pb2.Matrix(type=kind, columns=BITS, data=rows)
    shared = types_pb2.Matrix(type=kind, columns=BITS, data=struct.pack(f"<{BITS}{letter}", *weights[0]))
    costs = [cost for table in tables_of(codes, weights) for pair in table for cost in pair]
    tables = types_pb2.Matrix(type=kind, columns=2 * BITS, data=struct.pack(f"<{8 * BITS}{letter}", *costs))
    received = search(
        docs,
        search_pb2.QueryBatch(index=docs.name, query_ids=range(4), codes=packed, options=options),
        search_pb2.QueryBatch(index=docs.name, query_ids=range(10, 14), codes=packed, weights=each, options=options),
        search_pb2.QueryBatch(index=docs.name, query_ids=range(20, 24), codes=packed, weights=shared, options=options),
        search_pb2.QueryBatch(index=docs.name, query_ids=range(30, 34), tables=tables, options=options),
    )
    for first, chosen in ((0, [[1.0] * BITS] * 4), (10, weights), (20, [weights[0]] * 4), (30, weights)):
        for number, table in enumerate(tables_of(codes, chosen)):
            query = received[first + number]
            assert query.hits == docs.nearest(table)[:12]
            assert query.reason == search_pb2.END_REASON_COMPLETE
            assert query.bound >= query.hits[-1][0]
    assert sorted(received) == [*range(4), *range(10, 14), *range(20, 24), *range(30, 34)]


def test_a_query_continues_after_a_resume_token(docs: Docs) -> None:
    code = 0b1011
    table = tables_of([code], [[1.0] * BITS])[0]
    wanted = docs.nearest(table)
    distance, id_ = wanted[99]
    received = search(
        docs,
        search_pb2.QueryBatch(
            index=docs.name,
            query_ids=[2**64 - 1, 5],
            codes=2 * code.to_bytes(WIDTH, "little"),
            after_distances=[distance, -math.inf],
            after_ids=types_pb2.IdColumn(uint64=struct.pack("<2Q", id_, 0)),
            options=search_pb2.QueryOptions(payloads=True, chunk_size=64),
        ),
    )
    assert received[2**64 - 1].hits == wanted[100:]
    assert received[5].hits == wanted
    for query in received.values():
        assert query.payloads == [b"item %d" % hit for _, hit in query.hits]
        assert query.reason == search_pb2.END_REASON_EXHAUSTED
        assert query.bound == math.inf


def test_items_read_with_struct(docs: Docs) -> None:
    ids = [*list(docs.codes)[:5], 1]
    answer = docs.stubs.items.Get(
        item_pb2.GetRequest(index=docs.name, ids=types_pb2.IdColumn(uint64=struct.pack("<6Q", *ids)))
    )
    assert list(answer.found) == [1, 1, 1, 1, 1, 0]
    wanted = [*(docs.codes[id_] for id_ in ids[:5]), 0]
    assert answer.items.codes == b"".join(code.to_bytes(WIDTH, "little") for code in wanted)
    lengths = struct.unpack("<6I", answer.items.payloads.lengths)
    assert lengths == (*(len(b"item %d" % id_) for id_ in ids[:5]), 0)
    assert answer.items.payloads.data == b"".join(b"item %d" % id_ for id_ in ids[:5])
    scanned: dict[int, int] = {}
    for message in docs.stubs.items.Scan(item_pb2.ScanRequest(index=docs.name, batch_size=70)):
        count = len(message.items.ids.uint64) // 8
        assert message.total == COUNT
        for row, id_ in enumerate(struct.unpack(f"<{count}Q", message.items.ids.uint64)):
            scanned[id_] = int.from_bytes(message.items.codes[row * WIDTH : (row + 1) * WIDTH], "little")
    assert scanned == docs.codes


class ByReflection:
    """A client that knows only the server's address, like ``buf curl``. It sends and receives JSON."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))

    def call(self, service: str, method: str, request: dict[str, Any]) -> dict[str, Any]:
        found = self._pool.FindServiceByName(service).FindMethodByName(method)
        kind, answer = GetMessageClass(found.input_type), GetMessageClass(found.output_type)
        send = self._channel.unary_unary(f"/{service}/{method}", kind.SerializeToString, answer.FromString)
        return json_format.MessageToDict(send(json_format.ParseDict(request, kind())))


def test_json_requests_with_reflection(docs: Docs) -> None:
    client = ByReflection(docs.stubs.channel)
    code = 0b1011
    weights = [float(i % 5) for i in range(BITS)]
    request = {
        "index": docs.name,
        "code": base64.b64encode(code.to_bytes(WIDTH, "little")).decode(),
        "weights": weights,
        "options": {"k": 3, "payloads": True},
    }
    answer = client.call("whamming.v1.SearchService", "SearchOnce", request)
    wanted = docs.nearest(tables_of([code], [weights])[0])
    assert [(hit.get("distance", 0.0), int(hit["id"])) for hit in answer["hits"]] == wanted[:3]
    assert [base64.b64decode(hit["payload"]) for hit in answer["hits"]] == [b"item %d" % id_ for _, id_ in wanted[:3]]
    assert (answer["reason"], answer["exact"]) == ("END_REASON_COMPLETE", True)
    del request["options"]["k"]  # type: ignore[attr-defined]
    request["options"]["radius"] = "Infinity"  # type: ignore[index]
    request["after"] = {"distance": wanted[2][0], "id": str(wanted[2][1])}
    rest = client.call("whamming.v1.SearchService", "SearchOnce", request)
    assert [(hit.get("distance", 0.0), int(hit["id"])) for hit in rest["hits"]] == wanted[3:]
    assert (rest["reason"], rest["lowerBound"]) == ("END_REASON_EXHAUSTED", "Infinity")
    index = client.call("whamming.v1.IndexService", "GetIndex", {"name": docs.name})["index"]
    assert (index["settings"]["bits"], index["statistics"]["items"]) == (BITS, str(COUNT))
