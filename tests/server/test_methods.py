"""Invalid bytes, messages that are too large, and unknown methods fail with a clear status."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tests.serving import ServerProcess, Stubs, details_of
from whamming.server.app import SERVICES
from whamming.server.rpc.parsing import has_oneof_of_messages
from whamming.v1 import search_pb2
from whamming.v1.index_pb2 import CreateIndexRequest, GetIndexRequest, IndexSettings
from whamming.v1.item_pb2 import ItemBatch, UpsertRequest
from whamming.wire.columns import id_column, payload_list_column

METHODS = [(f"/{service.full_name}/{method.name}", method) for service in SERVICES for method in service.methods]
MIB = 1 << 20


def call(stubs: Stubs, path: str, method: Any, data: bytes) -> list[bytes]:
    """Call a method with raw bytes."""
    channel = stubs.channel
    if method.client_streaming:
        return list(channel.stream_stream(path)(iter([data])))
    if method.server_streaming:
        return list(channel.unary_stream(path)(data))
    return [channel.unary_unary(path)(data)]


@pytest.mark.parametrize(("path", "method"), METHODS, ids=[path for path, _ in METHODS])
def test_invalid_bytes_are_refused(stubs: Stubs, path: str, method: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(stubs, path, method, b"\xff\xff\xff")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    details = details_of(caught.value)
    assert details.field == "request"
    assert "3 bytes" in details.message
    assert method.input_type.full_name in details.message


@pytest.mark.parametrize(("path", "method"), METHODS, ids=[path for path, _ in METHODS])
def test_a_message_that_is_too_large(stubs: Stubs, path: str, method: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(stubs, path, method, bytes(16 * MIB + 1))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"{16 * MIB + 1} vs. {16 * MIB}" in caught.value.details()


def messages_within(message: Descriptor) -> set[Descriptor]:
    """Return the type of a message, and the types of all messages in its fields."""
    found, new = set(), {message}
    while new:
        one = new.pop()
        found.add(one)
        new |= {field.message_type for field in one.fields if field.message_type is not None} - found
    return found


@pytest.mark.parametrize(("path", "method"), METHODS, ids=[path for path, _ in METHODS])
def test_parsed_requests_take_little_more_memory_than_their_bytes(path: str, method: Any) -> None:
    """Only numbers of a fixed size are repeated. An empty string has 2 bytes on the wire, and 16 parsed."""
    fixed = {FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_FIXED64}
    fields = [field for message in messages_within(method.input_type) for field in message.fields]
    repeated = [field for field in fields if field.is_repeated]
    assert {field.full_name for field in repeated if field.type not in fixed} == set(), path


def test_oneofs_of_messages_are_at_the_top_level_only() -> None:
    """Switching between their members makes a parsed request large. The server counts the fields of the top level."""
    requests = {method.input_type for _, method in METHODS}
    inner = {message for request in requests for message in messages_within(request)} - requests
    assert not any(map(has_oneof_of_messages, inner))
    assert {message.name for message in requests if has_oneof_of_messages(message)} == {"SearchRequest"}


def test_a_system_request_has_a_maximum_size(stubs: Stubs) -> None:
    """16 MiB of switches between the members of a oneof would take 33 times as much memory."""
    for path in (
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
    ):
        with pytest.raises(grpc.RpcError) as caught:
            list(stubs.channel.stream_stream(path)(iter([b"\x2a\x00\x3a\x00" * MIB])))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, path
        assert details_of(caught.value).field == "request"


def test_compressed_messages_are_refused(server: ServerProcess) -> None:
    before = server.usage()
    with grpc.insecure_channel(server.address, compression=grpc.Compression.Gzip) as channel:
        for path, method in (METHODS[0], METHODS[-2]):
            with pytest.raises(grpc.RpcError) as caught:
                call(Stubs(channel), path, method, bytes(200 * MIB))
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
            assert "Compression algorithm 'gzip' is disabled" in caught.value.details()
    assert server.usage().rss < before.rss + 100 * MIB


@pytest.mark.parametrize("path", ["/whamming.v1.SearchService/Search", "/whamming.v1.ItemService/Upsert"])
def test_millions_of_unknown_fields(server: ServerProcess, stubs: Stubs, path: str) -> None:
    """Five million empty fields fit into a message. They must not take much more memory than the message."""
    before = server.usage()
    unknown = b"\x9a\x06\x00" * (5 * MIB)  # field 99, empty
    with pytest.raises(grpc.RpcError) as caught:
        list(stubs.channel.stream_stream(path)(iter([unknown])))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert server.usage().rss < before.rss + 150 * MIB


def test_two_million_queries_in_a_batch_are_refused(server: ServerProcess, stubs: Stubs) -> None:
    """This is the most that fits into a message. The server refuses it in bounded memory."""
    before = server.usage()
    count = 2 * MIB - 100
    batch = search_pb2.QueryBatch(index="absent", query_ids=range(count), codes=b"x")
    request = search_pb2.SearchRequest(queries=batch).SerializeToString()
    with pytest.raises(grpc.RpcError) as caught:
        list(stubs.channel.stream_stream("/whamming.v1.SearchService/Search")(iter([request])))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert details_of(caught.value).field == "queries.query_ids"
    assert f"{count} queries" in details_of(caught.value).message
    assert server.usage().rss < before.rss + 150 * MIB


def test_empty_payloads_are_accepted(stubs: Stubs, name: str) -> None:
    stubs.indexes.CreateIndex(CreateIndexRequest(name=name, settings=IndexSettings(bits=1)))
    for count in (1, 2, 127, 100_000):
        payloads = payload_list_column([b""] * count)
        items = ItemBatch(ids=id_column(np.arange(count, dtype=np.uint64)), codes=bytes(count), payloads=payloads)
        assert [done.count for done in stubs.items.Upsert(iter([UpsertRequest(index=name, items=items)]))] == [count]


def test_the_largest_message_is_accepted(stubs: Stubs, name: str) -> None:
    stubs.indexes.CreateIndex(CreateIndexRequest(name=name, settings=IndexSettings(bits=4096)))
    count = (16 * MIB - 1000) // 520
    items = ItemBatch(ids=id_column(np.arange(count, dtype=np.uint64)), codes=bytes(512 * count))
    request = UpsertRequest(index=name, items=items)
    assert 16 * MIB - 2000 < request.ByteSize() < 16 * MIB
    assert [done.count for done in stubs.items.Upsert(iter([request]))] == [count]
    assert stubs.indexes.GetIndex(GetIndexRequest(name=name)).index.statistics.items == count


@pytest.mark.parametrize("path", ["/whamming.v1.SearchService/Guess", "/whamming.v2.SearchService/Search", "/x/y"])
def test_unknown_methods(stubs: Stubs, path: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stubs.channel.unary_unary(path)(b"")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_every_method_of_the_protos_is_served(stubs: Stubs) -> None:
    assert len(METHODS) >= 12
    for path, method in METHODS:
        try:
            call(stubs, path, method, b"")
        except grpc.RpcError as error:
            assert error.code() != grpc.StatusCode.UNIMPLEMENTED, path  # noqa: PT017 - some calls succeed
