"""Opens gRPC channels: checks the address, waits for the connection, and explains why it failed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from whamming.native import InvalidArgumentError
from whamming.remote.tls import Tls
from whamming.wire.service_errors import UnavailableError

RECEIVE_BYTES: Final = 64 << 20
NO_RETRIES: Final = ("grpc.enable_retries", 0)
"""gRPC retries calls that no server has handled. If a server shuts down, it may do so without a pause and without end,
and take gigabytes of memory in seconds. The client retries calls itself."""
OPTIONS: Final = [
    NO_RETRIES,
    ("grpc.max_receive_message_length", RECEIVE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

PROBE_AFTER: Final = 0.5
"""Seconds without a connection after which the port is probed for the other protocol: TLS or plain HTTP/2."""
CAUSE_SECONDS: Final = 1.0
"""Time limit for asking gRPC why a handshake failed."""
PROBE_SECONDS: Final = 2.0
"""Time limit of a probe."""

_ADDRESS: Final = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\]):(?P<port>[0-9]{1,5})")
_REFUSALS: Final = (
    (re.compile(r"CERTIFICATE_VERIFY_FAILED: (.+?)(?:: OK)?$"), "the server's certificate was refused: {}"),
    (re.compile(r"Hostname Verification"), "the server's certificate is for another name"),
    (re.compile(r"Socket closed|[Cc]onnection reset"), "the server ended the connection"),
)
"""What gRPC says about handshakes that fail, and what we say."""
_HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first bytes of an HTTP/2 client without TLS: the connection preface and an empty SETTINGS frame."""
_SETTINGS_FRAME: Final = 4


def split_address(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT``. Raises :class:`InvalidArgumentError` for anything else."""
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if match is None or not 1 <= int(match["port"]) <= 65_535:
        raise InvalidArgumentError(
            f"address = {address!r}; it must be HOST:PORT, as in localhost:7777 or [::1]:7777, with port 1 to 65535"
        )
    return match["host"].strip("[]"), int(match["port"])


async def open_channel(address: str, tls: Tls | bool, timeout: float) -> grpc.aio.Channel:
    """Open a channel. If no server answers in time, raise :class:`UnavailableError` with the likely reason."""
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
    """Wait until the channel is connected. If that takes long, probe the port for the other protocol meanwhile."""
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
        how, how_it_failed, remedy = "", "", f"start one with: whamming serve --listen {address}"
        if encrypted:
            how = " over TLS"
            remedy = (
                "check that the server is running, that its certificate is valid for this name and signed by an "
                "authority you trust, and that you send a client certificate if it requires one"
            )
            cause = await _refusal(channel)
            how_it_failed = f" ({cause})" if cause else ""
        reason = f"no server answers at {address}{how} within {timeout:g} s{how_it_failed}; {remedy}"
    raise UnavailableError(reason)


async def _refusal(channel: grpc.aio.Channel) -> str:
    """Return why the handshake of a channel failed, as gRPC tells it, or an empty string."""
    call: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
    try:
        await call(b"", timeout=CAUSE_SECONDS)
    except grpc.aio.AioRpcError as error:
        text = error.details() or ""
        for pattern, cause in _REFUSALS:
            if found := pattern.search(text):
                return cause.format(*found.groups())
    return ""


async def _mismatch(address: str, encrypted: bool, after: float) -> str | None:
    """After ``after`` seconds, look the host up, and probe the port for the other protocol.

    Return an error message if the host is unknown or the other protocol answers.
    """
    await asyncio.sleep(after)
    host, port = split_address(address)
    try:
        await asyncio.get_running_loop().getaddrinfo(host, port)
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:
            return f"the host {host} is unknown; check the address {address}"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PROBE_SECONDS):
            if encrypted and await _speaks_http2(host, port):
                return f"the server at {address} does not use TLS; connect without TLS"
            if not encrypted and await _speaks_tls(host, port):
                return (
                    f"the server at {address} requires TLS; connect with TLS, and if its certificate is not from a "
                    "public authority, give the file of the authority that signed it"
                )
    return None


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # only finds out whether the port uses TLS; nothing is sent
    context.set_alpn_protocols(["h2"])
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, EOFError):  # an SSLError is an OSError
        return False
    writer.transport.abort()  # not close(): some event loops then wait 30 s for the server's close_notify
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
    """Let several event loops of one process use gRPC without printing tracebacks.

    All loops watch the same socket of gRPC's poller. When it becomes readable, all loops wake up. One of them reads it,
    and the others get a BlockingIOError, which they would print with a traceback. The loop that reads passes each event
    to the loop it belongs to, and gets a RuntimeError if that loop is closed. No event is lost, because each one has
    its own byte in the socket. So both errors can be ignored. gRPC registers its callback with a loop when a channel is
    opened, so this context manager wraps the callback at that time.
    """
    add_reader = loop.add_reader

    def add_quiet_reader(fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        def read() -> None:
            try:
                callback(*args)
            except BlockingIOError:
                pass
            except OSError as error:
                if error.errno != errno.EBADF:  # gRPC has closed the socket, as its last loop has ended
                    raise
            except RuntimeError as error:
                if "closed" not in str(error):
                    raise

        add_reader(fd, read)

    loop.add_reader = add_quiet_reader  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del loop.add_reader  # restores the method of the class
