"""Tests of how long calls are retried while the server is unreachable."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest

from whamming.remote.retries import Attempts, Retries, once
from whamming.wire.service_errors import ServiceError, UnavailableError


class Clock:
    """A fake clock. Time passes during ``asyncio.sleep``, or when a test sets ``now``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("whamming.remote.retries.time.monotonic", lambda: self.now)
        monkeypatch.setattr("whamming.remote.retries.asyncio.sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def attempts_until_raised(attempts: Attempts) -> int:
    count = 0
    with contextlib.suppress(UnavailableError):
        while True:
            asyncio.run(attempts.wait(UnavailableError("away")))
            count += 1
    return count


def test_the_time_limit_starts_at_the_first_failure(clock: Clock) -> None:
    """A search may be idle for hours before its connection breaks."""
    attempts = Attempts(10.0)
    clock.now += 3600
    start = clock.now
    assert attempts_until_raised(attempts) > 5
    assert 8 < clock.now - start <= 10
    attempts.reset()
    clock.now += 3600
    start = clock.now
    assert attempts_until_raised(attempts) > 5
    assert 8 < clock.now - start <= 10


def test_zero_seconds_means_no_retries(clock: Clock) -> None:
    assert attempts_until_raised(Attempts(0.0)) == 0


def test_pauses_double_up_to_a_second(clock: Clock) -> None:
    attempts = Attempts(100.0)
    pauses = []
    for _ in range(8):
        before = clock.now
        asyncio.run(attempts.wait(UnavailableError("away")))
        pauses.append(round(clock.now - before, 6))
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("code", ["CANCELLED", "UNAVAILABLE", "RESOURCE_EXHAUSTED"])
async def test_refusals_of_the_transport_are_retried(code: str) -> None:
    """gRPC ends calls without our details, for example if too many wait to be accepted."""
    attempts = 0

    class Refusing(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            async def answer(request: bytes, context: Any) -> bytes:
                nonlocal attempts
                attempts += 1
                if attempts < 3:
                    await context.abort(grpc.StatusCode[code], "refused")
                return request

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Refusing(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary("/any/Method")
        assert await Retries(30.0).run(lambda: method(b"x")) == b"x"
        assert attempts == 3
    await server.stop(None)


@pytest.mark.parametrize(("code", "is_unexpected"), [("UNAVAILABLE", False), ("UNIMPLEMENTED", True)])
async def test_only_unexpected_errors_have_the_error_of_grpc_as_cause(code: str, is_unexpected: bool) -> None:
    class Failing(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            async def answer(request: bytes, context: Any) -> bytes:
                await context.abort(grpc.StatusCode[code], "no")
                return b""

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Failing(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(ServiceError) as caught:
                await once(lambda: channel.unary_unary("/any/Call")(b""))
    finally:
        await server.stop(None)
    assert isinstance(caught.value.__cause__, grpc.RpcError) == is_unexpected
    assert caught.value.__suppress_context__
