"""Retries calls while the server is unreachable or overloaded, and turns gRPC failures into our errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from whamming.remote.status import error_of_call, invalid_response
from whamming.storage import ClosedError
from whamming.wire.call_status import Ending
from whamming.wire.service_errors import OverloadedError, ServiceError, UnavailableError

T = TypeVar("T")


class Retries:
    """Retries calls for at most ``seconds`` after the first failure."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def begin(self) -> Attempts:
        return Attempts(self._seconds)

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call that is safe to repeat."""
        attempts = self.begin()
        while True:
            try:
                return await once(call)
            except (UnavailableError, OverloadedError) as error:
                await attempts.wait(error)


class Attempts:
    """Exponential backoff between the attempts of one call."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Start over after a success."""
        self._until: float | None = None  # the time for retries starts at the next failure
        self._delay = 0.05

    async def wait(self, error: ServiceError) -> None:
        """Wait before the next attempt. Raises ``error`` if the time for retries would be over by then."""
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._seconds
        if now + self._delay > self._until:
            raise error
        await asyncio.sleep(self._delay)
        self._delay = min(2 * self._delay, 1.0)


async def responses_of(call: Callable[[], Any]) -> AsyncGenerator[Any, None]:
    """Yield the responses of a call, and raise our errors if it fails. Closing the generator cancels the call."""
    try:
        under_way = call()
    except grpc.aio.UsageError:
        raise ClosedError("the connection is closed; connect again") from None
    try:
        async for response in responses(under_way):
            yield response
    finally:
        under_way.cancel()


def responses(call: Any) -> AsyncGenerator[Any, None]:
    """Return the responses of a call that was just opened. If the call fails, the generator raises our errors."""
    return _responses(call, Ending(call))


async def _responses(call: Any, ending: Ending) -> AsyncGenerator[Any, None]:
    try:
        async for response in call:
            if response is None:  # gRPC could not parse it
                raise invalid_response("its bytes are not the expected message")
            yield response
    except grpc.aio.AioRpcError as error:
        failure = error_of_call(ending.error(error))
        raise failure from failure.__cause__


async def once(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call without retries, and raise our errors if it fails."""
    try:
        return await call()
    except grpc.aio.AioRpcError as error:
        failure = error_of_call(error)
        raise failure from failure.__cause__
    except grpc.aio.UsageError:
        raise ClosedError("the connection is closed; connect again") from None
