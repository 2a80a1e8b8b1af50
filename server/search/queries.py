"""Queries at work, without a word of gRPC: jobs for the scheduler that hand chunks of proven hits to a sink.

A query is one of two kinds of job. *Streamed*: a cursor of its own, worked on in slices, its hits sent as they are
proven. *Batched*: queries that want few hits each from an index that is searched quickly are searched together, a
handful per slice, which saves most of the cost per query and lets them share passes over the codes.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from whamming.native import Batch, BatchStats, Budget, CancelFlag, Costs, Plan, Stats, StopReason
from whamming.server.search.scheduler import Outcome
from whamming.storage import Snapshot
from whamming.storage.reranking import Bound, Rerank, Reranked

Reason = Literal["complete", "exhausted", "budget", "cancelled", "snapshot_expired", "shutdown", "failed"]

DEFAULT_CHUNK: Final = 4096
CHUNK_BYTES: Final = 1 << 19
"""Of payloads in one chunk, about."""
PAYLOADS_TOGETHER: Final = 32
"""Payloads are read so many at a time, 2 MiB at most, until a chunk is full."""
BATCH_K: Final = 256
"""The largest k of queries that are batched."""
MOST_TOGETHER: Final = 64
GATHER_SLICES: Final = 10
"""Slices of batched queries whose hits are sent together, where nobody else waits for the worker: messages are dear."""
SWEEP_SECONDS: Final = 1.2e-9
"""What a sweep takes per code and 64 bits, at worst; says which indexes are searched quickly."""
NO_STATS: Final = Stats("auto", False, 0, 0, 0, 0, 0, 0, 0, 0.0)


@dataclass(frozen=True)
class Options:
    """What is wanted of a query."""

    k: int | None = None
    radius: float | None = None
    plan: Plan = "auto"
    payloads: bool = False
    chunk_size: int = DEFAULT_CHUNK
    credit: int | None = None
    candidates: int | None = None
    seconds: float | None = None
    rerank: Rerank | None = None

    @property
    def batchable(self) -> bool:
        """Nothing that is wanted calls for a cursor."""
        return (
            self.k is not None
            and self.k <= min(BATCH_K, self.chunk_size)
            and not self.payloads
            and (self.credit is None or self.credit >= self.k)
            and self.candidates is None
            and self.seconds is None
            and self.rerank is None
        )


class End(NamedTuple):
    """Why and how a query ended."""

    reason: Reason
    exact: bool
    stats: Stats
    elapsed: float
    resume: tuple[float, int] | None = None
    error: Exception | None = None
    guess: tuple[NDArray[np.uint64], NDArray[np.float64]] | None = None


class Chunk(NamedTuple):
    """The next hits of a query."""

    query_id: int
    ids: NDArray[np.uint64]
    distances: NDArray[np.float64]
    payloads: Sequence[bytes]
    lower_bound: float
    end: End | None


class Answers(NamedTuple):
    """All hits of several queries, each of which ends with them."""

    query_ids: Sequence[int]
    wanted: int
    """A query with so many hits is complete, one with fewer has exhausted ..."""
    radius: float
    """... what is within this distance ..."""
    items: int
    """... of so many items."""
    ids: NDArray[np.uint64]
    """``[q, k]``, as the distances are."""
    distances: NDArray[np.float64]
    counts: NDArray[np.uint64]
    stats: BatchStats
    elapsed: float


class Sink(Protocol):
    """Where chunks go. Any thread may call it."""

    def send(self, chunks: Sequence[Chunk]) -> None:
        """Take chunks, in the order of each query."""

    def has_room(self) -> bool:
        """Tell whether more may be sent now."""

    def park(self, job: StreamedQuery | BatchedQueries) -> bool:
        """Keep a job until there is room, if there is none now; returns whether it was kept."""

    def unpark(self, job: StreamedQuery | BatchedQueries) -> bool:
        """Let go of a job; returns whether it was kept. Who is told so hands it in again."""

    def idle(self) -> None:
        """Hear that a job has begun to wait for its client, so that another may begin."""


class BatchSink(Sink, Protocol):
    """Where the answers of batches go, too."""

    def send_answers(self, answers: Answers) -> None:
        """Take all hits of queries that end with them."""


class Hits(Protocol):
    """Where a query's hits come from: a cursor, or one whose hits are ranked again."""

    def next(
        self, n: int, *, budget: Budget | None = None, eager: bool = False
    ) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the next hits."""

    def guess(self, n: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the best further hits known."""

    def cancel(self) -> None:
        """Make :meth:`next` stop soon."""

    def close(self) -> None:
        """Free what it holds."""

    @property
    def exhausted(self) -> bool:
        """There are no more."""

    @property
    def stop(self) -> StopReason:
        """Why :meth:`next` returned."""

    @property
    def lower_bound(self) -> float:
        """Nothing nearer is left."""

    @property
    def stats(self) -> Stats:
        """What it has cost."""


