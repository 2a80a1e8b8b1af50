"""A server with scripted responses to Search calls, for situations that are rare on a real server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import numpy as np

from whamming.remote.retries import Retries
from whamming.remote.search import Connection
from whamming.remote.session import Session
from whamming.v1 import search_pb2
from whamming.v1.search_pb2_grpc import SearchServiceStub
from whamming.wire.columns import id_column

Responses = Sequence[search_pb2.SearchResponse | bytes | grpc.StatusCode]
"""The responses to a message. Bytes are sent as they are. A status ends the call."""
Answer = Callable[[search_pb2.SearchRequest], Responses]


class Scripted:
    """Responds to each message of a Search call with ``answer(message)``."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.received: list[search_pb2.SearchRequest] = []

    async def search(
        self, requests: AsyncIterator[search_pb2.SearchRequest], context: Any
    ) -> AsyncIterator[search_pb2.SearchResponse | bytes]:
        async for request in requests:
            self.received.append(request)
            for response in self._answer(request):
                if isinstance(response, grpc.StatusCode):
                    await context.abort(response, "gone")
                else:
                    yield response

    @property
    def queries(self) -> list[search_pb2.QueryBatch]:
        """The messages with queries."""
        return [request.queries for request in self.received if request.WhichOneof("request") == "queries"]


@contextlib.asynccontextmanager
async def serving(
    script: Scripted, retry_seconds: float, stub_of: Callable[[grpc.aio.Channel], Any] = SearchServiceStub
) -> AsyncIterator[Connection]:
    """Start a scripted server and connect to it."""
    server = grpc.aio.server()
    method = grpc.stream_stream_rpc_method_handler(
        script.search,
        request_deserializer=search_pb2.SearchRequest.FromString,
        response_serializer=lambda some: some if isinstance(some, bytes) else some.SerializeToString(),
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("whamming.v1.SearchService", {"Search": method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = stub_of(channel)
            session = Session(stub)
            yield Connection(stub, session, Retries(retry_seconds))
            await session.close()
    finally:
        await server.stop(None)


def chunk(query_id: int, hits: Sequence[tuple[int, float]] = ()) -> search_pb2.SearchResponse:
    """Return a response with hits, each an id and a distance."""
    return search_pb2.SearchResponse(
        query_ids=[query_id],
        counts=[len(hits)],
        ids=id_column(np.array([id_ for id_, _ in hits], dtype=np.uint64)),
        distances=np.array([distance for _, distance in hits], dtype="<f8").tobytes(),
        lower_bounds=[hits[-1][1] if hits else float("-inf")],
    )


def ended(
    query_id: int,
    reason: search_pb2.EndReason,
    hits: Sequence[tuple[int, float]] = (),
    error: search_pb2.QueryError | None = None,
) -> search_pb2.SearchResponse:
    """Return the last response to a query."""
    response = chunk(query_id, hits)
    response.ends.query_ids.append(query_id)
    response.ends.reasons.append(reason)
    response.ends.exact.append(reason != search_pb2.END_REASON_FAILED)
    if error is not None:
        error.query_id = query_id
        response.ends.errors.append(error)
    for column in response.ends.statistics.DESCRIPTOR.fields:
        getattr(response.ends.statistics, column.name).append(0)
    return response
