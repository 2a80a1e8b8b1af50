"""One Search call: it receives requests, has their queries searched, and sends the results.

The event loop only registers queries and moves messages. Workers open the index, take the snapshot, compute the costs
and search. Only short queries on an idle server run in the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from whamming.server.failures import failure_of
from whamming.server.search import results
from whamming.server.search.options import OptionsReader
from whamming.server.search.query import Query, State
from whamming.server.search.request import QueryRequest
from whamming.server.search.results import End, EndReason, Results, response
from whamming.server.search.scheduler import ClientQueue, Flow
from whamming.server.search.searcher import Searcher
from whamming.server.search.send_buffer import SendBuffer, Wakeup
from whamming.server.search.snapshot_lease import SnapshotLease
from whamming.v1 import search_pb2
from whamming.wire.fields import FieldError
from whamming.wire.service_errors import OverloadedError, UnavailableError

MAX_REQUEST_BYTES: Final = 64 << 20
"""While the requests of a call's running queries are larger than this in total, the call reads no further requests."""
CANCELLED_TOGETHER: Final = 100
"""Queries that a request cancels in one turn of the event loop."""

REFUSED_ENDS: Final = 128
"""Ends of refused queries that are sent together, with up to 1000 bytes of text each."""


class SearchCall:
    """A Search call. ``lock`` guards its queries, their states and the send buffer."""

    def __init__(
        self,
        searcher: Searcher,
        options_of: OptionsReader,
        client: ClientQueue | None = None,
        keep: Callable[[int], None] = lambda size: None,
        forget: Callable[[], None] = lambda: None,
        *,
        max_queries: int,
        buffer_bytes: int,
    ) -> None:
        """Create a call without queries. Must be called in the event loop of the call.

        ``client``: the queue of the client that made the call. None: a new queue for this call alone.
        ``keep``: receives the size of the requests in memory whenever it changes. Called in the event loop.
        ``forget``: called in the event loop when the latest request is not in use any more, unless it is kept.
        """
        self.lock = threading.Lock()
        self.flow = Flow(client)
        self.buffer = SendBuffer(buffer_bytes, self.lock)
        self.blocked: list[Query] = []
        """Queries that wait for room in the send buffer."""
        self._searcher = searcher
        self._options_of = options_of
        self._max_queries = max_queries
        self._queries: dict[int, Query] = {}
        """Running queries by id."""
        self.cursors = searcher.cursors
        self.turns = searcher.turns
        self._waiting_for_credit: set[Query] = set()
        self._keep = keep
        self._forget_request = forget
        self._request_bytes = 0
        """Size of the requests that have running queries."""
        self._stopped: EndReason | None = None
        self._draining = False
        self._reading = True
        self._room: Wakeup = Wakeup()
        """Wakes the reader when there may be room for more requests."""

    async def run(
        self,
        receive: Callable[[], Awaitable[search_pb2.SearchRequest | None]],
        send: Callable[[search_pb2.SearchResponse], Awaitable[None]],
    ) -> None:
        """Serve the call until the client has closed its side and all queries have ended."""
        reader = asyncio.create_task(self._read(receive))
        try:
            while some := await self.next_results():
                await send(response(some))
        finally:
            reader.cancel()
            try:
                if self._queries:
                    await self.turns.next()  # closing a call with 4096 queries takes about a millisecond
            finally:
                self.close()
            await asyncio.wait([reader])  # it uses the call's memory for messages until it ends

    async def next_results(self) -> list[Results]:
        """Return the results of the next message, or an empty list at the end. Raises the error that ends the call."""
        some = await self.buffer.take()
        self._keep(self._request_bytes)
        self._resume_blocked()
        return some

    def close(self) -> None:
        """Stop all queries and discard their results."""
        self.buffer.discard()
        waiting = self._searcher.withdraw(self.flow)  # nobody reads their ends, so none are made
        with self.lock:
            for query in waiting:
                self._forget(query.id)
        self.stop(results.CANCELLED)

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _read(self, receive: Callable[[], Awaitable[search_pb2.SearchRequest | None]]) -> None:
        try:
            while (request := await self._receive(receive)) is not None:
                kind = request.WhichOneof("request")
                if kind == "queries":
                    self.add(request.queries)
                elif kind == "cancel":
                    await self._cancel(request.cancel.query_ids)
                elif kind == "grant":
                    self.grant(request.grant.query_id, request.grant.hits)
                else:
                    raise FieldError("request", "the request is empty; it must have queries, cancel or grant")
                del request  # free it before waiting for the next one
                self._forget_request()
        except Exception as error:  # Python deletes this variable at the end of the block, and so frees the messages
            self.close_requests(error)
        else:
            self.close_requests()

    async def _receive(
        self, receive: Callable[[], Awaitable[search_pb2.SearchRequest | None]]
    ) -> search_pb2.SearchRequest | None:
        """Receive the next request when there is room for it, and for results of it.

        If all queries wait for credit, this does not wait for room, because only further requests can make room: by
        granting credit, or by cancelling queries.
        """
        while self._is_full():
            await self._room.wait()
        await self.buffer.drained()  # before the request is in memory
        return await receive()

    def _is_full(self) -> bool:
        with self.lock:
            full = self._request_bytes >= MAX_REQUEST_BYTES and len(self._waiting_for_credit) < len(self._queries)
            if full:
                self._room.arm()
            return full

    def wait_for_credit(self, query: Query) -> None:
        """Note that a query waits for credit. Called by workers, with the lock held."""
        self._waiting_for_credit.add(query)
        self.cursors.wait(query, query.memory)
        self._room.wake()

    def stop_waiting_for_credit(self, query: Query) -> None:
        """Note that a query no longer waits for credit. Called with the lock held."""
        self._waiting_for_credit.discard(query)
        self.cursors.resume(query)

    def close_requests(self, error: Exception | None = None) -> None:
        """Accept no more requests. The call ends when all queries have ended, or at once if there is an ``error``."""
        with self.lock:
            self._reading = False
            if error is not None:
                self.buffer.finish(error)
            self._finish_if_done()

    def add(self, message: search_pb2.QueryBatch) -> None:
        """Register the queries of a batch and submit them. Raises :class:`FieldError` if the call must end."""
        query_ids = message.query_ids
        count, limit = len(query_ids), self._max_queries
        if not 1 <= count <= limit:
            raise FieldError(
                "queries.query_ids", f"{count} queries in a batch; it must have 1 to {limit}: send several batches"
            )
        try:
            request = QueryRequest(message, self._options_of(message.options))
        except FieldError as error:
            failure = failure_of(error)
            self._refuse([End(query_id, results.FAILED, failure=failure) for query_id in query_ids])
            return
        group = request.group if self._searcher.is_quick(request.index, vectors=request.has_vectors) else None
        queries = [Query(self, request, row, group) for row in range(count)]
        with self.lock:
            self._check_unused(query_ids)
            problem = self._overload(count)
            accepted = problem is None and not self._draining and self._stopped is None
            if accepted:
                self._queries.update(zip(query_ids, queries, strict=True))
                self._request_bytes += request.nbytes
        if accepted:
            self._keep(self._request_bytes)
            self._searcher.submit(self.flow, queries)
        elif problem is not None:
            failure = failure_of(problem)
            self._refuse([End(query.id, results.FAILED, failure=failure, resume=query.after) for query in queries])
        else:
            reason = self._stopped or results.SHUTDOWN
            self._refuse([End(query.id, reason, resume=query.after) for query in queries])

    def _overload(self, count: int) -> OverloadedError | None:
        """Return the error for queries above the limits of a call, or None. Called with the lock held."""
        under_way, limit = len(self._queries) + count, self._max_queries
        if under_way > limit:
            return OverloadedError(
                f"{under_way} queries would be running on this call; the maximum is {limit}: wait for some to end"
            )
        if self._request_bytes >= MAX_REQUEST_BYTES:
            return OverloadedError(
                f"the queries of this call have {self._request_bytes} bytes, the maximum is {MAX_REQUEST_BYTES}, and "
                "all of them wait for credit; grant some, and wait for some to end"
            )
        return None

    def _check_unused(self, query_ids: Sequence[int]) -> None:
        seen: set[int] = set()
        for query_id in query_ids:
            if query_id in seen or query_id in self._queries:
                raise FieldError(
                    "queries.query_ids", f"query id {query_id} is in use; each running query needs its own id"
                )
            seen.add(query_id)

    def _refuse(self, ended: Sequence[End]) -> None:
        """Send the ends of queries that were not registered."""
        with self.lock:
            self._check_unused([end.query_id for end in ended])
            for first in range(0, len(ended), REFUSED_ENDS):  # each has an error, so all of them can be too large
                self.buffer.put(results.ends(ended[first : first + REFUSED_ENDS]))

    async def _cancel(self, query_ids: Sequence[int]) -> None:
        """Stop some queries, a few in each turn of the event loop."""
        count, limit = len(query_ids), self._max_queries
        if count > limit:
            raise FieldError("cancel.query_ids", f"{count} queries to cancel; the maximum is {limit}")
        for first in range(0, count, CANCELLED_TOGETHER):
            if first:
                await self.turns.next()
            self.cancel(query_ids[first : first + CANCELLED_TOGETHER])

    def cancel(self, query_ids: Sequence[int]) -> None:
        """Stop some queries. Unknown ids are ignored."""
        with self.lock:
            found = [self._queries[query_id] for query_id in query_ids if query_id in self._queries]
        self._stop(found, results.CANCELLED)

    def grant(self, query_id: int, hits: int) -> None:
        """Allow a query to send more hits."""
        with self.lock:
            query = self._queries.get(query_id)
            woken = query is not None and query.grant(hits)
        if query is not None and woken:
            self._searcher.resume([query])

    # -- stopping ------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Accept no more queries, and end the call when the running ones have finished."""
        with self.lock:
            self._draining = True
            self._finish_if_done()

    def stop(self, reason: EndReason) -> None:
        """Stop all queries, and accept no new ones."""
        with self.lock:
            self._stopped = self._stopped or reason
            queries = list(self._queries.values())
        self._stop(queries, reason)

    @property
    def holds_snapshots(self) -> bool:
        """Whether a query has a snapshot."""
        return bool(self._leases())

    def check_growth(self) -> None:
        """Mark snapshots as stale if they keep too many obsolete bytes in a file. Blocks: not for the event loop."""
        for lease in self._leases():
            lease.check_growth()

    def _leases(self) -> list[SnapshotLease]:
        with self.lock:
            return [query.lease for query in self._queries.values() if query.lease is not None]

    def expire(self) -> None:
        """Stop queries whose snapshots are stale."""
        with self.lock:
            stale = [query for query in self._queries.values() if query.is_stale]
        self._stop(stale, results.SNAPSHOT_EXPIRED)

    def _stop(self, queries: Sequence[Query], reason: EndReason) -> None:
        with self.lock:
            woken = [query for query in queries if query.stop(reason)]
            ended = [end for query in queries if (end := query.end_unbegun()) is not None]
            if ended:
                self._put(results.ends(ended))
        self._searcher.resume(woken)

    # -- results -------------------------------------------------------------------------------------------------------

    def send(self, some: Results) -> None:
        """Put results into the send buffer. Any thread may call this."""
        with self.lock:
            self._put(some)

    def _put(self, some: Results) -> None:
        """Put results into the send buffer, and unregister queries that end. Called with the lock held.

        Both happen under one lock, so a client that has read the end of a query can reuse its id.
        """
        self.buffer.put(some)
        if some.ends:
            for end in some.ends:
                self._forget(end.query_id)
            self._finish_if_done()

    def _forget(self, query_id: int) -> None:
        query = self._queries.pop(query_id, None)
        if query is not None:
            query.request.unfinished -= 1
            if not query.request.unfinished:
                self._request_bytes -= query.request.nbytes
                self._room.wake()

    def _resume_blocked(self) -> None:
        """Resume queries that waited for room in the send buffer."""
        if not self.blocked or not self.buffer.has_room():
            return
        with self.lock:
            blocked, self.blocked = self.blocked, []
            woken = [query for query in blocked if query.wake(State.BLOCKED_ON_BUFFER)]
        self._searcher.resume(woken)

    def _finish_if_done(self) -> None:
        if self._queries:
            return
        if not self._reading:
            self.buffer.finish()
        elif self._draining:  # the client may have sent queries that have not arrived yet
            self.buffer.finish(last=UnavailableError("the server is shutting down; send the queries again"))
