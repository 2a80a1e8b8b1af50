"""A fair queue for the worker threads: the call that has used the least time runs next.

A *flow* is one client call; its queries are the *jobs*. A worker takes the flow that has used the least time and runs a
slice of its next job, so a call with an endless query gets the same share as one with a short query, and the short one
waits for at most a slice of each of the others.

    flows by time used        jobs of a flow
    ┌──────┬──────┬──────┐
    │ .3 s │ 1 s  │ 7 s  │    fresh:  not begun yet, first in first out
    └──┬───┴──────┴──────┘    begun:  have a cursor; they take turns
       ▼ a free worker

Jobs of one *group*, of any flows, are run together: the worker that takes one takes others that wait, in fair order, as
many as can be searched in about a slice. A flow that comes back after a pause continues from the time that the flow
served last has used, so idling saves nothing up.
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
"""Jobs that are run together."""
MAX_LOOKED_AT: Final = 128
"""Flows that are looked through for jobs of a group."""
MAX_OPEN: Final = 64
"""Jobs of a flow that have begun and hold memory, at once."""
GROUP_SLICES: Final = 6
"""Slices that jobs run together may take, while others wait ..."""
LONE_SLICES: Final = 12
"""... and while nobody does: fewer, larger answers cost less."""
INLINE_SECONDS: Final = 0.001
"""Jobs that take at most so long in all are run by the thread that dispatches them, if no worker is busy: handing them
over would take longer. With a single worker, a whole group may run there: it would not run any sooner elsewhere, and
two threads would only compete for the interpreter."""
MAX_ESTIMATES: Final = 1024


class Job(Protocol):
    """Work that is done in slices. One thread at a time runs it."""

    @property
    def flow(self) -> Flow:
        """The call that it belongs to."""

    @property
    def group(self) -> Hashable:
        """Jobs of equal groups can be run together; None: this one runs alone."""


J = TypeVar("J", bound=Job)
Run = Callable[[Sequence[J], float], Sequence[J]]
"""Runs a job of no group, or jobs of one group, and is given the seconds that they may take. Returns the jobs that have
more to do now: a job of no group, or those of a group that took too long. Jobs that wait for something are submitted
again by whoever wakes them. Must not raise."""


class Flow:
    """The jobs of one client call. Guarded by the scheduler's lock."""

    __slots__ = ("begun", "fresh", "open", "queued", "turn", "used")

    def __init__(self) -> None:
        """Start without jobs."""
        self.used = 0.0
        self.fresh: deque[Any] = deque()
        self.begun: deque[Any] = deque()
        self.open = 0
        """Jobs that have begun and hold memory."""
        self.queued = False
        self.turn = False
        """A begun job is next, if there is one."""

    def has_work(self) -> bool:
        """Return whether a worker can do something for the flow."""
        return bool(self.begun) or (bool(self.fresh) and self.open < MAX_OPEN)

    def next_is_fresh(self) -> bool:
        """Return whether the next job is one that has not begun. The two kinds take turns."""
        if not self.fresh or self.open >= MAX_OPEN:
            return False
        return not (self.begun and self.turn)


class ThroughputEstimate:
    """How long jobs of one group take, so that the right number of them is run together."""

    __slots__ = ("_last", "seconds")

    def __init__(self) -> None:
        """Start without knowledge: the first job is run alone."""
        self.seconds = math.inf
        self._last = 0

    def count_in(self, seconds: float) -> int:
        """Return how many jobs to run in about so many seconds; at most eight times as many as the last time."""
        return max(1, min(MAX_TOGETHER, 8 * self._last, int(seconds / self.seconds)))

    def add(self, seconds: float, count: int) -> None:
        """Learn from jobs that were run together."""
        self.seconds, self._last = max(seconds / count, 1e-9), count  # a coarse clock may see no time at all


class Turn(NamedTuple, Generic[J]):
    """What a thread runs next."""

    jobs: Sequence[J]
    seconds: float
    """That they may take."""
    estimate: ThroughputEstimate | None = None
    """Of their group."""


