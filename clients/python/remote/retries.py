"""Calls made again while the server is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from whamming.remote.status import error_of_call
from whamming.storage import ClosedError
from whamming.wire.call_status import Ending
from whamming.wire.service_errors import OverloadedError, ServiceError, UnavailableError

T = TypeVar("T")


class Retries:
    """Repeats calls while the server is away."""

    def __init__(self, seconds: float) -> None:
        """Repeat for at most so long without success."""
        self._seconds = seconds

    def begin(self) -> Attempts:
        """Return a new count of attempts."""
        return Attempts(self._seconds)

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call that may be repeated."""
        attempts = self.begin()
        while True:
            try:
                return await once(call)
            except (UnavailableError, OverloadedError) as error:
                await attempts.wait(error)


class Attempts:
    """How often and for how long something has been tried in vain."""

    def __init__(self, seconds: float) -> None:
        """Start without any."""
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Start over, after a success."""
        self._until: float | None = None  # so long from the first failure on, not from the last success
        self._delay = 0.05

    async def wait(self, error: ServiceError) -> None:
        """Wait before the next attempt; raises the error where it has been long enough."""
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._seconds
        if now + self._delay > self._until:
            raise error
        await asyncio.sleep(self._delay)
        self._delay = min(2 * self._delay, 1.0)


async def responses_of(call: Callable[[], Any]) -> AsyncGenerator[Any, None]:
    """Yield what a call streams; its failure is raised as one of our errors. Letting go of this cancels it."""
    try:
        under_way = call()
    except grpc.aio.UsageError as error:
        raise ClosedError("the connection is closed; connect again") from error
    try:
        async for response in responses(under_way):
            yield response
    finally:
        under_way.cancel()


def responses(call: Any) -> AsyncGenerator[Any, None]:
    """Return what a call that has just been opened streams; its failure is raised as one of our errors."""
    return _responses(call, Ending(call))


async def _responses(call: Any, ending: Ending) -> AsyncGenerator[Any, None]:
    try:
        async for response in call:
            yield response
    except grpc.aio.AioRpcError as error:
        raise error_of_call(ending.error(error)) from error


async def once(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call; its failure is raised as one of our errors."""
    try:
        return await call()
    except grpc.aio.AioRpcError as error:
        raise error_of_call(error) from error
    except grpc.aio.UsageError as error:
        raise ClosedError("the connection is closed; connect again") from error
