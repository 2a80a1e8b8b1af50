"""One query on the server and its state machine.

::

                    a worker takes it             no credit, no room in the send buffer,
      ┌─────────┐ ───────────────────► ┌───────────┐    or the index is not open ┌─────────┐
      │ WAITING │                      │ SEARCHING │ ──────────────────────────► │ BLOCKED │
      └─────────┘ ◄─────────────────── └───────────┘                             └─────────┘
           ▲        the slice is over        │                                        │
           │                                 ▼ all hits sent, failed, or stopped      │
           │                             ┌───────┐                                    │
           │                             │ ENDED │                                    │
           │                             └───────┘                                    │
           └─── credit is granted, room appears, the index is open, or it is stopped ─┘

In the code, BLOCKED is three states: BLOCKED_ON_CREDIT, BLOCKED_ON_BUFFER and BLOCKED_ON_INDEX.

:meth:`Query.stop` is the only way to stop a query. It records the reason, interrupts the engine, and wakes a blocked
query. The next worker that runs the query ends it. A query that has not begun ends at once. Every query ends exactly
once, and nothing is sent after its end.

The :class:`~whamming.server.search.searcher.Searcher` searches a query in one of two ways. Either the query shares an
engine call with others of its group, and goes through SEARCHING once. Or it has a cursor of its own and is searched in
slices, as implemented here.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from whamming.native import Budget, Stats, StopReason
from whamming.server.failures import Failure
from whamming.server.search import results
from whamming.server.search.options import DEFAULT_CHUNK, Options
from whamming.server.search.request import Group, QueryRequest
from whamming.server.search.results import End, EndReason
from whamming.server.search.snapshot_lease import SnapshotLease
from whamming.storage.vectors.steps import Stepwise

if TYPE_CHECKING:
    from whamming.server.search.call import SearchCall
    from whamming.server.search.scheduler import Flow

PAYLOAD_BYTES: Final = 1 << 19
"""Approximate maximum size of the payloads in one chunk."""
PAYLOADS_TOGETHER: Final = 32
"""Number of payloads that are read at a time (at most 2 MiB), until a chunk is full."""
_NO_IDS: Final = np.empty(0, dtype=np.uint64)
_NO_DISTANCES: Final = np.empty(0, dtype=np.float64)
_NO_HITS: Final[tuple[NDArray[np.uint64], NDArray[np.float64], NDArray[np.uint8] | None]] = _NO_IDS, _NO_DISTANCES, None


class State(enum.Enum):
    """The states of a query. The module has a diagram."""

    WAITING = enum.auto()
    SEARCHING = enum.auto()
    BLOCKED_ON_CREDIT = enum.auto()
    BLOCKED_ON_BUFFER = enum.auto()
    BLOCKED_ON_INDEX = enum.auto()
    ENDED = enum.auto()


class QueryCursor(Protocol):
    """The source of a query's hits: a cursor of the engine, or one that re-ranks."""

    def next(
        self, n: int, *, budget: Budget | None = None, eager: bool = False
    ) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the next hits."""

    @property
    def sums(self) -> NDArray[np.uint8] | None:
        """The exact distances of the hits that :meth:`next` returned; None if they need none."""

    def guess(self, n: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the best unproven hits."""

    def cancel(self) -> None:
        """Make :meth:`next` return early. Any thread may call this."""

    def close(self) -> None:
        """Free its resources."""

    @property
    def exhausted(self) -> bool:
        """Whether there are no more hits."""

    @property
    def stop(self) -> StopReason:
        """Why :meth:`next` returned."""

    @property
    def lower_bound(self) -> float:
        """No remaining hit is nearer than this."""

    @property
    def memory(self) -> int:
        """About how many bytes the search has allocated."""

    @property
    def stats(self) -> Stats:
        """Statistics of the search."""


