"""A fair queue for the worker threads: the client that has used the least time runs next.

A *client* has *flows*, one per call. The queries of a call are the *jobs*. A worker chooses the client that has used
the least time, then the flow of this client that has used the least time, and runs a slice of the flow's next job. So a
client with one short query waits for at most one slice of each other client, however many calls they have and however
long their queries are.

    clients by time used      flows of a client         jobs of a flow
    ┌──────┬──────┬──────┐    ┌──────┬──────┐
    │ .3 s │ 1 s  │ 7 s  │    │ .1 s │ .2 s │           fresh:  not begun yet, first in first out
    └──┬───┴──────┴──────┘    └──┬───┴──────┘           begun:  have a cursor; they take turns
       ▼ a free worker           ▼

Jobs of one *group* run together, even if they belong to different clients. The worker that takes a job of a group also
takes waiting jobs of the same group, in fair order, as many as fit into a few slices. A client or a flow that returns
after a pause starts level with the one that was served last, so it cannot save up time while idle.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

log = logging.getLogger("whamming.server")

MAX_TOGETHER: Final = 64
"""Maximum number of jobs in a group."""
MAX_LOOKED_AT: Final = 128
"""Maximum number of flows to search for jobs of a group."""
MAX_OPEN: Final = 64
"""Maximum number of jobs of a flow that have begun and hold memory."""
GROUP_SLICES: Final = 6
"""Target time of a group, in slices, if other flows wait. The maximum is the target plus the same number of slices."""
LONE_SLICES: Final = 12
"""Target time of a group, in slices, if no other flow waits. Larger groups need fewer messages, which costs less."""
INLINE_SECONDS: Final = 0.001
"""If no worker is busy, jobs that take at most this long in total run inline, in the thread that dispatches them.
Waking a worker would take longer. With a single worker, a whole group may run inline: it would not run sooner on the
worker, and two threads would only compete for the interpreter lock."""
MAX_ESTIMATES: Final = 1024


class Job(Protocol):
    """Work that is done in slices, by one thread at a time."""

    @property
    def flow(self) -> Flow:
        """The call that it belongs to."""

    @property
    def group(self) -> Hashable:
        """Jobs of equal groups can run together. None: the job runs alone."""


J = TypeVar("J", bound=Job)
Run = Callable[[Sequence[J], float], Sequence[J]]
"""Runs one job without a group, or jobs of one group, for at most the given seconds. Returns the jobs that have more to
do now. It does not return blocked jobs; the code that wakes such a job resubmits it. Must not raise."""


class ClientQueue:
    """The flows of one client that have work. Guarded by the scheduler's lock."""

    __slots__ = ("flows", "now", "queued", "used")

    def __init__(self) -> None:
        self.used = 0.0
        """Time used by all flows together."""
        self.now = 0.0
        """Time used by the flow that was served last; new flows start here."""
        self.flows: list[tuple[float, int, Flow]] = []
        self.queued = False


class Flow:
    """The jobs of one call. Guarded by the scheduler's lock."""

    __slots__ = ("begun", "client", "fresh", "open", "queued", "turn", "used")

    def __init__(self, client: ClientQueue | None = None) -> None:
        """Without a ``client``, the flow gets a client of its own."""
        self.client = client or ClientQueue()
        self.used = 0.0
        self.fresh: deque[Any] = deque()
        self.begun: deque[Any] = deque()
        self.open = 0
        """Number of jobs that have begun and hold memory."""
        self.queued = False
        self.turn = False
        """Whether it is the turn of the begun jobs."""

    def has_work(self) -> bool:
        """Return whether the flow has a job that can run."""
        return bool(self.begun) or (bool(self.fresh) and self.open < MAX_OPEN)

    def next_is_fresh(self) -> bool:
        """Return whether the next job is a fresh one. Fresh and begun jobs take turns."""
        if not self.fresh or self.open >= MAX_OPEN:
            return False
        return not (self.begun and self.turn)


class ThroughputEstimate:
    """Estimates how long jobs of one group take, to choose the size of a group."""

    __slots__ = ("_last", "seconds")

    def __init__(self) -> None:
        """Begin without an estimate, so the first job runs alone."""
        self.seconds = math.inf
        self._last = 0

    def count_in(self, seconds: float) -> int:
        """Return how many jobs to run in about ``seconds``, at most eight times as many as last time."""
        return max(1, min(MAX_TOGETHER, 8 * self._last, int(seconds / self.seconds)))

    def add(self, seconds: float, count: int) -> None:
        """Update the estimate after ``count`` jobs took ``seconds`` in total."""
        self.seconds, self._last = max(seconds / count, 1e-9), count  # not 0, although the clock may be coarse


class Turn(NamedTuple, Generic[J]):
    """The jobs that a thread runs next."""

    jobs: Sequence[J]
    seconds: float
    """Maximum time for all of them."""
    estimate: ThroughputEstimate | None = None
    """The estimate of their group. None: the job has no group."""