@dataclass(frozen=True)
class Ranking:
    """How a query's hits are ranked again, by the vectors that the index keeps."""

    query: NDArray[np.float32]
    factor: int | None
    """None: exactly, by the bound."""
    bound: Bound | None

    def open(self, snapshot: Snapshot, costs: Costs, options: Options) -> Reranked:
        """Start a search."""
        k = len(snapshot) if options.k is None else options.k
        most = None if self.factor is None else k * self.factor
        cursor = snapshot.view.cursor(costs, most, plan=options.plan)
        return Reranked(snapshot, self.query, cursor, k=k, bound=self.bound)


class Held:
    """A snapshot, and for how long it may be held."""

    def __init__(self, snapshot: Snapshot, most_seconds: float) -> None:
        """Hold a snapshot from now on."""
        self.snapshot = snapshot
        self._until = time.perf_counter() + most_seconds

    @property
    def is_stale(self) -> bool:
        """It has been held for longer than it may."""
        return time.perf_counter() > self._until


class Pace:
    """How long queries of one kind take, so that the right number of them is searched together."""

    def __init__(self) -> None:
        """Start without a clue: one query will tell."""
        self._each = math.inf
        self._last = 0

    def together(self, seconds: float) -> int:
        """Return how many queries are searched in about so long."""
        return max(1, min(MOST_TOGETHER, 8 * self._last, int(seconds / self._each)))

    def took(self, seconds: float, count: int) -> None:
        """Learn."""
        self._each, self._last = seconds / count, count


NO_IDS: Final = np.empty(0, dtype=np.uint64)
NO_DISTANCES: Final = np.empty(0, dtype=np.float64)


def ending(query_id: int, end: End, lower_bound: float = -math.inf) -> Chunk:
    """Return a chunk without hits."""
    return Chunk(query_id, NO_IDS, NO_DISTANCES, (), lower_bound, end)


