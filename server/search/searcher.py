"""The work of the worker threads: search a slice of one query, or a group of queries in one engine call.

Queries for a few hits from a small index form groups, even if they belong to different calls. A query in a group takes
much less time than a query alone. The server looks up the index, takes a snapshot and converts the costs once per
group, and in the engine the queries share passes over the codes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from itertools import groupby
from operator import attrgetter
from typing import Final

from whamming.native import Batch, Costs, Stats
from whamming.server.failures import failure_of
from whamming.server.search import results
from whamming.server.search.cursors import Cursors
from whamming.server.search.opening import IndexOpener
from whamming.server.search.options import Options
from whamming.server.search.query import Query, State
from whamming.server.search.request import CostColumns, QueryRequest, computing_costs, costs_of, joined
from whamming.server.search.results import End, Results
from whamming.server.search.scheduler import Flow, Scheduler
from whamming.server.search.snapshot_lease import SnapshotLease
from whamming.server.search.turns import Turns
from whamming.storage import Database, Snapshot, StoredIndex
from whamming.storage.reranking import Bound, Reranked, read_queries
from whamming.storage.vectors.steps import Steps, Stepwise
from whamming.wire.fields import FieldError, in_field
from whamming.wire.service_errors import UnavailableError

QUICK_SECONDS: Final = 0.004
"""Queries of an index form groups if a query takes at most this long, as estimated from the size of the index."""
SWEEP_SECONDS: Final = 1.2e-9
"""Worst-case time of a sweep per code and 64 bits."""
PROJECTION_SECONDS: Final = 2e-9
"""Worst-case time of a projection per number of the encoder's matrix."""
MAX_INDEXES: Final = 10_000


