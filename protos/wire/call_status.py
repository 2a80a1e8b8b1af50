"""Work around a bug in gRPC that hides the status with which a call ended.

If the server ends a call while a message is being written, grpc.aio raises an error of its own instead of the server's
status (https://github.com/grpc/grpc/issues/36066). :class:`Ending` records the status when it arrives.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import grpc

T = TypeVar("T")

WRITE_FAILED: Final = "Internal error from Core"
"""The text of the error that gRPC raises if a call ends while a message is being written."""


class Ending:
    """Records how a call ends. Create it right after the call is opened."""

    def __init__(self, call: Any) -> None:
        self._noted: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note)

    def error(self, raised: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Return the error that the call really ended with, given the one that gRPC ``raised``.

        If gRPC has lost the status, the error is UNAVAILABLE.
        """
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
    """Return the result of a coroutine that completes without waiting, because the call has ended."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("the call has not ended")