class StreamedQuery:
    """One query with a cursor of its own.

    A worker runs :meth:`step`, the event loop calls :meth:`grant` and :meth:`stop`; what both touch is guarded by a
    lock.
    """

    def __init__(
        self,
        query_id: int,
        options: Options,
        costs: Costs,
        held: Held,
        sink: Sink,
        *,
        started: float,
        after: tuple[float, int] | None = None,
        ranking: Ranking | None = None,
    ) -> None:
        """Prepare; the cursor is opened when the work begins, by a worker. ``started``: when the query arrived."""
        self.query_id = query_id
        self.options = options
        self._costs = costs
        self._held: Held | None = held
        self._sink = sink
        self._after = after
        self._ranking = ranking
        self._started = started
        self._cursor: Hits | None = None
        self._sent = 0
        self._worked = 0.0
        self._unsent = NO_IDS, NO_DISTANCES  # proven, but their payloads did not fit into the last chunk
        self._lock = threading.Lock()
        self._credit = options.credit
        self._waits_for_credit = False
        self._stopped: Reason | None = None
        self.ended = False

    # -- from the event loop ----------------------------------------------------------------------------------------

    def grant(self, hits: int) -> bool:
        """Let more hits be sent; returns whether the job waited for that and has to be handed in again."""
        with self._lock:
            if self._credit is not None:
                self._credit += hits
            return self._wake()

    def stop(self, reason: Reason) -> bool:
        """Make the query end soon; returns whether the job waited for credit and has to be handed in again."""
        with self._lock:
            if self._stopped is None and not self.ended:
                self._stopped = reason
                if self._cursor is not None:
                    self._cursor.cancel()
            return self._wake()

    @property
    def waits_for_credit(self) -> bool:
        """Its client has to grant more credit first."""
        return self._waits_for_credit

    def _wake(self) -> bool:
        waited, self._waits_for_credit = self._waits_for_credit, False
        return waited

    @property
    def is_stale(self) -> bool:
        """It has held its snapshot for longer than it may."""
        return self._held is not None and self._held.is_stale

    # -- from a worker ----------------------------------------------------------------------------------------------

    def step(self, seconds: float) -> Outcome:
        """Search for about so long and send what is proven."""
        try:
            return self._step(seconds)
        except Exception as error:
            self._end("failed", error=error)
            return Outcome.DONE

    def _step(self, seconds: float) -> Outcome:
        if self.is_stale:
            self.stop("snapshot_expired")
        if self._stopped is not None:
            return self._end(self._stopped)
        if not self._sink.has_room():
            return Outcome.PAUSE
        options = self.options
        cursor = self._cursor or self._open()
        wanted = options.chunk_size
        if self._credit is not None:
            wanted = min(wanted, self._credit)
            if wanted == 0:
                return Outcome.PAUSE
        start = time.perf_counter()
        ids, distances = self._unsent
        if not len(ids):
            ids, distances = cursor.next(wanted, budget=self._budget(seconds, cursor), eager=self._sent == 0)
        payloads: Sequence[bytes] = ()
        if options.payloads:
            payloads = self._payloads(ids)
            self._unsent = ids[len(payloads) :], distances[len(payloads) :]
            ids, distances = ids[: len(payloads)], distances[: len(payloads)]
        self._worked += time.perf_counter() - start
        if len(ids):
            self._sent += len(ids)
            if self._ranking is None:
                self._after = float(distances[-1]), int(ids[-1])
            with self._lock:
                if self._credit is not None:
                    self._credit -= len(ids)
        if len(self._unsent[0]):
            self._sink.send([Chunk(self.query_id, ids, distances, payloads, self._bound(cursor), None)])
            return Outcome.AGAIN
        if self._sent == options.k:
            return self._end("complete", ids, distances, payloads)
        if cursor.exhausted:
            return self._end("exhausted", ids, distances, payloads)
        if cursor.stop == "cancelled" and self._stopped is not None:
            return self._end(self._stopped, ids, distances, payloads)
        if self._spent(cursor):
            return self._end("budget", ids, distances, payloads)
        if len(ids):
            self._sink.send([Chunk(self.query_id, ids, distances, payloads, cursor.lower_bound, None)])
        return Outcome.AGAIN

    def pause(self) -> bool:
        """Wait for room or for credit, unless there are both by now."""
        with self._lock:
            waits = self._waits_for_credit = self._credit == 0 and self._stopped is None
        if waits:
            self._sink.idle()
            return True
        # Parked first, looked at afterwards: whoever stops it meanwhile finds it parked, or is found out here.
        return self._sink.park(self) and not (self._stopped is not None and self._sink.unpark(self))

    def _open(self) -> Hits:
        assert self._held is not None
        options, snapshot = self.options, self._held.snapshot
        cursor: Hits
        if self._ranking is not None:
            cursor = self._ranking.open(snapshot, self._costs, options)
        else:
            cursor = snapshot.view.cursor(self._costs, options.k, options.radius, options.plan, after=self._after)
        with self._lock:
            self._cursor = cursor
            if self._stopped is not None:
                cursor.cancel()
        return cursor

    def _budget(self, seconds: float, cursor: Hits) -> Budget:
        options = self.options
        if options.seconds is not None:
            seconds = max(min(seconds, options.seconds - self._worked), 1e-6)
        left = None
        if options.candidates is not None:
            left = max(options.candidates - cursor.stats.candidates, 1)
        return Budget(left, seconds)

    def _spent(self, cursor: Hits) -> bool:
        seconds, candidates = self.options.seconds, self.options.candidates
        if seconds is not None and self._worked >= seconds:
            return True
        return candidates is not None and cursor.stats.candidates >= candidates

    def _payloads(self, ids: NDArray[np.uint64]) -> Sequence[bytes]:
        """Return the payloads of the first ids, as many as go into a chunk."""
        assert self._held is not None
        payloads: list[bytes] = []
        size = 0
        while len(payloads) < len(ids) and size < CHUNK_BYTES:
            piece = self._held.snapshot.payloads(ids[len(payloads) : len(payloads) + PAYLOADS_TOGETHER])
            payloads += piece
            size += sum(map(len, piece))
        return payloads

    def _bound(self, cursor: Hits) -> float:
        """Return below which distance nothing is left to be sent; minus infinity where nothing is known of that."""
        bound = cursor.lower_bound
        return min(float(self._unsent[1][0]), bound) if len(self._unsent[1]) else bound

    def _end(
        self,
        reason: Reason,
        ids: NDArray[np.uint64] = NO_IDS,
        distances: NDArray[np.float64] = NO_DISTANCES,
        payloads: Sequence[bytes] = (),
        error: Exception | None = None,
    ) -> Outcome:
        bound, stats, guess, exact = -math.inf, NO_STATS, None, True
        with self._lock:
            cursor, self._cursor = self._cursor, None
            self.ended = True
        if cursor is not None:
            with contextlib.closing(cursor):
                bound, stats = self._bound(cursor), cursor.stats
                exact = cursor.exact if isinstance(cursor, Reranked) else True
                if reason == "budget" and self.options.k is not None:
                    guess = cursor.guess(min(self.options.k - self._sent, DEFAULT_CHUNK))
        self._held = None
        finished = reason in ("complete", "exhausted")
        resume = None if finished else self._after
        elapsed = time.perf_counter() - self._started
        end = End(reason, finished and exact, stats, elapsed, resume, error, guess)
        self._sink.send([Chunk(self.query_id, ids, distances, payloads, bound, end)])
        return Outcome.DONE


