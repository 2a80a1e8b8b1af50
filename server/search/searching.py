"""One Search call: requests come in, queries are set to work, their chunks go out.

::

    requests ──► SearchStream.run ──► Arrival (a batch of queries) ──► StreamedQuery, BatchedQueries
                       ▲                    jobs for the scheduler             │
    responses ◄── Outlet.take ◄────────────────────────────────────────────────┘ send

The event loop only registers queries and moves messages. Opening the index, taking the snapshot, reading costs and
searching are jobs, done by workers.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from itertools import groupby
from typing import Final

import numpy as np

from whamming.native import Costs
from whamming.server.rpc.status import AnswerTooLargeError, OverloadedError
from whamming.server.search import messages
from whamming.server.search.given import GivenQueries
from whamming.server.search.outlet import Outlet
from whamming.server.search.queries import (
    MOST_TOGETHER,
    NO_STATS,
    Answers,
    BatchedQueries,
    Chunk,
    End,
    Held,
    Options,
    Pace,
    Reason,
    Sink,
    StreamedQuery,
    ending,
    is_quick,
)
from whamming.server.search.scheduler import Flow, Job, Outcome, Scheduler
from whamming.storage import Database, IndexSettings, StoredIndex
from whamming.v1 import search_pb2
from whamming.wire.values import FieldError, blaming

QUICK_SECONDS: Final = 0.004
"""Queries are batched where each takes at most so long."""
MOST_JOBS: Final = 64
"""Jobs of a stream that are under way at once, not counting those that wait for credit."""
MOST_PACES: Final = 256

Query = StreamedQuery | BatchedQueries
Group = tuple[Options, tuple[float, int] | None, Sequence[int]]
"""What is wanted of some queries, after which hit, and their places in their batch."""


class SearchStream:
    """A call of Search."""

    def __init__(
        self,
        database: Database,
        scheduler: Scheduler,
        *,
        max_k: int,
        max_queries: int,
        buffer_bytes: int,
        snapshot_seconds: float,
    ) -> None:
        """Prepare, in the event loop that the call runs in."""
        self.database = database
        self.max_k = max_k
        self.snapshot_seconds = snapshot_seconds
        self._scheduler = scheduler
        self._max_queries = max_queries
        self._flow = Flow()
        self._outlet = Outlet(buffer_bytes, self._submit)
        self._lock = threading.Lock()
        self._queries: dict[int, Query | Arrival | None] = {}
        """Under way, by id. At first the batch that they wait in, None while they are being begun."""
        self._stops: dict[int, Reason] = {}
        """Queries that were stopped while they were being begun."""
        self._grants: dict[int, int] = {}
        """Credit that queries were granted before they began."""
        self._stopped: Reason | None = None
        self._draining = False
        self._arrivals: list[Arrival] = []
        """Batches that wait for others to get on."""
        self._paces: dict[tuple[str, Options], Pace] = {}
        self._reading = True

    async def run(
        self, requests: AsyncIterator[search_pb2.SearchRequest], write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Serve the call until the client has no more requests and all queries have ended."""
        reader = asyncio.create_task(self._read(requests))
        try:
            while (data := await self._outlet.take()) is not None:
                await write(data)
        finally:
            reader.cancel()
            self._outlet.discard()
            self.stop("cancelled")

    def drain(self) -> None:
        """Let the queries under way finish, take no more, and end the call then."""
        self._draining = True
        self._finish_if_done()

    def stop(self, reason: Reason) -> None:
        """Make all queries end soon, and take no more."""
        with self._lock:
            self._stopped = self._stopped or reason
            under_way = self._begun()
            arrivals, self._arrivals = self._arrivals, []
        for query in under_way:
            self._stop(query, reason)
        self._submit(arrivals)

    def expire(self) -> None:
        """Make queries whose snapshot has become too old end."""
        with self._lock:
            stale = [query for query in self._begun() if query.is_stale]
        for query in stale:
            self._stop(query, "snapshot_expired")

    def _begun(self) -> list[Query]:
        """Return the queries that have begun. Called with the lock held."""
        return [query for query in dict.fromkeys(self._queries.values()) if isinstance(query, Query)]

    # -- requests ---------------------------------------------------------------------------------------------------

    async def _read(self, requests: AsyncIterator[search_pb2.SearchRequest]) -> None:
        try:
            async for request in requests:
                kind = request.WhichOneof("request")
                if kind == "batch":
                    self._add(request.batch)
                elif kind == "cancel":
                    self._cancel(request.cancel.query_ids)
                elif kind == "grant":
                    self._grant(request.grant.query_id, request.grant.hits)
                else:
                    raise FieldError("request", "a request is empty; it must be a batch, a cancel or a grant")
        except Exception as error:
            self._outlet.finish(error)
        with self._lock:
            self._reading = False
        self._finish_if_done()

    def _add(self, batch: search_pb2.QueryBatch) -> None:
        given = GivenQueries(batch)
        arrival = Arrival(self, batch.index, given, batch.options)
        with self._lock:
            for place, query_id in enumerate(given.ids):
                if query_id in self._queries:
                    field = f"batch.queries[{place}].id"
                    raise FieldError(field, f"id = {query_id} is in use by a query under way; choose another")
                self._queries[query_id] = arrival
            refused = len(self._queries) > self._max_queries or self._draining
        if not refused:
            self._submit([arrival])
            return
        error = OverloadedError(
            f"{len(self._queries)} queries would be under way on this stream; at most {self._max_queries}: "
            "wait for some to end"
        )
        arrival.end(range(len(given)), "shutdown" if self._draining else "failed", None if self._draining else error)

    def _cancel(self, query_ids: Sequence[int]) -> None:
        count, most = len(query_ids), self._max_queries
        if count > most:
            raise FieldError("cancel.query_ids", f"{count} queries to cancel; at most {most} can be under way")
        for query_id in query_ids:
            with self._lock:
                if query_id not in self._queries:
                    continue
                query = self._queries[query_id]
                if query is None:
                    self._stops[query_id] = "cancelled"
                    continue
            if isinstance(query, Arrival):
                query.cancel(query_id)
            elif isinstance(query, StreamedQuery):
                self._stop(query, "cancelled")
            else:
                query.stop(query_id, "cancelled")
                if self._outlet.unpark(query):
                    self._submit([query])

    def _grant(self, query_id: int, hits: int) -> None:
        with self._lock:
            if query_id not in self._queries:
                return
            query = self._queries[query_id]
            if not isinstance(query, Query):
                self._grants[query_id] = self._grants.get(query_id, 0) + hits
        if isinstance(query, StreamedQuery) and query.grant(hits):
            self._submit([query])

    def _stop(self, query: Query, reason: Reason) -> None:
        if isinstance(query, StreamedQuery):
            waited = query.stop(reason)
        else:
            query.stop_all(reason)
            waited = False
        if self._outlet.unpark(query) or waited:
            self._submit([query])

    def _submit(self, jobs: Sequence[Job]) -> None:
        if jobs:
            self._scheduler.submit(self._flow, *jobs)

    # -- what jobs need ---------------------------------------------------------------------------------------------

    def claim(self, arrival: Arrival, places: Sequence[int]) -> Sequence[int]:
        """Return the queries of a batch that wait to begin, those that were cancelled left out; they wait no more."""
        ids = arrival.given.ids
        with self._lock:
            waiting = [place for place in places if self._queries.get(ids[place]) is arrival]
            for place in waiting:
                self._queries[ids[place]] = None
            return waiting

    def start(self, queries: Sequence[tuple[Sequence[int], Query]], *, submit: bool) -> None:
        """Set queries to work, unless they have been stopped meanwhile; without ``submit`` the caller is at it."""
        begun = []
        with self._lock:
            stopped = self._stopped
            for query_ids, query in queries:
                for query_id in query_ids:
                    self._queries[query_id] = query
                    reason = self._stops.pop(query_id, None)
                    granted = self._grants.pop(query_id, 0)
                    if isinstance(query, StreamedQuery):
                        query.grant(granted)
                    if reason is not None:
                        if isinstance(query, StreamedQuery):
                            query.stop(reason)
                        else:
                            query.stop(query_id, reason)
                begun.append(query)
        if submit:
            self._submit(begun)
        if stopped is not None:
            for query in begun:
                self._stop(query, stopped)

    def pace(self, index: str, options: Options) -> Pace:
        """Return how fast queries of a kind have been so far."""
        if len(self._paces) > MOST_PACES:
            self._paces.clear()
        return self._paces.setdefault((index, options), Pace())

    def is_alone(self) -> bool:
        """Tell whether no other stream waits for a worker."""
        return not self._scheduler.is_wanted(self._flow)

    @property
    def stopped(self) -> Reason | None:
        """Why all queries are to end; None: they are not."""
        return self._stopped

    def is_busy(self) -> bool:
        """Tell whether as many jobs are under way as there may be."""
        with self._lock:
            return self._is_busy()

    def _is_busy(self) -> bool:
        under_way = self._begun()
        waiting = sum(isinstance(query, StreamedQuery) and query.waits_for_credit for query in under_way)
        return len(under_way) - waiting >= MOST_JOBS

    def wait(self, arrival: Arrival) -> bool:
        """Keep a batch until others have got on, unless they have by now; returns whether it was kept."""
        with self._lock:
            if self._stopped is not None or not self._is_busy():
                return False
            self._arrivals.append(arrival)
            return True

    def send(self, chunks: Sequence[Chunk]) -> None:
        """Take chunks, in the order of each query."""
        for first in range(0, len(chunks), MOST_TOGETHER):
            some = chunks[first : first + MOST_TOGETHER]
            self._put(messages.encode_chunks(some), [chunk.query_id for chunk in some if chunk.end is not None])

    def send_answers(self, answers: Answers) -> None:
        """Take all hits of queries that end with them."""
        self._put(messages.encode_answers(answers), answers.query_ids)

    def _put(self, data: bytes, ended: Sequence[int]) -> None:
        """Take a serialised message, and note which queries end by it."""
        with self._lock:  # or the client could use the id of a query whose end it has read before it is free
            self._outlet.put(data)
            for query_id in ended:
                self._queries.pop(query_id, None)
                self._stops.pop(query_id, None)
                self._grants.pop(query_id, None)
        if ended:
            self.idle()
            self._finish_if_done()

    def has_room(self) -> bool:
        """Tell whether more may be sent now."""
        return self._outlet.has_room()

    def park(self, job: Query) -> bool:
        """Keep a job until there is room, if there is none now; returns whether it was kept."""
        return self._outlet.park(job)

    def unpark(self, job: Query) -> bool:
        """Let go of a job; returns whether it was kept. Who is told so hands it in again."""
        return self._outlet.unpark(job)

    def idle(self) -> None:
        """Let the next batch begin."""
        with self._lock:  # or a batch that is about to wait, because the caller seemed busy, would not be seen
            arrivals, self._arrivals = self._arrivals, []
        self._submit(arrivals)

    def _finish_if_done(self) -> None:
        with self._lock:
            done = not self._queries and (self._draining or not self._reading)
        if done:
            self._outlet.finish()


