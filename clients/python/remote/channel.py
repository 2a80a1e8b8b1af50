"""Connections to a server: which addresses are taken, how a channel is opened, and why one cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from whamming.native import InvalidArgumentError
from whamming.remote.tls import Tls
from whamming.wire.service_errors import UnavailableError

RECEIVE_BYTES: Final = 64 << 20
OPTIONS: Final = [
    ("grpc.max_receive_message_length", RECEIVE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
"""Of a gRPC channel."""

PROBE_AFTER: Final = 0.5
"""Seconds without a connection after which the port is asked what it speaks."""
PROBE_SECONDS: Final = 2.0
"""Most seconds that one question takes."""

_ADDRESS: Final = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\]):(?P<port>[0-9]{1,5})")
_HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What an HTTP/2 client without TLS sends first, with empty settings."""
_SETTINGS_FRAME: Final = 4


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; raises :class:`InvalidArgumentError` for anything else."""
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if match is None or not 1 <= int(match["port"]) <= 65_535:
        raise InvalidArgumentError(
            f"address = {address!r}; it must be HOST:PORT with a port of 1 to 65535, as in localhost:7777 or [::1]:7777"
        )
    return match["host"].strip("[]"), int(match["port"])


async def open_channel(address: str, tls: Tls | bool, timeout: float) -> grpc.aio.Channel:
    """Connect. Raises :class:`UnavailableError` if no server answers in time, with the likely reason."""
    credentials = (tls if isinstance(tls, Tls) else Tls()).credentials() if tls else None
    with shared_poller(asyncio.get_running_loop()):
        if credentials is None:
            channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        else:
            channel = grpc.aio.secure_channel(address, credentials, options=OPTIONS)
    try:
        await _ready(channel, address, credentials is not None, timeout)
    except BaseException:
        await channel.close()
        raise
    return channel


async def _ready(channel: grpc.aio.Channel, address: str, encrypted: bool, timeout: float) -> None:
    """Wait until the channel is connected. Meanwhile the port may be asked what it speaks."""
    end = time.monotonic() + timeout
    ready = asyncio.ensure_future(channel.channel_ready())
    mismatch = asyncio.ensure_future(_mismatch(address, encrypted, min(PROBE_AFTER, timeout)))
    try:
        await asyncio.wait([ready, mismatch], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done() and not (mismatch.done() and mismatch.result()):
            await asyncio.wait([ready], timeout=max(0.0, end - time.monotonic()))
        if ready.done():
            ready.result()
            return
        reason = await mismatch
    finally:
        ready.cancel()
        mismatch.cancel()
    if reason is None:
        how, remedy = "", f"start one with: whamming serve --listen {address}"
        if encrypted:
            how = " by TLS"
            remedy = "its certificate must be for that name, from an authority that you trust; it may ask you for yours"
        reason = f"no server answers at {address}{how} within {timeout} s; {remedy}"
    raise UnavailableError(reason)


async def _mismatch(address: str, encrypted: bool, after: float) -> str | None:
    """After some seconds, ask the port for the other protocol; returns what to tell the user if it speaks that."""
    await asyncio.sleep(after)
    host, port = split_address(address)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PROBE_SECONDS):
            if encrypted and await _speaks_http2(host, port):
                return f"the server at {address} does not use TLS; connect without it"
            if not encrypted and await _speaks_tls(host, port):
                return (
                    f"the server at {address} expects TLS; connect by TLS, and give the file of the authority that "
                    "signed its certificate unless that is a public one"
                )
    return None


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the question is only whether it is TLS; nothing is sent
    context.set_alpn_protocols(["h2"])
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, EOFError):  # an SSLError is an OSError
        return False
    writer.transport.abort()  # without a farewell: some event loops wait half a minute for the other's
    return True


async def _speaks_http2(host: str, port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        writer.write(_HTTP2_PREFACE)
        head = await reader.readexactly(9)
    except (OSError, EOFError):
        return False
    finally:
        writer.transport.abort()
    return head[3] == _SETTINGS_FRAME


@contextlib.contextmanager
def shared_poller(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let several event loops of one process use gRPC without a word on the error stream.

    All loops watch the same socket of gRPC's poller. When it becomes readable, all are woken, one reads it, and the
    others fail with BlockingIOError, which their loops would print with a traceback. The one that reads passes events
    to the loops that they belong to, and fails with RuntimeError if such a loop has been closed. Nothing is lost, since
    each event has its own byte in the socket. gRPC registers its callback with a loop when a channel is opened in it,
    so that is where this makes the callback ignore both errors.
    """
    add_reader = loop.add_reader

    def add_patient_reader(fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        def read() -> None:
            try:
                callback(*args)
            except BlockingIOError:
                pass
            except RuntimeError as error:
                if "closed" not in str(error):
                    raise

        add_reader(fd, read)

    loop.add_reader = add_patient_reader  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del loop.add_reader  # the class's own is back
