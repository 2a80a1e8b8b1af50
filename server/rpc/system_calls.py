"""Health checks and reflection: their handlers come with gRPC, and would receive messages without limits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from whamming.server.rpc.clients import ClientCall, Clients
from whamming.server.rpc.status import reporting
from whamming.wire.fields import FieldError

SYSTEM_BYTES: Final = 4096
"""Maximum size of a request. It has a name in it. Parsed, it can take 33 times its size."""


class SystemCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Makes the handlers of gRPC's own services receive messages as ours do."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Return the handler of a method."""
        handler = await continuation(details)
        if handler is None or not details.method.startswith("/grpc."):
            return handler
        return _bounded(handler, self._clients)


def _bounded(handler: Any, clients: Clients) -> Any:
    async def receive(running: ClientCall, context: Any) -> Any:
        data = await running.receive(context.read)
        if data is not None and len(data) > SYSTEM_BYTES:
            raise FieldError("request", f"the request has {len(data)} bytes; the maximum is {SYSTEM_BYTES}")
        try:
            return None if data is None else handler.request_deserializer(data)
        except DecodeError as error:
            raise FieldError("request", f"the request is not valid: {error}") from error

    async def receive_one(running: ClientCall, context: Any) -> Any:
        request = await receive(running, context)
        if request is None:
            raise FieldError("request", "the call ended without a message; send one")
        return request

    async def answer(unused: object, context: Any) -> Any:
        async with reporting(context):
            with clients.system_call(context) as running:
                return await handler.unary_unary(await receive_one(running, context), context)
        raise AssertionError("unreachable: reporting has aborted the call")

    async def stream(unused: object, context: Any) -> None:
        async with reporting(context):
            with clients.system_call(context) as running:
                await handler.unary_stream(await receive_one(running, context), context)

    async def converse(unused: object, context: Any) -> None:
        async def requests() -> AsyncIterator[Any]:
            while (request := await receive(running, context)) is not None:
                yield request

        async with reporting(context):
            with clients.system_call(context) as running:
                async for response in handler.stream_stream(requests(), context):
                    await context.write(response)

    kind, call = grpc.stream_stream_rpc_method_handler, converse
    if handler.unary_unary is not None:
        kind, call = grpc.stream_unary_rpc_method_handler, answer
    elif handler.unary_stream is not None:
        call = stream
    return kind(call, response_serializer=handler.response_serializer)