class BatchedQueries:
    """Several queries with the same options, searched together a handful at a time."""

    def __init__(
        self,
        query_ids: Sequence[int],
        options: Options,
        costs: Costs,
        held: Held,
        sink: BatchSink,
        *,
        started: float,
        pace: Pace,
        alone: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare; ``started``: when the queries arrived; ``alone`` tells whether nobody else waits for a worker."""
        self.query_ids = query_ids
        self.options = options
        self._costs = costs
        self._held: Held | None = held
        self._sink = sink
        self._started = started
        self._pace = pace
        self._alone = alone
        self._batch: Batch | None = None
        self._done = 0
        self._sent = 0
        self._flag = CancelFlag()
        self._stopped: dict[int, Reason] = {}  # set by the event loop, read by a worker

    def stop(self, query_id: int, reason: Reason) -> None:
        """Make one query end soon."""
        self._stopped[query_id] = reason
        if all(left in self._stopped for left in self.query_ids[self._done :]):
            self._flag.set()

    def stop_all(self, reason: Reason) -> None:
        """Make all queries end soon."""
        for query_id in self.query_ids:
            self._stopped.setdefault(query_id, reason)
        self._flag.set()

    @property
    def is_stale(self) -> bool:
        """It has held its snapshot for longer than it may."""
        return self._held is not None and self._held.is_stale

    def step(self, seconds: float) -> Outcome:
        """Search the next few queries and send their hits."""
        try:
            return self._step(seconds)
        except Exception as error:
            self._finish(error)
            return Outcome.DONE

    def pause(self) -> bool:
        """Wait for room, unless there is some by now."""
        return self._sink.park(self) and not (self._flag.is_set and self._sink.unpark(self))

    def _step(self, seconds: float) -> Outcome:
        if not self._flag.is_set:
            if not self._sink.has_room():
                return Outcome.PAUSE
            try:
                self._search(seconds)
            finally:  # what was found before an error, too
                self._send()
        if self._flag.is_set:
            self._finish(None)
        return Outcome.DONE if self._sent == len(self.query_ids) else Outcome.AGAIN

    def _search(self, seconds: float) -> None:
        """Search some queries: for about two slices or, where nobody else waits for the worker, for some more."""
        options = self.options
        assert self._held is not None
        assert options.k is not None
        if self._batch is None:
            view = self._held.snapshot.view
            self._batch = view.batch(self._costs, options.k, options.radius, options.plan, cancel=self._flag)
        count = len(self.query_ids)
        now = time.perf_counter()
        until = now + GATHER_SLICES * seconds
        while True:
            start, last = now, min(self._done + self._pace.together(2 * seconds), count)
            self._batch.run(self._done, last)
            if self._flag.is_set:
                return
            now = time.perf_counter()
            self._pace.took(now - start, last - self._done)
            self._done = last
            if last == count or now > until or not self._alone():
                return

    def _send(self) -> None:
        """Send what was found: the answers of queries that nobody has stopped, and the ends of the others."""
        ids, last = self.query_ids, self._done
        stopped = [row for row in range(self._sent, last) if ids[row] in self._stopped] if self._stopped else []
        elapsed = time.perf_counter() - self._started
        for row in (*stopped, last):
            if row > self._sent:
                self._sink.send_answers(self._answers(slice(self._sent, row), elapsed))
                self._sent = row
            if row < last:
                end = End(self._stopped[ids[row]], False, NO_STATS, elapsed)
                self._sink.send([ending(ids[row], end)])
                self._sent = row + 1

    def _answers(self, rows: slice, elapsed: float) -> Answers:
        batch, options = self._batch, self.options
        assert batch is not None
        assert self._held is not None
        assert options.k is not None
        wanted = options.k, math.inf if options.radius is None else options.radius, len(self._held.snapshot.view)
        hits = batch.ids[rows], batch.distances[rows], batch.counts[rows]
        return Answers(self.query_ids[rows], *wanted, *hits, batch.stats[rows], elapsed)

    def _finish(self, error: Exception | None) -> None:
        """End what is left: by the reasons it was stopped for, or by an error."""
        elapsed = time.perf_counter() - self._started
        self._held = self._batch = None
        chunks = []
        for query_id in self.query_ids[self._sent :]:
            reason = "failed" if error is not None else self._stopped.get(query_id, "cancelled")
            chunks.append(ending(query_id, End(reason, False, NO_STATS, elapsed, None, error)))
        self._done = self._sent = len(self.query_ids)
        self._sink.send(chunks)


def is_quick(snapshot: Snapshot, seconds: float) -> bool:
    """Tell whether any query can be searched in about so long, at worst."""
    return len(snapshot) * math.ceil(snapshot.settings.bits / 64) * SWEEP_SECONDS <= seconds
