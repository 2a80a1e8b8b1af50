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

from whamming.server.rpc.status import reporting
from whamming.wire.fields import FieldError

Context: TypeAlias = Any
"""A ``grpc.aio.ServicerContext``. gRPC has no type hints."""

M = TypeVar("M")
Receive = Callable[[], Awaitable[M | None]]
"""Returns the next message of a stream, or None if the client has closed its side."""
Send = Callable[[M], Awaitable[None]]
"""Sends a message on a stream."""


def handler(service: ServiceDescriptor, implementation: object, admit: Callable[[], Any]) -> grpc.GenericRpcHandler:
    """Return the handler of a service. ``implementation`` has a method for each rpc, with the same name.

    ``admit`` returns a context manager that wraps each call. It raises if there are too many calls.
    """
    methods = {method.name: _method(method, getattr(implementation, method.name), admit) for method in service.methods}
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _method(method: MethodDescriptor, call: Callable[..., Any], admit: Callable[[], Any]) -> grpc.RpcMethodHandler:
    kind = message_factory.GetMessageClass(method.input_type)

    def read(data: bytes) -> Message:
        try:
            return kind.FromString(data)
        except DecodeError as error:
            raise FieldError(
                "request", f"{len(data)} bytes are not a valid {method.input_type.full_name}: {error}"
            ) from error

    async def answer(data: bytes, context: Context) -> bytes:
        async with reporting(context):
            try:
                with admit():
                    response: Message = await call(read(data), context)
                    return response.SerializeToString()
            finally:
                data = b""  # gRPC may keep this frame alive; see reporting
        raise AssertionError("unreachable: reporting has aborted the call")

    async def stream(data: bytes, context: Context) -> None:
        async with reporting(context):
            try:
                with admit():
                    async for response in call(read(data), context):
                        await context.write(response.SerializeToString())
            finally:
                data = b""

    async def converse(unused: object, context: Context) -> None:
        async def receive() -> Message | None:
            data = await context.read()
            return None if data is grpc.aio.EOF else read(data)

        async def send(response: Message) -> None:
            await context.write(response.SerializeToString())

        async with reporting(context):
            with admit():
                await call(receive, send)

    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(converse)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(stream)
    return grpc.unary_unary_rpc_method_handler(answer)
