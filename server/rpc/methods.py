"""Build gRPC handlers from the services that the protos describe.

Every handler does the same three things: parse the message, call the service, translate errors to statuses. Messages
are parsed here and not by gRPC, so that a client that sends invalid bytes gets a status that says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from whamming.server.rpc.clients import ClientCall, Clients
from whamming.server.rpc.status import reporting
from whamming.wire.fields import FieldError

Context: TypeAlias = ClientCall
"""What a service knows about a call besides its messages."""

M = TypeVar("M")
Receive = Callable[[], Awaitable[M | None]]
"""Returns the next message of a stream, or None if the client has closed its side."""
Send = Callable[[M], Awaitable[None]]
"""Sends a message on a stream."""


def handler(service: ServiceDescriptor, implementation: object, clients: Clients) -> grpc.GenericRpcHandler:
    """Return the handler of a service. ``implementation`` has a method for each rpc, with the same name.

    ``clients`` refuses calls if there are too many.
    """
    methods = {
        method.name: _method(method, getattr(implementation, method.name), clients) for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _method(method: MethodDescriptor, call: Callable[..., Any], clients: Clients) -> grpc.RpcMethodHandler:
    kind = message_factory.GetMessageClass(method.input_type)

    def read(data: bytes) -> Message:
        try:
            return kind.FromString(data)
        except DecodeError as error:
            raise FieldError(
                "request", f"{len(data)} bytes are not a valid {method.input_type.full_name}: {error}"
            ) from error

    async def answer(data: bytes, context: Any) -> bytes:
        async with reporting(context):
            try:
                with clients.call(context) as running:
                    response: Message = await call(read(data), running)
                    return response.SerializeToString()
            finally:
                data = b""  # gRPC may keep this frame alive; see reporting
        raise AssertionError("unreachable: reporting has aborted the call")

    async def stream(data: bytes, context: Any) -> None:
        async with reporting(context):
            try:
                with clients.call(context) as running:
                    async for response in call(read(data), running):
                        await context.write(response.SerializeToString())
            finally:
                data = b""

    async def converse(unused: object, context: Any) -> None:
        async def receive() -> Message | None:
            data = await context.read()
            return None if data is grpc.aio.EOF else read(data)

        async def send(response: Message) -> None:
            await context.write(response.SerializeToString())

        async with reporting(context):
            with clients.call(context) as running:
                await call(receive, send, running)

    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(converse)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(stream)
    return grpc.unary_unary_rpc_method_handler(answer)
