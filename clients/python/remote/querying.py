"""Searches under way on a server: one query's hits as they arrive, or a batch's answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import grpc
import numpy as np
from numpy.typing import NDArray

from whamming.native import Answer, Hit, InvalidArgumentError, Plan, Stats
from whamming.native.arguments import as_whole, check_radius, check_wanted
from whamming.native.view import padded
from whamming.remote.messages import MESSAGE_BYTES, MOST_K, ManyStats, Queries, error_of, options_message
from whamming.remote.retries import Retries, answers, once
from whamming.remote.session import Inbox, Session
from whamming.service_errors import OverloadedError, UnavailableError
from whamming.storage.reranking import Rerank
from whamming.v1 import search_pb2
from whamming.wire.values import hits_of, statistics_of

CREDIT: Final = 65_536
"""Hits of a search that the server may send ahead of what was asked for here."""
CREDIT_WITH_PAYLOADS: Final = 256
BATCH: Final = 256
"""Queries of search_batch that go into one message."""
AHEAD: Final = 4
"""Of such messages under way at once."""
ROUND_BYTES: Final = 32
"""What a query takes in a message beside its costs, at most: its id, its tags and its length."""

Hits = tuple[NDArray[np.uint64], NDArray[np.float64]]

NO_STATISTICS: Final = search_pb2.QueryStatistics(plan=search_pb2.PLAN_AUTO)
NO_MORE: Final = (search_pb2.END_REASON_COMPLETE, search_pb2.END_REASON_EXHAUSTED)
GO_ON: Final = (search_pb2.END_REASON_SNAPSHOT_EXPIRED, search_pb2.END_REASON_SHUTDOWN)


@dataclass(frozen=True)
class Connection:
    """What a search needs of the database that it runs on."""

    search: Any
    """The stub of SearchService."""
    session: Session
    retries: Retries


class Search:
    """A search under way: an asynchronous iterator of hits that ends when it is closed or let go."""

    _inbox: Inbox | None = None
    """Where its chunks arrive; None: it is not under way."""

    def __init__(
        self,
        connection: Connection,
        index: str,
        query: search_pb2.Query,
        k: int | None,
        radius: float | None,
        plan: Plan,
        payloads: bool,
        rerank: Rerank | None = None,
    ) -> None:
        """Prepare; prefer :meth:`whamming.aio.Index.search`. The query is sent when the first hit is asked for."""
        self._connection = connection
        self._index = index
        self._query = query
        wanted = check_wanted(k)
        check_radius(radius)
        self._left = None if k is None else wanted
        self._payloads = payloads
        window = CREDIT_WITH_PAYLOADS if payloads else CREDIT
        self._window = window if k is None or k > window else None
        self._reranked = rerank is not None  # in an order that a search cannot go on in
        self._begun = False
        options = options_message(self._left, radius, plan, payloads=payloads, credit=self._window, rerank=rerank)
        query.options.CopyFrom(options)
        self._attempts = connection.retries.begin()
        self._query_id = 0
        self._consumed = 0
        self._pending: list[Hit] = []
        self._bound = -np.inf
        self._shut_out: UnavailableError | None = None
        self._ended = k == 0
        self._statistics = search_pb2.QueryStatistics()

    async def __aenter__(self) -> Self:
        """Return the search itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the search."""
        self.close()

    def __del__(self) -> None:
        """Stop the server's work for a search that nobody holds any more."""
        self.close()

    def __aiter__(self) -> Self:
        """Return the search itself."""
        return self

    async def __anext__(self) -> Hit:
        """Return the next hit, as soon as the server has proven it."""
        if not self._pending:
            ids, distances, kept = await self._chunk()
            if not len(ids):
                raise StopAsyncIteration
            self._pending = _hits(ids, distances, kept)
        return self._pending.pop()

    def ready(self) -> Hit | None:
        """Return the next hit if it has arrived already."""
        return self._pending.pop() if self._pending else None

    async def next(self, n: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of the next ``n`` hits; fewer where no more exist."""
        if as_whole("n", n) < 0:
            raise InvalidArgumentError(f"n = {n}; it must be 0 or more")
        parts: list[tuple[NDArray[np.uint64], NDArray[np.float64]]] = []
        count = 0
        while count < n:
            if self._pending:
                early = self._pending[count - n :][::-1]
                del self._pending[len(self._pending) - len(early) :]
                ids = np.array([hit.id for hit in early], dtype=np.uint64)
                distances = np.array([hit.distance for hit in early])
            else:
                ids, distances, kept = await self._chunk()
                if not len(ids):
                    break
                spare = count + len(ids) - n
                if spare > 0:
                    self._pending = _hits(ids[-spare:], distances[-spare:], kept[-spare:])
                    ids, distances = ids[:-spare], distances[:-spare]
            parts.append((ids, distances))
            count += len(ids)
        if not parts:
            return np.empty(0, dtype=np.uint64), np.empty(0)
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([far for _, far in parts])

    async def all(self) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of all hits that are left; give ``search`` a k or a radius first."""
        return await self.next(2**63)

    @property
    def lower_bound(self) -> float:
        """No item that was not handed out is nearer than this; infinity when all were, minus infinity where nothing is
        known of the others."""
        return min(self._pending[-1].distance, self._bound) if self._pending else self._bound

    @property
    def stats(self) -> Stats:
        """What the search has cost; known when it has ended."""
        return statistics_of(self._statistics)

    @property
    def is_over(self) -> bool:
        """It has ended, by itself or closed: closing it does nothing."""
        return self._ended and self._inbox is None

    def close(self) -> None:
        """Stop the search. Closing twice is fine."""
        self._ended = True
        if self._inbox is not None:
            self._inbox = None
            self._connection.session.forget(self._query_id)

    async def _chunk(self) -> tuple[NDArray[np.uint64], NDArray[np.float64], Sequence[bytes]]:
        """Return the next hits that arrive; none at the end."""
        while not self._ended:
            if self._shut_out is not None:
                await self._attempts.wait(self._shut_out)
                self._shut_out = None
            if self._inbox is None:
                self._query_id, self._inbox = self._connection.session.start(self._index, self._query)
            chunk = await self._inbox.get()
            if not isinstance(chunk, search_pb2.Chunk):
                self._inbox = None
                if not isinstance(chunk, UnavailableError | OverloadedError) or (self._reranked and self._begun):
                    self._ended = True
                    raise chunk
                await self._attempts.wait(chunk)
                continue
            if chunk.end.reason != search_pb2.END_REASON_SHUTDOWN:
                self._attempts.reset()
            ids, distances = hits_of(chunk)
            if len(ids):
                self._took(ids, distances)
            if chunk.HasField("end"):
                self._finish(chunk.end)
            self._bound = chunk.lower_bound
            if len(ids):
                return ids, distances, chunk.payloads
        return np.empty(0, dtype=np.uint64), np.empty(0), ()

    def _took(self, ids: NDArray[np.uint64], distances: NDArray[np.float64]) -> None:
        """Note where to go on, and let the server send more."""
        if self._left is not None:
            self._left -= len(ids)
        if not self._reranked:
            self._query.after.distance, self._query.after.id = float(distances[-1]), int(ids[-1])
            if self._left:
                self._query.options.k = min(self._left, MOST_K)
        self._begun = True
        self._consumed += len(ids)
        if self._window is not None and 2 * self._consumed >= self._window:
            self._connection.session.grant(self._query_id, self._consumed)
            self._consumed = 0

    def _finish(self, end: search_pb2.QueryEnd) -> None:
        self._inbox = None
        self._statistics = end.statistics
        go_on = end.reason in GO_ON or (
            end.reason == search_pb2.END_REASON_COMPLETE and self._query.options.k == MOST_K
        )
        if go_on and self._left != 0 and not (self._reranked and self._begun):
            self._consumed = 0
            if end.reason == search_pb2.END_REASON_SHUTDOWN:
                self._shut_out = UnavailableError("the server shuts down; connect again when it is back")
            return
        self._ended = True
        if end.reason not in NO_MORE:
            raise error_of(end.error.reason, end.error.message or search_pb2.EndReason.Name(end.reason))


class Batch:
    """The queries of one search_batch, on a call of their own; those without an answer are sent again if it breaks."""

    def __init__(
        self,
        connection: Connection,
        index: str,
        queries: Queries,
        options: search_pb2.QueryOptions,
        k: int,
    ) -> None:
        """Prepare; prefer :meth:`whamming.aio.Index.search_batch`."""
        self._connection = connection
        self._index = index
        self._queries = queries
        self._options = options
        count = len(queries)
        self._k = k
        self._found: list[list[Hits]] = [[] for _ in range(count)]
        """Of each query, chunk by chunk; unpacked as they arrive, while the server is at work on others."""
        self._ends: list[search_pb2.QueryEnd | None] = [None] * count
        self._left = set(range(count)) if k else set()

    async def run(self) -> None:
        """Get all answers."""
        attempts = self._connection.retries.begin()
        while self._left:
            before = len(self._left)
            try:
                await once(self._attempt)
            except (UnavailableError, OverloadedError) as error:
                if len(self._left) < before:
                    attempts.reset()
                await attempts.wait(error)

    async def _attempt(self) -> None:
        room = asyncio.Semaphore(AHEAD * BATCH)
        call = self._connection.search.Search()
        sending = asyncio.create_task(self._send(call, sorted(self._left), room))
        try:
            async for response in answers(call):
                for chunk in response.chunks:
                    self._take(chunk)
                    if chunk.HasField("end"):
                        room.release()
        finally:
            sending.cancel()
            call.cancel()
        if self._left:
            raise UnavailableError("the server ended the stream before it had answered everything")

    async def _send(self, call: Any, places: Sequence[int], room: asyncio.Semaphore) -> None:
        for piece in self._pieces(places):
            queries = []
            for place in piece:
                await room.acquire()
                query = self._queries[place]
                query.id = place
                queries.append(query)
                self._found[place] = []
            batch = search_pb2.QueryBatch(index=self._index, queries=queries, options=self._options)
            try:
                await call.write(search_pb2.SearchRequest(batch=batch))
            except (grpc.RpcError, asyncio.InvalidStateError):
                return  # reading tells why
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            await call.done_writing()

    def _pieces(self, places: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield places of queries that go into one message."""
        each = self._queries[0].ByteSize() + ROUND_BYTES  # one is as large as another
        together = max(1, min(BATCH, MESSAGE_BYTES // each))
        for first in range(0, len(places), together):
            yield places[first : first + together]

    def _take(self, chunk: search_pb2.Chunk) -> None:
        place = chunk.query_id
        self._found[place].append(hits_of(chunk))
        if not chunk.HasField("end"):
            return
        end = chunk.end
        if end.reason == search_pb2.END_REASON_FAILED:
            raise error_of(end.error.reason, f"query {place}: {end.error.message}")
        if end.reason in GO_ON:
            return  # to be sent again as a whole
        self._ends[place] = end
        self._left.discard(place)

    def answer(self, *, single: bool) -> Answer:
        """Put the answers together as :meth:`whamming.native.View.search` does."""
        count = len(self._queries)
        proven = _lengths(self._found)
        exact = np.array([end is None or end.exact for end in self._ends], dtype=np.bool_)
        found = [hits + _guess(end) for hits, end in zip(self._found, self._ends, strict=True)]
        counts = _lengths(found)
        width = int(counts.max(initial=0))
        ids = np.full((count, width), np.iinfo(np.uint64).max, dtype=np.uint64)
        distances = np.full((count, width), np.inf)
        if width:
            filled = np.arange(width) < counts[:, None]
            ids[filled] = np.concatenate([more for hits in found for more, _ in hits])
            distances[filled] = np.concatenate([far for hits in found for _, far in hits])
        stats = ManyStats([NO_STATISTICS if end is None else end.statistics for end in self._ends])
        if single:
            return Answer(ids[0], distances[0], counts, proven, exact, stats)
        if width < self._k:
            ids, distances = padded(ids, self._k, np.iinfo(np.uint64).max), padded(distances, self._k, np.inf)
        return Answer(ids, distances, counts, proven, exact, stats)


def _lengths(found: Sequence[Sequence[Hits]]) -> NDArray[np.uint64]:
    """Return how many hits each query has."""
    return np.array([sum(len(ids) for ids, _ in hits) for hits in found], dtype=np.uint64)


def _guess(end: search_pb2.QueryEnd | None) -> list[Hits]:
    """Return the hits of a query that are not proven."""
    if end is None or not end.guess_ids:
        return []
    return [(np.array(end.guess_ids, dtype=np.uint64), np.array(end.guess_distances))]


def _hits(ids: NDArray[np.uint64], distances: NDArray[np.float64], kept: Sequence[bytes]) -> list[Hit]:
    """Return hits, the last one first."""
    payloads = kept or [b""] * len(ids)
    return [Hit(*hit) for hit in zip(ids.tolist(), distances.tolist(), payloads, strict=True)][::-1]