class Scheduler(Generic[J]):
    """Worker threads, and the queue of flows that they serve. Any thread may call its methods."""

    def __init__(
        self,
        threads: int,
        slice_seconds: float,
        run: Run[J],
        can_run_inline: Callable[[J], bool] = lambda job: True,
        request_dispatch: Callable[[], None] | None = None,
    ) -> None:
        """Start the workers.

        ``can_run_inline``: returns whether a job never blocks, so that :meth:`dispatch` may run it.
        ``request_dispatch``: makes another thread call :meth:`dispatch` soon. A single worker then leaves short jobs to
        that thread. Otherwise the worker, once awake, would run all jobs until the queue is empty.
        """
        self._slice = slice_seconds
        self._request_dispatch = request_dispatch if threads == 1 else None
        self._run = run
        self._can_run_inline = can_run_inline
        self._inline_seconds = GROUP_SLICES * slice_seconds if threads == 1 else INLINE_SECONDS
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._heap: list[tuple[float, int, ClientQueue]] = []
        self._ticket = itertools.count()
        self._now = 0.0  # time used by the client that was served last; new clients start here
        self._busy = 0
        self._idle = 0
        self._closed = False
        self._estimates: dict[Hashable, ThroughputEstimate] = {}
        self._workers = [
            threading.Thread(target=self._serve, name=f"whamming-search-{i}", daemon=True) for i in range(threads)
        ]
        for worker in self._workers:
            worker.start()

    @property
    def threads(self) -> int:
        """The number of workers."""
        return len(self._workers)

    def submit(self, flow: Flow, jobs: Sequence[J]) -> None:
        """Queue new jobs. Call :meth:`dispatch` afterwards to run them."""
        with self._lock:
            flow.fresh.extend(jobs)
            self._enqueue(flow)

    def withdraw(self, flow: Flow) -> Sequence[J]:
        """Remove the fresh jobs of a flow from the queue, and return them."""
        with self._lock:
            jobs, flow.fresh = flow.fresh, deque()
        return jobs

    def resume(self, job: J) -> None:
        """Queue a job that was blocked."""
        with self._lock:
            job.flow.begun.append(job)
            self._enqueue(job.flow)
            if self._idle:
                self._work.notify()

    def count_open(self, flow: Flow, change: int) -> None:
        """Change the number of open jobs of a flow. If it falls, a fresh job may begin."""
        with self._lock:
            flow.open += change
            self._enqueue(flow)
            if self._idle and flow.queued:
                self._work.notify()

    def dispatch(self) -> bool:
        """Run queued jobs: short ones inline if no worker is busy, others on workers.

        Returns True if it must be called again soon: there is more to do, and the single worker has not been woken.
        """
        turn: Turn[J] | None = None
        with self._lock:
            if not self._busy and not self._closed and self._next_is_short():
                turn = self._take(self._inline_seconds)
                self._busy += 1
            again = turn is not None and len(self._workers) == 1
            if self._heap and self._idle and not again:  # the woken worker wakes the next one if there is more to do
                self._work.notify()
        if turn is None:
            return False
        self._execute(turn)
        with self._lock:  # some jobs may be left
            if self._heap and self._idle and not again:
                self._work.notify()
            return again and bool(self._heap)

    def _next_is_short(self) -> bool:
        """Return whether the next job is known to be short. Called with the lock held."""
        flow = self._front()
        if flow is None or not flow.next_is_fresh():
            return False
        job = flow.fresh[0]
        estimate = self._estimates.get(job.group)
        return estimate is not None and estimate.seconds <= INLINE_SECONDS and self._can_run_inline(job)

    def close(self) -> None:
        """Stop the workers after their current slices."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
        for worker in self._workers:
            worker.join()

    def _enqueue(self, flow: Flow) -> None:
        client = flow.client
        if not flow.queued and flow.has_work():
            flow.used = max(flow.used, client.now)
            flow.queued = True
            heapq.heappush(client.flows, (flow.used, next(self._ticket), flow))
        if not client.queued and client.flows:
            client.used = max(client.used, self._now)
            client.queued = True
            heapq.heappush(self._heap, (client.used, next(self._ticket), client))

    def _serve(self) -> None:
        while True:
            with self._lock:
                while not self._closed and not self._has_work_for_worker():
                    self._idle += 1
                    self._work.wait()
                    self._idle -= 1
                if self._closed:
                    return
                is_lone = len(self._heap) == len(self._heap[0][2].flows) == 1
                turn = self._take((LONE_SLICES if is_lone else GROUP_SLICES) * self._slice)
                if turn is None:
                    continue
                self._busy += 1
                if self._heap and self._idle:  # each worker that finds more to do wakes the next
                    self._work.notify()
            self._execute(turn)
            del turn  # an idle worker must not keep the last queries, and their snapshots, alive

    def _has_work_for_worker(self) -> bool:
        """Return whether a worker should run the next job. Called with the lock held."""
        if self._front() is None:  # unlike the heap, it does not count flows whose jobs were withdrawn
            return False
        if self._request_dispatch is None or not self._next_is_short():
            return True
        self._request_dispatch()
        return False

    def _take(self, seconds: float) -> Turn[J] | None:
        """Return the jobs to run next, chosen to take about ``seconds``. Called with the lock held."""
        client = self._front_client()
        if client is None:
            return None
        flow = self._next_flow(client)
        assert flow is not None
        if not client.flows:
            self._pop_client()
        is_fresh = flow.next_is_fresh()
        job = self._pop(flow, is_fresh)
        self._now = max(self._now, client.used)
        client.now = max(client.now, flow.used)
        group = job.group
        if group is None or not is_fresh:
            self._enqueue(flow)  # other workers may run its other jobs meanwhile
            return Turn([job], self._slice)
        estimate = self._estimates.get(group)
        if estimate is None:
            if len(self._estimates) >= MAX_ESTIMATES:
                self._estimates.clear()
            estimate = self._estimates[group] = ThroughputEstimate()
        jobs = [job]
        self._gather(flow, group, jobs, estimate.count_in(seconds))
        return Turn(jobs, seconds + GROUP_SLICES * self._slice, estimate)  # the estimate may be too low

    def _gather(self, flow: Flow, group: Hashable, jobs: list[J], count: int) -> None:
        """Add jobs of a group until there are ``count``: from other flows that wait, in fair order, and from this one.

        Other clients add at most their share. A flow is skipped if its queue is longer than its share. Such a flow soon
        has a turn of its own, and then gets one large answer, which costs less than two small ones.
        """
        own, passed, others = flow.client, [flow], list[J]()
        if own.queued:
            self._pop_client()  # its other flows come last
        share = -(-count // (len(self._heap) + 1))
        while len(others) + 1 < count and len(passed) < MAX_LOOKED_AT and (client := self._front_client()) is not None:
            self._pop_client()
            self._gather_from(client, group, others, min(len(others) + share, count - 1), passed)
        self._gather_from(own, group, others, count - 1, passed)
        _move(flow.fresh, jobs, group, count - len(others))
        jobs += others
        for waiting in passed:
            self._enqueue(waiting)

    def _gather_from(self, client: ClientQueue, group: Hashable, jobs: list[J], count: int, passed: list[Flow]) -> None:
        """Add jobs of one client until there are ``count``. Pops its flows and appends them to ``passed``."""
        share = -(-(count - len(jobs)) // (len(client.flows) + 1))
        while len(jobs) < count and len(passed) < MAX_LOOKED_AT and (flow := self._next_flow(client)) is not None:
            passed.append(flow)
            if len(flow.fresh) <= share:
                _move(flow.fresh, jobs, group, count)

    def _front(self) -> Flow | None:
        """Return the flow that runs next, or None."""
        client = self._front_client()
        return None if client is None else self._front_flow(client)

    def _front_client(self) -> ClientQueue | None:
        """Return the client that has used the least time, of those that have work, or None."""
        while self._heap:
            due, _, client = self._heap[0]
            if self._front_flow(client) is None:
                self._pop_client()
            elif due < client.used:  # outdated: the client has used more time since this entry was added
                heapq.heapreplace(self._heap, (client.used, next(self._ticket), client))
            else:
                return client
        return None

    def _pop_client(self) -> None:
        """Remove the first client from the queue."""
        heapq.heappop(self._heap)[2].queued = False

    def _front_flow(self, client: ClientQueue) -> Flow | None:
        """Return the flow that has used the least time, of the client's flows that have work, or None."""
        while client.flows:
            due, _, flow = client.flows[0]
            if not flow.has_work():
                heapq.heappop(client.flows)
                flow.queued = False
            elif due < flow.used:
                heapq.heapreplace(client.flows, (flow.used, next(self._ticket), flow))
            else:
                return flow
        return None

    def _next_flow(self, client: ClientQueue) -> Flow | None:
        """Pop the flow that has used the least time, of the client's flows that have work."""
        flow = self._front_flow(client)
        if flow is not None:
            heapq.heappop(client.flows)
            flow.queued = False
        return flow

    def _pop(self, flow: Flow, is_fresh: bool) -> J:
        """Pop the next job of a flow."""
        flow.turn = is_fresh
        job: J = flow.fresh.popleft() if is_fresh else flow.begun.popleft()
        if is_fresh and job.group is None:
            flow.open += 1
        return job

    def _execute(self, turn: Turn[J]) -> None:
        """Run jobs, and charge the time to their flows."""
        jobs, seconds, estimate = turn
        start = time.perf_counter()
        try:
            again = self._run(jobs, seconds)
        except BaseException:
            log.exception("a query failed")
            again = ()
        used = time.perf_counter() - start
        if estimate is not None:
            estimate.add(used, max(len(jobs) - len(again), 1))
        with self._lock:
            self._busy -= 1
            share = used / len(jobs)
            for job in jobs:
                job.flow.used += share
                job.flow.client.used += share
            for job in reversed(again):  # no need to wake a worker: this one takes a job next
                if job.group is None:
                    job.flow.begun.append(job)
                else:
                    job.flow.fresh.appendleft(job)
                self._enqueue(job.flow)


def _move(fresh: deque[Any], jobs: list[J], group: Hashable, count: int) -> None:
    """Move jobs of a group from the front of a queue, until there are ``count``."""
    while len(jobs) < count and fresh and fresh[0].group == group:
        jobs.append(fresh.popleft())
