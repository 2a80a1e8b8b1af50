"""The status that the other side ended a call with, also where gRPC loses it.

Where a message is being written when the server ends a call, grpc.aio puts an error of its own in the place of the
server's status (https://github.com/grpc/grpc/issues/36066). So the status is noted when it comes.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import grpc

T = TypeVar("T")

WRITE_FAILED: Final = "Internal error from Core"
"""What gRPC says of a call that ended while a message was being written."""


class Ending:
    """How a call ends, to be made when it has just been opened."""

    def __init__(self, call: Any) -> None:
        """Listen."""
        self._noted: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note)

    def error(self, raised: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Return what the call failed for; ``raised`` is what gRPC says of it."""
        if raised.details() != WRITE_FAILED or self._noted is None:
            return raised
        if self._noted.code() == grpc.StatusCode.OK or self._noted.details() == WRITE_FAILED:
            nothing = grpc.aio.Metadata()
            text = "the call ended while a message was being sent"
            return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, text)
        return self._noted

    def _note(self, call: Any) -> None:
        if self._noted is None:
            nothing = grpc.aio.Metadata()
            trailing = _at_once(call.trailing_metadata()) or nothing
            self._noted = grpc.aio.AioRpcError(_at_once(call.code()), nothing, trailing, _at_once(call.details()))


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that has nothing to wait for: the call has ended."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("the call has not ended")