class Arrival:
    """A batch of queries that has come in: a job that makes jobs of it, some at a time."""

    def __init__(
        self,
        stream: SearchStream,
        index: str,
        given: GivenQueries,
        options: search_pb2.QueryOptions,
    ) -> None:
        """Keep what was given; nothing is read yet."""
        self.given = given
        self._stream = stream
        self._index = index
        self._options = options
        self._common: Options | None = None
        self._held: Held | None = None
        self._opened: StoredIndex | None = None
        self._started = time.perf_counter()
        self._next = 0
        self._only: Query | None = None
        """What the whole batch has become: going on with it at once saves the scheduler a turn."""

    def step(self, seconds: float) -> Outcome:
        """Set the next queries to work."""
        if self._only is not None:
            return self._only.step(seconds)
        stream = self._stream
        try:
            if stream.stopped is not None:
                self.end(stream.claim(self, self._left), stream.stopped)
                return Outcome.DONE
            if stream.is_busy():
                self._held = None  # it may take long; the rest will see a newer snapshot
                return Outcome.PAUSE
            if self._held is None:
                with blaming("index"):
                    self._opened = stream.database.index(self._index)
                self._held = Held(self._opened.snapshot(), stream.snapshot_seconds)
        except Exception as error:
            self._fail(stream.claim(self, self._left), error)
            return Outcome.DONE
        piece = stream.claim(self, self._left[:MOST_TOGETHER])
        self._next += MOST_TOGETHER
        try:
            self._begin(piece, self._held)
        except Exception as error:
            self._fail(piece, error)
        if self._only is not None:
            self._held = None
            return self._only.step(seconds)
        return Outcome.AGAIN if self._left else Outcome.DONE

    @property
    def _left(self) -> range:
        """The places of the queries that are still to be set to work."""
        return range(self._next, len(self.given))

    def pause(self) -> bool:
        """Wait for others to get on, unless they have by now."""
        return self._stream.wait(self) if self._only is None else self._only.pause()

    def cancel(self, query_id: int) -> None:
        """End a query that waits to begin; the event loop calls this."""
        self.end(self._stream.claim(self, [self._places[query_id]]), "cancelled")

    @functools.cached_property
    def _places(self) -> dict[int, int]:
        return {query_id: place for place, query_id in enumerate(self.given.ids)}

    def end(self, places: Sequence[int], reason: Reason, error: Exception | None = None) -> None:
        """End queries that have not begun."""
        elapsed = time.perf_counter() - self._started
        tokens = [messages.token_of(self.given, place) for place in places]
        ends = [End(reason, False, NO_STATS, elapsed, token, error) for token in tokens]
        self._stream.send([ending(self.given.ids[place], end) for place, end in zip(places, ends, strict=True)])

    def _begin(self, piece: Sequence[int], held: Held) -> None:
        stream, ids = self._stream, self.given.ids
        quick = is_quick(held.snapshot, QUICK_SECONDS)
        ready: list[tuple[Sequence[int], Query]] = []
        for options, after, group in self._groups(piece, held.snapshot.settings):
            if options.rerank is not None:
                ready += self._ranked(group, options, held)
                continue
            for places, costs in self._read_costs(group, held):
                query_ids = [ids[place] for place in places]
                if quick and options.batchable and after is None:
                    pace = stream.pace(self._index, options)
                    batched = BatchedQueries(
                        query_ids, options, costs, held, stream, started=self._started, pace=pace, alone=stream.is_alone
                    )
                    ready.append((query_ids, batched))
                    continue
                for row, query_id in enumerate(query_ids):
                    one = costs[row]
                    streamed = StreamedQuery(query_id, options, one, held, stream, started=self._started, after=after)
                    ready.append(([query_id], streamed))
        only = ready[0][1] if len(ready) == 1 and len(self.given) <= MOST_TOGETHER else None
        stream.start(ready, submit=only is None)
        self._only = only

    def _groups(self, piece: Sequence[int], settings: IndexSettings) -> Iterator[Group]:
        """Yield places of queries of one shape and with the same options; those whose options are wrong end."""
        for alike in self.given.alike(piece):
            apart = [[place] for place in alike] if self.given.has_own(alike[0]) else [alike]
            read: list[Group] = []
            for places in apart:
                try:
                    options, after = self._wanted(places[0])
                    messages.check_plan(options, settings)
                    read.append((options, after, places))
                except Exception as error:
                    self._fail(places, error)
            for (options, after), same in groupby(read, key=lambda group: group[:2]):
                yield options, after, [place for _, _, places in same for place in places]

    def _wanted(self, place: int) -> tuple[Options, tuple[float, int] | None]:
        """Return the options of a query, and where it is to go on."""
        query = self.given.message(place) if self.given.has_own(place) else None
        if query is not None and query.HasField("options"):
            options = messages.options_of(query.options, self._stream.max_k)
        else:
            options = self._common = self._common or messages.options_of(self._options, self._stream.max_k)
        return options, None if query is None else messages.after_of(query)

    def _ranked(self, places: Sequence[int], options: Options, held: Held) -> list[tuple[Sequence[int], Query]]:
        """Return jobs of queries whose hits are ranked again."""
        assert self._opened is not None
        jobs: list[tuple[Sequence[int], Query]] = []
        for place in places:
            try:
                ranking, costs = messages.ranking_of(self.given, place, options, self._opened)
            except Exception as error:
                self._fail([place], error)
                continue
            query_id = self.given.ids[place]
            job = StreamedQuery(query_id, options, costs, held, self._stream, started=self._started, ranking=ranking)
            jobs.append(([query_id], job))
        return jobs

    def _read_costs(self, group: Sequence[int], held: Held) -> list[tuple[Sequence[int], Costs]]:
        """Return the costs of queries of one form: all together or, where one of them is wrong, one by one."""
        settings = held.snapshot.settings
        assert self._opened is not None
        try:
            return [(group, messages.costs_of(self.given, group, settings, self._opened.encoder))]
        except Exception as error:
            if len(group) == 1:
                self._fail(group, error)
                return []
        return [pair for place in group for pair in self._read_costs([place], held)]

    def _fail(self, places: Sequence[int], error: Exception) -> None:
        self.end(places, "failed", error)