class Searcher:
    """Searches one database with worker threads. Only the event loop may call :meth:`submit` and :meth:`resume`."""

    def __init__(
        self,
        database: Database,
        threads: int,
        slice_seconds: float,
        snapshot_seconds: float,
        opener: IndexOpener | None = None,
    ) -> None:
        """Start the workers. A query may hold a snapshot for ``snapshot_seconds``."""
        self._database = database
        self._snapshot_seconds = snapshot_seconds
        self._opener = opener or IndexOpener(database)
        self.cursors = Cursors()
        """The queries that hold cursors."""
        self.turns = Turns()
        """For work in the event loop that takes longer the more queries or hits a call has."""
        self._quick: dict[str, tuple[bool, bool]] = {}
        """By index: whether queries with codes or costs form groups, and whether queries with vectors do."""
        self._indexes: weakref.WeakValueDictionary[str, StoredIndex] = weakref.WeakValueDictionary()
        """Indexes that were searched recently."""
        self._dispatching = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduler = Scheduler(threads, slice_seconds, self._run, self._is_ready, self._request_dispatch)

    def close(self) -> None:
        """Stop the workers after their current slices."""
        self._opener.close()
        self._scheduler.close()

    def is_quick(self, index: str, *, vectors: bool = False) -> bool:
        """Return whether queries of an index form groups: it has been searched before, and it is small enough.

        ``vectors``: the queries are vectors. Then the encoder of the index must be small enough, too.
        """
        return self._quick.get(index, (False, False))[vectors]

    def submit(self, flow: Flow, queries: Sequence[Query]) -> None:
        """Queue new queries. The next turn of the event loop dispatches them, with all that arrive until then."""
        self._scheduler.submit(flow, queries)
        self._dispatch_soon()

    def withdraw(self, flow: Flow) -> Sequence[Query]:
        """Remove the queries of a call that no worker has taken yet, and return them."""
        return self._scheduler.withdraw(flow)

    def _dispatch_soon(self) -> None:
        if not self._dispatching:
            self._dispatching = True
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._dispatch)

    def _request_dispatch(self) -> None:
        """Make the event loop dispatch soon. Called by workers."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits for results
                self._loop.call_soon_threadsafe(self._dispatch_soon)

    def _dispatch(self) -> None:
        self._dispatching = False
        if self._scheduler.dispatch():
            self._dispatch_soon()  # in the next turn of the event loop

    def _is_ready(self, query: Query) -> bool:
        """Return whether a query can be searched without blocking: its index is open, and a snapshot takes no time."""
        index = self._indexes.get(query.request.index)
        return index is not None and getattr(index.open_store, "is_ready", False)

    def resume(self, queries: Sequence[Query]) -> None:
        """Resume blocked queries of one call."""
        fresh = [query for query in queries if query.group is not None]
        if fresh:
            self.submit(fresh[0].flow, fresh)
        for query in queries:
            if query.group is None:
                self._resume(query)

    def _resume(self, query: Query) -> None:
        if not query.is_counted:
            query.is_counted = True
            self._scheduler.count_open(query.flow, 1)
        self._scheduler.resume(query)

    def _run(self, queries: Sequence[Query], seconds: float) -> Sequence[Query]:
        """Search queries of one group, or a slice of one query. Returns those that have more to do."""
        first = queries[0]
        if first.group is None:
            return self._search_alone(first, seconds)
        return self._search_together(queries, seconds)

    # -- one query with a cursor ---------------------------------------------------------------------------------------

    def _search_alone(self, query: Query, seconds: float) -> Sequence[Query]:
        if not query.take():
            self._scheduler.count_open(query.flow, -1)
            return ()
        try:
            index = None if query.has_begun else self._find_open(query.request.index)
            if index is None and not query.has_begun:
                return self._wait_for_index([query])
            ended = self._begin(query, index, seconds) if index is not None else query.search(seconds)
        except Exception as error:
            ended = query.fail(failure_of(error))
        if ended:
            self._scheduler.count_open(query.flow, -1)
            return ()
        state = query.leave()
        if state is State.WAITING:
            return (query,)
        if state is State.BLOCKED_ON_CREDIT:
            self._scheduler.count_open(query.flow, -1)
            for oldest in self.cursors.release_memory(query.flow.client):
                self._expire(oldest)
        return ()

    def _wait_for_index(self, queries: Sequence[Query]) -> Sequence[Query]:
        """Block queries until their index is open. Returns the queries that were stopped and now have to end."""
        blocked = [query for query in queries if query.block_on_index()]
        if blocked:
            opening = self._opener.open(blocked[0].request.index)
            opening.add_done_callback(lambda done: self._opened(blocked, done))
        return [query for query in queries if query not in blocked]

    def _opened(self, queries: Sequence[Query], opening: Future[StoredIndex]) -> None:
        """Resume queries when their index is open, or fail them. Called by a thread that opens indexes."""
        failure = None
        try:
            with in_field("index"):
                opening.result()
        except CancelledError:
            failure = failure_of(UnavailableError("the server is shutting down; send the query again"))
        except Exception as error:
            failure = failure_of(error)
        for query in queries:
            with query.call.lock:
                woken = query.wake(State.BLOCKED_ON_INDEX)
            if woken and failure is None:
                self._scheduler.resume(query)
            elif woken and failure is not None and query.take():
                query.fail(failure)
                self._scheduler.count_open(query.flow, -1)

    def _begin(self, query: Query, index: StoredIndex, seconds: float) -> bool:
        """Prepare a query and start to search it, for about ``seconds``. Returns whether the query has ended."""
        end = time.perf_counter() + seconds
        if query.beginning is None:
            query.beginning = Stepwise(self._beginning(query, index))
        while query.stop_reason is None:
            if query.beginning.run(0.0):
                query.beginning = None
                return query.search(max(end - time.perf_counter(), 1e-6))
            if time.perf_counter() >= end:
                return False
        return query.end(query.stop_reason)

    def _beginning(self, query: Query, index: StoredIndex) -> Steps[None]:
        """Compute the costs of a query, and then take a snapshot and begin."""
        request, options, encoder = query.request, query.options, index.encoder
        request.check(index)
        if options.rerank is None:
            columns = request.columns(query.row, query.row + 1)
            costs = (yield from computing_costs(columns, index.settings, encoder, request.form))[0]
            lease = self._lease(query, index)
            after = lease.snapshot.position(costs, query.after)
            cursor = lease.snapshot.view.cursor(costs, options.k, options.radius, options.plan, after=after)
            query.begin(cursor, lease)
            return
        vector = request.vector(query.row)
        assert encoder is not None
        with in_field("options.rerank"):
            rows, factor = read_queries(index.settings, vector, options.rerank, request.form)
        bound = None
        if factor is None:
            bound = yield from Bound.making(encoder, rows[0])
            costs = bound.costs
        else:
            costs = Costs.table((yield from encoder.costing(rows[0], request.form)))
        lease = self._lease(query, index)
        snapshot = lease.snapshot
        k = len(snapshot) if options.k is None else options.k
        candidates = None if factor is None else k * factor
        cursor = snapshot.view.cursor(costs, candidates, plan=options.plan)
        query.begin(Reranked(snapshot, rows[0], cursor, k=k, bound=bound), lease)

    def _lease(self, query: Query, index: StoredIndex) -> SnapshotLease:
        self._make_room(query)
        return SnapshotLease(index, self._snapshot(index), self._snapshot_seconds)

    def _make_room(self, query: Query) -> None:
        """Count the cursor of a query. If there are too many, end the query that has waited longest for credit."""
        oldest = self.cursors.add(query)
        if oldest is not None:
            self._expire(oldest)

    def _expire(self, query: Query) -> None:
        """End a query that waits for credit, with a resume token."""
        with query.call.lock:
            woken = query.stop(results.SNAPSHOT_EXPIRED)
        if woken:
            self._resume(query)

    def _find_open(self, name: str) -> StoredIndex | None:
        """Return an index if it is open. Raises an error if no index has this name."""
        if not name:
            raise FieldError("index", "index is empty; give the name of an index")
        index = self._indexes.get(name)
        if index is None or not index.is_open or self._database.read_only:  # the writer process may have replaced it
            with in_field("index"):
                index = self._database.find_open(name)
        return index

    def _snapshot(self, index: StoredIndex) -> Snapshot:
        """Return a snapshot of an index, and remember the index."""
        snapshot = index.snapshot()
        if len(self._quick) > MAX_INDEXES:
            self._quick.clear()
        self._indexes[index.name] = index
        seconds = len(snapshot) * math.ceil(snapshot.settings.bits / 64) * SWEEP_SECONDS
        encoder = index.encoder
        numbers = 0 if encoder is None or encoder.matrix is None else encoder.matrix.size
        quick = seconds <= QUICK_SECONDS
        self._quick[index.name] = quick, quick and seconds + numbers * PROJECTION_SECONDS <= QUICK_SECONDS
        return snapshot

    # -- several queries in one engine call ----------------------------------------------------------------------------

    def _search_together(self, queries: Sequence[Query], seconds: float) -> Sequence[Query]:
        """Search queries of one group, for about ``seconds`` at most. Returns those that have not been searched."""
        wanted = [query for query in queries if query.take(needs_room=True)]
        if not wanted:
            return ()
        try:
            index = self._find_open(wanted[0].request.index)
            if index is None:
                for query in wanted:
                    self._search_in_slices(query)
                return self._wait_for_index(wanted)
            snapshot = self._snapshot(index)
        except Exception as error:
            _fail(wanted, error)
            return ()
        left: list[Query] = []
        for some, costs in _with_costs(list(_checked(wanted, index)), index):
            left += self._search_group([query for _, run in some for query in run], costs, snapshot, seconds)
        return [query for query in left if query.leave() is State.WAITING]

    def _search_group(
        self, queries: Sequence[Query], costs: Costs, snapshot: Snapshot, seconds: float
    ) -> Sequence[Query]:
        options = queries[0].request.options
        assert options.k is not None
        try:
            batch = snapshot.view.batch(costs, options.k, options.radius, options.plan)
            done = batch.run(seconds=seconds)
            answers = GroupAnswers(batch, options, len(snapshot))
        except Exception as error:
            _fail(queries, error)
            return ()
        first = 0
        for call, run in groupby(queries[:done], key=attrgetter("call")):
            same = list(run)
            try:
                call.send(answers.of(same, first))
            except Exception as error:
                _fail(same, error)
            first += len(same)
        if not done:
            self._search_in_slices(queries[0])
        return queries[done:]

    def _search_in_slices(self, query: Query) -> None:
        """Take a query out of its group because it is too slow. It then gets a cursor of its own."""
        query.group = None
        self._scheduler.count_open(query.flow, 1)


def _fail(queries: Sequence[Query], error: Exception) -> None:
    """End queries with the same error."""
    failure = failure_of(error)
    for query in queries:
        query.fail(failure)


_Run = tuple[QueryRequest, Sequence[Query]]
"""Some queries of one request."""


def _checked(queries: Sequence[Query], index: StoredIndex) -> Iterator[_Run]:
    """Yield the queries with a valid request, by request. The others end with an error."""
    for request, run in groupby(queries, key=attrgetter("request")):
        same = list(run)
        try:
            request.check(index)
        except Exception as error:
            _fail(same, error)
        else:
            yield request, same


def _with_costs(runs: Sequence[_Run], index: StoredIndex) -> Iterator[tuple[Sequence[_Run], Costs]]:
    """Yield queries with their costs: all together or, if one of them is invalid, one by one."""
    if not runs:
        return
    try:
        columns = joined([part for request, run in runs for part in _columns(request, run)])
        yield runs, costs_of(columns, index.settings, index.encoder, runs[0][0].form)
        return
    except Exception as error:
        if sum(len(run) for _, run in runs) == 1:
            _fail(runs[0][1], error)
            return
    for request, run in runs:
        for query in run:
            yield from _with_costs([(request, [query])], index)


def _columns(request: QueryRequest, queries: Sequence[Query]) -> Sequence[CostColumns]:
    """Return the columns of queries of one request, in one part unless queries in between were stopped."""
    first, last = queries[0].row, queries[-1].row
    if last - first + 1 == len(queries):
        return [request.columns(first, last + 1)]
    return [request.columns(query.row, query.row + 1) for query in queries]


class GroupAnswers:
    """The answers of a group, from which each call takes its own."""

    def __init__(self, batch: Batch, options: Options, items: int) -> None:
        """``batch`` has been searched in an index of ``items`` items."""
        k = options.k
        assert k is not None
        self._row = 8 * batch.ids.shape[1]
        self._ids = batch.ids.astype("<u8", copy=False).tobytes()
        self._distances = batch.distances.astype("<f8", copy=False).tobytes()
        self._counts: list[int] = batch.counts.tolist()
        self._stats: Sequence[Stats | None] = list(batch.stats) if options.statistics else [None] * len(batch.counts)
        self._k = k
        self._farthest: list[float] = batch.distances[:, -1].tolist() if batch.ids.shape[1] == k else []
        self._items = items
        self._radius = math.inf if options.radius is None else options.radius
        self._now = time.perf_counter()

    def of(self, queries: Sequence[Query], first: int) -> Results:
        """Return the hits of the queries of one call, starting at row ``first``. Stopped queries get no hits."""
        with queries[0].call.lock:  # stopping these queries later has no effect
            stops = [query.finish() for query in queries]
        counts, bounds, ended = [], [], []
        for row, (query, stop) in enumerate(zip(queries, stops, strict=True), first):
            elapsed, count = self._now - query.request.arrived, self._counts[row]
            if stop is not None:
                counts.append(0)
                bounds.append(-math.inf)
                ended.append(End(query.id, stop, False, self._stats[row], elapsed, query.after))
                continue
            full = count == self._k
            counts.append(count)
            bounds.append(math.inf if count >= self._items else self._farthest[row] if full else self._radius)
            reason = results.COMPLETE if full else results.EXHAUSTED
            ended.append(End(query.id, reason, True, self._stats[row], elapsed))
        ids, distances = self._hits(self._ids, counts, first), self._hits(self._distances, counts, first)
        return Results([query.id for query in queries], counts, ids, distances, bounds, None, ended)

    def _hits(self, data: bytes, counts: Sequence[int], first: int) -> bytes:
        """Return the first ``counts`` numbers of each row, starting at row ``first``."""
        width = self._row
        if 8 * min(counts) == width:
            return data[first * width : (first + len(counts)) * width]
        starts = range(first * width, (first + len(counts)) * width, width)
        return b"".join([data[start : start + 8 * count] for start, count in zip(starts, counts, strict=True)])
