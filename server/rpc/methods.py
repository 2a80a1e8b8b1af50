"""Build gRPC handlers from the services that the protos describe.

Every handler does the same three things: parse the message, call the service, translate errors to statuses. Messages
are parsed here and not by gRPC, so that a client that sends invalid bytes gets a status that says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from whamming.server.rpc.answer_memory import LARGE_ANSWERS
from whamming.server.rpc.clients import ClientCall, Clients
from whamming.server.rpc.parsing import parse
from whamming.server.rpc.status import reporting
from whamming.wire.fields import FieldError

Context: TypeAlias = Any
"""What a service knows about a call besides its messages: a :class:`ClientCall`. Most services do not use it."""

M = TypeVar("M")
Receive = Callable[[], Awaitable[M | None]]
"""Returns the next message of a stream, or None if the client has closed its side."""
Send = Callable[[M], Awaitable[None]]
"""Sends a message on a stream."""


async def _next(responses: AsyncIterator[Message]) -> bytes | None:
    """Return the next response as bytes, or None at the end. The message is freed before the bytes are sent."""
    response = await anext(responses, None)
    return None if response is None else response.SerializeToString()


async def _nothing(request: Message) -> None:
    """Do not wait."""


def handler(
    service: ServiceDescriptor,
    implementation: object,
    clients: Clients,
    before: Callable[[Any], Awaitable[None]] = _nothing,
) -> grpc.GenericRpcHandler:
    """Return the handler of a service. ``implementation`` has a method for each rpc, with the same name.

    ``clients`` refuses calls if there are too many. ``before`` is awaited for each request, before it is handled.
    """
    methods = {
        method.name: _method(method, getattr(implementation, method.name), clients, before)
        for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _method(
    method: MethodDescriptor,
    call: Callable[..., Any],
    clients: Clients,
    before: Callable[[Any], Awaitable[None]],
) -> grpc.RpcMethodHandler:
    answer_bytes = LARGE_ANSWERS.get(f"/{method.containing_service.full_name}/{method.name}", 0)
    kind = message_factory.GetMessageClass(method.input_type)

    async def read(data: bytes) -> Message:
        request: Message = parse(kind, data)
        await before(request)
        return request

    async def receive_one(running: ClientCall, context: Any) -> Message:
        data = await running.receive(context.read)
        if data is None:
            raise FieldError("request", "the call ended without a message; send one")
        return await read(data)

    async def respond(running: ClientCall, context: Any) -> bytes:
        request = await receive_one(running, context)
        await running.reserve_answer(answer_bytes)
        response: Message = await call(request, running)
        return response.SerializeToString()

    async def answer(unused: object, context: Any) -> None:
        async with reporting(context):
            with clients.call(context) as running:
                data = await respond(running, context)
                running.forget_message()  # so that the call is not ended to make room: gRPC would keep the answer
                await context.write(data)  # returning it would end the block before gRPC has sent it

    async def stream(unused: object, context: Any) -> None:
        async with reporting(context):
            with clients.call(context) as running:
                responses = call(await receive_one(running, context), running)
                while (data := await _next(responses)) is not None:
                    await context.write(data)
                    running.touch()

    async def converse(unused: object, context: Any) -> None:
        async def receive() -> Message | None:
            data = await running.receive(context.read)
            return None if data is None else await read(data)

        async def send(response: Message) -> None:
            await context.write(response.SerializeToString())
            running.touch()

        async with reporting(context):
            with clients.call(context) as running:
                await call(receive, send, running)

    # All handlers are for streams, even those of unary methods, because only such handlers can decide when gRPC
    # receives a message, and wait until it has sent one. In HTTP/2 a unary call is two streams of one message each.
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(converse)
    if method.server_streaming:
        return grpc.stream_stream_rpc_method_handler(stream)
    return grpc.stream_stream_rpc_method_handler(answer)