class Scheduler(Generic[J]):
    """Worker threads, and the flows that wait for them. Any thread may call its methods."""

    def __init__(
        self,
        threads: int,
        slice_seconds: float,
        run: Run[J],
        can_run_inline: Callable[[J], bool] = lambda job: True,
        request_dispatch: Callable[[], None] | None = None,
    ) -> None:
        """Start the workers.

        ``can_run_inline``: whether a job never has to wait, so that dispatching may run it.
        ``request_dispatch``: makes another thread call :meth:`dispatch` soon. A single worker then leaves short jobs to
        that thread; without it, a worker that is once awake would run everything until the queue is empty.
        """
        self._slice = slice_seconds
        self._request_dispatch = request_dispatch if threads == 1 else None
        self._run = run
        self._can_run_inline = can_run_inline
        self._inline_seconds = GROUP_SLICES * slice_seconds if threads == 1 else INLINE_SECONDS
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._heap: list[tuple[float, int, Flow]] = []
        self._ticket = itertools.count()
        self._now = 0.0  # the time used of the flow that was served last: where newcomers start
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
        """How many workers there are."""
        return len(self._workers)

    def submit(self, flow: Flow, jobs: Sequence[J]) -> None:
        """Take in jobs that have not begun. :meth:`dispatch` lets workers know."""
        with self._lock:
            flow.fresh.extend(jobs)
            self._enqueue(flow)

    def resume(self, job: J) -> None:
        """Take in a job that has begun, and waited for its client since."""
        with self._lock:
            job.flow.begun.append(job)
            self._enqueue(job.flow)
            if self._idle:
                self._work.notify()

    def count_open(self, flow: Flow, change: int) -> None:
        """Note that a begun job has let go of its memory (-1), so that a fresh one may begin, or needs it again (1)."""
        with self._lock:
            flow.open += change
            self._enqueue(flow)
            if self._idle and flow.queued:
                self._work.notify()

    def dispatch(self) -> bool:
        """Have submitted jobs run: by workers or, if no worker is busy, short ones here and now.

        Returns whether to call it again soon: a single worker was left asleep although there is more to do.
        """
        turn: Turn[J] | None = None
        with self._lock:
            if not self._busy and not self._closed and self._next_is_short():
                turn = self._take(self._inline_seconds)
                self._busy += 1
            again = turn is not None and len(self._workers) == 1
            if self._heap and self._idle and not again:  # it wakes the next one, if there is more to do
                self._work.notify()
        if turn is None:
            return False
        self._execute(turn)
        with self._lock:  # some of them may be left
            if self._heap and self._idle and not again:
                self._work.notify()
            return again and bool(self._heap)

    def _next_is_short(self) -> bool:
        """Return whether the next job is known to take a moment only. Called with the lock held."""
        flow = self._front()
        if flow is None or not flow.next_is_fresh():
            return False
        job = flow.fresh[0]
        estimate = self._estimates.get(job.group)
        return estimate is not None and estimate.seconds <= INLINE_SECONDS and self._can_run_inline(job)

    def close(self) -> None:
        """Stop the workers after the slices that they are running."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
        for worker in self._workers:
            worker.join()

    def _enqueue(self, flow: Flow) -> None:
        if not flow.queued and flow.has_work():
            flow.used = max(flow.used, self._now)
            flow.queued = True
            heapq.heappush(self._heap, (flow.used, next(self._ticket), flow))

    def _serve(self) -> None:
        while True:
            with self._lock:
                while not self._closed and not self._has_work_for_worker():
                    self._idle += 1
                    self._work.wait()
                    self._idle -= 1
                if self._closed:
                    return
                turn = self._take((GROUP_SLICES if len(self._heap) > 1 else LONE_SLICES) * self._slice)
                if turn is None:
                    continue
                self._busy += 1
                if self._heap and self._idle:  # each worker that finds more to do wakes the next
                    self._work.notify()
            self._execute(turn)
            del turn  # an idle worker must not keep the last queries, and their snapshots, alive

    def _has_work_for_worker(self) -> bool:
        """Return whether a worker should run what is next. Called with the lock held."""
        if not self._heap:
            return False
        if self._request_dispatch is None or not self._next_is_short():
            return True
        self._request_dispatch()
        return False

    def _take(self, seconds: float) -> Turn[J] | None:
        """Return what to run next: a group is chosen to take about so long. Called with the lock held."""
        flow = self._next_flow()
        if flow is None:
            return None
        is_fresh = flow.next_is_fresh()
        job = self._pop(flow, is_fresh)
        self._now = max(self._now, flow.used)
        group = job.group
        if group is None or not is_fresh:
            self._enqueue(flow)  # its other jobs may run meanwhile, on other workers
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
        """Add jobs of a group, of the flows that wait in fair order, until there are ``count``."""
        passed: list[Flow] = []
        share = -(-count // (len(self._heap) + 1))  # of each flow, so that none waits for another's batch
        current: Flow | None = flow
        while current is not None:
            taken = 1 if current is flow else 0
            while taken < share and len(jobs) < count and current.fresh and current.fresh[0].group == group:
                jobs.append(current.fresh.popleft())
                taken += 1
            passed.append(current)
            current = self._next_flow() if len(jobs) < count and len(passed) < MAX_LOOKED_AT else None
        for flow in passed:
            self._enqueue(flow)

    def _next_flow(self) -> Flow | None:
        """Take the flow that has used the least time off the heap."""
        flow = self._front()
        if flow is not None:
            heapq.heappop(self._heap)
            flow.queued = False
        return flow

    def _front(self) -> Flow | None:
        """Return the flow that has used the least time and has work; None: there is no such."""
        while self._heap:
            due, _, flow = self._heap[0]
            if due >= flow.used and flow.has_work():
                return flow
            heapq.heappop(self._heap)  # it was queued while another of its jobs was running
            flow.queued = False
            self._enqueue(flow)
        return None

    def _pop(self, flow: Flow, is_fresh: bool) -> J:
        """Take a flow's next job."""
        flow.turn = is_fresh
        job: J = flow.fresh.popleft() if is_fresh else flow.begun.popleft()
        if is_fresh and job.group is None:
            flow.open += 1
        return job

    def _execute(self, turn: Turn[J]) -> None:
        """Run jobs, and account for the time that they took."""
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
            for job in reversed(again):  # nobody has to be woken: this worker takes a job next
                if job.group is None:
                    job.flow.begun.append(job)
                else:
                    job.flow.fresh.appendleft(job)
                self._enqueue(job.flow)
