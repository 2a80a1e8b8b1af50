"""Runs ``search_batch`` on a server: sends the queries in messages and combines their results into one answer."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import grpc
import numpy as np
from numpy.typing import NDArray

from whamming.native import Answer, InvalidArgumentError, WhammingError
from whamming.native.view import padded
from whamming.remote.answers import NO_DISTANCES, NO_IDS, RESUMABLE, QueryEnd, hits_of
from whamming.remote.message_size import REQUEST_BYTES
from whamming.remote.queries import Queries
from whamming.remote.retries import once, responses
from whamming.remote.search import Connection
from whamming.remote.status import QueryIdsError, invalid_response
from whamming.v1 import search_pb2
from whamming.wire.service_errors import OverloadedError, UnavailableError
from whamming.wire.statistics import RemoteStats

QUERIES_PER_MESSAGE: Final = 256
"""Initial number of queries per message; reduced if the server accepts fewer."""
MESSAGES_AHEAD: Final = 4
"""Initial number of messages whose queries may run at once; reduced if the server accepts fewer."""
_NO_ID: Final = np.iinfo(np.uint64).max


class _TooManyUnderWayError(OverloadedError):
    """The server refused a query because too many queries of the call are running."""


class BatchSearch:
    """The queries of one ``search_batch``, on their own call. If the call breaks, resends the unanswered queries."""

    def __init__(
        self, connection: Connection, index: str, queries: Queries, options: search_pb2.QueryOptions, k: int
    ) -> None:
        self._connection = connection
        self._index = index
        self._queries = queries
        self._options = options
        self._k = k
        room = connection.message_size.room(REQUEST_BYTES)
        self._per_message = max(1, min(QUERIES_PER_MESSAGE, room // queries.bytes_each))
        self._messages_ahead = MESSAGES_AHEAD
        count = len(queries)
        self._places: list[NDArray[np.int64]] = []
        self._ids: list[NDArray[np.uint64]] = []
        self._distances: list[NDArray[np.float64]] = []
        """The hits in the order of arrival, one array of each kind per message. A place is the row of a hit's query in
        the batch."""
        self._ends: list[QueryEnd | None] = [None] * count
        self._guesses: dict[int, search_pb2.QueryGuess] = {}
        self._left = count if k else 0

    async def run(self) -> None:
        """Get all answers.

        The loop ends, because each round answers queries, reduces the number that is sent at once, or counts as a
        failed attempt.
        """
        attempts = self._connection.retries.begin()
        while self._left:
            before = self._left
            try:
                await once(self._attempt)
            except QueryIdsError as error:
                sent = min(self._per_message, self._left)
                if sent == 1:
                    raise InvalidArgumentError(*error.args) from None
                self._per_message = sent // 2
            except (UnavailableError, OverloadedError) as error:
                if isinstance(error, _TooManyUnderWayError) and self._messages_ahead > 1:
                    self._messages_ahead = 1
                else:
                    if self._left < before:
                        attempts.reset()
                    await attempts.wait(error)
            if self._left:
                self._drop_unfinished()

    async def _attempt(self) -> None:
        room = asyncio.Semaphore(self._messages_ahead)
        call = self._connection.search.Search()
        sending = asyncio.create_task(self._send(call, room))
        sending.add_done_callback(lambda task: _cancel_if_failed(task, call))
        ended = 0
        try:
            async for response in responses(call):
                try:
                    self._take(response)
                except WhammingError:
                    raise
                except Exception as failure:
                    raise invalid_response(failure) from failure
                ended += len(response.ends.query_ids)
                while ended >= self._per_message:
                    ended -= self._per_message
                    room.release()
        finally:
            call.cancel()
            if not sending.cancel() and not sending.cancelled():
                sending.result()  # if sending failed, raise its error: that failure cancelled the call
        if self._left:
            raise UnavailableError("the server ended the stream before it answered all queries")

    async def _send(self, call: Any, room: asyncio.Semaphore) -> None:
        waiting = np.flatnonzero([end is None for end in self._ends])
        for first in range(0, len(waiting), self._per_message):
            await room.acquire()
            request = self._queries.request(self._index, waiting[first : first + self._per_message], self._options)
            try:
                await call.write(request)
            except (grpc.RpcError, asyncio.InvalidStateError):
                return  # the reader raises the error
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            await call.done_writing()

    def _take(self, response: search_pb2.SearchResponse) -> None:
        """Store the results of a message. If one of its queries failed, raise that query's error instead."""
        ends = response.ends
        for row, reason in enumerate(ends.reasons):
            if reason == search_pb2.END_REASON_FAILED:
                error = QueryEnd(ends, row).error
                error.args = (f"query {ends.query_ids[row]}: {error}",)
                raise _TooManyUnderWayError(*error.args) if isinstance(error, OverloadedError) else error
        ids, distances = hits_of(response)
        if len(ids):
            self._places.append(np.repeat(np.array(response.query_ids, dtype=np.int64), response.counts))
            self._ids.append(ids)
            self._distances.append(distances)
        for guess in ends.guesses:
            self._guesses[guess.query_id] = guess
        for row, (place, reason) in enumerate(zip(ends.query_ids, ends.reasons, strict=True)):
            if reason not in RESUMABLE:  # a resumable query is sent again as a whole
                self._ends[place] = QueryEnd(ends, row)
                self._left -= 1

    def _drop_unfinished(self) -> None:
        """Drop the hits of queries that will be sent again."""
        finished = np.array([end is not None for end in self._ends])
        for part, places in enumerate(self._places):
            keep = finished[places]
            self._places[part] = places[keep]
            self._ids[part], self._distances[part] = self._ids[part][keep], self._distances[part][keep]

    def answer(self, *, single: bool) -> Answer:
        """Combine the results in the form that :meth:`whamming.native.View.search` returns."""
        count = len(self._queries)
        places, hit_ids, hit_distances = self._hits()
        proven = np.bincount(places, minlength=count).astype(np.uint64)
        for place, guess in self._guesses.items():
            more = np.frombuffer(guess.ids.uint64, "<u8")
            places = np.concatenate([places, np.full(len(more), place)])
            hit_ids = np.concatenate([hit_ids, more])
            hit_distances = np.concatenate([hit_distances, np.frombuffer(guess.distances, "<f8")])
        counts = np.bincount(places, minlength=count).astype(np.uint64)
        width = int(counts.max(initial=0))
        ids = np.full((count, width), _NO_ID, dtype=np.uint64)
        distances = np.full((count, width), np.inf)
        if width:
            order = np.argsort(places, kind="stable")
            filled = np.arange(width) < counts[:, None]
            ids[filled], distances[filled] = hit_ids[order], hit_distances[order]
        exact = np.array([end is None or end.ends.exact[end.row] for end in self._ends], dtype=np.bool_)
        stats = RemoteStats([None if end is None else (end.ends.statistics, end.row) for end in self._ends])
        if single:
            return Answer(ids[0], distances[0], counts, proven, exact, stats)
        if width < self._k:
            ids, distances = padded(ids, self._k, _NO_ID), padded(distances, self._k, np.inf)
        return Answer(ids, distances, counts, proven, exact, stats)

    def _hits(self) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.float64]]:
        """Return all hits: the places of their queries, their ids and their distances."""
        if not self._places:
            return np.empty(0, dtype=np.int64), NO_IDS, NO_DISTANCES
        return np.concatenate(self._places), np.concatenate(self._ids), np.concatenate(self._distances)


def _cancel_if_failed(sending: asyncio.Task[None], call: Any) -> None:
    """Cancel the call if its sending task failed. Otherwise its reader would wait forever."""
    if not sending.cancelled() and sending.exception() is not None:
        call.cancel()
