"""Multiplexes the searches of a client over one Search call, so that a query costs a message, not a call.

Each ``search_batch`` has a call of its own instead (``batch.py``).

Each query has its own id. One task sends requests; another distributes the chunks that arrive. When the call breaks,
for whatever reason, every running query gets the error, and the next query opens a new call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

import grpc

from whamming.native import WhammingError
from whamming.remote.answers import Chunk, chunks_of
from whamming.remote.retries import responses
from whamming.remote.status import invalid_response
from whamming.storage import ClosedError
from whamming.v1 import search_pb2
from whamming.wire.service_errors import ServiceError, UnavailableError

Inbox = asyncio.Queue[Chunk | WhammingError]


class Session:
    """A Search call that is opened on demand. Only one event loop may use it."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self._ids = itertools.count(1)
        self._inboxes: dict[int, Inbox] = {}
        self._outbox: asyncio.Queue[search_pb2.SearchRequest] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._call: Any = None

    def start(self, request: search_pb2.SearchRequest) -> tuple[int, Inbox]:
        """Send one query. The caller must not change the request before its first chunk arrives.

        Returns the query's id, and the queue that will receive its chunks.
        """
        if self._call is None:
            self._open()
        query_id = next(self._ids)
        request.queries.query_ids[:] = [query_id]
        inbox: Inbox = asyncio.Queue()
        self._inboxes[query_id] = inbox
        self._send(request)
        return query_id, inbox

    def grant(self, query_id: int, hits: int) -> None:
        """Allow the server to send more hits of a query."""
        self._send(search_pb2.SearchRequest(grant=search_pb2.GrantCredit(query_id=query_id, hits=hits)))

    def forget(self, query_id: int) -> None:
        """Cancel a query if it is still running."""
        if self._inboxes.pop(query_id, None) is not None:
            self._send(search_pb2.SearchRequest(cancel=search_pb2.CancelQueries(query_ids=[query_id])))

    async def close(self) -> None:
        self._break(UnavailableError("the connection was closed; connect again"))
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _open(self) -> None:
        try:
            call = self._call = self._stub.Search()
        except grpc.aio.UsageError:
            raise ClosedError("the connection is closed; connect again") from None
        self._outbox = asyncio.Queue()
        for task in self._tasks:
            task.cancel()
        self._tasks = [
            asyncio.create_task(self._write(call, self._outbox)),
            asyncio.create_task(self._read(call)),
        ]

    def _send(self, request: search_pb2.SearchRequest) -> None:
        if self._call is not None:
            self._outbox.put_nowait(request)

    async def _write(self, call: Any, outbox: asyncio.Queue[search_pb2.SearchRequest]) -> None:
        try:
            while True:
                await call.write(await outbox.get())
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # the reading task gets the error, and passes it to the queries
        except Exception as failure:
            error = ServiceError(f"a request could not be sent: {failure!r}")
            error.__cause__ = failure
            self._end(call, error)

    async def _read(self, call: Any) -> None:
        error: WhammingError = UnavailableError("the server ended the stream; it may be shutting down")
        try:
            async for response in responses(call):
                try:
                    self._distribute(response)
                except Exception as failure:
                    raise invalid_response(failure) from failure
        except WhammingError as failure:
            error = failure
        except asyncio.CancelledError:
            call.cancel()
            raise
        except Exception as failure:
            error = ServiceError(f"the responses could not be read: {failure!r}")
            error.__cause__ = failure
        self._end(call, error)

    def _distribute(self, response: search_pb2.SearchResponse) -> None:
        """Put the chunks of a message into the inboxes of their queries."""
        for query_id, chunk in chunks_of(response):
            ended = chunk.end is not None
            inbox = self._inboxes.pop(query_id, None) if ended else self._inboxes.get(query_id)
            if inbox is not None:
                inbox.put_nowait(chunk)

    def _end(self, call: Any, error: WhammingError) -> None:
        """Break the call, unless it is no longer the current one."""
        if self._call is call:
            self._break(error)

    def _break(self, error: WhammingError) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        inboxes, self._inboxes = self._inboxes, {}
        for inbox in inboxes.values():
            inbox.put_nowait(error)
