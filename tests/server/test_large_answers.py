"""Answers of GetEncoder that nobody reads take bounded memory, and do not keep others from theirs."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.server.raw_http2 import RawConnection
from tests.serving import PATIENCE, ServerProcess, details_of
from whamming.server.rpc.clients import LARGE_ANSWER_SECONDS, MAX_LARGE_ANSWERS
from whamming.v1 import index_pb2

MB = 1 << 20
DIMENSION, BITS = 1024, 4096
SIZE = 4 * DIMENSION * BITS
REQUEST = index_pb2.GetEncoderRequest(name="docs")
OPTIONS = {"grpc.use_local_subchannel_pool": 1, "grpc.max_receive_message_length": -1}


@contextlib.contextmanager
def serving(place: Path, workers: int) -> Iterator[ServerProcess]:
    with ServerProcess(place / "db", workers=workers) as server:
        with server.stubs(**OPTIONS) as stubs:
            wanted = index_pb2.CreateIndexRequest(name="docs")
            wanted.settings.bits = BITS
            wanted.encoder.kind, wanted.encoder.dimension = index_pb2.ENCODER_KIND_LSH, DIMENSION
            stubs.indexes.CreateIndex(wanted, timeout=4 * PATIENCE)
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


def ask(raw: RawConnection) -> int:
    """Ask for the encoder, without ever making room for more than 64 KiB of the answer. Returns the call."""
    stream, message = raw.call("/whamming.v1.IndexService/GetEncoder"), REQUEST.SerializeToString()
    raw.write(stream, b"\0" + struct.pack(">I", len(message)) + message)
    raw.send(0, 1, stream, b"")  # no more requests
    return stream


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
        raws = [stack.enter_context(RawConnection(server.address)) for _ in range(MAX_LARGE_ANSWERS)]
        for raw in raws:
            ask(raw)
            await_some_of_the_answer(raw)
        with pytest.raises(grpc.RpcError) as caught:
            get_encoder(server)
        assert details_of(caught.value).reason == "OVERLOADED"
    assert get_encoder(server) > SIZE


@pytest.mark.parametrize("workers", [1, 3])
def test_each_client_has_one_large_answer_in_any_process(workers: int, tmp_path: Path) -> None:
    """A second call is refused while the first one waits to be read, also by a process that forwards both."""
    with serving(tmp_path, workers) as server, contextlib.ExitStack() as stack:
        for _ in range(2):  # several connections, of which some reach other processes
            raw = stack.enter_context(RawConnection(server.address))
            first = ask(raw)
            await_some_of_the_answer(raw)
            second, end = ask(raw), time.monotonic() + LARGE_ANSWER_SECONDS + 4 * PATIENCE
            while second not in raw.ended():
                assert time.monotonic() < end
                raw.receive(0.05)
            assert first not in raw.ended()
            assert sum(len(data) for kind, _, of, data in raw.frames if kind == 0 and of == second) == 0
