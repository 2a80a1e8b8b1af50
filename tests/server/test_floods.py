"""Floods of frames: a connection that sends them does not make the calls of others fail."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.server.raw_http2 import (
    CANCEL,
    CONTINUATION,
    END_HEADERS,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    RawConnection,
    frame,
    headers_of,
)
from tests.serving import ServerProcess, wait_until
from whamming.v1.index_pb2 import ListIndexesRequest

OWN_CONNECTION = {"grpc.use_local_subchannel_pool": 1}
CALL = headers_of("/whamming.v1.SearchService/Search")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server
        server.check_log()


def resets(number: int) -> bytes:
    """Return a call that is cancelled at once."""
    stream = 2 * number + 1
    return frame(HEADERS, END_HEADERS, stream, CALL) + frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))


def pings(number: int) -> bytes:
    return frame(PING, 0, 0, struct.pack(">Q", number))


def settings(number: int) -> bytes:
    return frame(SETTINGS, 0, 0, b"")


def continuations(number: int) -> bytes:
    """Return a part of the headers of a call, which never end."""
    more = b"\0\1a" + bytes([100]) + 100 * b"x"
    return frame(CONTINUATION, 0, 1, more) if number else frame(HEADERS, 0, 1, CALL)


@pytest.mark.parametrize("flood", [resets, pings, settings, continuations])
def test_a_flood_fails_no_call_of_others(server: ServerProcess, flood: Callable[[int], bytes]) -> None:
    """Three connections send frames as fast as they can."""
    stop, sent = threading.Event(), [0] * 3

    def send(place: int) -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError), RawConnection(server.address) as raw:  # the server may disconnect
                number = 0
                while not stop.is_set() and raw.is_open():
                    raw.send_bytes(b"".join(flood(number + more) for more in range(200)))
                    number += 200
                    sent[place] += 200

    threads = [threading.Thread(target=send, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: all(count > 2000 for count in sent), "the flood")
        for _ in range(6):
            with server.stubs(**OWN_CONNECTION) as stubs:
                for _ in range(5):
                    stubs.indexes.ListIndexes(ListIndexesRequest())
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("flood", [pings, continuations])
def test_the_server_disconnects_a_client_that_floods_it(server: ServerProcess, flood: Callable[[int], bytes]) -> None:
    with RawConnection(server.address) as raw, contextlib.suppress(OSError):
        for number in range(100_000):
            raw.send_bytes(flood(number))
            if not raw.is_open():
                return
        raise AssertionError("the server accepts everything")