class OneAnswer(Sink):
    """Collects the hits of a single query."""

    def __init__(self, most_bytes: int) -> None:
        """Prepare, in the event loop."""
        self._most_bytes = most_bytes
        self._bytes = 0
        self._chunks: list[Chunk] = []
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[search_pb2.Chunk] = self._loop.create_future()

    def send(self, chunks: Sequence[Chunk]) -> None:
        """Take the next hits."""
        self._chunks += chunks
        self._bytes += sum(16 * len(chunk.ids) + sum(map(len, chunk.payloads)) for chunk in chunks)
        if chunks[-1].end is not None:
            self._loop.call_soon_threadsafe(self._finish)

    def has_room(self) -> bool:
        """Refuse to collect more than one message holds."""
        if self._bytes > self._most_bytes:
            raise AnswerTooLargeError(
                f"the answer has more than {self._most_bytes} bytes; ask for fewer hits, or use the streaming Search"
            )
        return True

    def park(self, job: Query) -> bool:
        """Keep nothing: there is always room."""
        return False

    def unpark(self, job: Query) -> bool:
        """Know of no job."""
        return False

    def idle(self) -> None:
        """Go on: nobody waits."""

    def _finish(self) -> None:
        if self.done.done():
            return
        last = self._chunks[-1]
        assert last.end is not None
        if last.end.error is not None:
            self.done.set_exception(last.end.error)
            return
        whole = Chunk(
            last.query_id,
            np.concatenate([chunk.ids for chunk in self._chunks]),
            np.concatenate([chunk.distances for chunk in self._chunks]),
            [payload for chunk in self._chunks for payload in chunk.payloads],
            last.lower_bound,
            last.end,
        )
        self.done.set_result(messages.chunk_message(whole))