class Query:
    """One query. Workers search it; the event loop grants credit and stops it. The call's lock guards shared state."""

    __slots__ = (
        "_credit",
        "_cursor",
        "_lease",
        "_sent",
        "_unsent",
        "_worked",
        "after",
        "beginning",
        "call",
        "group",
        "id",
        "is_counted",
        "request",
        "row",
        "state",
        "stop_reason",
    )

    def __init__(self, call: SearchCall, request: QueryRequest, row: int, group: Group | None) -> None:
        """Create the query in one row of a request."""
        self.call = call
        self.request = request
        self.row = row
        self.id = request.query_ids[row]
        self.group = group
        self.after = request.after(row) if request.after_distances else None
        """The position after which it can resume: its last hit, or the resume token that it started with."""
        self.state = State.WAITING
        self.stop_reason: EndReason | None = None
        self.is_counted = True
        """Whether it counts among the open queries of its call. A query that waits for credit does not."""
        self.beginning: Stepwise[None] | None = None
        """The computation that precedes its search, if it has started but not finished."""
        self._credit = request.options.credit
        self._cursor: QueryCursor | None = None
        self._lease: SnapshotLease | None = None
        self._sent = 0
        self._worked = 0.0
        self._unsent = _NO_HITS  # proven hits whose payloads did not fit into the last chunk

    @property
    def flow(self) -> Flow:
        """The call as the scheduler sees it."""
        return self.call.flow

    @property
    def options(self) -> Options:
        return self.request.options

    @property
    def elapsed(self) -> float:
        """Seconds since its arrival."""
        return time.perf_counter() - self.request.arrived

    @property
    def is_stale(self) -> bool:
        """Whether it has held its snapshot for too long."""
        return self._lease is not None and self._lease.is_stale

    @property
    def lease(self) -> SnapshotLease | None:
        """Its snapshot, or None if it holds none."""
        return self._lease

    # -- called by the event loop, with the call's lock held -----------------------------------------------------------

    def stop(self, reason: EndReason) -> bool:
        """Make the query end soon. If True, the caller must resubmit it to the scheduler."""
        if self.stop_reason is None and self.state is not State.ENDED:
            self.stop_reason = reason
            if self._cursor is not None:
                self._cursor.cancel()
        return self.wake(State.BLOCKED_ON_CREDIT, State.BLOCKED_ON_BUFFER, State.BLOCKED_ON_INDEX)

    def end_unbegun(self) -> End | None:
        """End a stopped query that has not begun, and return its end. Returns None if a worker will end it."""
        if self.state is not State.WAITING or self._cursor is not None or self.stop_reason is None:
            return None
        self.state, self.beginning = State.ENDED, None
        return End(self.id, self.stop_reason, elapsed=self.elapsed, resume=self.after)

    def grant(self, hits: int) -> bool:
        """Allow the query to send more hits. If True, the caller must resubmit it to the scheduler."""
        if self._credit is not None:
            self._credit += hits
        return self.wake(State.BLOCKED_ON_CREDIT)

    def wake(self, *states: State) -> bool:
        """Unblock a query in one of these states. If True, the caller must resubmit it to the scheduler."""
        if self.state not in states:
            return False
        if self.state is State.BLOCKED_ON_CREDIT:
            self.call.stop_waiting_for_credit(self)
        self.state = State.WAITING
        return True

    @property
    def needs_credit(self) -> bool:
        """Whether it cannot continue before its client grants credit."""
        return self._credit == 0

    @property
    def memory(self) -> int:
        """About how many bytes its cursor has allocated."""
        return 0 if self._cursor is None else self._cursor.memory

    # -- called by workers ---------------------------------------------------------------------------------------------

    def take(self, *, needs_room: bool = False) -> bool:
        """Begin a slice. Returns False if the query has ended.

        ``needs_room``: if the send buffer has no room, block the query and return False.
        """
        with self.call.lock:
            if self.state is State.ENDED:
                return False
            if needs_room and self.stop_reason is None and not self.call.buffer.has_room():
                self._block_on_buffer()
                return False
            self.state = State.SEARCHING
            return True

    def finish(self) -> EndReason | None:
        """End a query whose group has been searched. Returns its stop reason, if any. Called with the lock held."""
        self.state = State.ENDED
        return self.stop_reason

    def leave(self) -> State:
        """End a slice. The query blocks if it needs credit or room, otherwise it waits for its next slice."""
        with self.call.lock:
            if self.stop_reason is None and self.needs_credit:
                self.state, self.is_counted = State.BLOCKED_ON_CREDIT, False
                self.call.wait_for_credit(self)
            elif self.stop_reason is None and not self.call.buffer.has_room():
                self._block_on_buffer()
            else:
                self.state = State.WAITING
            return self.state

    def _block_on_buffer(self) -> None:
        self.state = State.BLOCKED_ON_BUFFER
        self.call.blocked.append(self)

    def block_on_index(self) -> bool:
        """End a slice, because the index has to be opened. Returns False if the query was stopped instead."""
        with self.call.lock:
            self.state = State.WAITING if self.stop_reason is not None else State.BLOCKED_ON_INDEX
            return self.state is State.BLOCKED_ON_INDEX

    def begin(self, cursor: QueryCursor, lease: SnapshotLease) -> None:
        """Set the cursor and the snapshot of the query."""
        with self.call.lock:
            self._cursor, self._lease = cursor, lease
            if self.stop_reason is not None:
                cursor.cancel()

    @property
    def has_begun(self) -> bool:
        """Whether it has a cursor."""
        return self._cursor is not None

    def search(self, seconds: float) -> bool:
        """Search for about ``seconds`` and send the proven hits. Returns whether the query has ended."""
        cursor, options = self._cursor, self.options
        assert cursor is not None
        if self.is_stale:
            with self.call.lock:
                self.stop(results.SNAPSHOT_EXPIRED)
        if self.stop_reason is not None:
            return self.end(self.stop_reason)
        if not self.call.buffer.has_room():
            return False
        wanted = options.chunk_size
        if self._credit is not None:
            wanted = min(wanted, self._credit)
            if wanted == 0:
                return False
        start, last_sum = time.perf_counter(), b""
        ids, distances, sums = self._unsent
        if not len(ids):
            ids, distances = cursor.next(wanted, budget=self._budget(seconds, cursor), eager=self._sent == 0)
            sums = cursor.sums
        payloads: Sequence[bytes] | None = None
        if options.payloads:
            payloads = self._payloads(ids)
            fits = len(payloads)
            self._unsent = ids[fits:], distances[fits:], None if sums is None else sums[fits:]
            ids, distances = ids[:fits], distances[:fits]
        self._worked += time.perf_counter() - start
        if len(ids):
            self._sent += len(ids)
            if options.rerank is None:
                last_sum = b"" if sums is None else sums[len(ids) - 1].tobytes()
                self.after = float(distances[-1]), int(ids[-1]), last_sum
            with self.call.lock:
                if self._credit is not None:
                    self._credit -= len(ids)
        reason = self._finished(cursor)
        if reason is not None:
            return self.end(reason, ids, distances, payloads, last_sum=last_sum)
        if len(ids):
            self.call.send(results.chunk(self.id, ids, distances, self._bound(cursor), payloads, last_sum=last_sum))
        return False

    def _finished(self, cursor: QueryCursor) -> EndReason | None:
        """Return why the query ends after this slice, or None if it continues."""
        options = self.options
        if len(self._unsent[0]):
            return None
        if self._sent == options.k:
            return results.COMPLETE
        if cursor.exhausted:
            return results.EXHAUSTED
        if cursor.stop == "cancelled" and self.stop_reason is not None:
            return self.stop_reason
        if options.seconds is not None and self._worked >= options.seconds:
            return results.BUDGET
        if options.candidates is not None and cursor.stats.compared >= options.candidates:
            return results.BUDGET
        return None

    def _budget(self, seconds: float, cursor: QueryCursor) -> Budget:
        options, left = self.options, None
        if options.seconds is not None:
            seconds = max(min(seconds, options.seconds - self._worked), 1e-6)
        if options.candidates is not None:
            left = max(options.candidates - cursor.stats.compared, 1)
        return Budget(left, seconds)

    def _payloads(self, ids: NDArray[np.uint64]) -> Sequence[bytes]:
        """Return the payloads of the first ids, as many as fit into a chunk."""
        assert self._lease is not None
        payloads: list[bytes] = []
        size = 0
        while len(payloads) < len(ids) and size < PAYLOAD_BYTES:
            piece = self._lease.snapshot.payloads(ids[len(payloads) : len(payloads) + PAYLOADS_TOGETHER])
            payloads += piece
            size += sum(map(len, piece))
        return payloads

    def _bound(self, cursor: QueryCursor) -> float:
        """Return a lower bound on the distance of all items that have not been sent."""
        bound = cursor.lower_bound
        return min(float(self._unsent[1][0]), bound) if len(self._unsent[1]) else bound

    def fail(self, failure: Failure) -> bool:
        """End the query with an error. Returns True."""
        return self.end(results.FAILED, failure=failure)

    def end(
        self,
        reason: EndReason,
        ids: NDArray[np.uint64] = _NO_IDS,
        distances: NDArray[np.float64] = _NO_DISTANCES,
        payloads: Sequence[bytes] | None = None,
        failure: Failure | None = None,
        last_sum: bytes = b"",
    ) -> bool:
        """Send the last hits and the end. Returns True."""
        bound, stats, guess, exact = -np.inf, None, None, True
        with self.call.lock:
            cursor, self._cursor, self.beginning = self._cursor, None, None
            self.state = State.ENDED
            self.call.cursors.remove(self)
        if cursor is not None:
            with contextlib.closing(cursor):
                bound = self._bound(cursor)
                stats = cursor.stats if self.options.statistics else None
                exact = bool(getattr(cursor, "exact", True))
                if reason == results.BUDGET and self.options.k is not None:
                    guess = cursor.guess(min(self.options.k - self._sent, DEFAULT_CHUNK))
        self._lease = None
        finished = reason in (results.COMPLETE, results.EXHAUSTED)
        resume = None if finished else self.after
        end = End(self.id, reason, finished and exact, stats, self.elapsed, resume, failure, guess)
        self.call.send(results.chunk(self.id, ids, distances, bound, payloads, end, last_sum))
        return True
