"""Answers that nobody reads take bounded memory, and do not keep others from theirs."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.server.raw_http2 import RawConnection
from tests.serving import PATIENCE, ServerProcess, details_of, wait_until
from whamming.server.rpc.answer_memory import ANSWER_SECONDS, CLIENT_ANSWER_BYTES, LARGE_ANSWERS, TOTAL_ANSWER_BYTES
from whamming.v1 import index_pb2, item_pb2
from whamming.wire.columns import id_column, payload_list_column

MB = 1 << 20
GET_ENCODER, GET = "/whamming.v1.IndexService/GetEncoder", "/whamming.v1.ItemService/Get"
DIMENSION, BITS = 1024, 4096
SIZE = 4 * DIMENSION * BITS
REQUEST = index_pb2.GetEncoderRequest(name="docs")
ITEMS = 40
PAYLOAD = bytes(60_000)
ITEMS_REQUEST = item_pb2.GetRequest(index="items", ids=id_column(np.arange(ITEMS, dtype=np.uint64)))
OPTIONS = {"grpc.use_local_subchannel_pool": 1, "grpc.max_receive_message_length": -1}


@contextlib.contextmanager
def serving(place: Path, workers: int, **limits: Any) -> Iterator[ServerProcess]:
    with ServerProcess(place / "db", workers=workers, **limits) as server:
        with server.stubs(**OPTIONS) as stubs:
            wanted = index_pb2.CreateIndexRequest(name="docs")
            wanted.settings.bits = BITS
            wanted.encoder.kind, wanted.encoder.dimension = index_pb2.ENCODER_KIND_LSH, DIMENSION
            stubs.indexes.CreateIndex(wanted, timeout=4 * PATIENCE)
            settings = index_pb2.IndexSettings(bits=8)
            stubs.indexes.CreateIndex(index_pb2.CreateIndexRequest(name="items", settings=settings))
            items = item_pb2.ItemBatch(ids=ITEMS_REQUEST.ids, codes=bytes(ITEMS))
            items.payloads.CopyFrom(payload_list_column([PAYLOAD] * ITEMS))
            list(stubs.items.Upsert(iter([item_pb2.UpsertRequest(index="items", items=items)])))
        yield server
        server.check_log()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), 1) as server:
        yield server


def get_encoder(server: ServerProcess) -> int:
    """Return the size of the encoder that a new client gets."""
    with server.stubs(**OPTIONS) as stubs:
        return len(stubs.indexes.GetEncoder(REQUEST, timeout=4 * PATIENCE).fitted_encoder)


def ask(raw: RawConnection, path: str = GET_ENCODER) -> int:
    """Ask for the encoder or items, without ever making room for more than 64 KiB of the answer. Returns the call."""
    stream, message = raw.call(path), (REQUEST if path == GET_ENCODER else ITEMS_REQUEST).SerializeToString()
    raw.write(stream, b"\0" + struct.pack(">I", len(message)) + message)
    raw.send(0, 1, stream, b"")  # no more requests
    return stream


def data_of(raw: RawConnection) -> set[int]:
    """Return the calls that have received data."""
    raw.receive(0)
    return {stream for kind, _, stream, _ in raw.frames if kind == 0}


def await_some_of_the_answer(raw: RawConnection) -> None:
    end = time.monotonic() + 4 * PATIENCE
    while not any(kind == 0 for kind, _, _, _ in raw.frames):
        assert time.monotonic() < end
        raw.receive(0.05)


def test_answers_that_are_not_read_take_bounded_memory(server: ServerProcess) -> None:
    """One is sent, and the others are refused after a while."""
    assert get_encoder(server) > SIZE
    before = server.usage().rss
    with RawConnection(server.address) as raw:
        calls = {ask(raw) for _ in range(40)}
        await_some_of_the_answer(raw)
        end = time.monotonic() + 4 * PATIENCE
        while len(raw.ended()) < len(calls) - 1:
            assert time.monotonic() < end
            raw.receive(0.02)
            grown = server.usage().rss - before
            assert grown < 10 * SIZE, f"{grown / MB:.0f} MiB"
        assert get_encoder(server) > SIZE, "another client is served"


def test_a_process_sends_few_large_answers_at_a_time(server: ServerProcess) -> None:
    """Others are refused, until a client has gone."""
    with contextlib.ExitStack() as stack:
        raws = [
            stack.enter_context(RawConnection(server.address))
            for _ in range(TOTAL_ANSWER_BYTES // LARGE_ANSWERS[GET_ENCODER])
        ]
        for raw in raws:
            ask(raw)
            await_some_of_the_answer(raw)
        with pytest.raises(grpc.RpcError) as caught:
            get_encoder(server)
        assert details_of(caught.value).reason == "OVERLOADED"
    assert get_encoder(server) > SIZE


def test_unread_items_of_a_client_take_bounded_memory(server: ServerProcess) -> None:
    """Further calls are refused. The others stay open, and count as calls until their answers are read."""
    others = CLIENT_ANSWER_BYTES // LARGE_ANSWERS[GET]
    before = server.usage().rss
    with RawConnection(server.address) as raw:
        calls = {ask(raw, GET) for _ in range(60)}
        wait_until(lambda: len(raw.ended()) >= len(calls) - others, "the refusal of some calls")
        grown = server.usage().rss - before
        assert grown < 2 * CLIENT_ANSWER_BYTES + 32 * MB, f"{grown / MB:.0f} MiB"
        assert len(raw.ended()) == len(calls) - others
        with server.stubs(**OPTIONS) as stubs:
            assert all(stubs.items.Get(ITEMS_REQUEST, timeout=PATIENCE).found)


def test_unread_items_count_as_calls(tmp_path: Path) -> None:
    with serving(tmp_path, 1, max_streams=4) as server, RawConnection(server.address) as raw:
        calls = {ask(raw, GET) for _ in range(4)}
        raw.send(8, 0, 0, struct.pack(">I", MB))  # the window of the connection: each answer has 64 KiB of its own
        wait_until(lambda: data_of(raw) == calls, "a part of each answer")
        with server.stubs(**OPTIONS) as stubs, pytest.raises(grpc.RpcError) as caught:
            stubs.items.Get(ITEMS_REQUEST, timeout=PATIENCE)
        assert "4 calls are running" in details_of(caught.value).message


def test_small_answers_need_no_room(server: ServerProcess) -> None:
    """They are sent even if the client has all its memory for answers in use."""
    with RawConnection(server.address) as raw:
        calls = {ask(raw, GET) for _ in range(CLIENT_ANSWER_BYTES // LARGE_ANSWERS[GET])}
        wait_until(lambda: bool(data_of(raw)), "a part of an answer")
        stream, message = raw.call("/whamming.v1.IndexService/GetIndex"), REQUEST.SerializeToString()
        raw.write(stream, b"\0" + struct.pack(">I", len(message)) + message)
        raw.send(0, 1, stream, b"")
        raw.send(8, 0, 0, struct.pack(">I", 4 * MB))  # the window of the connection, which the answers share
        wait_until(lambda: stream in raw.ended(), "the answer")
        assert not raw.ended() & calls


@pytest.mark.parametrize("workers", [1, 3])
def test_each_client_has_one_large_answer_in_any_process(workers: int, tmp_path: Path) -> None:
    """A second call is refused while the first one waits to be read, also by a process that forwards both."""
    with serving(tmp_path, workers) as server, contextlib.ExitStack() as stack:
        for _ in range(2):  # several connections, of which some reach other processes
            raw = stack.enter_context(RawConnection(server.address))
            first = ask(raw)
            await_some_of_the_answer(raw)
            second, end = ask(raw), time.monotonic() + ANSWER_SECONDS + 4 * PATIENCE
            while second not in raw.ended():
                assert time.monotonic() < end
                raw.receive(0.05)
            assert first not in raw.ended()
            assert sum(len(data) for kind, _, of, data in raw.frames if kind == 0 and of == second) == 0
