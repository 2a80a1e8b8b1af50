"""Forward calls from a reader process to the writer process, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Set
from typing import Any

import grpc

from whamming.server.rpc.clients import FORWARDED, name_of
from whamming.server.rpc.status import reporting
from whamming.wire.call_status import Ending


class Forwarding(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handles some methods by forwarding them to another server."""

    def __init__(self, target: str, methods: Set[str]) -> None:
        """Connect to ``target`` on the first call. ``methods`` have the form ``/package.Service/Method``."""
        self._methods = methods
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(target, options=unlimited)

    def service(self, details: Any) -> Any:
        """Return the handler of a forwarded method, or None for any other method."""
        if details.method not in self._methods:
            return None
        method: str = details.method

        async def serve(requests: AsyncIterator[bytes], context: Any) -> None:
            async with reporting(context):
                call = self._channel.stream_stream(method)(metadata=((FORWARDED, name_of(context)),))
                ending = Ending(call)
                sending = asyncio.create_task(_send(call, requests))
                try:
                    async for response in call:
                        await context.write(response)
                except grpc.aio.AioRpcError as raised:
                    error = ending.error(raised)
                    await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
                finally:
                    sending.cancel()
                    call.cancel()

        # In HTTP/2 a unary message is a stream of one message, so a streaming handler works for every kind of method.
        return grpc.stream_stream_rpc_method_handler(serve)

    async def close(self) -> None:
        await self._channel.close()


async def _send(call: Any, requests: AsyncIterator[bytes]) -> None:
    try:
        async for data in requests:
            await call.write(data)
        await call.done_writing()
    except (grpc.RpcError, asyncio.InvalidStateError):
        pass  # the loop that reads responses gets the error
