"""A bare HTTP/2 client that sends single frames, for behaviour that a gRPC client does not show: half-sent messages,
rapid resets, floods of control frames.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Final, Self

from tests.serving import PATIENCE

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
CANCEL: Final = 8
PIECE: Final = 16_384
"""The largest frame that a server must accept."""


def headers_of(path: str) -> bytes:
    """Return the header block of a gRPC call, without compression."""
    fields = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    )
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(value: str) -> bytes:
    data = value.encode()
    assert len(data) < 127
    return bytes([len(data)]) + data


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return the bytes of a frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


class RawConnection:
    """One connection to a server. Use it in a ``with`` block."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.send(SETTINGS, 0, 0, b"")
        self._next = 1
        self._received = b""
        self._closed = False
        self._initial = 65_535
        self._connection_window = 65_535
        self._windows: dict[int, int] = {}
        self.settings: dict[int, int] = {}
        """Settings that the server has sent."""
        self.frames: list[tuple[int, int, int, bytes]] = []
        """Type, flags, stream and payload of each frame received, except SETTINGS, PING, and WINDOW_UPDATE."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Send a frame."""
        self.send_bytes(frame(kind, flags, stream, payload))

    def send_bytes(self, data: bytes) -> None:
        """Send any bytes."""
        self._socket.sendall(data)

    def is_open(self) -> bool:
        """Return whether the server has not closed the connection, nor said that it will."""
        self.receive(0)
        return not self._closed and not any(kind == GOAWAY for kind, _, _, _ in self.frames)

    def call(self, path: str) -> int:
        """Begin a call. Returns its stream."""
        stream, self._next = self._next, self._next + 2
        self.send(HEADERS, END_HEADERS, stream, headers_of(path))
        self._windows[stream] = 0
        return stream

    def write(self, stream: int, data: bytes) -> int:
        """Send data, as much as the server's windows allow now. Returns the number of bytes sent."""
        sent = 0
        while sent < len(data):
            self.receive(0)
            room = min(self._initial + self._windows[stream], self._connection_window, PIECE, len(data) - sent)
            if room <= 0:
                break
            self.send(DATA, 0, stream, data[sent : sent + room])
            self._windows[stream] -= room
            self._connection_window -= room
            sent += room
        return sent

    def reset(self, stream: int) -> None:
        """Cancel a call."""
        self.send(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))

    def ended(self) -> set[int]:
        """Return the calls that the server has ended so far."""
        self.receive(0)
        return {stream for kind, flags, stream, _ in self.frames if kind == RST_STREAM or flags & END_STREAM}

    def receive(self, seconds: float) -> None:
        """Read the frames that arrive within a time, or those that have arrived if it is 0."""
        self._socket.settimeout(seconds or 1e-6)
        with contextlib.suppress(TimeoutError, BlockingIOError):
            while data := self._socket.recv(1 << 16):
                self._received += data
                self._socket.settimeout(1e-6)
            self._closed = True
        self._socket.settimeout(PATIENCE)
        for kind, flags, stream, payload in self._frames():
            self._take(kind, flags, stream, payload)

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3])
            if len(self._received) < 9 + size:
                return
            kind, flags, stream = self._received[3], self._received[4], int.from_bytes(self._received[5:9])
            payload, self._received = self._received[9 : 9 + size], self._received[9 + size :]
            yield kind, flags, stream, payload

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for first in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[first : first + 6])
                self.settings[name] = value
            self._initial = self.settings.get(INITIAL_WINDOW_SIZE, 65_535)
            self.send(SETTINGS, ACK, 0, b"")
        elif kind == WINDOW_UPDATE:
            more = int.from_bytes(payload)
            if stream:
                self._windows[stream] = self._windows.get(stream, 0) + more
            else:
                self._connection_window += more
        elif kind == PING and not flags & ACK:
            self.send(PING, ACK, 0, payload)
        elif kind not in (SETTINGS, PING):
            self.frames.append((kind, flags, stream, payload))
