"""Calls passed on to another server process as they are, byte for byte: where several share a database, one writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Set
from typing import Any

import grpc

from whamming.server.rpc.methods import Context
from whamming.server.rpc.status import reporting
from whamming.wire.call_status import Ending


class Forwarding(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Serves some methods by calling them elsewhere."""

    def __init__(self, target: str, methods: Set[str]) -> None:
        """Connect to ``target`` when the first call comes; ``methods`` are as in ``/package.Service/Method``."""
        self._methods = methods
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(target, options=unlimited)

    def service(self, details: Any) -> Any:
        """Return the handler of a method that is passed on; None: it is not."""
        if details.method not in self._methods:
            return None
        method: str = details.method

        async def serve(requests: AsyncIterator[bytes], context: Context) -> None:
            async with reporting(context):
                call = self._channel.stream_stream(method)()
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

        # On the wire a single message is a stream of one, so that one way serves every kind of method.
        return grpc.stream_stream_rpc_method_handler(serve)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


async def _send(call: Any, requests: AsyncIterator[bytes]) -> None:
    try:
        async for data in requests:
            await call.write(data)
        await call.done_writing()
    except (grpc.RpcError, asyncio.InvalidStateError):
        pass  # reading tells why
