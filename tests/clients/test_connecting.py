"""Tests of connecting to a server: addresses, asyncio, two event loops in one process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

import whamming
from tests.serving import PATIENCE, ServerProcess
from whamming import InvalidArgumentError, UnavailableError
from whamming.remote.channel import open_channel, shared_poller, split_address
from whamming.storage import ClosedError


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server
        server.check_log()


async def test_an_unknown_host_is_named_before_the_timeout() -> None:
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(UnavailableError, match=r"host nohost\.invalid is unknown"):
            await whamming.aio.connect("nohost.invalid:1", timeout=10 * PATIENCE)


# -- addresses -------------------------------------------------------------------------------------------------------

MALFORMED = [
    "",
    ":",
    "localhost",
    "localhost:",
    ":7777",
    "http://localhost:7777",
    "https://localhost:7777/",
    "localhost:7777/docs",
    "localhost:0",
    "localhost:65536",
    "localhost:777777",
    "localhost:-1",
    "localhost:port",
    "local host:7777",
    "::1:7777",
    "[::1]",
    "user@localhost:7777",
    "a:7777,b:7777",
    "dns:///localhost:7777",
    "unix:/tmp/socket",
    7777,
    None,
    b"localhost:7777",
]


@pytest.mark.parametrize("address", MALFORMED)
def test_malformed_addresses_are_refused_at_once(address: Any) -> None:
    for connect in (whamming.connect, whamming.aio.connect):
        with pytest.raises(InvalidArgumentError, match="HOST:PORT") as caught:
            connect(address, timeout=10 * PATIENCE)
        assert repr(address) in str(caught.value)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("localhost:7777", ("localhost", 7777)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("search-1.example.com:65535", ("search-1.example.com", 65_535)),
        ("my_host:80", ("my_host", 80)),
        ("[::1]:7777", ("::1", 7777)),
        ("[fe80::1%eth0]:7777", ("fe80::1%eth0", 7777)),
    ],
)
def test_addresses_are_split(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


def test_no_server_at_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # accepts connections but never answers
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=rf"{address} .*0\.2 s.*whamming serve"):
            whamming.connect(address, timeout=0.2)
    with pytest.raises(UnavailableError, match=rf"{address} .*0\.2 s"):
        whamming.connect(address, timeout=0.2)


# -- asyncio ---------------------------------------------------------------------------------------------------------


def test_async_with_connect(server: ServerProcess) -> None:
    async def use() -> whamming.aio.Database:
        async with whamming.aio.connect(server.address) as database:
            assert server.address in repr(database)
            assert isinstance(await database.list_indexes(), list)
        return database

    async def use_again() -> None:
        database = await use()
        with pytest.raises(ClosedError):
            await database.list_indexes()
        assert "closed" in repr(database)

    asyncio.run(use_again())


def test_await_connect(server: ServerProcess) -> None:
    async def use() -> None:
        database = await whamming.aio.connect(server.address)
        assert isinstance(await database.list_indexes(), list)
        await database.close()
        async with await whamming.aio.connect(server.address) as again:
            assert isinstance(await again.list_indexes(), list)

    asyncio.run(use())


def test_repr_of_connect_says_to_await_it(server: ServerProcess) -> None:
    assert "await" in repr(whamming.aio.connect(server.address))


# -- two event loops -------------------------------------------------------------------------------------------------

BOTH = """
    import asyncio, sys, threading
    import numpy as np
    import whamming

    address = sys.argv[1]
    code = np.zeros(8, dtype=np.uint8)

    def block(rounds):
        with whamming.connect(address) as database:
            index = database.create_index("both", 64, exist_ok=True)
            index.upsert(range(100), np.arange(800, dtype=np.uint8).reshape(100, 8))
            for _ in range(rounds):
                assert len(index) == 100
                assert len(list(index.search(code, k=3))) == 3

    async def wait(thread):
        async with whamming.aio.connect(address) as database:
            index = await database.create_index("both", 64, exist_ok=True)
            thread.start()
            while thread.is_alive():
                await asyncio.gather(*(index.count() for _ in range(8)))
                assert len([hit async for hit in index.search(code, k=0)]) == 0

    for _ in range(2):
        asyncio.run(wait(threading.Thread(target=block, args=(150,))))
    block(1)
    print("done")
"""


def test_blocking_and_asyncio_clients_in_one_process_print_nothing(server: ServerProcess) -> None:
    command = [sys.executable, "-c", textwrap.dedent(BOTH), server.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("error", [BlockingIOError(), ZeroDivisionError()])
def test_only_blocking_errors_of_the_shared_poller_are_ignored(error: Exception) -> None:
    """Older versions of gRPC raise BlockingIOError if another loop was faster. Other errors are still reported."""
    reported: list[Any] = []

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        here, there = socket.socketpair()
        called = asyncio.Event()

        def read(number: int) -> None:
            assert number == 7
            loop.remove_reader(here)
            called.set()
            raise error

        with here, there:
            with shared_poller(loop):
                loop.add_reader(here, read, 7)
            assert "add_reader" not in vars(loop)
            there.send(b"x")
            await asyncio.wait_for(called.wait(), PATIENCE)

    asyncio.run(watch())
    assert reported == ([] if isinstance(error, BlockingIOError) else [error])


def test_values_that_the_server_refuses(server: ServerProcess) -> None:
    """The client only packs; the server validates values, and the client raises the same error as a local database."""
    with whamming.connect(server.address) as database:
        index = database.create_index("meaning", 8)
        index.upsert([1], np.zeros((1, 1), dtype=np.uint8))
        for weights in (np.full(8, np.nan), np.full(8, np.inf)):
            search = index.search(np.zeros(1, dtype=np.uint8), weights=weights)
            with pytest.raises(InvalidArgumentError, match=r"nan|inf"):
                next(search)


async def test_grpc_does_not_retry_calls() -> None:
    """The client does so itself, with pauses. gRPC has none, and does not stop."""
    headers, settings, go_away = 1, 4, 7
    streams: list[int] = []

    def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
        return struct.pack(">HBBBL", len(payload) >> 8, len(payload) & 255, kind, flags, stream) + payload

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak HTTP/2, and shut down when the first call arrives, before it is handled."""
        await reader.readexactly(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
        writer.write(frame(settings, 0, 0))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                high, low, kind, flags, stream = struct.unpack(">HBBBL", await reader.readexactly(9))
                await reader.readexactly(high << 8 | low)
                if kind == settings and not flags:
                    writer.write(frame(settings, 1, 0))
                if kind == headers:
                    streams.append(stream)
                    writer.write(frame(go_away, 0, 0, struct.pack(">LL", 0, 0)))  # no stream was handled
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        channel = await open_channel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", False, 20)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/whamming.v1.IndexService/ListIndexes")(b"")
        await channel.close()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert len(streams) == 1
