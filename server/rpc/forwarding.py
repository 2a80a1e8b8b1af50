"""Forward calls from a reader process to the writer process, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Set
from typing import Any

import grpc

from whamming.server.rpc.answer_memory import LARGE_ANSWERS
from whamming.server.rpc.clients import FORWARDED, ClientCall, Clients
from whamming.server.rpc.own_writes import OwnWrites
from whamming.server.rpc.status import reporting
from whamming.server.rpc.storage_threads import StorageThreads
from whamming.wire.call_status import Ending


class Forwarding(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handles some methods by forwarding them to another server."""

    def __init__(self, target: str, methods: Set[str], clients: Clients, storage: StorageThreads) -> None:
        """Connect to ``target`` on the first call. ``methods`` have the form ``/package.Service/Method``."""
        self._clients = clients
        self._methods = methods
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_retries", 0),  # gRPC may retry without a pause while the writer stops
        ]
        self._channel = grpc.aio.insecure_channel(target, options=options)
        self.own_writes = OwnWrites(self._channel, storage)

    def service(self, details: Any) -> Any:
        """Return the handler of a forwarded method, or None for any other method."""
        if details.method not in self._methods:
            return None
        method: str = details.method

        async def serve(unused: object, context: Any) -> None:
            async with reporting(context):
                with self._clients.call(context) as running:
                    await running.reserve_answer(LARGE_ANSWERS.get(method, 0))
                    await forward(running, context)

        async def forward(running: ClientCall, context: Any) -> None:
            call = self._channel.stream_stream(method)(metadata=((FORWARDED, running.client.name),))
            ending, writes = Ending(call), self.own_writes.call(method)

            async def receive() -> bytes | None:
                data = await running.receive(context.read)
                if data is not None:
                    writes.sends(data)
                return data

            sending = asyncio.create_task(_send(call, receive, running))
            failed = None
            try:
                async for response in call:
                    writes.receives()
                    await context.write(response)
                    running.touch()
            except grpc.aio.AioRpcError as raised:
                sending.cancel()  # so that it does not end this call with another error
                error = ending.error(raised)
                failed = error.code(), error.details() or "", tuple(error.trailing_metadata() or ())
                del error  # it refers to this function, and so to the last message
            finally:
                sending.cancel()
                call.cancel()
            if failed is not None:
                await context.abort(*failed)

        # In HTTP/2 a unary request is a stream of one message, so a streaming handler works for every kind of method.
        return grpc.stream_stream_rpc_method_handler(serve)

    async def close(self) -> None:
        await self._channel.close()


async def _send(call: Any, receive: Callable[[], Awaitable[bytes | None]], running: ClientCall) -> None:
    try:
        while (data := await receive()) is not None:
            await call.write(data)
        await call.done_writing()
    except (grpc.RpcError, asyncio.InvalidStateError):
        pass  # the loop that reads responses gets the error
    except Exception as error:  # for example, the client sends nothing
        running.end(error)