async def search_once(
    request: search_pb2.SearchOnceRequest,
    database: Database,
    scheduler: Scheduler,
    *,
    max_k: int,
    most_bytes: int,
    snapshot_seconds: float,
) -> search_pb2.Chunk:
    """Search one query; returns all its hits."""
    if not request.index:
        raise FieldError("index", "index is empty; give the name of an index")
    query = request.query
    try:
        options = messages.options_of(query.options, max_k)
        if options.k is None and options.radius is None:
            raise FieldError("options", "neither k nor radius is set; set one, or use the streaming Search")
        after = messages.after_of(query)
        answer = OneAnswer(most_bytes)
        job = _Once(request, options, after, answer, database, snapshot_seconds)
        scheduler.submit(Flow(), job)
        try:
            return await answer.done
        finally:
            job.stop()
    except FieldError as error:
        if error.field == "index":
            raise
        raise FieldError(f"query.{error.field}", str(error)) from error


class _Once:
    """The single query of a call, read by a worker."""

    def __init__(
        self,
        request: search_pb2.SearchOnceRequest,
        options: Options,
        after: tuple[float, int] | None,
        answer: OneAnswer,
        database: Database,
        snapshot_seconds: float,
    ) -> None:
        self._request = request
        self._options = options
        self._after = after
        self._answer = answer
        self._database = database
        self._snapshot_seconds = snapshot_seconds
        self._query: StreamedQuery | None = None
        self._started = time.perf_counter()
        self._stopped = False

    def stop(self) -> None:
        """End soon."""
        self._stopped = True
        if self._query is not None:
            self._query.stop("cancelled")

    def step(self, seconds: float) -> Outcome:
        """Search for about so long."""
        try:
            if self._query is None:
                with blaming("index"):
                    index = self._database.index(self._request.index)
                snapshot = index.snapshot()
                messages.check_plan(self._options, snapshot.settings)
                query, ranking = self._request.query, None
                given = GivenQueries(search_pb2.QueryBatch(queries=[query]))
                if self._options.rerank is not None:
                    ranking, costs = messages.ranking_of(given, 0, self._options, index)
                else:
                    costs = messages.costs_of(given, [0], snapshot.settings, index.encoder)[0]
                held = Held(snapshot, self._snapshot_seconds)
                options = Options(**{**vars(self._options), "credit": None})
                self._query = StreamedQuery(
                    query.id,
                    options,
                    costs,
                    held,
                    self._answer,
                    started=self._started,
                    after=self._after,
                    ranking=ranking,
                )
            if self._stopped:
                self._query.stop("cancelled")
        except Exception as error:
            end = End("failed", False, NO_STATS, time.perf_counter() - self._started, None, error)
            self._answer.send([ending(self._request.query.id, end)])
            return Outcome.DONE
        return self._query.step(seconds)

    def pause(self) -> bool:
        """Go on: there is always room."""
        return False
